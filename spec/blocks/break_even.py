"""Drafts only while it saves time: the second report's question 3."""

from typing import Annotated, ClassVar, NamedTuple

from pydantic import Field
from typing_extensions import override

from spec.blocks.gate import GatedPolicy
from spec.errors import UserError
from spec.rounds import BlockPlan, Round
from spec.values import checked


class BreakEvenState(NamedTuple):
    """What `BreakEvenPolicy` remembers.

    Attributes:
        idle: rounds for which drafting stays off; 0 while it is on.
        wait: how long the next pause will be, in rounds.
        nets: net savings in milliseconds of the last drafted rounds since drafting was last turned on.
        is_probe: whether it was turned on after a pause.
        net_ms: net saving of the whole run.
        plain_ms: what plain decoding would have paid for the tokens so far.
    """

    idle: int
    wait: int
    nets: tuple[float, ...] = ()
    is_probe: bool = False
    net_ms: float = 0.0
    plain_ms: float = 0.0


@checked("block")
class BreakEvenPolicy(GatedPolicy):
    """Turns drafting off when its rolling net saving is negative, and probes again with exponential back-off.

    A drafted round's net saving is the plain decodes that its accepted drafts made needless, less what proposal, verify
    and replay cost by the table (`Prices`). Drafting stops when the sum over the last ``window`` drafted rounds is
    negative, judged from ``patience`` rounds on. It then stays off for ``wait`` rounds, and tries again: a probe is
    judged from its first round on. Each failure doubles the wait, up to ``max_wait``; a full window that pays sets it
    back.

    Bound, for *every* sequence of acceptances: under the table's costs a run never takes longer than

        (1 + max_loss) * plain decoding + (patience + 1) * worst,   worst = max propose_ms + max pass_ms up to gamma.

    It holds because drafting also stops, or stays off, while the run as a whole has lost more than ``max_loss`` of
    plain decoding's time and ``patience`` worst rounds; the round that goes too far adds one. (Replay of accepted
    tokens and the anchor is within ``worst``.) A long run without any acceptance tends to the share of one probe a
    ``max_wait``, or ``max_loss`` if that is smaller.

    An early miss is a drafted round that saved nothing. A round in which the drafter was asked and proposed nothing, or
    something invalid, has cost its proposal. One in which it was not asked says nothing; while drafting is off it
    brings the probe nearer.

    Attributes:
        gamma: the most it asks for.
        inner: the policy that chooses blocks while drafting is on; None is the full block.
        costs: the table, in milliseconds.
        window: drafted rounds, 1 or more.
        patience: drafted rounds before the first verdict of a run, 1 to ``window``.
        wait: rounds of the first pause, 1 or more.
        max_wait: rounds of the longest pause, no less than ``wait``.
        max_loss: share of plain decoding's time, 0..1.

    Raises:
        UserError: there is no table, or a value lies outside its range.
    """

    window: Annotated[int, Field(ge=1)] = 8
    patience: Annotated[int, Field(ge=1)] = 2
    wait: Annotated[int, Field(ge=1)] = 4
    max_wait: Annotated[int, Field(ge=1)] = 128
    max_loss: Annotated[float, Field(ge=0, le=1)] = 0.05

    name: ClassVar[str] = "break_even"

    def __post_init__(self) -> None:
        for name, value, least in (("window", self.window, self.patience), ("max_wait", self.max_wait, self.wait)):
            if value < least:
                raise UserError(f"block.{name} must be a whole number of {least} or more, got {value}")
        super().__post_init__()

    @override
    def initial(self) -> BreakEvenState:
        return BreakEvenState(idle=0, wait=self.wait)

    @override
    def is_closed(self, state: BreakEvenState) -> bool:
        return state.idle > 0

    @override
    def closed(self, state: BreakEvenState, tokens_left: int) -> BlockPlan | None:
        if not self.is_closed(state):
            return None
        reason = f"drafting did not pay, {state.idle} rounds to the next probe"
        return BlockPlan(gamma=0, reason=reason, skip="scheduler")

    @override
    def learn(self, state: BreakEvenState, finished: Round) -> BreakEvenState:
        """Counts a pause down, or the saving of a drafted round in."""
        state = state._replace(plain_ms=state.plain_ms + len(finished.tokens) * self.prices.decode)
        if self.is_closed(state):
            # A run that has lost its allowance earns the next probe by plain decoding.
            return state._replace(idle=max(state.idle - 1, 1 if self._has_overspent(state) else 0))
        if finished.gamma == 0:
            return state
        net = self.prices.saved(finished) - self.prices.extra(finished)
        state = state._replace(nets=(*state.nets, net)[-self.window :], net_ms=state.net_ms + net)
        is_due = len(state.nets) >= (1 if state.is_probe else self.patience)
        if (is_due and sum(state.nets) < 0) or self._has_overspent(state):
            return state._replace(idle=state.wait, wait=min(2 * state.wait, self.max_wait), nets=(), is_probe=True)
        return state._replace(wait=self.wait) if len(state.nets) == self.window else state

    def _has_overspent(self, state: BreakEvenState) -> bool:
        return state.net_ms < -(self.max_loss * state.plain_ms + self.patience * self.prices.worst)
