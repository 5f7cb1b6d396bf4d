"""Validation of values that users give: a field's annotation says what is allowed, and the message follows from it."""

import functools
from collections.abc import Callable
from types import UnionType
from typing import Any, TypeVar, dataclass_transform, get_args, get_type_hints

import pydantic
import pydantic.dataclasses
from pydantic import ConfigDict, ValidationError
from pydantic.fields import FieldInfo

from spec.errors import UserError

Made = TypeVar("Made")
CONFIG = ConfigDict(strict=True, arbitrary_types_allowed=True, extra="forbid")
KINDS = {
    "int_type": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "a text",
    "dict_type": "a mapping",
}


@dataclass_transform(frozen_default=True, kw_only_default=True)
def checked(role: str) -> Callable[[type[Made]], type[Made]]:
    """Makes a class a frozen, keyword-only dataclass whose values are checked when an instance is made.

    Types are strict: 1.0 and true are no whole numbers. Bounds stand in the annotation, as
    ``gamma: Annotated[int, Field(ge=1, description="a remedy")]``; what depends on several fields is checked in
    ``__post_init__``, which raises `UserError` itself.

    Args:
        role: the configuration group of the values, which begins their names in messages; "" for top-level keys.

    Returns:
        A class decorator; instances raise `UserError` naming key, wanted, got and remedy.
    """

    def decorate(cls: type[Made]) -> type[Made]:
        made = pydantic.dataclasses.dataclass(cls, frozen=True, kw_only=True, config=CONFIG)
        build = made.__init__

        @functools.wraps(build)
        def init(self: Any, **values: Any) -> None:
            try:
                build(self, **values)
            except ValidationError as error:
                raise _first(role, made, error) from None

        made.__init__ = init
        return made

    return decorate


def checked_arguments(role: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Checks the arguments of a function, for example the ``__init__`` of a part with state, as `checked` does."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        validated = pydantic.validate_call(function, config=ConfigDict(strict=True, arbitrary_types_allowed=True))

        @functools.wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            try:
                return validated(*arguments, **named)
            except ValidationError as error:
                raise _first(role, function, error) from None

        return call

    return decorate


def _first(role: str, hinted: Any, error: ValidationError) -> UserError:
    """The first validation error in this library's words."""
    first = error.errors()[0]
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, UserError):
        return cause
    name = str(first["loc"][0]) if first["loc"] else ""
    if first["type"] == "unexpected_keyword_argument":
        return UserError(f"{role or 'configuration'}: unexpected keyword argument {name!r}")
    key = ".".join(part for part in (role, name) if part)
    if first["type"] in ("missing", "missing_keyword_only_argument"):
        return UserError(f"{key} is missing: it has no default")
    hint = get_type_hints(hinted, include_extras=True).get(name)
    fields = [item for item in getattr(hint, "__metadata__", ()) if isinstance(item, FieldInfo)]
    if first["type"] == "literal_error":
        wanted = first["ctx"]["expected"].replace("'", "")
    else:
        wanted = _wanted(hint, fields) or KINDS.get(first["type"]) or first["msg"]
    remedy = next((f": {field.description}" for field in fields if field.description), "")
    return UserError(f"{key} must be {wanted}, got {first['input']!r}{remedy}")


def _wanted(hint: Any, fields: list[FieldInfo]) -> str:
    """What an annotation allows, for example "a whole number of 1 or more"; empty for other types than numbers."""
    base = getattr(hint, "__origin__", hint)
    kind = {int: "a whole number", float: "a number"}.get(_not_none(base), "")
    bounds = {
        name: value
        for field in fields
        for item in field.metadata
        for name in ("ge", "gt", "le", "lt", "allow_inf_nan")
        if (value := getattr(item, name, None)) is not None
    }
    if not kind:
        return ""
    if {"ge", "le"} <= bounds.keys():
        return f"{kind} in {bounds['ge']:g}..{bounds['le']:g}"
    if "ge" in bounds:
        return f"{kind} of {bounds['ge']:g} or more"
    if "gt" in bounds:
        return f"{kind} above {bounds['gt']:g}"
    return f"a finite {kind.split(' ', 1)[1]}" if bounds.get("allow_inf_nan") is False else kind


def _not_none(hint: Any) -> Any:
    """X of an annotation ``X | None``; any other annotation itself."""
    kinds = [kind for kind in get_args(hint) if kind is not type(None)]
    return kinds[0] if isinstance(hint, UnionType) and len(kinds) == 1 else hint
