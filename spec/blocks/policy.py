"""What block policies share: frozen hyperparameters, and pure functions of an immutable state."""

from typing import Annotated, Any

from pydantic import Field

from spec.rounds import BlockPlan, Round
from spec.values import checked


@checked("block")
class FullBlockPolicy:
    """The full block every round; the base of policies that choose by something.

    A subclass replaces what it needs. Policies of this package keep to these rules unless they say otherwise:

    - an early miss (``miss_first``) is a partial commit that kept nothing: it counts like any other rejection;
    - a round in which nothing was proposed (``no_draft``, ``no_room``, ``tail_skip``) or the proposal could not be
      judged (``invalid``) teaches nothing, and leaves the state as it was;
    - a block that came out shorter than asked for, for lack of room or of confidence, is judged as the block it was.

    Attributes:
        gamma: the full block: the most tokens it ever asks for, 1 or more. Not taken from the drafter, so that the
            caches can be sized before one is loaded; the loop refuses a gamma that the drafter cannot propose.

    Raises:
        UserError: gamma is not a whole number of 1 or more.
    """

    gamma: Annotated[int, Field(ge=1, description="plain decoding is block=fixed block.gamma=0")] = 5

    @property
    def max_gamma(self) -> int:
        """The most it can ever ask for."""
        return self.gamma

    def init(self) -> Any:
        """The state before the first round."""
        return None

    def plan(self, state: Any, tokens_left: int) -> BlockPlan:
        """The full block."""
        return BlockPlan(gamma=self.gamma)

    def admits(self, state: Any, confidences: tuple[float, ...]) -> bool:
        """Everything."""
        return True

    def after(self, state: Any, finished: Round) -> Any:
        """The state after a round."""
        return state


def was_judged(finished: Round) -> bool:
    """Whether a proposal met the target in this round."""
    return finished.outcome in ("full", "partial", "miss_first")
