"""The reports' findings, on made-up texts of low and high acceptance and the M5 Max table: which policy loses what."""

import pytest

from spec import (
    AutoPolicy,
    BlockPolicy,
    BreakEvenPolicy,
    CappedPolicy,
    ConfidencePolicy,
    Ds4SchedulerPolicy,
    FixedPolicy,
    SingleJumpPolicy,
    StagedPolicy,
    ThroughputPolicy,
    WindowPolicy,
)
from tests.spec.blocks.simulation import M5_MAX, Table, calibrated, simulate, text

PROSE, JSON = 0.58, 0.87  # a block of 2 loses 18 % on the one, a block of 5 gains 37 % on the other
POLICIES: dict[str, BlockPolicy] = {
    "b2": FixedPolicy(gamma=2),
    "b3": FixedPolicy(gamma=3),
    "b5": FixedPolicy(gamma=5),
    "single_jump": SingleJumpPolicy(),
    "staged": StagedPolicy(),
    "capped": CappedPolicy(),
    "window": WindowPolicy(),
    "break_even": BreakEvenPolicy(costs=M5_MAX),
    "ds4_scheduler": Ds4SchedulerPolicy(costs=M5_MAX),
    "auto": AutoPolicy(costs=M5_MAX),
}


def speedups(rate: float, table: Table = M5_MAX) -> dict[str, float]:
    """Mean speed-up over plain decoding by policy, three texts of 1000 tokens."""
    texts = [text(1000, rate, seed) for seed in range(3)]
    return {name: sum(simulate(policy, one, table).speedup for one in texts) / 3 for name, policy in POLICIES.items()}


@pytest.fixture(scope="module")
def prose() -> dict[str, float]:
    return speedups(PROSE)


@pytest.fixture(scope="module")
def json() -> dict[str, float]:
    return speedups(JSON)


def test_the_first_report_on_prose(prose: dict[str, float]) -> None:
    """Every block loses, longer ones more; staging does not mend it; a ceiling takes part of the loss away."""
    assert prose["b5"] < prose["b2"] < 0.9
    assert prose["b5"] < prose["single_jump"] <= prose["staged"] < 0.9
    assert prose["staged"] - prose["single_jump"] < 0.05
    assert prose["staged"] < prose["capped"] < 0.9


def test_the_second_report_on_prose(prose: dict[str, float]) -> None:
    """Turning drafting off by what it costs comes back to plain decoding; ds4's scheduler comes part of the way."""
    assert prose["b5"] < prose["ds4_scheduler"] < 0.9
    assert prose["break_even"] > 0.95
    assert prose["auto"] > 0.95


def test_the_first_report_on_json(json: dict[str, float]) -> None:
    """The full block wins, ladders give some of it up, the ceiling more, and the gate little."""
    assert max(json, key=json.get) == "b5"
    assert json["b5"] > 1.3
    assert json["b5"] > json["single_jump"] > json["staged"] > json["capped"] > 1.15
    assert json["break_even"] > 0.95 * json["b5"]


def test_a_text_that_changes() -> None:
    """JSON, prose, JSON: only what can turn itself off and on gains."""
    texts = [text(300, 0.9, seed) + text(600, 0.3, seed) + text(300, 0.9, seed + 9) for seed in range(3)]
    gains = {name: min(simulate(policy, one).speedup for one in texts) for name, policy in POLICIES.items()}
    assert all(gains[name] < 0.9 for name in ("b2", "b3", "b5", "single_jump", "staged", "capped", "window"))
    assert gains["break_even"] > 1.0


def test_confidence_behind_the_gate() -> None:
    """Where the drafter knows what it does not know, auto beats both the gate alone and every fixed block."""
    right, confidence = calibrated(3000, 0.1, 1.0)
    got = {name: simulate(policy, right, confidence=confidence).speedup for name, policy in POLICIES.items()}
    threshold = simulate(ConfidencePolicy(), right, confidence=confidence).speedup
    assert got["auto"] > max(got[name] for name in ("b2", "b3", "b5", "break_even"))
    assert got["auto"] > 0.95 * threshold


def test_algorithm_1_stops_at_a_step_that_a_threshold_takes() -> None:
    """The second row of a flat verify pass is dear and the others free: no second token is ever worth it alone."""
    step = Table((27.5, *[66.9] * 5), 8.2)
    right, confidence = calibrated(1000, 0.9, 1.0)
    greedy = simulate(ThroughputPolicy(costs=step), right, step, confidence)
    assert not any(item.proposed for item in greedy.rounds)
    assert greedy.speedup < 1 < 1.8 < simulate(AutoPolicy(costs=step), right, step, confidence).speedup
