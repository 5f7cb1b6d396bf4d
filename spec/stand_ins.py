"""Stand-ins for a simulation: a target, a drafter and a block policy that play a recording back to the real loop."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from spec.drafters import NoneDrafter
from spec.protocols import BlockPlan, History, Proposal, Round, TargetPass
from spec.recording import Cycle

WRONG, RIGHT, VOCABULARY, FOREIGN = 0, 1, 2, 2


class StandInTarget:
    """Wants the same token everywhere, so that a draft is right or wrong as the recording has it.

    Args:
        max_rollback: tokens that can be taken back.
    """

    vocab_size = VOCABULARY
    context = sys.maxsize

    def __init__(self, max_rollback: int) -> None:
        self.max_rollback = max_rollback
        self.offset = 0

    def reset(self) -> None:
        """Forgets the sequence."""
        self.offset = 0

    def prefill(self, tokens: Sequence[int]) -> None:
        """Counts tokens."""
        self.offset += len(tokens)

    def forward(self, tokens: Sequence[int]) -> TargetPass:
        """Counts tokens, and wants `RIGHT` after each."""
        self.offset += len(tokens)
        row = mx.array([[0.0, 1.0]])
        return TargetPass(logits=mx.repeat(row, len(tokens), axis=0), features=None)

    def verify(self, tokens: Sequence[int]) -> TargetPass:
        """As `forward`."""
        return self.forward(tokens)

    def trim(self, count: int) -> None:
        """Takes tokens back."""
        self.offset -= count

    def rewind(self, offset: int) -> None:
        """Returns to an earlier offset."""
        self.offset = offset

    def snapshot(self) -> int:
        """The offset is all there is."""
        return self.offset

    def restore(self, snapshot: int) -> None:
        """Returns to a snapshot."""
        self.offset = snapshot


class StandInDrafter(NoneDrafter):
    """Proposes what the recorded drafter did at the same place.

    Args:
        cycles: by the position of their anchor.
    """

    def __init__(self, cycles: dict[int, Cycle]) -> None:
        self.cycles = cycles

    def propose(self, anchor: int, position: int, gamma: int, draws: Any, admits: Any = None) -> Proposal:
        """As many tokens as were proposed, of which as many are right as were accepted."""
        cycle = self.cycles[position]
        if cycle.kind == "empty":
            return Proposal(reason="the recorded drafter had nothing")
        if cycle.kind == "invalid":
            return Proposal(tokens=(FOREIGN,))
        tokens = (RIGHT,) * cycle.accepted + (WRONG,) * (cycle.proposed - cycle.accepted)
        return Proposal(tokens=tokens[:gamma] or (RIGHT,))


@dataclass(frozen=True, kw_only=True)
class StandInPolicy:
    """Declines where the recorded policy did, and leaves the rest to the drafter.

    Attributes:
        cycles: by the position of their anchor.
        max_gamma: the longest recorded block.
    """

    cycles: dict[int, Cycle]
    max_gamma: int

    def reset(self) -> None:
        """Learns nothing."""

    def plan(self, history: History) -> BlockPlan:
        """What was planned at the same place."""
        kind = self.cycles[history.position].kind
        if kind in ("skip", "tail"):
            return BlockPlan(gamma=0, reason="as recorded", skip="scheduler" if kind == "skip" else "tail")
        if kind == "plain":
            return BlockPlan(gamma=0, reason="as recorded")
        return BlockPlan(gamma=self.max_gamma)

    def admits(self, confidences: tuple[float, ...]) -> bool:
        """Everything."""
        return True

    def observe(self, finished: Round) -> None:
        """Learns nothing."""

    def snapshot(self) -> None:
        """Has no state."""

    def restore(self, snapshot: None) -> None:
        """Has no state."""


@dataclass(frozen=True, kw_only=True)
class StopAt:
    """Ends the text after a number of tokens, in mid-block if it falls there.

    Attributes:
        count: tokens to emit.
    """

    count: int

    def cut(self, emitted: Sequence[int], new: Sequence[int]) -> int | None:
        """See `spec.protocols.StopRule`."""
        left = self.count - len(emitted)
        return left if left <= len(new) else None
