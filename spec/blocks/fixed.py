"""The same block every round."""

from dataclasses import dataclass

from spec.errors import UserError
from spec.protocols import BlockPlan, History, Round


@dataclass(frozen=True, kw_only=True)
class FixedPolicy:
    """Asks for gamma tokens every round; 0 is plain decoding.

    Attributes:
        gamma: tokens a round.

    Raises:
        UserError: gamma is not a whole number of 0 or more.
    """

    gamma: int

    def __post_init__(self) -> None:
        if isinstance(self.gamma, bool) or not isinstance(self.gamma, int) or self.gamma < 0:
            raise UserError(f"block.gamma must be a whole number, 0 (plain decoding) or more, got {self.gamma!r}")

    @property
    def max_gamma(self) -> int:
        """The most it asks for."""
        return self.gamma

    def reset(self) -> None:
        """Has nothing to forget."""

    def plan(self, history: History) -> BlockPlan:
        """Gamma, whatever happened."""
        return BlockPlan(gamma=self.gamma, reason=None if self.gamma else "block.gamma is 0")

    def admits(self, confidences: tuple[float, ...]) -> bool:
        """Everything."""
        return True

    def observe(self, finished: Round) -> None:
        """Learns nothing."""

    def snapshot(self) -> None:
        """Has no state."""

    def restore(self, snapshot: None) -> None:
        """Has no state."""
