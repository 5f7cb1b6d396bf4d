"""Cost tables: how long each step of a round takes. Block policies and virtual time know nothing else about time.

A table is measured once (on the machine named in its file, or on this one by ``python -m spec.measure_costs``) and
supplied, so that a block policy stays a pure function and a reported saving can be computed again anywhere.
"""

from collections.abc import Mapping
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field

from spec.errors import UserError
from spec.values import checked

Step = Literal["decode", "verify", "propose", "snapshot", "commit", "replay_token", "replay_batch"]
"""What a round is made of, as it is paid for; prompts are not."""


def on_curve(points: Mapping[int, float], at: int) -> float:
    """Interpolates a measured curve linearly; beyond the last point it continues the last segment if that one rises.

    Args:
        points: value by abscissa, at least one.
        at: where; before the first point its value holds.
    """
    known = sorted(points.items())
    if at <= known[0][0] or len(known) == 1:
        return known[0][1]
    for (left, low), (right, high) in pairwise(known):
        if at <= right:
            return low + (high - low) * (at - left) / (right - left)
    (left, low), (right, high) = known[-2:]
    return high + max(0.0, high - low) * (at - right) / (right - left)


@checked("costs")
class CostTable:
    """Milliseconds of every step, for one machine, target and drafter.

    Attributes:
        name: of the machine, as in reports.
        passes: one target pass by its rows; 1 is a plain decode and must be there. Between measured widths the cost is
            interpolated, beyond the last it goes on as between the last two.
        propose: one call of the drafter by the tokens it proposes; 0 is a call that proposes nothing.
        snapshot: saving the target's state before a verify pass.
        commit: making a verified prefix permanent, a verify pass.
        replay_token: running one accepted token again, the restore included; None is a plain decode.
        one_row_verify: a verify pass over a single row, on engines that take their batch kernels for it; None is a
            plain decode.

    Raises:
        UserError: a cost is missing or negative, or a number of rows is below its least.
    """

    name: str
    passes: Annotated[dict[int, float], Field(description="give milliseconds by a whole number of rows")]
    propose: Annotated[dict[int, float], Field(description="give milliseconds by a whole number of tokens")]
    snapshot: Annotated[float, Field(ge=0)] = 0.0
    commit: Annotated[float, Field(ge=0)] = 0.0
    replay_token: Annotated[float | None, Field(ge=0)] = None
    one_row_verify: Annotated[float | None, Field(ge=0)] = None

    def __post_init__(self) -> None:
        for name, least in (("passes", 1), ("propose", 0)):
            curve = getattr(self, name)
            if not curve or min(curve) < least or not all(value >= 0 for value in curve.values()):
                raise UserError(f"costs.{name} must hold costs of 0 ms or more, for {least} or more, got {curve}")
        if 1 not in self.passes:
            raise UserError(f"costs.passes needs the cost of 1 row, a plain decode, got rows {list(self.passes)}")

    @classmethod
    def load(cls, path: str) -> "CostTable":
        """Reads the table that ``python -m spec.measure_costs`` wrote.

        Args:
            path: YAML file; relative to the working folder.

        Raises:
            UserError: it is missing or no cost table.
        """
        try:
            values = yaml.safe_load(Path(path).expanduser().read_text(encoding="utf-8"))
            return cls(**values)
        except OSError as error:
            raise UserError(
                f"costs: {path} cannot be read ({error.strerror}): measure this machine first, with "
                "python -m spec.measure_costs"
            ) from error
        except (yaml.YAMLError, TypeError) as error:
            raise UserError(f"costs: {path} holds no cost table: {error}") from error

    def save(self, path: Path) -> None:
        """Writes the table for `load`; the folder is made if needed."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(self.to_json(), sort_keys=False), encoding="utf-8")

    def to_json(self) -> dict[str, Any]:
        """The fields as built-in types."""
        return asdict(self)

    def pass_ms(self, rows: int) -> float:
        """One target pass over ``rows`` tokens, 1 or more; ``pass_ms(1)`` is a plain decode."""
        return on_curve(self.passes, rows)

    def verify_ms(self, rows: int) -> float:
        """One verify pass over ``rows`` tokens, 1 or more; a single row may have a price of its own."""
        return self.one_row_verify if rows == 1 and self.one_row_verify is not None else self.pass_ms(rows)

    def propose_ms(self, gamma: int) -> float:
        """One call of the drafter that proposes ``gamma`` tokens, 0 or more."""
        return on_curve(self.propose, gamma)

    def step_ms(self, step: Step, units: int = 1) -> float:
        """One step of a round.

        Args:
            step: ``decode`` and ``replay_batch`` are passes over ``units`` tokens, ``verify`` one over as many rows,
                ``propose`` a call of the drafter that proposes as many, ``replay_token`` a decode of each of them.
            units: tokens or rows; not looked at for a snapshot or a commit.
        """
        match step:
            case "verify":
                return self.verify_ms(units)
            case "propose":
                return self.propose_ms(units)
            case "snapshot":
                return self.snapshot
            case "commit":
                return self.commit
            case "replay_token":
                return units * (self.pass_ms(1) if self.replay_token is None else self.replay_token)
            case _:
                return self.pass_ms(units) if units else 0.0
