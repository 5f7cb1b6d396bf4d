"""Policies that follow acceptance, traced by hand from their definitions."""

import pytest

from spec import BlockPolicy, CappedPolicy, SingleJumpPolicy, StagedPolicy, WindowPolicy
from tests.spec.blocks.simulation import UNJUDGED, full, judged, make_round
from tests.spec.doubles import PolicyTrial


def trace(chosen: BlockPolicy, results: str) -> list[int]:
    """Gamma before each round and after the last: F full, P partial, M early miss, U nothing judged."""
    policy = PolicyTrial(chosen)
    gammas = [policy.gamma()]
    for result in results:
        gamma = gammas[-1]
        if result == "U":
            for item in UNJUDGED:
                policy.observe(item)
        else:
            policy.observe(judged(gamma, {"F": gamma, "P": gamma - 1, "M": 0}[result]))
        gammas.append(policy.gamma())
    return gammas


@pytest.mark.parametrize(
    ("policy", "results", "gammas"),
    [
        (SingleJumpPolicy(), "FFPFMF", [2, 5, 5, 2, 5, 2, 5]),
        (StagedPolicy(), "FFFPFPFFMF", [2, 3, 5, 5, 2, 3, 2, 3, 5, 2, 3]),
        (CappedPolicy(), "FFFPF", [2, 3, 3, 3, 2, 3]),
        (CappedPolicy(ceiling=4), "FFPF", [2, 3, 4, 2, 3]),
        (CappedPolicy(ceiling=1), "FM", [1, 1, 1]),
        (CappedPolicy(ceiling=9), "FFF", [2, 3, 5, 5]),
        (SingleJumpPolicy(gamma=7), "F", [2, 7]),
        (StagedPolicy(gamma=2), "FFP", [2, 2, 2, 2]),
        (StagedPolicy(gamma=1), "FF", [1, 1, 1]),
        # without a judged proposal the streak neither grows nor ends
        (StagedPolicy(), "UFUFUPU", [2, 2, 3, 3, 5, 5, 2, 2]),
    ],
)
def test_ladders(policy: BlockPolicy, results: str, gammas: list[int]) -> None:
    assert trace(policy, results) == gammas


def test_a_block_that_was_cut_short_counts_as_what_it_was() -> None:
    policy = PolicyTrial(StagedPolicy())
    policy.observe(make_round("full", gamma=2, proposed=1, accepted=1))
    assert policy.gamma() == 3


@pytest.mark.parametrize(
    ("results", "gammas"),
    [
        # gamma 5 is a width of 6: below 8 a collapse shrinks by 2; the floor is 3
        ("MM", [5, 3, 3]),
        # (4 of 5): .8, held. Then 3 of 5 after it: 7 / 10, held
        ("P", [5, 5]),
        # 0 of 5 -> 3; then 3 of 3 each: 3/8, 6/11, 9/14, 12/17, 15/20, 18/23: rate .78 < .85, held at 3
        ("MFFFFFF", [5, 3, 3, 3, 3, 3, 3, 3]),
        # ... 21/26 = .81; the eighth full commit pushes the miss out: 24/24, all full -> 5
        ("MFFFFFFFF", [5, 3, 3, 3, 3, 3, 3, 3, 3, 5]),
        ("U", [5, 5]),
    ],
)
def test_window_of_five(results: str, gammas: list[int]) -> None:
    assert trace(WindowPolicy(), results) == gammas


def test_window_halves_a_wide_block() -> None:
    """Width 16 -> 8 -> 4 -> floor, as mlx-vlm counts; gamma is one less."""
    assert trace(WindowPolicy(gamma=15), "MMM") == [15, 7, 3, 3]


def test_window_shrinks_by_a_step_between_collapse_and_hold() -> None:
    policy = PolicyTrial(WindowPolicy(gamma=9))
    policy.observe(judged(9, 4))  # .44, mean 4
    assert policy.gamma() == 7
    policy.reset()
    policy.observe(judged(9, 5))  # .56: the dead band
    assert policy.gamma() == 9


def test_window_grows_only_with_enough_full_commits() -> None:
    policy = PolicyTrial(WindowPolicy(gamma=15))
    policy.state = policy.state._replace(gamma=9)
    policy.observe(judged(9, 8))  # .89, but no full commit
    assert policy.gamma() == 9
    for _ in range(3):
        policy.observe(full(9))  # 3 of 4 full: .75
    assert policy.gamma() == 11


def test_window_forgets_what_is_older() -> None:
    policy = PolicyTrial(WindowPolicy(window=2, gamma=5))
    for item in (judged(5, 0), full(3), full(3)):
        policy.observe(item)
    assert policy.state.rounds == ((3, 3), (3, 3))
    assert policy.gamma() == 5


def test_a_floor_above_gamma_gives_way() -> None:
    assert trace(WindowPolicy(gamma=2), "MF") == [2, 2, 2]
