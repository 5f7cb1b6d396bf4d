"""What every block policy owes the loop, whatever it is shown."""

import pickle
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spec import (
    AutoPolicy,
    BlockPlan,
    BlockPolicy,
    BreakEvenPolicy,
    CappedPolicy,
    ConfidencePolicy,
    Ds4SchedulerPolicy,
    FixedPolicy,
    Round,
    SingleJumpPolicy,
    StagedPolicy,
    ThroughputPolicy,
    UserError,
    WindowPolicy,
)
from spec.testing import BlockPolicyContract, NosyPolicy
from tests.spec.blocks.simulation import M5_MAX, UNJUDGED, Table, full, judged, make_round
from tests.spec.doubles import PolicyTrial

MAKERS: dict[str, Callable[..., BlockPolicy]] = {
    "fixed": FixedPolicy,
    "single_jump": SingleJumpPolicy,
    "staged": StagedPolicy,
    "capped": CappedPolicy,
    "window": WindowPolicy,
    "confidence": ConfidencePolicy,
    "throughput": lambda gamma: ThroughputPolicy(gamma=gamma, costs=M5_MAX),
    "break_even": lambda gamma: BreakEvenPolicy(gamma=gamma, costs=M5_MAX, inner=StagedPolicy(gamma=gamma)),
    "ds4_scheduler": lambda gamma: Ds4SchedulerPolicy(
        gamma=gamma, costs=M5_MAX, inner=ConfidencePolicy(gamma=gamma), break_even_window=2
    ),
    "auto": lambda gamma: AutoPolicy(gamma=gamma, costs=M5_MAX),
}
NAMES = sorted(MAKERS)


class TestEveryPolicy(BlockPolicyContract):
    @pytest.fixture(autouse=True, params=NAMES)
    def _named(self, request: pytest.FixtureRequest) -> None:
        self.name = request.param

    def make(self) -> BlockPolicy:
        return MAKERS[self.name](gamma=5)


class TestNoBlock(BlockPolicyContract):
    def make(self) -> FixedPolicy:
        return FixedPolicy(gamma=0)


class TestNosyPolicy(BlockPolicyContract):
    def make(self) -> NosyPolicy:
        return NosyPolicy()


@st.composite
def answers(draw: st.DrawFn) -> tuple[int, int, int, str, float, int]:
    """What the loop, the drafter and the target will do with a plan, as numbers to be cut to it."""
    return (
        draw(st.integers(1, 30)),  # tokens left
        draw(st.integers(0, 8)),  # proposed
        draw(st.integers(0, 8)),  # accepted
        draw(st.sampled_from(["judged", "judged", "judged", "no_draft", "invalid"])),
        draw(st.floats(0, 1)),  # first confidence
        draw(st.integers(0, 6)),  # replayed
    )


def step(policy: PolicyTrial, answer: tuple[int, int, int, str, float, int]) -> tuple[BlockPlan, Round]:
    """One round of a loop that keeps the protocol."""
    left, proposed, accepted, what, confidence, replayed = answer
    plan = policy.plan(left)
    if plan.gamma == 0:
        finished = make_round("tail_skip" if plan.skip == "tail" else "no_draft", gamma=0, skip=plan.skip)
    elif left == 1:
        finished = make_round("no_room", gamma=0)
    else:
        gamma = min(plan.gamma, left - 1)
        proposed = min(proposed, gamma)
        if proposed == 0 or what != "judged":
            said = (confidence,) if what == "no_draft" else None
            finished = make_round("invalid" if what == "invalid" else "no_draft", gamma=gamma, confidence=said)
        else:
            accepted = min(accepted, proposed)
            finished = judged(proposed, accepted, replayed=min(replayed, accepted + 1))
    policy.observe(finished)
    return plan, finished


@pytest.mark.parametrize("name", NAMES)
@given(gamma=st.integers(1, 5), run=st.lists(answers(), max_size=40), cut=st.integers(0, 40))
@settings(max_examples=40)
def test_any_sequence_of_rounds(name: str, gamma: int, run: list, cut: int) -> None:
    """Gamma keeps its range; a run repeats, goes on from any state of it, and is forgotten at a reset."""
    policy, again = PolicyTrial(MAKERS[name](gamma=gamma)), PolicyTrial(MAKERS[name](gamma=gamma))
    longest = policy.policy.max_gamma
    assert 1 <= longest <= gamma
    fresh, saved, plans = policy.state, None, []
    for index, answer in enumerate(run):
        if index == min(cut, len(run) - 1):
            saved = policy.state
        before = policy.state
        assert policy.plan(answer[0]) == policy.plan(answer[0])
        policy.admits((answer[4],))
        assert policy.state == before  # deciding changes nothing
        plan, _ = step(policy, answer)
        plans.append(plan)
        assert 0 <= plan.gamma <= longest
        assert plan.gamma > 0 or plan.reason
    assert [step(again, answer)[0] for answer in run] == plans
    assert again.state == policy.state
    if run:
        start, end = min(cut, len(run) - 1), policy.state
        policy.state = pickle.loads(pickle.dumps(saved))  # a state is a value
        assert [step(policy, answer)[0] for answer in run[start:]] == plans[start:]
        assert policy.state == end
    policy.reset()
    assert policy.state == fresh
    assert [step(policy, answer)[0] for answer in run] == plans


@pytest.mark.parametrize("name", ["single_jump", "staged", "capped", "window", "confidence", "throughput"])
def test_rounds_without_a_verdict_teach_nothing(name: str) -> None:
    policy = PolicyTrial(MAKERS[name](gamma=5))
    for item in (judged(2, 2), judged(3, 1)):
        policy.observe(item)
        before = policy.state
        for unjudged in UNJUDGED:
            policy.observe(unjudged)
            assert policy.state == before


@pytest.mark.parametrize("name", NAMES)
def test_a_policy_is_a_value(name: str) -> None:
    """It prints and compares by its hyperparameters; what it learns is kept elsewhere."""
    policy = MAKERS[name](gamma=4)
    PolicyTrial(policy).observe(full(4))
    assert policy == MAKERS[name](gamma=4)
    assert policy != MAKERS[name](gamma=3)
    assert repr(policy).startswith(type(policy).__name__ + "(gamma=4")


@pytest.mark.parametrize("name", [name for name in NAMES if name != "fixed"])
@pytest.mark.parametrize("gamma", [0, -1, 2.0, True, None, "5"])
def test_gamma_is_checked(name: str, gamma: object) -> None:
    with pytest.raises(UserError, match=r"block\.gamma must be a whole number of 1 or more.*block=fixed"):
        MAKERS[name](gamma=gamma)


@pytest.mark.parametrize(
    ("maker", "name"),
    [
        (ThroughputPolicy, "throughput"),
        (BreakEvenPolicy, "break_even"),
        (Ds4SchedulerPolicy, "ds4_scheduler"),
        (AutoPolicy, "auto"),
    ],
)
def test_costs_are_checked(maker: Callable[..., BlockPolicy], name: str) -> None:
    for missing in (None, {"1": 27.5}):
        with pytest.raises(
            UserError, match=f"block={name} decides by supplied costs, got .*choose a table with costs="
        ):
            maker(costs=missing)
    with pytest.raises(UserError, match=r"costs: pass_ms\(2\) must be above 0 ms, got 0"):
        maker(costs=Table((1.0, 0.0, 1.0, 1.0, 1.0, 1.0)))
    with pytest.raises(UserError, match=r"costs: propose_ms\(0\) must be 0 ms or more, got nan"):
        maker(costs=Table((1.0,) * 6, float("nan")))
    maker(costs=Table((1.0,) * 6, 0.0))


@pytest.mark.parametrize(
    ("maker", "values", "message"),
    [
        (CappedPolicy, {"ceiling": 0}, "block.ceiling must be a whole number of 1 or more, got 0"),
        (WindowPolicy, {"window": 0}, "block.window must be a whole number of 1 or more"),
        (WindowPolicy, {"grow": 1.5}, r"block.grow must be a number in 0\.\.1, got 1.5"),
        (WindowPolicy, {"shrink": 0.2}, "must not fall, got 0.3, 0.2, 0.85"),
        (ConfidencePolicy, {"threshold": 1.1}, r"block.threshold must be a number in 0\.\.1"),
        (ConfidencePolicy, {"threshold": float("nan")}, "block.threshold must be a number"),
        (AutoPolicy, {"threshold": -1, "costs": M5_MAX}, "block.threshold must be a number"),
        (BreakEvenPolicy, {"window": 1, "costs": M5_MAX}, "block.window must be a whole number of 2 or more, got 1"),
        (
            BreakEvenPolicy,
            {"max_wait": 2, "costs": M5_MAX},
            "block.max_wait must be a whole number of 4 or more, got 2",
        ),
        (BreakEvenPolicy, {"max_loss": 2, "costs": M5_MAX}, "block.max_loss must be a number"),
        (Ds4SchedulerPolicy, {"slow_skip": -1, "costs": M5_MAX}, "block.slow_skip must be a whole number of 0 or more"),
    ],
)
def test_values_are_checked(maker: Callable[..., BlockPolicy], values: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        maker(**values)
