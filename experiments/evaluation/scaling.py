"""Sequential temperature scaling of confidences, and Platt scaling to compare it with.

Source: DSpark paper (arXiv 2607.05147) section 3.2: positions left to right, each temperature chosen by grid search to
minimize the calibration error of the *cumulative* product against "the first k drafts are accepted", with the earlier
ones fixed.
"""

import numpy as np

from experiments.evaluation.forecast import BINS, expected_calibration_error

GRID = np.geomspace(0.1, 10.0, 461)
"""Temperatures tried, 1% apart; the paper does not give its own. Contains 1."""

MIN_POSITIONS = 1000
"""Least number of anchors to fit on; fewer fit noise."""


def conditional(logits: np.ndarray, scales: np.ndarray | None = None, biases: np.ndarray | None = None) -> np.ndarray:
    """Probabilities (N, G) that draft k is accepted given that the earlier are: ``sigmoid(logit * scale + bias)``.

    Args:
        logits: (N, G). scales, biases: (G,); None for 1 and 0. A temperature's scale is its inverse.
    """
    scaled = logits * (1.0 if scales is None else scales) + (0.0 if biases is None else biases)
    return 1.0 / (1.0 + np.exp(-np.clip(scaled, -700.0, 700.0)))


def survival(probabilities: np.ndarray) -> np.ndarray:
    """Probabilities (N, G) that drafts 1..k are all accepted, from the conditional ones."""
    return np.cumprod(probabilities, axis=1)


def fit_temperatures(
    logits: np.ndarray, survived: np.ndarray, grid: np.ndarray = GRID, bins: int = BINS
) -> tuple[float, ...]:
    """Sequential temperature scaling.

    Args:
        logits: (N, G) confidence logits at N anchors.
        survived: (N, G) whether the first k drafts were accepted there, or the probability of it.
        grid: temperatures tried; of equally good ones the nearest to 1 is taken. bins: of the calibration error.

    Returns:
        G temperatures.

    Raises:
        ValueError: there are no anchors.
    """
    if not len(logits):
        raise ValueError("temperatures cannot be fitted to no anchors")
    order = grid[np.argsort(np.abs(np.log(grid)), kind="stable")]
    before = np.ones(len(logits))
    temperatures = []
    for position in range(logits.shape[1]):
        stands = survived[:, position]
        errors = [
            expected_calibration_error(before * conditional(logits[:, position] / temperature), stands, bins)
            for temperature in order
        ]
        best = order[int(np.argmin(errors))]
        temperatures.append(float(best))
        before = before * conditional(logits[:, position] / best)
    return tuple(temperatures)


def fit_affine(
    logits: np.ndarray, chances: np.ndarray, is_reached: np.ndarray, iterations: int = 50
) -> tuple[np.ndarray, np.ndarray]:
    """Platt scaling of each position given that the earlier drafts are accepted: maximum likelihood by Newton's method.

    Args:
        logits: as `fit_temperatures`. iterations: at most.
        chances: (N, G) whether draft k was accepted, or the probability of it, where ``is_reached`` (N, G) bool: where
            those before it were.

    Returns:
        Scales and biases (G,); 1 and 0 where all or none of a position's drafts were accepted: nothing to fit.
    """
    scales, biases = np.ones(logits.shape[1]), np.zeros(logits.shape[1])
    for position in range(logits.shape[1]):
        at = is_reached[:, position]
        x, label = logits[at, position].astype(np.float64), chances[at, position].astype(np.float64)
        if not 0 < label.sum() < len(label):
            continue
        inputs = np.stack([x, np.ones_like(x)], axis=1)
        weights = np.array([1.0, 0.0])
        for _ in range(iterations):
            predicted = conditional(inputs @ weights)
            # A little ridge keeps the step finite where the labels can be told apart without error.
            curvature = (inputs * (predicted * (1 - predicted))[:, None]).T @ inputs + 1e-6 * np.eye(2)
            step = np.linalg.solve(curvature, inputs.T @ (predicted - label))
            weights = weights - step
            if np.abs(step).max() < 1e-8:
                break
        scales[position], biases[position] = weights
    return scales, biases
