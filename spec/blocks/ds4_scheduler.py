"""The scheduler that ds4 ships with DSpark, without its clock."""

import math
from typing import Annotated, ClassVar, NamedTuple

from pydantic import Field
from typing_extensions import override

from spec.blocks.confidence import ConfidencePolicy
from spec.blocks.gate import GatedPolicy
from spec.protocols import BlockPolicy
from spec.rounds import BlockPlan, Round
from spec.values import checked


class Ds4State(NamedTuple):
    """What `Ds4SchedulerPolicy` remembers: the pause, the open window, and two facts about the session.

    Attributes:
        skip: rounds for which drafting stays off.
        cycles: observed rounds in the open window.
        accepted: accepted drafts in it.
        no_draft: rounds in it that proposed nothing.
        extra_ms: what they cost on top of plain decodes.
        saved_ms: what their accepted drafts saved.
        ever_accepted: whether any draft of the session was accepted.
        ever_long: whether more than two were in one round.
    """

    skip: int = 0
    cycles: int = 0
    accepted: int = 0
    no_draft: int = 0
    extra_ms: float = 0.0
    saved_ms: float = 0.0
    ever_accepted: bool = False
    ever_long: bool = False


@checked("block")
class Ds4SchedulerPolicy(GatedPolicy):
    """Judges windows of rounds and skips some after a bad one; skips after an empty draft; leaves the tail alone.

    Source: antirez/ds4, ``DS4_DSPARK_SCHEDULER_*``, with the order of its rules. ds4 reads a clock;
    here times come from the supplied costs, so that the output cannot depend on the load of the machine.

    1. Fewer tokens left than ``tail_min_tokens``: no drafting, skip kind ``tail``. Such a round changes nothing.
    2. While a pause lasts: no drafting, skip kind ``scheduler``. Such a round is counted down and not observed.
    3. After a round whose draft was empty: a pause of ``no_draft_skip``; of ``short_accept_no_draft_skip`` if drafts
       were accepted in this session but never more than two at once; of ``cold_low_confidence_skip`` if none ever was
       and the first confidence is low.
    4. With ``break_even_window`` rounds in the window and a cost above its saving: a pause of ``slow_skip``, and the
       window ends.
    5. With ``window`` rounds in it the window ends. Its verdict is bad when the mean of accepted drafts lies below
       ``min_avg``, or at least half of the rounds were empty, or an accepted draft cost more than ``max_ms_per_accept``
       on top of plain decoding, or the cost exceeded ``max_extra_saved_ratio`` times the saving. A bad verdict pauses
       for ``skip``, for the last three at least ``slow_skip``. It *replaces* a pause that rule 3 has just set, also a
       longer one: so it is in ds4.

    An early miss is an observed round that accepted nothing. An invalid proposal, and a round in which the drafter was
    not asked (for lack of room, or because the inner policy did not want to), are not observed.

    Attributes:
        gamma: the most it asks for.
        inner: the policy that chooses blocks between pauses; None is ds4's, a confidence threshold of 0.7.
        costs: the table, in milliseconds.
        window: observed rounds a verdict, 1 or more (ds4 #833 widens it to 8).
        skip: rounds, 0 or more.
        slow_skip: rounds, 0 or more.
        min_avg: accepted drafts a round.
        max_ms_per_accept: milliseconds; 0 is off.
        max_extra_saved_ratio: cost over saving; 0 is off.
        break_even_window: rounds; 0 is off.
        no_draft_skip: rounds; 0 turns rule 3 off.
        short_accept_no_draft_skip: rounds, 0 or more.
        cold_low_confidence_skip: rounds, 0 or more.
        cold_low_confidence: the first confidence is low when its *logit* is at most this: ds4 compares the raw logit,
            so 0.5 stands for a probability of 0.62.
        tail_min_tokens: tokens; 0 is off.

    Raises:
        UserError: there is no table, or a value lies outside its range.
    """

    window: Annotated[int, Field(ge=1)] = 4
    skip: Annotated[int, Field(ge=0)] = 2
    slow_skip: Annotated[int, Field(ge=0)] = 4
    min_avg: Annotated[float, Field(ge=0)] = 1.5
    max_ms_per_accept: Annotated[float, Field(ge=0)] = 28.0
    max_extra_saved_ratio: Annotated[float, Field(ge=0)] = 1.0
    break_even_window: Annotated[int, Field(ge=0)] = 0
    no_draft_skip: Annotated[int, Field(ge=0)] = 3
    short_accept_no_draft_skip: Annotated[int, Field(ge=0)] = 4
    cold_low_confidence_skip: Annotated[int, Field(ge=0)] = 7
    cold_low_confidence: Annotated[float, Field(ge=-math.inf)] = 0.5
    tail_min_tokens: Annotated[int, Field(ge=0)] = 10

    name: ClassVar[str] = "ds4_scheduler"

    @override
    def inner_by_default(self) -> BlockPolicy:
        return ConfidencePolicy(gamma=self.gamma)

    @override
    def initial(self) -> Ds4State:
        return Ds4State()

    @override
    def is_closed(self, state: Ds4State) -> bool:
        return state.skip > 0

    @override
    def closed(self, state: Ds4State, tokens_left: int) -> BlockPlan | None:
        """Rules 1 and 2."""
        if tokens_left < self.tail_min_tokens:
            reason = f"{tokens_left} tokens are left, drafting wants {self.tail_min_tokens}"
            return BlockPlan(gamma=0, reason=reason, skip="tail")
        if self.is_closed(state):
            return BlockPlan(gamma=0, reason=f"the scheduler skips, {state.skip} rounds to go", skip="scheduler")
        return None

    @override
    def learn(self, state: Ds4State, finished: Round) -> Ds4State:
        """Rules 3 to 5."""
        if finished.outcome == "tail_skip":
            return state
        if self.is_closed(state):
            return state._replace(skip=state.skip - 1)
        if finished.gamma == 0 or finished.outcome == "invalid":
            return state
        is_empty = finished.outcome == "no_draft"
        state = Ds4State(
            skip=state.skip,
            cycles=state.cycles + 1,
            accepted=state.accepted + finished.accepted,
            no_draft=state.no_draft + is_empty,
            extra_ms=state.extra_ms + self.prices.extra(finished),
            saved_ms=state.saved_ms + self.prices.saved(finished),
            ever_accepted=state.ever_accepted or finished.accepted > 0,
            ever_long=state.ever_long or finished.accepted > 2,
        )
        if is_empty and self.no_draft_skip:
            state = state._replace(skip=self._empty_skip(state, finished))
        is_dear = 0 < self.max_extra_saved_ratio * state.saved_ms < state.extra_ms
        if 0 < self.break_even_window <= state.cycles and is_dear:
            return self._new_window(state, self.slow_skip)
        if state.cycles < self.window:
            return state
        is_slow = 0 < self.max_ms_per_accept * state.accepted < state.extra_ms
        if is_dear or is_slow or 2 * state.no_draft >= state.cycles:
            return self._new_window(state, max(self.skip, self.slow_skip))
        is_low = state.accepted < self.min_avg * state.cycles
        return self._new_window(state, self.skip if is_low else state.skip)

    def _empty_skip(self, state: Ds4State, finished: Round) -> int:
        if state.ever_accepted:
            return self.no_draft_skip if state.ever_long else max(self.no_draft_skip, self.short_accept_no_draft_skip)
        is_low = bool(finished.confidence) and _logit(finished.confidence[0]) <= self.cold_low_confidence
        return max(self.no_draft_skip, self.cold_low_confidence_skip) if is_low else self.no_draft_skip

    def _new_window(self, state: Ds4State, skip: int) -> Ds4State:
        return Ds4State(skip=skip, ever_accepted=state.ever_accepted, ever_long=state.ever_long)


def _logit(probability: float) -> float:
    """Inverse of the sigmoid; infinite at 0 and 1, which float32 sigmoids reach."""
    if probability <= 0 or probability >= 1:
        return -math.inf if probability <= 0 else math.inf
    return math.log(probability) - math.log1p(-probability)
