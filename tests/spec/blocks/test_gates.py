"""Policies that turn drafting off: their traces by hand, their bound, and when they turn it on again."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spec import (
    AutoPolicy,
    BlockPolicy,
    BreakEvenPolicy,
    ConfidencePolicy,
    Ds4SchedulerPolicy,
    FixedPolicy,
    Request,
    Round,
    StagedPolicy,
    collect,
)
from spec.blocks.prices import Prices
from tests.spec.blocks.simulation import M5_MAX, Table, full, judged, make_round, simulate, text
from tests.spec.doubles import PlannedDrafter, PolicyTrial, make_loop, scripted_target

M3_ULTRA = Table((27.5, *[66.9] * 5), 8.2)  # the second report: a decode, a verify call, a proposal
SKIPPED = make_round("no_draft", gamma=0, skip="scheduler")


def pauses(policy: PolicyTrial, limit: int = 1000) -> int:
    """Rounds until the policy drafts again, each told to it."""
    for count in range(limit):
        plan = policy.plan()
        if plan.gamma:
            return count
        assert (plan.skip, bool(plan.reason)) == ("scheduler", True)
        policy.observe(SKIPPED)
    raise AssertionError(f"still off after {limit} rounds")


@pytest.mark.parametrize(
    ("finished", "extra"),
    [
        (full(5), 5 + 83.2 - 28),
        (judged(2, 0), 5 + 59.7 - 28),  # an early miss has paid for the pass
        (judged(2, 0, is_separate=True), 5),  # the separate loop knows before it
        (judged(2, 1, is_separate=True), 5 + 43.6),
        (judged(1, 1, is_separate=True), 5 + 28),
        (judged(5, 2, replayed=3), 5 + 83.2 - 28 + 3 * 28),
        (make_round("no_draft", gamma=5), 5),
        (make_round("invalid", gamma=5), 5),
        (make_round("no_draft", gamma=5, is_separate=True), 5),
        (make_round("no_draft", gamma=0), 0),
        (make_round("no_room", gamma=0), 0),
    ],
)
def test_what_a_round_costs(finished: Round, extra: float) -> None:
    prices = Prices.read(M5_MAX, 5, "test")
    assert prices.extra(finished) == pytest.approx(extra)
    assert prices.saved(finished) == finished.accepted * 28
    # what one round can lose: all of its cost, replay of the tokens it emitted from its inputs included
    assert prices.extra(finished) - prices.saved(finished) <= prices.worst


def test_break_even_backs_off_exponentially_at_zero_acceptance() -> None:
    policy = PolicyTrial(BreakEvenPolicy(costs=M5_MAX, max_loss=1.0))
    policy.observe(judged(5, 0))  # patience: one round is no verdict
    assert policy.gamma() == 5
    policy.observe(judged(5, 0))
    waits = [pauses(policy)]
    for _ in range(7):
        policy.observe(judged(5, 0))  # the probe fails at once
        waits.append(pauses(policy))
    assert waits == [4, 8, 16, 32, 64, 128, 128, 128]


def test_break_even_judges_the_rolling_sum() -> None:
    # A full 5 saves 140 - 60.2 = 79.8 ms, a miss loses 60.2.
    policy = PolicyTrial(BreakEvenPolicy(costs=M5_MAX, window=3))
    policy.observe(full(5))
    policy.observe(judged(5, 0))  # 19.6
    assert policy.gamma() == 5
    assert policy.state.gate.nets == pytest.approx((79.8, -60.2))
    policy.observe(judged(5, 2))  # 56 - 60.2 = -4.2: 15.4
    assert policy.gamma() == 5
    policy.observe(full(5))  # the first has left: 15.4
    policy.observe(judged(5, 1))  # -4.2 + 79.8 - 32.2: 43.4
    assert policy.gamma() == 5
    policy.observe(judged(5, 0))  # -12.6
    assert policy.plan() == policy.plan()
    assert pauses(policy) == 4


def test_break_even_takes_a_full_window_to_trust_again() -> None:
    policy = PolicyTrial(BreakEvenPolicy(costs=M5_MAX, window=3, max_loss=1.0))
    for _ in range(2):
        policy.observe(judged(5, 0))
    assert pauses(policy) == 4
    policy.observe(full(5))  # one lucky probe
    for _ in range(2):
        policy.observe(judged(5, 0))
    assert pauses(policy) == 8  # went on doubling
    for _ in range(3):
        policy.observe(full(5))
    for _ in range(2):  # 79.8 - 2 * 60.2 over the last three
        policy.observe(judged(5, 0))
    assert pauses(policy) == 4


def test_break_even_and_rounds_without_a_proposal() -> None:
    policy = PolicyTrial(BreakEvenPolicy(costs=M5_MAX))
    for item in (make_round("no_room", gamma=0), make_round("no_draft", gamma=0), make_round("tail_skip", gamma=0)):
        policy.observe(item)
    assert policy.state.gate.nets == ()
    policy.observe(make_round("no_draft", gamma=5))  # asked in vain
    policy.observe(make_round("invalid", gamma=5))
    assert pauses(policy) == 4


def test_a_probe_waits_until_the_run_can_afford_it() -> None:
    """Two misses lose 120.4 of an allowance of 2 * 88.2 + 2 % of plain time, a third would be a fourth too many."""
    policy = PolicyTrial(BreakEvenPolicy(costs=M5_MAX, max_loss=0.02))
    for _ in range(2):
        policy.observe(judged(5, 0))
    assert pauses(policy) == 4
    policy.observe(judged(5, 0))  # 180.6 lost after 7 tokens; allowed 176.4 + .56 * 7 = 180.32
    assert pauses(policy) == 8
    policy.observe(judged(5, 0))  # 240.8 lost after 16 tokens; allowed from (240.8 - 176.4) / .56 = 115 tokens on
    assert pauses(policy) == 99


@pytest.mark.parametrize("table", [M5_MAX, M3_ULTRA])
@pytest.mark.parametrize("maker", [None, StagedPolicy, ConfidencePolicy])
@given(
    right=st.lists(st.lists(st.booleans(), min_size=1, max_size=8).map(tuple), max_size=12),
    repeats=st.integers(1, 12),
    sure=st.floats(0, 1),
    max_loss=st.sampled_from([0.0, 0.05, 0.3]),
)
@settings(max_examples=40)
def test_break_even_never_loses_more_than_its_bound(table, maker, right, repeats, sure, max_loss) -> None:
    policy = BreakEvenPolicy(costs=table, inner=maker() if maker else None, max_loss=max_loss)
    sequence = [flag for part in right for flag in part * repeats]
    run = simulate(policy, sequence, table, [sure if flag else 0.6 for flag in sequence] if maker else None)
    worst = table.propose + max(table.passes)
    assert run.virtual_ms <= (1 + max_loss) * run.plain_ms + (policy.patience + 1) * worst + 1e-6


@given(kept=st.lists(st.tuples(st.integers(1, 5), st.integers(0, 5)), max_size=80), is_separate=st.booleans())
@settings(max_examples=60)
def test_the_bound_holds_with_replay_and_in_either_loop(kept: list[tuple[int, int]], is_separate: bool) -> None:
    policy = BreakEvenPolicy(costs=M3_ULTRA)
    trial = PolicyTrial(policy)
    prices = Prices.read(M3_ULTRA, 5, "test")
    lost = plain = 0.0
    for proposed, accepted in kept:
        accepted = min(accepted, proposed)
        item = SKIPPED
        if trial.gamma():
            replayed = accepted + (not is_separate)
            item = judged(proposed, accepted, replayed=replayed, is_separate=is_separate)
        trial.observe(item)
        lost += prices.extra(item) - prices.saved(item)
        plain += len(item.tokens) * prices.decode
        assert lost <= policy.max_loss * plain + (policy.patience + 1) * prices.worst + 1e-6


@pytest.mark.parametrize("table", [M5_MAX, M3_ULTRA])
def test_break_even_disarms_and_arms_again(table: Table) -> None:
    """600 tokens without any acceptance, then a text that is all but certain."""
    policy = BreakEvenPolicy(costs=table)
    bad, good = [False] * 600, text(600, 0.95)
    off = simulate(policy, bad, table)
    assert off.speedup > 0.93
    assert sum(bool(item.proposed) for item in off.rounds) <= 10
    both = simulate(policy, bad + good, table)
    alone = simulate(FixedPolicy(gamma=5), good, table)
    spent = both.virtual_ms - off.virtual_ms
    assert spent < 1.35 * alone.virtual_ms  # the wait for a probe, at most max_wait plain tokens
    assert {item.gamma for item in both.rounds[-20:-2]} == {5}


def test_the_inner_policy_sees_only_rounds_it_had_part_in() -> None:
    inner = StagedPolicy()
    policy = PolicyTrial(BreakEvenPolicy(costs=M5_MAX, inner=inner))
    policy.observe(full(2))
    assert policy.gamma() == inner.plan(policy.state.inner, 1000).gamma == 3
    cut = BreakEvenPolicy(costs=M5_MAX, gamma=2, inner=inner)
    assert cut.plan(policy.state, 1000).gamma == 2
    policy.observe(judged(3, 0))  # 56 - 36.7 for the block of 2, -42.8 for that of 3
    assert pauses(policy) == 4
    assert inner.plan(policy.state.inner, 1000).gamma == 2
    policy.observe(full(2))
    assert policy.state.inner == 1
    policy.reset()
    assert policy.state.inner == 0


def ds4(**values) -> PolicyTrial:
    return PolicyTrial(Ds4SchedulerPolicy(costs=M5_MAX, **values))


def empty(first: float | None = None) -> Round:
    return make_round("no_draft", gamma=5, confidence=None if first is None else (first,))


@pytest.mark.parametrize(
    ("rounds", "skips"),
    [
        # cold: 7 when the first confidence is low. logit(.62) = .4895, logit(.63) = .5322: 0.5 is a logit
        ([empty(0.2)], [7]),
        ([empty(0.62)], [7]),
        ([empty(0.63)], [3]),
        ([empty(0.0)], [7]),
        ([empty(1.0)], [3]),
        ([empty()], [3]),  # no confidence is not a low one
        # accepted before, never more than two at once: 4; more than two: 3
        ([judged(2, 2), empty(0.2)], [0, 4]),
        ([judged(3, 3), empty(0.2)], [0, 3]),
        # an early miss accepts nothing, so the session is still cold
        ([judged(3, 0), empty(0.2)], [0, 7]),
        # a good window: 4 x 3 accepted, extra 4 * (5 + 65.8 - 28) = 171.2 < saved 336
        ([full(3)] * 5, [0] * 5),
        # low only: 4 x 1 of 1: extra 82.4 < saved 112, 20.6 an accepted token
        ([full(1)] * 8, [0, 0, 0, 2, 0, 0, 0, 2]),
        # nothing accepted: low only, since neither quotient exists. It never backs off further
        ([judged(5, 0)] * 8, [0, 0, 0, 2, 0, 0, 0, 2]),
        # 4 x 2 of 5: not low, extra 240.8 > saved 224
        ([judged(5, 2)] * 4, [0, 0, 0, 4]),
        # half empty; the verdict of 4 replaces the 3 of the empty draft
        ([full(3), empty(), full(3), empty()], [0, 3, 0, 4]),
        # and the 7 of a cold one
        ([empty(0.2)] * 4, [7, 7, 7, 4]),
        # a low verdict replaces 4 by 2
        ([full(1), full(1), full(1), empty()], [0, 0, 0, 2]),
        # a good verdict leaves the pause of an empty draft
        ([full(5), full(5), full(5), empty()], [0, 0, 0, 3]),
        # not observed: neither in the window nor an empty draft
        ([make_round("invalid", gamma=5), make_round("no_room", gamma=0), *[full(1)] * 4], [0, 0, 0, 0, 0, 2]),
        ([make_round("no_draft", gamma=0, skip="scheduler")], [0]),  # an inner policy's own pause
    ],
)
def test_ds4_by_hand(rounds: list[Round], skips: list[int]) -> None:
    policy, got = ds4(), []
    for item in rounds:
        policy.observe(item)
        got.append(pauses(policy))
    assert got == skips


@pytest.mark.parametrize(
    ("values", "skip"),
    [
        ({}, 4),
        ({"max_extra_saved_ratio": 0}, 4),  # 240.8 / 8 = 30.1 ms an accepted token
        ({"max_ms_per_accept": 0}, 4),
        ({"max_ms_per_accept": 30.0, "max_extra_saved_ratio": 1.05}, 4),
        ({"max_ms_per_accept": 30.2, "max_extra_saved_ratio": 1.08}, 0),
        ({"max_ms_per_accept": 0, "max_extra_saved_ratio": 0}, 0),
        ({"min_avg": 2.1, "max_ms_per_accept": 0, "max_extra_saved_ratio": 0}, 2),
        ({"slow_skip": 1}, 2),  # never less than skip
    ],
)
def test_ds4_verdicts_one_by_one(values: dict, skip: int) -> None:
    policy = ds4(**values)
    for _ in range(4):
        assert policy.gamma() == 5
        policy.observe(judged(5, 2))
    assert pauses(policy) == skip


def test_ds4_early_break_even() -> None:
    policy = ds4(break_even_window=2)
    for _ in range(2):
        policy.observe(judged(5, 2))
    assert pauses(policy) == 4
    assert policy.state.gate.cycles == 0


def test_ds4_leaves_the_tail_alone() -> None:
    policy = ds4()
    assert policy.gamma(10) == 5
    plan = policy.plan(9)
    assert (plan.gamma, plan.skip, plan.reason) == (0, "tail", "9 tokens are left, drafting wants 10")
    policy.observe(empty())
    assert policy.plan(9).skip == "tail"  # asked first
    before = policy.state
    policy.observe(make_round("tail_skip", gamma=0, skip="tail"))
    assert policy.state == before
    assert ds4(tail_min_tokens=0).gamma(1) == 5


def test_ds4_sees_the_cost_of_replay() -> None:
    """The second report: replay costs what acceptance saved. 4 x 5 of 5, replayed: extra 60.2 + 168 > saved 140."""
    policy = ds4()
    for _ in range(4):
        policy.observe(judged(5, 5, replayed=6))
    assert pauses(policy) == 4


def test_auto_is_a_threshold_behind_the_gate() -> None:
    policy = AutoPolicy(costs=M5_MAX)
    assert [PolicyTrial(policy).admits((c,)) for c in (0.69, 0.7)] == [False, True]
    by_hand = BreakEvenPolicy(costs=M5_MAX, inner=ConfidencePolicy())
    right = text(400, 0.6)
    confidence = [0.8 if flag else 0.6 for flag in right]
    assert simulate(policy, right, confidence=confidence) == simulate(by_hand, right, confidence=confidence)
    replaced = AutoPolicy(costs=M5_MAX, inner=StagedPolicy())
    assert PolicyTrial(replaced).gamma() == 2


@pytest.mark.parametrize(
    "policy", [BreakEvenPolicy(costs=M5_MAX), Ds4SchedulerPolicy(costs=M5_MAX), AutoPolicy(costs=M5_MAX, gamma=3)]
)
def test_through_the_loop_every_undrafted_round_has_a_reason(policy: BlockPolicy) -> None:
    script = tuple(at % 29 for at in range(200))
    drafter = PlannedDrafter(script, frozenset(range(30, 90)))
    done = collect(
        make_loop(scripted_target(script), drafter, block=policy).rounds(Request(prompt=script[:4], max_tokens=150))
    )
    assert done.tokens == script[4:154]
    undrafted = [item for item in done.rounds if not item.proposed]
    assert all(item.reason for item in undrafted)
    assert sum(item.skip == "scheduler" for item in undrafted) > 5
    assert any(item.skip == "tail" for item in undrafted) == isinstance(policy, Ds4SchedulerPolicy)
    assert {item.accepted for item in done.rounds[-20:]} & {3, 5}  # on again
