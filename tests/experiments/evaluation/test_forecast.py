"""Figures of forecasts against numbers worked out by hand, and temperature scaling on data whose truth is known."""

import numpy as np
import pytest

from experiments.evaluation.forecast import auroc, brier_score, expected_calibration_error, reliability
from experiments.evaluation.scaling import GRID, conditional, fit_affine, fit_temperatures, survival


def test_the_calibration_error_by_hand() -> None:
    # Bins of width 0.5: 0.1 and 0.3 with one event, 0.5, 0.9 and 1.0 with two.
    predicted, observed = np.array([0.1, 0.3, 0.5, 0.9, 1.0]), np.array([0, 1, 1, 1, 0])
    assert expected_calibration_error(predicted, observed, bins=2) == pytest.approx((abs(0.4 - 1) + abs(2.4 - 2)) / 5)
    assert expected_calibration_error(predicted, observed, bins=1) == pytest.approx(abs(2.8 - 3) / 5)
    counts, _, forecast, event = reliability(predicted, observed, bins=2)
    assert (counts.tolist(), event.tolist()) == ([2, 3], [1, 2])
    assert forecast == pytest.approx([0.4, 2.4])
    assert expected_calibration_error(np.array([1.0, 0.0]), np.array([True, False])) == 0
    assert expected_calibration_error(np.array([]), np.array([])) is None


def test_the_area_under_the_curve_by_hand() -> None:
    # Pairs (event, other): 0.8 > 0.4, 0.8 > 0.2, 0.4 = 0.4 (half), 0.4 > 0.2.
    assert auroc(np.array([0.8, 0.4, 0.4, 0.2]), np.array([1, 1, 0, 0])) == pytest.approx(3.5 / 4)
    assert auroc(np.array([0.1, 0.9]), np.array([1, 0])) == 0
    assert auroc(np.array([0.3, 0.3, 0.3]), np.array([1, 0, 1])) == 0.5
    assert auroc(np.array([0.3, 0.4]), np.array([1, 1])) is None


def test_the_area_is_the_share_of_ordered_pairs() -> None:
    generator = np.random.default_rng(0)
    predicted, observed = generator.integers(0, 9, 60) / 9, generator.integers(0, 2, 60)
    pairs = [
        (event > other) + 0.5 * (event == other)
        for event in predicted[observed == 1]
        for other in predicted[observed == 0]
    ]
    assert auroc(predicted, observed) == pytest.approx(np.mean(pairs))


def test_the_brier_score_by_hand() -> None:
    assert brier_score(np.array([0.8, 0.3]), np.array([1, 0])) == pytest.approx((0.04 + 0.09) / 2)
    assert brier_score(np.array([0.8]), np.array([0.25])) == pytest.approx(0.25 * 0.04 + 0.75 * 0.64)
    assert brier_score(np.array([]), np.array([])) is None


def test_figures_of_chances_are_those_of_their_events() -> None:
    generator = np.random.default_rng(0)
    chances = generator.beta(1, 1, 100_000)
    predicted = np.round(np.clip(chances + generator.normal(0, 0.1, len(chances)), 0, 1), 2)
    events = generator.random(len(chances)) < chances
    for figure in (expected_calibration_error, auroc, brier_score):
        assert figure(predicted, chances) == pytest.approx(figure(predicted, events), abs=0.005)
    assert expected_calibration_error(chances, chances) == pytest.approx(0, abs=1e-12)
    assert auroc(chances, np.zeros(len(chances))) is None


def synthetic(count: int, scales: list[float], biases: list[float], seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Logits and accepted drafts where position k truly stands with ``sigmoid(scale_k z_k + bias_k)``."""
    generator = np.random.default_rng(seed)
    logits = generator.normal(1.0, 2.0, size=(count, len(scales)))
    stands = generator.random(logits.shape) < conditional(logits, np.array(scales), np.array(biases))
    return logits, np.cumprod(stands, axis=1).sum(axis=1)


def survived(accepted: np.ndarray, count: int) -> np.ndarray:
    return accepted[:, None] > np.arange(count)


def reached(accepted: np.ndarray, count: int) -> np.ndarray:
    return accepted[:, None] >= np.arange(count)


def test_scaling_finds_the_temperatures_behind_the_data() -> None:
    wanted = np.array([2.0, 0.6, 1.0])
    logits, accepted = synthetic(20_000, list(1 / wanted), [0, 0, 0])
    found = fit_temperatures(logits, survived(accepted, 3))
    assert found == pytest.approx(wanted, rel=0.15)
    fresh, theirs = synthetic(20_000, list(1 / wanted), [0, 0, 0], seed=1)
    raw, scaled = survival(conditional(fresh)), survival(conditional(fresh, 1 / np.array(found)))
    for position in range(3):
        stands = theirs > position
        assert expected_calibration_error(scaled[:, position], stands) < 0.015
        if position == 0:
            assert expected_calibration_error(raw[:, position], stands) > 0.05


def test_each_temperature_is_the_best_of_the_grid_with_the_earlier_ones_kept() -> None:
    logits, accepted = synthetic(3000, [0.5, 1.5], [0.4, -0.3])
    grid = np.geomspace(0.3, 4, 9)
    first, second = fit_temperatures(logits, survived(accepted, 2), grid)
    before = conditional(logits[:, 0] / first)

    def error(temperature: float) -> float:
        return expected_calibration_error(before * conditional(logits[:, 1] / temperature), accepted > 1)

    assert all(error(second) <= error(temperature) for temperature in grid)
    assert {first, second} <= set(grid.tolist())
    assert GRID.min() < 1 < GRID.max()
    assert np.isclose(GRID, 1).any()


def test_what_makes_no_difference_stays_at_one() -> None:
    assert fit_temperatures(np.zeros((50, 2)), survived(np.full(50, 1), 2)) == pytest.approx((1.0, 1.0))
    with pytest.raises(ValueError, match="no anchors"):
        fit_temperatures(np.zeros((0, 2)), np.zeros((0, 2)))


def test_scaling_never_changes_the_order_at_a_position() -> None:
    logits, accepted = synthetic(500, [0.3, 2.0], [1.0, -1.0])
    found = np.array(fit_temperatures(logits, survived(accepted, 2)))
    assert (found != 1).any()
    scaled = conditional(logits, 1 / found)
    for position in range(2):
        stands = accepted > position
        assert (np.argsort(scaled[:, position]) == np.argsort(logits[:, position])).all()
        assert auroc(scaled[:, position], stands) == auroc(conditional(logits)[:, position], stands)


def test_the_affine_fit_finds_scale_and_bias() -> None:
    logits, accepted = synthetic(30_000, [0.5, 1.5], [0.8, -0.5])
    scales, biases = fit_affine(logits, survived(accepted, 2), reached(accepted, 2))
    assert scales == pytest.approx([0.5, 1.5], abs=0.08)
    assert biases == pytest.approx([0.8, -0.5], abs=0.08)
    scales, biases = fit_affine(
        logits, np.ones((len(accepted), 2)), reached(np.full(len(accepted), 2), 2)
    )  # nothing ever falls
    assert (scales.tolist(), biases.tolist()) == ([1, 1], [0, 0])


def test_the_affine_fit_to_chances_is_exact_where_they_are_affine() -> None:
    logits, accepted = synthetic(500, [0.5, 1.5], [0.8, -0.5])
    chances = conditional(logits, np.array([0.5, 1.5]), np.array([0.8, -0.5]))
    scales, biases = fit_affine(logits, chances, reached(accepted, 2))
    assert scales == pytest.approx([0.5, 1.5], abs=1e-5)
    assert biases == pytest.approx([0.8, -0.5], abs=1e-5)
