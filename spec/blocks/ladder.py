"""Policies that grow the block with consecutive full commits and reset it on a partial one.

One rule, three ladders: gamma is ``rungs[streak]``, where the streak counts full commits since the last rejection.
Source: antirez/ds4 pull requests 482 and 502, commit 7ad4ea2 (``dspark.md`` c.7). What an early miss does there is not
known; here it ends the streak, as does any rejection.
"""

from typing import Annotated

from pydantic import Field
from typing_extensions import override

from spec.blocks.policy import FullBlockPolicy, was_judged
from spec.rounds import BlockPlan, Round
from spec.values import checked


@checked("block")
class _Ladder(FullBlockPolicy):
    """State: the streak. An early miss ends it; a round without a judged proposal leaves it."""

    @property
    def rungs(self) -> tuple[int, ...]:
        """Gamma by streak; the last holds for every longer one."""
        raise NotImplementedError

    @override
    def init(self) -> int:
        return 0

    @override
    def plan(self, state: int, tokens_left: int) -> BlockPlan:
        rungs = self.rungs
        return BlockPlan(gamma=rungs[min(state, len(rungs) - 1)])

    @override
    def after(self, state: int, finished: Round) -> int:
        """One more after a full commit, none after a rejection."""
        if not was_judged(finished):
            return state
        return state + 1 if finished.outcome == "full" else 0


@checked("block")
class SingleJumpPolicy(_Ladder):
    """2, then the full block after one full commit; back to 2 on a partial one or an early miss.

    The first report measured it at 21.68 tokens/s on prose against 31.31 of plain decoding: one lucky block of 2 is
    enough for a full one, which then pays for five rejected rows.

    Attributes:
        gamma: the full block.
    """

    @property
    def rungs(self) -> tuple[int, ...]:
        """2, gamma."""
        return (min(2, self.gamma), self.gamma)


@checked("block")
class StagedPolicy(_Ladder):
    """2, 3, then the full block after two consecutive full commits; back to 2 on a partial one or an early miss.

    The first report's follow-up: 22.47 tokens/s on prose. It climbs later than `SingleJumpPolicy` and loses for
    the same reason once there.

    Attributes:
        gamma: the full block.
    """

    @property
    def rungs(self) -> tuple[int, ...]:
        """2, 3, gamma."""
        return (min(2, self.gamma), min(3, self.gamma), self.gamma)


@checked("block")
class CappedPolicy(_Ladder):
    """`StagedPolicy` that never climbs above a ceiling: the first report's recommendation 1, "block = 2..3".

    Gives up the gain of full blocks on structured text for a smaller loss on prose.

    Attributes:
        gamma: the full block.
        ceiling: the most it asks for, 1 or more; at gamma or above it changes nothing.

    Raises:
        UserError: gamma or ceiling is not a whole number of 1 or more.
    """

    ceiling: Annotated[int, Field(ge=1)] = 3

    @property
    @override
    def max_gamma(self) -> int:
        """The ceiling, or the full block if that is smaller."""
        return min(self.gamma, self.ceiling)

    @property
    def rungs(self) -> tuple[int, ...]:
        """2, 3, gamma, none above the ceiling."""
        return tuple(min(rung, self.max_gamma) for rung in (2, 3, self.gamma))
