"""Quality of probabilities as forecasts of binary events. Undefined figures (nothing to count) are None.

Where the probability of an event is known, it can be passed in place of the outcome: the figures are then expectations,
with less noise.
"""

import numpy as np

BINS = 20  # DeepSpec's


def expected_calibration_error(predicted: np.ndarray, observed: np.ndarray, bins: int = BINS) -> float | None:
    """``sum_b (n_b / N) |mean predicted - mean observed|`` over bins of equal width.

    Args:
        predicted: (N,) in 0..1. observed: (N,) bool, or probabilities in 0..1. bins: how many.
    """
    if not len(predicted):
        return None
    _, gaps, _, _ = reliability(predicted, observed, bins)
    return float(np.abs(gaps).sum() / len(predicted))


def reliability(
    predicted: np.ndarray, observed: np.ndarray, bins: int = BINS
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The sums behind a reliability diagram, by bin; arguments as `expected_calibration_error`.

    Returns:
        Counts (bins,); predicted minus observed, summed; predicted, summed; observed, summed.
    """
    number = np.minimum((np.asarray(predicted) * bins).astype(np.int64), bins - 1)  # 1.0 belongs to the last bin
    counts = np.bincount(number, minlength=bins)
    forecast = np.bincount(number, weights=predicted, minlength=bins)
    event = np.bincount(number, weights=observed, minlength=bins)
    return counts, forecast - event, forecast, event


def brier_score(predicted: np.ndarray, observed: np.ndarray) -> float | None:
    """Mean squared difference, 0 is best. Arguments as `expected_calibration_error`."""
    if not len(predicted):
        return None
    event = np.asarray(observed, dtype=np.float64)
    return float(np.mean(event * (1 - predicted) ** 2 + (1 - event) * predicted**2))


def auroc(predicted: np.ndarray, observed: np.ndarray) -> float | None:
    """Probability that an event has a higher forecast than a non-event, ties counting half (Mann and Whitney).

    Arguments as `expected_calibration_error`. None unless both can happen.
    """
    event = np.asarray(observed, dtype=np.float64)
    _, group = np.unique(predicted, return_inverse=True)
    events, others = np.bincount(group, weights=event), np.bincount(group, weights=1 - event)
    if not events.sum() or not others.sum():
        return None
    below = np.cumsum(others) - others / 2
    return float((events * below).sum() / (events.sum() * others.sum()))
