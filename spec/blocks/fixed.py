"""The same block every round."""

from typing import Annotated

from pydantic import Field

from spec.rounds import BlockPlan, Round
from spec.values import checked


@checked("block")
class FixedPolicy:
    """Asks for gamma tokens every round; 0 is plain decoding.

    Attributes:
        gamma: tokens a round.

    Raises:
        UserError: gamma is not a whole number of 0 or more.
    """

    gamma: Annotated[int, Field(ge=0, description="0 is plain decoding")] = 5

    @property
    def max_gamma(self) -> int:
        """The most it asks for."""
        return self.gamma

    def init(self) -> None:
        """There is no state."""

    def plan(self, state: None, tokens_left: int) -> BlockPlan:
        """Gamma, whatever happened."""
        return BlockPlan(gamma=self.gamma, reason=None if self.gamma else "block.gamma is 0")

    def admits(self, state: None, confidences: tuple[float, ...]) -> bool:
        """Everything."""
        return True

    def after(self, state: None, finished: Round) -> None:
        """There is nothing to learn."""
