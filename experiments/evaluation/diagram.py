"""Reliability diagrams of confidences before and after scaling."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from experiments.evaluation.confidence_scores import ConfidenceScores
from experiments.evaluation.forecast import reliability
from experiments.evaluation.scaling import conditional, survival
from experiments.results import load_pyplot


def draw_reliability(file: Path, results: Mapping[str, tuple[ConfidenceScores, Mapping[str, Any]]]) -> Path | None:
    """Draws observed against predicted survival by position, raw above and scaled below, a column for each calibration.

    Args:
        file: a ``.png``. results: by calibration, the judged anchors as `ConfidenceScores` and the
            result with its ``temperatures``.

    Returns:
        The file; None without matplotlib.
    """
    pyplot = load_pyplot()
    if pyplot is None:
        return None
    shape = {"nrows": 2, "ncols": len(results), "squeeze": False, "sharex": True, "sharey": True}
    figure, axes = pyplot.subplots(**shape, figsize=(1 + 4 * len(results), 8), layout="constrained")
    for column, (name, (scored, result)) in enumerate(results.items()):
        for row, scales in enumerate((None, 1.0 / np.array(result["temperatures"]))):
            panel = axes[row, column]
            panel.plot([0, 1], [0, 1], color="grey", linewidth=1, linestyle="--")
            forecasts = survival(conditional(scored.logits, scales))
            for position in range(forecasts.shape[1]):
                counts, _, predicted, observed = reliability(forecasts[:, position], scored.survived[:, position])
                held = counts > 0
                panel.plot(
                    predicted[held] / counts[held],
                    observed[held] / counts[held],
                    marker="o",
                    markersize=3,
                    linewidth=1,
                    label=f"first {position + 1}",
                )
            panel.set(title=f"{name}, {'scaled' if row else 'raw'}", xlabel="predicted survival", ylabel="observed")
    axes[0, 0].legend()
    figure.savefig(file, dpi=120)
    pyplot.close(figure)
    return file
