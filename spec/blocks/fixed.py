"""The same block every round."""

from typing import Annotated, Any

from pydantic import Field
from typing_extensions import override

from spec.blocks.policy import FullBlockPolicy
from spec.rounds import BlockPlan
from spec.values import checked


@checked("block")
class FixedPolicy(FullBlockPolicy):
    """Asks for gamma tokens every round; 0 is plain decoding.

    Attributes:
        gamma: tokens a round.

    Raises:
        UserError: gamma is not a whole number of 0 or more.
    """

    gamma: Annotated[int, Field(ge=0, description="0 is plain decoding")] = 5

    @override
    def plan(self, state: Any, tokens_left: int) -> BlockPlan:
        return BlockPlan(gamma=self.gamma, reason=None if self.gamma else "block.gamma is 0")
