"""Confidence intervals of ratios by resampling whole sequences, since tokens within one are dependent."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 2000


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A ratio of sums over sequences, or a difference of two.

    Attributes:
        value: over all sequences.
        low, high: 2.5 and 97.5 percentiles over resampled sequences (Efron's percentile interval).
    """

    value: float
    low: float
    high: float

    def to_json(self) -> dict[str, float]:
        """The three numbers."""
        return {"value": self.value, "low": self.low, "high": self.high}


Sums = tuple[Sequence[float], Sequence[float]]
"""Numerators and denominators of a ratio, one of each for every sequence."""


def ratio(ours: Sums, seed: int = 0, resamples: int = RESAMPLES) -> Estimate | None:
    """``sum(numerators) / sum(denominators)``; None where the denominators sum to 0."""
    return _estimate([ours], seed, resamples)


def difference(ours: Sums, theirs: Sums, seed: int = 0, resamples: int = RESAMPLES) -> Estimate | None:
    """Paired difference: the ratio of ours minus the ratio of theirs, over the same resampled sequences."""
    return _estimate([ours, theirs], seed, resamples)


def _estimate(ratios: Sequence[Sums], seed: int, resamples: int) -> Estimate | None:
    sums = np.array(ratios, dtype=np.float64)  # (1 or 2, 2, S)
    if not sums.shape[2] or not (sums[:, 1].sum(axis=1) > 0).all():
        return None
    count = sums.shape[2]
    draws = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), size=resamples)
    # A resample may hold only sequences without a round; it says nothing and is left out.
    with np.errstate(invalid="ignore", divide="ignore"):
        values = [(draws @ top) / (draws @ bottom) for top, bottom in sums]
        whole = [top.sum() / bottom.sum() for top, bottom in sums]
    spread = values[0] if len(values) == 1 else values[0] - values[1]
    low, high = np.nanpercentile(spread, [2.5, 97.5])
    return Estimate(value=float(whole[0] if len(whole) == 1 else whole[0] - whole[1]), low=float(low), high=float(high))
