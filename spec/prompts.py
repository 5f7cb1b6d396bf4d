"""Prompts from JSONL files, and their token ids."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, SkipValidation

from spec.errors import UserError
from spec.values import checked_arguments

CONFIGS = Path(__file__).parents[1] / "configs"


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """One prompt.

    Attributes:
        prompt_id: unique within a run.
        prompt_class: what results are grouped by.
        turns: a conversation, the user first and last, by turns; a plain text has one.
        is_chat: whether the turns go through the tokenizer's chat template.
    """

    prompt_id: str
    prompt_class: str
    turns: tuple[str, ...]
    is_chat: bool


@checked_arguments("prompts")
def load_prompts(
    paths: SkipValidation[Sequence[str]], *, name: str, limit: Annotated[int | None, Field(ge=1)] = None
) -> list[Prompt]:
    """Reads prompt files. A row holds ``prompt`` (a text) or ``turns`` (a list of texts), and perhaps ``id`` and
    ``class``.

    Args:
        paths: JSONL files; a relative one is looked for in the working folder, then in the library's ``configs``.
        name: class of rows that name none, if they come from one file; otherwise the file's name is.
        limit: most rows of each file, 1 or more; None takes all.

    Raises:
        UserError: a file is missing or broken, a prompt is empty, two have the same id, or nothing is left.
    """
    prompts: list[Prompt] = []
    for path in map(_find, paths):
        default_class = name if len(paths) == 1 else path.stem
        rows = [row for row in enumerate(_read(path), start=1) if row[1].strip()]
        prompts += [_parse(path, number, text, default_class) for number, text in rows[:limit]]
    if not prompts:
        raise UserError(f"no prompts in {', '.join(map(str, paths)) or 'an empty list of files'}")
    ids = [prompt.prompt_id for prompt in prompts]
    twice = sorted({one for one in ids if ids.count(one) > 1})
    if twice:
        raise UserError(f"prompt ids must differ, got more than one of {', '.join(twice)}")
    return prompts


def encode(prompt: Prompt, tokenizer: Any) -> list[int]:
    """Token ids of a prompt, as mlx-lm's ``stream_generate`` makes them.

    Args:
        prompt: the prompt.
        tokenizer: mlx-lm's wrapper.

    Raises:
        UserError: a conversation meets a tokenizer without a chat template.
    """
    if not prompt.is_chat:
        return encode_text(prompt.turns[0], tokenizer)
    if not tokenizer.has_chat_template:
        raise UserError(
            f'prompt {prompt.prompt_id} has "turns", the tokenizer has no chat template: give the text as "prompt"'
        )
    roles = ["assistant" if index % 2 else "user" for index in range(len(prompt.turns))]
    messages = [{"role": role, "content": text} for role, text in zip(roles, prompt.turns, strict=True)]
    return encode_messages(messages, tokenizer)


def encode_text(text: str, tokenizer: Any) -> list[int]:
    """Token ids of a plain text, with exactly one beginning-of-sequence token if the tokenizer has one."""
    has_start = tokenizer.bos_token is not None and text.startswith(tokenizer.bos_token)
    return tokenizer.encode(text, add_special_tokens=not has_start)


def encode_messages(messages: Sequence[Mapping[str, str]], tokenizer: Any) -> list[int]:
    """Token ids of a chat, with the prompt for the assistant's next message.

    Args:
        messages: each with ``role`` and ``content``.
        tokenizer: mlx-lm's wrapper.

    Raises:
        UserError: the tokenizer has no chat template.
    """
    if not tokenizer.has_chat_template:
        raise UserError("the tokenizer has no chat template: give the prompt as a text")
    return tokenizer.apply_chat_template(list(messages), add_generation_prompt=True)


def _find(path: str) -> Path:
    places = [Path(path).expanduser(), CONFIGS / path]
    for place in places:
        if place.is_file():
            return place
    raise UserError(f"the prompt file {path} does not exist: looked for {' and '.join(map(str, places))}")


def _read(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"the prompt file {path} cannot be read: {error}") from error


def _parse(path: Path, number: int, text: str, default_class: str) -> Prompt:
    where = f"{path}, line {number}"
    try:
        row = json.loads(text)
    except ValueError as error:
        raise UserError(f"{where} is not valid JSON: {error}") from error
    if not isinstance(row, dict) or ("prompt" in row) == ("turns" in row):
        raise UserError(f'{where}: wanted an object with either "prompt" or "turns"')
    turns = row["turns"] if "turns" in row else [row["prompt"]]
    if not isinstance(turns, list) or len(turns) % 2 == 0 or not all(isinstance(turn, str) for turn in turns):
        raise UserError(
            f'{where}: "prompt" must be a text, "turns" an odd number of texts (user, assistant, ..., user)'
        )
    if not all(turn.strip() for turn in turns):
        raise UserError(f"{where}: the prompt is empty")
    prompt_class = str(row.get("class", default_class))
    return Prompt(
        prompt_id=str(row.get("id", f"{prompt_class}-{number}")),
        prompt_class=prompt_class,
        turns=tuple(turns),
        is_chat="turns" in row,
    )
