"""Drafts for as long as the drafter is confident of the next token."""

from typing import Annotated, Any

from pydantic import Field
from typing_extensions import override

from spec.blocks.policy import FullBlockPolicy
from spec.values import checked


@checked("block")
class ConfidencePolicy(FullBlockPolicy):
    """Stops at the first position whose own confidence lies below a threshold.

    Left to right and position by position, not the product, as in ds4 and DeepSpec. The first position is
    asked too, so a round may draft nothing. Lawful because c_k is known before token k is drawn, and nothing later is
    looked at. Learns nothing: early misses and undrafted rounds change nothing. A drafter without confidences is
    given the full block.

    Attributes:
        gamma: the full block.
        threshold: probability, 0..1; 0 is off. ds4 had 0.9, 0.8, 0.7 and 0.6 in turn.

    Raises:
        UserError: a value lies outside its range.
    """

    threshold: Annotated[float, Field(ge=0, le=1)] = 0.7

    @override
    def admits(self, state: Any, confidences: tuple[float, ...]) -> bool:
        """Whether c_k reaches the threshold; those before it did when they were asked."""
        return confidences[-1] >= self.threshold
