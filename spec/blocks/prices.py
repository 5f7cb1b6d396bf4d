"""What passes and proposals cost, as supplied to block policies, whose decisions stay pure."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from spec.errors import UserError
from spec.rounds import Round


class Costs(Protocol):
    """A cost table in milliseconds; ``spec.measure`` has one, ``configs/costs`` names several."""

    def pass_ms(self, rows: int) -> float:
        """A target pass over so many rows; one row is a plain decode."""

    def propose_ms(self, gamma: int) -> float:
        """A call of the drafter that proposes so many tokens; 0 is a call that ends with none."""


@dataclass(frozen=True, kw_only=True)
class Prices:
    """A cost table read out for all blocks up to gamma.

    Attributes:
        passes: milliseconds of a target pass by rows, 0..gamma + 1; none for 0.
        proposals: milliseconds of a call of the drafter by the tokens it proposes, 0..gamma.
    """

    passes: tuple[float, ...]
    proposals: tuple[float, ...]

    @classmethod
    def read(cls, costs: Costs | None, gamma: int, policy: str) -> "Prices":
        """Reads a table and checks it.

        Args:
            costs: the table.
            gamma: the longest block.
            policy: the policy's name, for messages.

        Raises:
            UserError: there is no table, or a pass is not dearer than nothing, or a proposal cheaper.
        """
        if not all(callable(getattr(costs, name, None)) for name in ("pass_ms", "propose_ms")):
            raise UserError(
                f"block={policy} decides by supplied costs, got {costs!r}: choose a table with costs=..., or pass an "
                "object with pass_ms(rows) and propose_ms(gamma)"
            )
        return cls(
            passes=(0.0, *(_price(costs.pass_ms, "pass_ms", rows, False) for rows in range(1, gamma + 2))),
            proposals=tuple(_price(costs.propose_ms, "propose_ms", count, True) for count in range(gamma + 1)),
        )

    @property
    def decode(self) -> float:
        """Milliseconds of a plain decode."""
        return self.passes[1]

    @property
    def worst(self) -> float:
        """Milliseconds that one round can lose against plain decoding, replay of all it accepted included."""
        return max(self.proposals) + max(self.passes)

    def saved(self, finished: Round) -> float:
        """Milliseconds of plain decoding that accepted drafts made needless (ds4's ``saved``)."""
        return finished.accepted * self.decode

    def extra(self, finished: Round) -> float:
        """Milliseconds that a round costs on top of the plain decode of its anchor.

        Proposal, verify pass and replay; a pass that the anchor rides in has saved its decode. A replayed token is a
        plain decode. A drafter that was asked and proposed nothing has cost that call; one that was not asked, nothing.
        What little snapshots and commits cost has no price here.

        Args:
            finished: the round, of any loop: it says what passes were made.
        """
        if finished.gamma == 0:
            return 0.0
        if not finished.proposed:
            return self.proposals[finished.gamma if finished.outcome == "invalid" else 0]
        passes = self.passes[finished.verify_rows]
        if finished.verify_rows and not finished.decoded:
            passes -= self.decode
        return self.proposals[len(finished.proposed)] + passes + finished.replayed_tokens * self.decode


def _price(cost: Callable[[int], float], name: str, count: int, may_be_free: bool) -> float:
    value: Any = cost(count)
    is_number = isinstance(value, int | float) and math.isfinite(value)
    if not is_number or value < 0 or (value == 0 and not may_be_free):
        wanted = "0 ms or more" if may_be_free else "above 0 ms"
        raise UserError(f"costs: {name}({count}) must be {wanted}, got {value!r}")
    return float(value)
