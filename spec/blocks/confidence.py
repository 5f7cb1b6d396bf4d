"""Drafting for as long as the drafter is confident of the next token."""

from dataclasses import dataclass

from spec.blocks.policy import LearningPolicy, check_between


@dataclass(frozen=True, kw_only=True)
class ConfidencePolicy(LearningPolicy):
    """Stops at the first position whose own confidence lies below a threshold.

    Left to right and position by position, not the product (``dspark.md`` c.6; ds4, DeepSpec). The first position is
    asked too, so a round may draft nothing. Lawful because c_k is known before token k is drawn, and nothing later is
    looked at (d.1). Learns nothing: early misses and undrafted rounds change nothing. A drafter without confidences is
    given the full block.

    Attributes:
        gamma: the full block.
        threshold: probability, 0..1; 0 is off. ds4 had 0.9, 0.8, 0.7 and 0.6 in turn.

    Raises:
        UserError: a value lies outside its range.
    """

    threshold: float = 0.7

    def __post_init__(self) -> None:
        check_between("threshold", self.threshold, 0, 1)
        super().__post_init__()

    def admits(self, confidences: tuple[float, ...]) -> bool:
        """Whether c_k reaches the threshold; those before it did when they were asked."""
        return confidences[-1] >= self.threshold
