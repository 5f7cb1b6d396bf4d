"""Confidence decides how far to draft, and never sees what it decides about."""

from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import pytest

from models import load_dspark, load_model
from spec import (
    ConfidencePolicy,
    CostTable,
    DSparkDrafter,
    Proposal,
    RandomStream,
    Request,
    ThroughputPolicy,
    collect,
)
from spec.rounds import Admits
from tests.random_models import random_tokens
from tests.spec.blocks.simulation import M5_MAX, Table, calibrated, simulate
from tests.spec.doubles import PlannedDrafter, PolicyTrial, context_at, make_loop, prefilled, scripted_target, session

FIXTURES = Path(__file__).parents[2] / "fixtures"
PROMPT = random_tokens(21, vocab_size=96, seed=6)[0].tolist()


def length_of(admits: Admits, confidences: tuple[float, ...]) -> int:
    """How far a drafter with these confidences gets."""
    for count in range(len(confidences)):
        if not admits(confidences[: count + 1]):
            return count
    return len(confidences)


@pytest.mark.parametrize(
    ("threshold", "confidences", "length"),
    [
        (0.7, (0.9, 0.8, 0.69, 0.99), 2),
        (0.7, (0.7, 0.7, 0.7, 0.7), 4),  # position by position: the product is .24
        (0.7, (0.69, 0.99), 0),
        (0.0, (0.0, 0.0), 2),
        (1.0, (1.0, 0.999), 1),
    ],
)
def test_threshold(threshold: float, confidences: tuple[float, ...], length: int) -> None:
    policy = PolicyTrial(ConfidencePolicy(threshold=threshold))
    assert length_of(policy.admits, confidences) == length
    assert policy.gamma() == 5


# SPS(1, 2, 3) = 1, .5, .45 of the paper's Appendix A, as milliseconds a step.
APPENDIX_A = Table((1.0, 1 / 0.5, 1 / 0.45), 0.0)


def test_throughput_by_hand() -> None:
    policy = PolicyTrial(ThroughputPolicy(gamma=2, costs=APPENDIX_A))
    # Theta(0) = 1, Theta(1) = (1 + c1) * .5: never above
    assert length_of(policy.admits, (0.8, 0.9)) == 0
    assert length_of(policy.admits, (1.0, 1.0)) == 0  # exactly 1 does not rise
    # M5 Max with 5 ms a proposal: (1 + c) / 48.6 > 1 / 33 from c = .473
    policy = PolicyTrial(ThroughputPolicy(costs=M5_MAX))
    assert [length_of(policy.admits, (c,)) for c in (0.47, 0.48)] == [0, 1]
    # all certain: 1/33, 2/48.6, 3/64.7, 4/70.8, 5/79.5, 6/88.2 rise throughout
    assert length_of(policy.admits, (1.0,) * 5) == 5
    # .9 each: 1.9/48.6 = .0391, 2.71/64.7 = .0419, 3.439/70.8 = .0486, 4.095/79.5 = .0515, 4.686/88.2 = .0531
    assert length_of(policy.admits, (0.9,) * 5) == 5
    # .6, .6: 1.6/48.6 = .0329, 1.96/64.7 = .0303 falls; a third certain token would have made up for it
    assert length_of(policy.admits, (0.6, 0.6, 1.0)) == 1


def test_throughput_charges_the_call_to_an_empty_proposal() -> None:
    costs = CostTable(name="test", passes={1: 28.0, 2: 43.6}, propose={0: 4.0, 1: 6.0})
    policy = PolicyTrial(ThroughputPolicy(gamma=1, costs=costs))
    # (1 + c) / 49.6 > 1 / 32 from c = .55
    assert [length_of(policy.admits, (c,)) for c in (0.54, 0.56)] == [0, 1]


P, Q = (0.7, 0.3), (0.5, 0.5)
FIRST, SECOND = 0.8, (0.9, 0.0)  # c_1, and c_2 by the first drafted token


def law_of_first_token(submits: Callable[[int], bool]) -> tuple[float, float]:
    """Exact law of the token after the anchor, under rejection sampling of d_1 where it is submitted."""
    law = [0.0, 0.0]
    residual_mass = sum(max(p - q, 0) for p, q in zip(P, Q, strict=True))
    for token in (0, 1):
        if submits(token):
            accept = min(1.0, P[token] / Q[token])
            law[token] += Q[token] * accept
            for other in (0, 1):
                law[other] += Q[token] * (1 - accept) * max(P[other] - Q[other], 0) / residual_mass
        else:
            for other in (0, 1):
                law[other] += Q[token] * P[other]
    return law[0], law[1]


def test_appendix_a_the_early_stop_keeps_the_law() -> None:
    policy = PolicyTrial(ThroughputPolicy(gamma=2, costs=APPENDIX_A))
    assert law_of_first_token(lambda token: length_of(policy.admits, (FIRST, SECOND[token])) > 0) == pytest.approx(P)
    # and so does drafting always, which asks nothing
    assert law_of_first_token(lambda token: True) == pytest.approx(P)


def test_appendix_a_a_retrospective_search_breaks_it() -> None:
    """The best length given all confidences: c_2 tells which token was drawn, so the search picks by token."""

    def best_length(token: int) -> int:
        survivals = (1.0, FIRST, FIRST * SECOND[token])
        rates = [sum(survivals[: length + 1]) / APPENDIX_A.pass_ms(1 + length) for length in range(3)]
        return rates.index(max(rates))

    assert [best_length(token) for token in (0, 1)] == [2, 0]
    assert law_of_first_token(lambda token: best_length(token) > 0) == pytest.approx((0.85, 0.15))


@pytest.mark.parametrize("policy", [ConfidencePolicy(), ThroughputPolicy(costs=M5_MAX)])
def test_a_token_is_decided_on_before_anything_later_is_known(policy) -> None:
    """Whatever later confidences are, the decision about token k is that of the prefix."""
    policy = PolicyTrial(policy)
    for later in ((0.0,), (1.0,), (0.5, 1.0)):
        for prefix in ((0.9,), (0.9, 0.8), (0.3,)):
            got = length_of(policy.admits, (*prefix, *later))
            assert (got >= len(prefix)) == (length_of(policy.admits, prefix) == len(prefix))


def test_confidence_pays_where_it_is_informative() -> None:
    right, confidence = calibrated(2000, 0.2, 1.0)
    blind = simulate(ConfidencePolicy(threshold=0.0), right, confidence=confidence)
    for policy in (ConfidencePolicy(), ThroughputPolicy(costs=M5_MAX)):
        assert simulate(policy, right, confidence=confidence).speedup > blind.speedup + 0.1


@pytest.fixture(scope="module")
def drafter() -> tuple[DSparkDrafter, DSparkDrafter, object]:
    """An argmax and a sampling drafter that have seen the prompt, and their target."""
    target = load_model(FIXTURES / "target" / "flashlike")
    network = load_dspark(FIXTURES / "dspark" / "flashlike", target=target)
    made = DSparkDrafter(network), DSparkDrafter(network, proposal="sampled", temperature=1.0)
    for one in made:
        one.observe(PROMPT, prefilled(session(target, one), PROMPT))
    return (*made, target)


@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize("limit", range(6))
def test_dspark_stops_at_the_first_refusal(drafter, kind: int, limit: int) -> None:
    whole = drafter[kind].propose(context_at(7, len(PROMPT), RandomStream()), 5)
    asked = []

    def admits(confidences: tuple[float, ...]) -> bool:
        asked.append(confidences)
        return len(confidences) <= limit

    proposal = drafter[kind].propose(context_at(7, len(PROMPT), RandomStream()), 5, admits)
    assert asked == [whole.confidence[: count + 1] for count in range(min(limit + 1, 5))]
    assert proposal.tokens == whole.tokens[:limit]
    assert proposal.confidence == whole.confidence[: limit + 1]  # what was asked about, the refused one included
    assert (proposal.reason is None) == (limit > 0)
    if limit == 0:
        assert proposal.reason.startswith("the block policy refused the first token at confidence ")
    elif kind:
        assert mx.array_equal(proposal.draft_probs, whole.draft_probs[:limit])


def test_a_proposal_has_at_most_one_refused_confidence() -> None:
    assert Proposal(tokens=(1,), confidence=(0.9, 0.1)).confidence == (0.9, 0.1)
    assert Proposal(reason="refused", confidence=(0.1,)).confidence == (0.1,)
    for confidence in ((), (0.9, 0.8, 0.7)):
        with pytest.raises(ValueError, match="at most one for a refused token"):
            Proposal(tokens=(1,), confidence=confidence)


class SureDrafter(PlannedDrafter):
    """Right where it is sure: its confidence is .9 where the draft is right and .2 where it is wrong."""

    def propose(self, context, gamma, admits=None) -> Proposal:
        known = super().propose(context, gamma)
        said = tuple(0.2 if context.position + 1 + at in self.wrong else 0.9 for at in range(len(known.tokens)))
        count = length_of(admits, said)
        if not count:
            return Proposal(reason=known.reason or "refused", confidence=said[:1])
        return Proposal(tokens=known.tokens[:count], confidence=said[: count + 1])


def test_through_the_loop() -> None:
    script = tuple(at % 29 for at in range(200))
    wrong = frozenset(range(9, 100, 7)) | frozenset(range(40, 60))
    loop = make_loop(scripted_target(script), SureDrafter(script, wrong), block=ConfidencePolicy())
    done = collect(loop.rounds(Request(prompt=script[:4], max_tokens=90)))
    assert done.tokens == script[4:94]
    assert {item.outcome for item in done.rounds[:-1]} == {"full", "no_draft"}  # no wrong draft was ever proposed
    assert all(item.reason for item in done.rounds if not item.proposed)
    refused = [item for item in done.rounds if item.outcome == "no_draft"]
    assert all(item.confidence == (0.2,) for item in refused)
