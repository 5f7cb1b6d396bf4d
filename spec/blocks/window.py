"""A block that follows the acceptance of the last rounds, with a dead band so that it does not swing."""

from typing import Annotated, NamedTuple

from pydantic import Field
from typing_extensions import override

from spec.blocks.policy import FullBlockPolicy, was_judged
from spec.errors import UserError
from spec.rounds import BlockPlan, Round
from spec.values import checked


class WindowState(NamedTuple):
    """Gamma of the coming round, and (accepted, proposed) of the last judged rounds, newest last."""

    gamma: int
    rounds: tuple[tuple[int, int], ...] = ()


@checked("block")
class WindowPolicy(FullBlockPolicy):
    """Shrinks below one acceptance rate, grows above another, and holds between: the gap is the hysteresis.

    After every judged round, over the last ``window`` of them (fewer at the start): halve when the rate lies below
    ``collapse`` or the mean of accepted drafts below ``min_accepted``; else shrink by ``step`` below ``shrink``; else
    grow by ``step`` when the rate reaches ``grow`` *and* the share of full commits reaches ``full``; else hold. Source:
    mlx-vlm 0.7.10, ``speculative/dflash.py``, whose numbers are the defaults. Its block counts the
    anchor: halving halves the verify width, and only from a width of 8 on; a narrower one shrinks by ``step``.

    An early miss counts as a round that accepted nothing. Rounds without a judged proposal are not in the window.

    Attributes:
        gamma: the ceiling, where it starts.
        floor: the least it asks for, 1 or more; a gamma below it wins.
        window: judged rounds that count, 1 or more.
        collapse: acceptance rate, 0..1.
        min_accepted: accepted drafts a round, 0 or more.
        shrink: acceptance rate, 0..1, no less than ``collapse``.
        grow: acceptance rate, 0..1, no less than ``shrink``.
        full: share of full commits, 0..1.
        step: tokens, 1 or more.

    Raises:
        UserError: a value lies outside its range.
    """

    floor: Annotated[int, Field(ge=1)] = 3
    window: Annotated[int, Field(ge=1)] = 8
    collapse: Annotated[float, Field(ge=0, le=1)] = 0.30
    min_accepted: Annotated[float, Field(ge=0)] = 2.0
    shrink: Annotated[float, Field(ge=0, le=1)] = 0.50
    grow: Annotated[float, Field(ge=0, le=1)] = 0.85
    full: Annotated[float, Field(ge=0, le=1)] = 0.75
    step: Annotated[int, Field(ge=1)] = 2

    def __post_init__(self) -> None:
        if not self.collapse <= self.shrink <= self.grow:
            raise UserError(
                "block.collapse, block.shrink and block.grow must not fall, got "
                f"{self.collapse}, {self.shrink}, {self.grow}"
            )

    @override
    def init(self) -> WindowState:
        return WindowState(self.gamma)

    @override
    def plan(self, state: WindowState, tokens_left: int) -> BlockPlan:
        return BlockPlan(gamma=state.gamma)

    @override
    def after(self, state: WindowState, finished: Round) -> WindowState:
        """Takes the round in and adapts."""
        if not was_judged(finished):
            return state
        rounds = (*state.rounds, (finished.accepted, len(finished.proposed)))[-self.window :]
        wanted = self._adapted(state.gamma, rounds)
        return WindowState(min(max(wanted, self.floor), self.gamma), rounds)

    def _adapted(self, gamma: int, rounds: tuple[tuple[int, int], ...]) -> int:
        accepted = sum(count for count, _ in rounds)
        rate = accepted / sum(count for _, count in rounds)
        if rate < self.collapse or accepted / len(rounds) < self.min_accepted:
            width = gamma + 1
            return width // 2 - 1 if width >= 8 else gamma - self.step
        if rate < self.shrink:
            return gamma - self.step
        full = sum(accepted == proposed for accepted, proposed in rounds) / len(rounds)
        return gamma + self.step if rate >= self.grow and full >= self.full else gamma
