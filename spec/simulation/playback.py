"""A recorded run as parts of a loop: a drafter and a block policy that repeat what was done at each position."""

from collections.abc import Mapping
from dataclasses import dataclass

from typing_extensions import override

from spec.drafters.none import NoneDrafter
from spec.rounds import Admits, BlockPlan, Context, Proposal, Round
from spec.simulation.recording import Cycle

WRONG, RIGHT, VOCABULARY, FOREIGN = 0, 1, 2, 2
"""The text of a played-back run is `RIGHT` everywhere: what its tokens were does not matter."""


@dataclass(frozen=True)
class RecordedDrafter(NoneDrafter):
    """Proposes what the recorded drafter did at the same place.

    Attributes:
        cycles: by the position of their anchor.
    """

    cycles: Mapping[int, Cycle]

    @override
    def propose(self, context: Context, gamma: int, admits: Admits | None = None) -> Proposal:
        """As many tokens as were proposed, of which as many are right as were accepted."""
        cycle = self.cycles[context.position]
        if cycle.kind == "empty":
            return Proposal(reason="the recorded drafter had nothing")
        if cycle.kind == "invalid":
            return Proposal(tokens=(FOREIGN,))
        tokens = (RIGHT,) * cycle.accepted + (WRONG,) * (cycle.proposed - cycle.accepted)
        return Proposal(tokens=tokens[:gamma] or (RIGHT,))


@dataclass(frozen=True)
class RecordedPolicy:
    """Declines where the recorded policy did and otherwise asks for all it can. Its state is the anchor's position.

    Attributes:
        cycles: by the position of their anchor.
        start: the first of these positions.
        max_gamma: the longest recorded block.
    """

    cycles: Mapping[int, Cycle]
    start: int
    max_gamma: int

    def init(self) -> int:
        """The first anchor's position."""
        return self.start

    def plan(self, state: int, tokens_left: int) -> BlockPlan:
        """What was planned at the same place."""
        kind = self.cycles[state].kind
        if kind in ("skip", "tail", "plain"):
            skip = {"skip": "scheduler", "tail": "tail"}.get(kind)
            return BlockPlan(gamma=0, reason="as recorded", skip=skip)
        return BlockPlan(gamma=self.max_gamma)

    def admits(self, state: int, confidences: tuple[float, ...]) -> bool:
        """Everything."""
        return True

    def after(self, state: int, finished: Round) -> int:
        """The next anchor's position."""
        return state + len(finished.tokens)


@dataclass(frozen=True)
class StopAt:
    """Ends the text after a number of tokens, in mid-block if it falls there.

    Attributes:
        count: tokens to emit.
    """

    count: int

    def cut(self, emitted: list[int], new: tuple[int, ...]) -> int | None:
        """See `spec.rounds.StopRule`."""
        left = self.count - len(emitted)
        return left if left <= len(new) else None
