"""A gate in front of another policy, shared by the policies that turn drafting off."""

from functools import cached_property
from typing import Any, ClassVar, NamedTuple

from pydantic import SkipValidation
from typing_extensions import override

from spec.blocks.fixed import FixedPolicy
from spec.blocks.policy import FullBlockPolicy
from spec.blocks.prices import Costs, Prices
from spec.protocols import BlockPolicy
from spec.rounds import BlockPlan, Round
from spec.values import checked


class GatedState(NamedTuple):
    """The gate's own state and that of the policy behind it."""

    gate: Any
    inner: Any


@checked("block")
class GatedPolicy(FullBlockPolicy):
    """Asks an inner policy for the block unless it is closed. The inner policy does not see rounds it had no part in.

    Attributes:
        gamma: the most it asks for; longer plans of the inner policy are cut.
        inner: the policy behind the gate; None is the full block every round.
        costs: the table, in milliseconds.

    Raises:
        UserError: there is no table, or a value lies outside its range.
    """

    inner: SkipValidation[BlockPolicy | None] = None
    costs: SkipValidation[Costs | None] = None

    name: ClassVar[str] = ""  # of the choice, for messages

    def __post_init__(self) -> None:
        _ = self.prices  # a table that does not serve is refused here

    @cached_property
    def behind(self) -> BlockPolicy:
        """The policy behind the gate."""
        return self.inner_by_default() if self.inner is None else self.inner

    @cached_property
    def prices(self) -> Prices:
        """The table, read out for every block."""
        return Prices.read(self.costs, self.gamma, self.name)

    def inner_by_default(self) -> BlockPolicy:
        """The full block every round."""
        return FixedPolicy(gamma=self.gamma)

    def initial(self) -> Any:
        """The gate's own state before the first round."""
        raise NotImplementedError

    def is_closed(self, state: Any) -> bool:
        """Whether the gate is closed in a state, however much may still be emitted."""
        raise NotImplementedError

    def closed(self, state: Any, tokens_left: int) -> BlockPlan | None:
        """The plan of not drafting, with its reason; None while open."""
        raise NotImplementedError

    def learn(self, state: Any, finished: Round) -> Any:
        """The gate's own state after a round."""
        raise NotImplementedError

    @property
    @override
    def max_gamma(self) -> int:
        return min(self.gamma, self.behind.max_gamma)

    @override
    def init(self) -> GatedState:
        return GatedState(self.initial(), self.behind.init())

    @override
    def plan(self, state: GatedState, tokens_left: int) -> BlockPlan:
        """Nothing while closed, else what the inner policy wants, cut to gamma."""
        plan = self.closed(state.gate, tokens_left) or self.behind.plan(state.inner, tokens_left)
        return BlockPlan(gamma=self.gamma) if plan.gamma > self.gamma else plan

    @override
    def admits(self, state: GatedState, confidences: tuple[float, ...]) -> bool:
        return self.behind.admits(state.inner, confidences)

    @override
    def after(self, state: GatedState, finished: Round) -> GatedState:
        """Learns from a round; the inner policy learns if it was asked."""
        was_asked = not self.is_closed(state.gate) and finished.outcome != "tail_skip"
        inner = self.behind.after(state.inner, finished) if was_asked else state.inner
        return GatedState(self.learn(state.gate, finished), inner)
