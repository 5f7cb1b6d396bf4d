"""The separate loop: ds4's order of decisions and counters, and the same law and tokens as the folded loop."""

from collections import Counter

import mlx.core as mx
import pytest

from models import Model
from spec import (
    BlockPlan,
    BlockVerifier,
    FixedPolicy,
    FoldedLoop,
    NgramDrafter,
    NoneDrafter,
    OracleDrafter,
    Proposal,
    RandomStream,
    RecordedTarget,
    RejectionVerifier,
    Request,
    RollbackCommit,
    SampleMatchVerifier,
    Sampling,
    SeparateLoop,
    UserError,
    collect,
)
from spec.measure import account_for
from spec.sampling import DraftSampler
from tests.random_models import random_tokens
from tests.spec.doubles import PlannedDrafter, make_loop, scripted_target, session

SCRIPT = tuple(range(2, 32)) * 3
PROMPT = SCRIPT[:4]


def run(target, drafter, gamma: int, count: int, loop: dict | None = None, **limits):
    """One generation of the separate loop."""
    made = make_loop(target, drafter, gamma, SeparateLoop, **(loop or {}))
    return collect(made.rounds(Request(prompt=PROMPT, max_tokens=count, **limits)))


def test_an_early_miss_costs_no_verify_pass_and_a_right_first_draft_does() -> None:
    target = scripted_target(SCRIPT)
    # the first anchor stands at 4, so that 5 is the first draft; then 8 .. 10 after the correction at 7
    done = run(target, PlannedDrafter(SCRIPT, frozenset({5, 9})), 3, 12)
    first, second, third = done.rounds[:3]
    assert (first.outcome, first.accepted, first.kind, first.verify_rows, first.commit_kind) == (
        *("miss_first", 0, "correction"),
        *(0, None),
    )
    assert (second.outcome, second.accepted, second.kind, second.verify_rows) == ("full", 3, "bonus", 3)
    assert (third.outcome, third.accepted, third.verify_rows) == ("full", 3, 3)
    assert all(item.decoded == 1 for item in done.rounds)
    assert target.widths == [1, 1, 1, 3, 1, 3, 1, 1]  # the prefill; a decode a cycle, and three verify passes


def test_the_last_row_that_stands_is_the_next_choice() -> None:
    target = scripted_target(SCRIPT)
    done = run(target, PlannedDrafter(SCRIPT, frozenset({7})), 4, 20)
    first = done.rounds[0]
    assert (first.outcome, first.accepted, first.kind, first.commit_kind) == (
        *("partial", 2, "correction"),
        "direct_partial",
    )
    assert first.tokens == SCRIPT[5:8]
    assert done.tokens == SCRIPT[4:24]


def test_end_of_sequence_as_the_first_draft_is_verified_alone() -> None:
    target = scripted_target(SCRIPT)
    done = run(target, PlannedDrafter(SCRIPT), 4, 20, eos=frozenset({SCRIPT[5]}))
    (only,) = done.rounds
    assert (len(only.proposed), only.verify_rows, only.accepted, only.outcome) == (4, 1, 1, "full")
    assert (done.tokens, done.finish_reason, only.kind) == (SCRIPT[4:6], "eos", "none")
    account = account_for([done], [None])
    assert (account.proposed, account.full, account.draft_len_hist, account.num_pending) == (4, 1, {4: 1}, 0)


class PlannedPolicy(FixedPolicy):
    """Skips by a plan: a kind of skip, or nothing, by round."""

    def init(self):
        return 0

    def plan(self, state, tokens_left):
        skip = {0: "scheduler", 3: "scheduler"}.get(state)
        if tokens_left < 4:
            return BlockPlan(gamma=0, reason="tail", skip="tail")
        return BlockPlan(gamma=0, reason="does not pay", skip=skip) if skip else super().plan(None, tokens_left)

    def after(self, state, finished):
        return state + 1


class MoodyDrafter(PlannedDrafter):
    """Has nothing at one position, and a foreign id at another."""

    def propose(self, context, gamma, admits=None):
        if context.position == 5:
            return Proposal(reason="not sure")
        return Proposal(tokens=(99,)) if context.position == 6 else super().propose(context, gamma)


def test_counters_are_ds4s() -> None:
    """no_draft includes the scheduler's skips; tail rounds are no cycles; a foreign id is no proposal."""
    target = scripted_target(SCRIPT)
    drafter = MoodyDrafter(SCRIPT, frozenset({12, 13}))
    done = run(target, drafter, 3, 16, {"block": PlannedPolicy(gamma=3)})
    assert [item.outcome for item in done.rounds] == [
        *("no_draft", "no_draft", "invalid", "no_draft"),  # skip, empty, foreign id, skip
        *("full", "miss_first", "full", "tail_skip", "tail_skip"),
    ]
    account = account_for([done], [None])
    assert (account.no_draft, account.scheduler_skips, account.invalid, account.tail_skips) == (3, 2, 1, 2)
    assert account.cycles == 7
    assert account.num_tokens == account.cycles + account.tail_skips + account.accepted_draft + account.num_pending


def test_no_room_is_said_after_the_drafter_was_asked() -> None:
    last = run(scripted_target(SCRIPT), PlannedDrafter(SCRIPT), 3, 6).rounds[-1]
    assert (last.outcome, last.gamma, last.proposed) == ("no_room", 0, ())
    assert run(scripted_target(SCRIPT), NoneDrafter(), 3, 2).rounds[-1].outcome == "no_draft"


@pytest.mark.parametrize("correction", ["decode", "replay"])
def test_a_correction_is_decoded_next_or_makes_its_block_replay(correction: str) -> None:
    """commit_has_correction: a block that ends in a correction is never adopted; one that stands as a whole is."""
    target = scripted_target(SCRIPT)
    done = run(target, PlannedDrafter(SCRIPT, frozenset({7})), 3, 12, {"correction": correction})
    assert done.tokens == SCRIPT[4:16]
    by_kind = {item.kind: item for item in done.rounds if item.verify_rows}
    assert by_kind["bonus"].commit_kind == "direct_full"
    assert by_kind["correction"].commit_kind == ("replay" if correction == "replay" else "direct_partial")
    assert by_kind["correction"].replayed_tokens == (2 if correction == "replay" else 0)
    with pytest.raises(UserError, match=r"loop.correction must be decode or replay, got 'drop'"):
        make_loop(target, shape=SeparateLoop, correction="drop")


@pytest.mark.parametrize("drafter", [NgramDrafter(n_max=2, n_min=1), OracleDrafter(accept_rate=0.7)])
@pytest.mark.parametrize("settings", [{}, {"temperature": 1.0}, {"temperature": 0.7, "repetition_penalty": 1.3}])
def test_rounds_and_sampled_tokens_are_the_folded_loops(tiny_model: Model, drafter, settings: dict) -> None:
    """The same drafts from the same state stand; the tokens are those of plain sampling under the same seed."""
    prompt = random_tokens(12, seed=9)[0].tolist()
    verifier = SampleMatchVerifier(sampling=Sampling(**settings))

    def rounds_of(shape, gamma: int, reference=None, commit=None):
        parts = {"verifier": verifier} | ({"commit": commit} if commit else {})
        loop = make_loop(session(tiny_model, drafter, 4), drafter, gamma, shape, **parts)
        return collect(
            loop.rounds(Request(prompt=prompt, max_tokens=24, random=RandomStream(seed=1), reference=reference or (0,)))
        )

    plain = rounds_of(FoldedLoop, 0).tokens
    assert rounds_of(SeparateLoop, 0).tokens == plain
    folded = rounds_of(FoldedLoop, 4, plain)
    for commit in (None, RollbackCommit()):
        separate = rounds_of(SeparateLoop, 4, plain, commit)
        assert separate.tokens == folded.tokens == plain
        assert [(item.proposed, item.accepted) for item in separate.rounds if item.proposed] == [
            (item.proposed, item.accepted) for item in folded.rounds if item.proposed
        ]


P = mx.array([[0.6, 0.3, 0.1], [0.2, 0.5, 0.3], [0.1, 0.2, 0.7]])  # of the next token, by the last one
Q = mx.array([[0.3, 0.3, 0.4], [0.6, 0.2, 0.2], [0.3, 0.5, 0.2]])


def chain_target() -> RecordedTarget:
    """Every next token is drawn from a row of P."""
    return RecordedTarget(lambda text, count: mx.log(P[mx.array(text[-count:])]), 3)


class ChainDrafter(NoneDrafter):
    """Draws every token from a row of Q."""

    def propose(self, context, gamma, admits=None):
        sampler = DraftSampler(context.random, context.position, Sampling(temperature=1.0))
        last = mx.array(context.anchor)
        for _ in range(gamma):
            last = sampler.draw(mx.log(Q[last]))
        return Proposal.sampled(sampler)


@pytest.mark.parametrize("verifier", [RejectionVerifier, BlockVerifier])
def test_the_law_is_the_targets(verifier) -> None:
    """Chi-square of three tokens on 600 keyed runs: 26 degrees of freedom, the 99.9th percentile is 54.05."""
    loop = make_loop(
        chain_target(), ChainDrafter(), 3, SeparateLoop, verifier=verifier(sampling=Sampling(temperature=1.0))
    )
    counts, outcomes = Counter(), Counter()
    for seed in range(600):
        done = collect(loop.rounds(Request(prompt=(0,), max_tokens=5, random=RandomStream(seed=seed))))
        counts[done.tokens[1:4]] += 1
        outcomes.update(item.outcome for item in done.rounds)
    assert min(outcomes[name] for name in ("full", "partial", "miss_first")) > 50
    p = P.tolist()
    law = {
        (a, b, c): sum(p[0][first] * p[first][a] for first in range(3)) * p[a][b] * p[b][c]
        for a in range(3)
        for b in range(3)
        for c in range(3)
    }
    assert sum(law.values()) == pytest.approx(1)
    assert sum((counts[key] - 600 * mass) ** 2 / (600 * mass) for key, mass in law.items()) < 54.05
