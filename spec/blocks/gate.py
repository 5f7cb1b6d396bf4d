"""What the policies that turn drafting off share: a gate in front of another policy."""

from dataclasses import dataclass, field
from typing import Any

from spec.blocks.fixed import FixedPolicy
from spec.blocks.policy import LearningPolicy, check_whole
from spec.blocks.prices import Costs, Prices
from spec.protocols import BlockPlan, BlockPolicy, History, Round


@dataclass(frozen=True, kw_only=True)
class Gate(LearningPolicy):
    """Asks an inner policy for the block, unless it has closed. The inner policy does not see rounds it had no part in.

    Attributes:
        gamma: the most it asks for; longer wishes of the inner policy are cut.
        inner: the policy behind the gate; None is the full block every round.
        costs: the table, in milliseconds.

    Raises:
        UserError: there is no table, or a value lies outside its range.
    """

    inner: BlockPolicy | None = None
    costs: Costs | None = None
    _behind: BlockPolicy = field(init=False, repr=False, compare=False)
    _prices: Prices = field(init=False, repr=False, compare=False)

    name = ""  # of the choice, for messages

    def __post_init__(self) -> None:
        check_whole("gamma", self.gamma, 1, "; plain decoding is block=fixed block.gamma=0")
        object.__setattr__(self, "_behind", self.inner_by_default() if self.inner is None else self.inner)
        super().__post_init__()
        object.__setattr__(self, "_prices", Prices.read(self.costs, self.gamma, self.name))

    def inner_by_default(self) -> BlockPolicy:
        """The full block every round."""
        return FixedPolicy(gamma=self.gamma)

    @property
    def max_gamma(self) -> int:
        """Gamma, or the inner policy's most if that is smaller."""
        return min(self.gamma, self._behind.max_gamma)

    def closed(self, history: History) -> BlockPlan | None:
        """The plan of not drafting, with its reason; None while open."""
        raise NotImplementedError

    def plan(self, history: History) -> BlockPlan:
        """Nothing while closed, else what the inner policy wants, cut to gamma."""
        plan = self.closed(history) or self._behind.plan(history)
        return BlockPlan(gamma=self.gamma) if plan.gamma > self.gamma else plan

    def admits(self, confidences: tuple[float, ...]) -> bool:
        """What the inner policy admits."""
        return self._behind.admits(confidences)

    def reset(self) -> None:
        """Forgets the sequence, and so does the inner policy."""
        super().reset()
        self._behind.reset()

    def is_idle(self, state: Any) -> bool:
        """Whether the gate is closed in a state, whatever the history."""
        raise NotImplementedError

    def observe(self, finished: Round) -> None:
        """Learns from a round; the inner policy learns if it was asked."""
        if not self.is_idle(self.state) and finished.outcome != "tail_skip":
            self._behind.observe(finished)
        super().observe(finished)

    def snapshot(self) -> tuple[Any, Any]:
        """The gate's state and the inner policy's snapshot."""
        return self.state, self._behind.snapshot()

    def restore(self, snapshot: tuple[Any, Any]) -> None:
        """Returns to a snapshot."""
        state, behind = snapshot
        super().restore(state)
        self._behind.restore(behind)
