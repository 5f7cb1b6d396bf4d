"""What the steps of a round cost, as a table: the only thing that a decision or a virtual clock may know of time.

A table is measured once (on the machine named in its file, or on this one by ``python -m spec.measure_costs``)
and supplied, so that a block policy stays a pure function and a reported saving can be computed again anywhere.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from spec.errors import UserError
from spec.protocols import ReplayKind


def on_curve(points: Mapping[int, float], at: int) -> float:
    """A measured curve at any point: straight between neighbors, along the last stretch (if it rises) beyond it.

    Args:
        points: value by abscissa, in rising order, at least one.
        at: where; before the first point its value holds.
    """
    known = list(points.items())
    if at <= known[0][0] or len(known) == 1:
        return known[0][1]
    for (left, low), (right, high) in pairwise(known):
        if at <= right:
            return low + (high - low) * (at - left) / (right - left)
    (left, low), (right, high) = known[-2:]
    return high + max(0.0, high - low) * (at - right) / (right - left)


@dataclass(frozen=True, kw_only=True)
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
    passes: Mapping[int, float]
    propose: Mapping[int, float]
    snapshot: float = 0.0
    commit: float = 0.0
    replay_token: float | None = None
    one_row_verify: float | None = None

    def __post_init__(self) -> None:
        for curve, least in (("passes", 1), ("propose", 0)):
            object.__setattr__(self, curve, _checked(f"costs.{curve}", getattr(self, curve), least))
        if 1 not in self.passes:
            raise UserError(f"costs.passes needs the cost of 1 row, a plain decode, got rows {list(self.passes)}")
        for name in ("snapshot", "commit", "replay_token", "one_row_verify"):
            value = getattr(self, name)
            if value is not None and not value >= 0:
                raise UserError(f"costs.{name} must be 0 ms or more, got {value}")

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
        """The fields, in builtin types."""
        return asdict(self)

    def pass_ms(self, rows: int) -> float:
        """One target pass over ``rows`` tokens, 1 or more; ``pass_ms(1)`` is a plain decode."""
        return on_curve(self.passes, rows)

    def verify_ms(self, rows: int) -> float:
        """One verify pass over ``rows`` tokens, 1 or more: as any pass, but for an engine's price of a single row."""
        return self.one_row_verify if rows == 1 and self.one_row_verify is not None else self.pass_ms(rows)

    def propose_ms(self, gamma: int) -> float:
        """One call of the drafter that proposes ``gamma`` tokens, 0 or more."""
        return on_curve(self.propose, gamma)

    @property
    def snapshot_ms(self) -> float:
        """Saving the target's state once."""
        return self.snapshot

    @property
    def commit_ms(self) -> float:
        """Committing once."""
        return self.commit

    def replay_ms(self, tokens: int, kind: ReplayKind) -> float:
        """Running ``tokens`` accepted tokens again, one decode each or all in one pass; 0 tokens cost nothing."""
        if tokens == 0:
            return 0.0
        if kind == "batch":
            return self.pass_ms(tokens)
        return tokens * (self.pass_ms(1) if self.replay_token is None else self.replay_token)


def _checked(name: str, curve: Mapping[int, float], least: int) -> dict[int, float]:
    try:
        points = sorted((int(at), float(value)) for at, value in curve.items())
    except (AttributeError, TypeError, ValueError) as error:
        raise UserError(f"{name} must give milliseconds by a whole number, got {curve!r}") from error
    if not points or points[0][0] < least or not all(value >= 0 for _, value in points):
        raise UserError(f"{name} must hold costs of 0 ms or more, for {least} or more, got {dict(points)}")
    return dict(points)
