"""Intervals over resampled sequences."""

import numpy as np
import pytest

from experiments.evaluation.bootstrap import difference, ratio


def test_a_ratio_is_of_sums_and_not_a_mean_of_ratios() -> None:
    found = ratio(([10, 1], [1, 10]))
    assert found.value == 1
    assert found.low == pytest.approx(0.1)  # a resample may hold one of the two sequences twice
    assert found.high == pytest.approx(10)


def test_the_interval_of_a_mean_is_the_normal_one() -> None:
    values = np.random.default_rng(0).normal(3.0, 1.0, 400)
    found = ratio((values, np.ones(400)))
    error = values.std() / 20
    assert found.value == pytest.approx(values.mean())
    assert (found.low, found.high) == pytest.approx(
        (values.mean() - 1.96 * error, values.mean() + 1.96 * error), abs=0.02
    )


def test_what_two_drafters_share_cancels() -> None:
    generator = np.random.default_rng(0)
    theirs = generator.normal(5, 2, 100)
    ours = theirs + 0.1
    found = difference((ours, np.ones(100)), (theirs, np.ones(100)))
    assert (found.value, found.low, found.high) == pytest.approx((0.1, 0.1, 0.1))
    alone = ratio((ours, np.ones(100)))
    assert alone.high - alone.low > 0.5
    assert difference((ours, np.ones(100)), (ours, np.ones(100))).value == 0


def test_nothing_counted_is_nothing_estimated() -> None:
    assert ratio(([], [])) is None
    assert ratio(([0, 0], [0, 0])) is None
    assert ratio(([0, 2], [0, 1])).value == 2  # resamples of only the first sequence say nothing


def test_the_same_seed_gives_the_same_interval() -> None:
    sums = ([1, 5, 2, 8], [2, 3, 4, 5])
    assert ratio(sums) == ratio(sums)
    assert ratio(sums, seed=1, resamples=50) != ratio(sums, resamples=50)
