"""Which prefix stands and what comes next: by hand, at the edges, and to the token. The law is in `test_law`."""

import math

import mlx.core as mx
import numpy as np
import pytest

from models import Model
from spec import (
    BlockVerifier,
    DraftSampler,
    GreedyVerifier,
    NgramDrafter,
    OracleDrafter,
    Proposal,
    RandomStream,
    RejectionVerifier,
    Request,
    SampleMatchVerifier,
    Sampling,
    UserError,
    collect,
)
from spec.testing.law import law_of
from spec.verifiers.block import block_acceptance, log_weights
from spec.verifiers.rejection import acceptance, residual
from tests.random_models import random_tokens
from tests.spec.doubles import before, make_loop, session

DRAWS = RandomStream(seed=9)
PROMPT = random_tokens(12, seed=9)[0].tolist()
GREEDY = [
    GreedyVerifier(sampling=Sampling()),
    SampleMatchVerifier(sampling=Sampling()),
    RejectionVerifier(sampling=Sampling()),
    BlockVerifier(sampling=Sampling()),
]
PLAIN = Sampling(temperature=1.0)
SAMPLING = [SampleMatchVerifier(sampling=PLAIN), RejectionVerifier(sampling=PLAIN), BlockVerifier(sampling=PLAIN)]
RATIO = [RejectionVerifier(sampling=PLAIN), BlockVerifier(sampling=PLAIN)]


class GivenSampler(DraftSampler):
    """A sampler whose tokens and distributions are written down: a fault, where they do not belong together."""

    def __init__(self, tokens: list[int], probs: list[list[float]]) -> None:
        self._tokens = [mx.array(token) for token in tokens]
        self._logprobs = list(mx.log(mx.array(probs)))


def given(tokens: list[int], probs: list[list[float]]) -> Proposal:
    return Proposal.sampled(GivenSampler(tokens, probs))


def logs(*rows: list[float]) -> mx.array:
    return mx.log(mx.array(rows))


def one_hot(wanted: list[int], vocab_size: int = 8) -> mx.array:
    return (mx.arange(vocab_size) == mx.array(wanted)[:, None]).astype(mx.float32)


def next_law(verifier, proposal: Proposal, logits: mx.array) -> dict:
    """The exact law of (accepted, next token) of one call."""

    def program(draws: RandomStream) -> tuple[int, int]:
        verdict = verifier.accept(proposal, logits, before(5, draws))
        return verdict.accepted, verdict.next_token

    return law_of(program)


# --- temperature 0: every rule is greedy verification ---


@pytest.mark.parametrize("verifier", GREEDY)
@pytest.mark.parametrize("right", range(4))
def test_the_longest_right_prefix_stands(verifier, right: int) -> None:
    wanted = [3, 1, 4, 5]
    drafted = tuple(token if index < right else 7 - token for index, token in enumerate(wanted[:3]))
    verdict = verifier.accept(Proposal(tokens=drafted), one_hot(wanted), before(10, DRAWS))
    assert (verdict.accepted, verdict.next_token) == (right, wanted[right])


@pytest.mark.parametrize("verifier", GREEDY)
def test_a_right_token_after_a_wrong_one_does_not_stand(verifier) -> None:
    verdict = verifier.accept(Proposal(tokens=(0, 1, 4)), one_hot([3, 1, 4, 5]), before(10, DRAWS))
    assert (verdict.accepted, verdict.next_token) == (0, 3)


@pytest.mark.parametrize("verifier", GREEDY)
def test_an_empty_proposal_yields_a_bonus(verifier) -> None:
    verdict = verifier.accept(Proposal(reason="none"), one_hot([6]), before(10, DRAWS))
    assert (verdict.accepted, verdict.next_token) == (0, 6)


@pytest.mark.parametrize("verifier", GREEDY)
def test_ties_go_to_the_lowest_id(verifier) -> None:
    logits = mx.array([[0.0, 2.0, 2.0]])
    for seed in range(20):
        assert verifier.accept(Proposal(reason="none"), logits, before(0, RandomStream(seed=seed))).next_token == 1
    for drafted, accepted in ((1, 1), (2, 0)):
        verdict = verifier.accept(Proposal(tokens=(drafted,)), mx.concatenate([logits, logits]), before(0, DRAWS))
        assert (verdict.accepted, verdict.next_token) == (accepted, 1)


@pytest.mark.parametrize("verifier", GREEDY)
def test_sampled_drafts_at_temperature_0_stand_if_they_are_the_argmax(verifier) -> None:
    for token, accepted in ((3, 1), (2, 0)):
        proposal = given([token], [[0.1, 0.2, 0.4, 0.3, 0, 0, 0, 0]])
        verdict = verifier.accept(proposal, one_hot([3, 6]), before(10, DRAWS))
        assert (verdict.accepted, verdict.next_token) == (accepted, 6 if accepted else 3)


@pytest.mark.parametrize("verifier_class", [GreedyVerifier, SampleMatchVerifier, RejectionVerifier, BlockVerifier])
def test_penalties_move_the_argmax_row_by_row(verifier_class) -> None:
    """Token 1 leads until it stands in the text, be it committed or a draft before the row."""
    verifier = verifier_class(sampling=Sampling(frequency_penalty=2.0, penalty_context=2))
    rows = mx.broadcast_to(mx.array([0.0, 3.0, 2.0, 1.5]), (4, 4))
    for committed in ((3, 3), (3, 1), ()):
        text, plain = list(committed), []
        for _ in range(4):
            plain.append(verifier.accept(Proposal(reason="none"), rows[:1], before(5, DRAWS, text)).next_token)
            text.append(plain[-1])
        verdict = verifier.accept(Proposal(tokens=tuple(plain[:3])), rows, before(5, DRAWS, committed))
        assert (verdict.accepted, verdict.next_token) == (3, plain[3])
        assert len(set(plain)) > 1


def test_greedy_refuses_a_temperature() -> None:
    with pytest.raises(UserError, match=r"verifier=greedy .* choose verifier=sample_match, b2 or block"):
        GreedyVerifier(sampling=PLAIN)


# --- the sheet's vectors ---


def test_vector_plain() -> None:
    p, q = [0.6, 0.3, 0.1], [0.2, 0.5, 0.3]
    assert acceptance(logs(p, p, p), logs(q, q, q), (0, 1, 2)) == pytest.approx([1, 0.6, 1 / 3])
    assert mx.softmax(residual(logs(p), logs(q)), axis=-1)[0].tolist() == pytest.approx([1, 0, 0])
    for verifier in RATIO:
        law = [0.0, 0.0, 0.0]
        mean = 0.0
        for token, mass in enumerate(q):
            for (accepted, following), share in next_law(verifier, given([token], [q]), logs(p, p)).items():
                law[token if accepted else following] += mass * share
                mean += mass * share * accepted
        assert law == pytest.approx(p, abs=1e-6)
        assert mean == pytest.approx(0.6)


def test_vector_of_truncation() -> None:
    raw, q = [0.5, 0.3, 0.15, 0.05], [0.4, 0.3, 0.2, 0.1]
    sampling = Sampling(temperature=1.0, top_p=0.8)
    p = sampling.logprobs(logs(raw))
    assert mx.exp(p)[0].tolist() == pytest.approx([0.625, 0.375, 0, 0])
    assert mx.softmax(residual(p, logs(q)), axis=-1)[0].tolist() == pytest.approx([0.75, 0.25, 0, 0])
    for verifier in (RejectionVerifier(sampling=sampling), BlockVerifier(sampling=sampling)):
        law, mean = [0.0] * 4, 0.0
        for token, mass in enumerate(q):
            for (accepted, following), share in next_law(verifier, given([token], [q]), logs(raw, raw)).items():
                law[token if accepted else following] += mass * share
                mean += mass * share * accepted
        assert law == pytest.approx([0.625, 0.375, 0, 0], abs=1e-6)
        assert mean == pytest.approx(0.7)


def test_vector_of_a_point_mass() -> None:
    """The draft is the second token of the truncated p: it stands with .375, otherwise the first comes."""
    sampling = Sampling(temperature=1.0, top_p=0.8)
    logits = logs([0.5, 0.3, 0.15, 0.05], [0.05, 0.05, 0.1, 0.8])
    for verifier_class in (RejectionVerifier, BlockVerifier, SampleMatchVerifier):
        law = next_law(verifier_class(sampling=sampling), Proposal(tokens=(1,)), logits)
        assert law == pytest.approx({(0, 0): 0.625, (1, 3): 0.375}, abs=1e-6)


def test_vector_of_the_wrong_mix() -> None:
    """An argmax draft in the disguise of a sampled one always stands: (1, 0, 0) instead of (.6, .3, .1)."""
    p, q = [0.6, 0.3, 0.1], [0.5, 0.4, 0.1]
    for verifier in RATIO:
        law = next_law(verifier, given([0], [q]), logs(p, p))
        assert sum(mass for (accepted, _), mass in law.items() if accepted) == pytest.approx(1)
        right = next_law(verifier, Proposal(tokens=(0,)), logs(p, p))
        assert sum(mass for (accepted, _), mass in right.items() if accepted) == pytest.approx(0.6)


def test_block_weights_by_hand() -> None:
    """Ratios 2, 1/4, 2: w = 1, 1, 1/4, 1/2; row 2 has R = max(p/4 - q, 0) = .05, and h_2 = .05 / (.05 + .75)."""
    weights = log_weights(mx.log(mx.array([2.0, 0.25, 2.0])))
    assert mx.exp(weights).tolist() == pytest.approx([1, 1, 0.25, 0.5])
    p, q = logs([0.5, 0.5], [0.5, 0.5], [0.6, 0.4]), logs([0.25, 0.75], [0.5, 0.5], [0.1, 0.9])
    excess = residual(weights[:-1, None] + p, q)
    assert mx.exp(excess).tolist() == [pytest.approx(row, abs=1e-6) for row in ([0.25, 0], [0, 0], [0.05, 0])]
    assert block_acceptance(weights, excess) == pytest.approx([1, 0.05 / 0.8, 0.5])


def test_a_later_ratio_makes_up_for_an_earlier_one() -> None:
    """p / q is 1/2 and then 2 on the drafts: token by token the first falls every second time, the block stands."""
    logits = logs([0.4, 0.6], [0.8, 0.2], [0.5, 0.5])
    proposal = given([0, 0], [[0.8, 0.2], [0.4, 0.6]])
    whole = [
        sum(mass for (accepted, _), mass in next_law(verifier, proposal, logits).items() if accepted == 2)
        for verifier in RATIO
    ]
    assert whole == pytest.approx([0.5, 1.0], abs=1e-6)


# --- edges ---


@pytest.mark.parametrize("verifier", RATIO)
@pytest.mark.parametrize("at", [0, 1])
def test_q_of_0_is_a_fault(verifier, at: int) -> None:
    rows = [[0.5, 0.5, 0.0], [0.5, 0.5, 0.0]]
    tokens = [0, 0]
    tokens[at] = 2
    with pytest.raises(ValueError, match=r"drafts \[2\] have no probability under q"):
        verifier.accept(given(tokens, rows), mx.zeros((3, 3)), before(0, DRAWS))


@pytest.mark.parametrize("verifier_class", [RejectionVerifier, BlockVerifier, SampleMatchVerifier])
@pytest.mark.parametrize("is_sampled", [True, False])
def test_p_of_0_rejects_with_certainty(verifier_class, is_sampled: bool) -> None:
    verifier = verifier_class(sampling=Sampling(temperature=1.0, top_k=2))
    logits = mx.broadcast_to(mx.array([0.0, 1.0, 2.0, 3.0]), (3, 4))
    proposal = given([0, 2], [[0.7, 0.1, 0.1, 0.1]] * 2) if is_sampled else Proposal(tokens=(0, 2))
    law = next_law(verifier, proposal, logits)
    assert {accepted for accepted, _ in law} == {0}
    assert {token for _, token in law} <= {2, 3}
    for seed in range(50):
        assert verifier.accept(proposal, logits, before(4, RandomStream(seed=seed))).accepted == 0


@pytest.mark.parametrize("verifier", RATIO)
def test_equal_distributions_accept_with_certainty(verifier) -> None:
    sampler = DraftSampler(DRAWS, 3, PLAIN)
    logits = 3.0 * mx.random.normal((4, 6), key=mx.random.key(1))
    for row in range(3):
        sampler.draw(logits[row])
    law = next_law(verifier, Proposal.sampled(sampler), logits)
    assert {accepted for accepted, _ in law} == {3}
    assert sum(law.values()) == pytest.approx(1)


class Refusing(RandomStream):
    """A stream that reject whatever they may."""

    def accepts(self, probability: float, position: int) -> bool:
        return False


@pytest.mark.parametrize("verifier", RATIO)
def test_a_rejection_without_a_residual_falls_back_to_p_and_says_so(verifier) -> None:
    probs = [0.0, 0.7, 0.3]
    verdict = verifier.accept(given([1], [probs]), logs(probs, probs), before(0, Refusing()))
    assert (verdict.accepted, verdict.has_no_residual) == (0, True)
    tokens = [
        verifier.accept(given([1], [probs]), logs(probs, probs), before(at, Refusing())).next_token for at in range(300)
    ]
    assert sorted(set(tokens)) == [1, 2]
    assert tokens.count(1) == pytest.approx(210, abs=30)
    # p and q a rounding apart, where the draft can be rejected and nothing is left above q
    nearly = [0.0, 0.7, 0.3000001]
    assert verifier.accept(given([1], [nearly]), logs(probs, probs), before(0, Refusing())).has_no_residual
    assert not verifier.accept(given([1], [[0.0, 0.8, 0.2]]), logs(probs, probs), before(0, Refusing())).has_no_residual


@pytest.mark.parametrize("verifier", [*GREEDY, *SAMPLING])
@pytest.mark.parametrize("row", [0, 1, 2])
@pytest.mark.parametrize("bad", [[math.nan, 0, 0], [math.inf, 0, 0], [-math.inf] * 3])
def test_rows_that_are_no_distribution_raise(verifier, row: int, bad: list[float]) -> None:
    logits = mx.array([bad if at == row else [0.0, 1.0, 2.0] for at in range(3)])
    for proposal in (Proposal(tokens=(2, 2)), given([2, 2], [[0.2, 0.3, 0.5]] * 2)):
        with pytest.raises(ValueError, match=rf"rows \[{row}\]"):
            verifier.accept(proposal, logits, before(0, DRAWS))


@pytest.mark.parametrize("verifier", RATIO)
def test_a_nan_in_q_raises(verifier) -> None:
    with pytest.raises(ValueError, match="have no probability under q"):
        verifier.accept(given([1, 1], [[0.5, 0.5], [0.5, math.nan]]), mx.zeros((3, 2)), before(0, DRAWS))


@pytest.mark.parametrize("verifier_class", [GreedyVerifier, SampleMatchVerifier, RejectionVerifier, BlockVerifier])
def test_a_bias_that_forbids_everything_raises(verifier_class) -> None:
    verifier = verifier_class(sampling=Sampling(logit_bias={0: -math.inf, 1: -math.inf}))
    with pytest.raises(ValueError, match="logit_bias are at fault"):
        verifier.accept(Proposal(reason="none"), mx.zeros((1, 2)), before(0, DRAWS))


@pytest.mark.parametrize("verifier", [*GREEDY, *SAMPLING])
def test_rows_that_do_not_fit_the_proposal_are_refused(verifier) -> None:
    with pytest.raises(ValueError, match="2 proposed tokens need 3 rows of target logits, or 2 for no bonus, got 1"):
        verifier.accept(Proposal(tokens=(1, 1)), mx.zeros((1, 4)), before(0, DRAWS))


class Lowest(RandomStream):
    """A stream whose every number is 0."""

    def uniform(self, position, purpose) -> float:
        return 0.0


@pytest.mark.parametrize("verifier", RATIO)
def test_u_of_0_does_not_accept_what_p_excludes(verifier) -> None:
    logits = mx.array([[-math.inf, 0.0, 0.0]] * 2)
    for proposal in (Proposal(tokens=(0,)), given([0], [[0.9, 0.05, 0.05]])):
        assert verifier.accept(proposal, logits, before(0, Lowest())).accepted == 0
    assert verifier.accept(Proposal(tokens=(1,)), logits, before(0, Lowest())).accepted == 1


@pytest.mark.parametrize("verifier", SAMPLING)
def test_half_precision_logits_are_judged_in_float32(verifier) -> None:
    logits = (3 * mx.random.normal((3, 6), key=mx.random.key(2))).astype(mx.bfloat16)
    proposal = given([1, 4], [[1 / 6] * 6] * 2)
    assert next_law(verifier, proposal, logits) == next_law(verifier, proposal, logits.astype(mx.float32))


@pytest.mark.parametrize("verifier", RATIO)
def test_ratios_of_what_a_probability_cannot_hold(verifier) -> None:
    """p and q of about e^-120, below float32's least number: their ratio is 1/e all the same."""
    sampler = GivenSampler([1], [[1.0, 0.0]])
    sampler._logprobs = [mx.array([0.0, -119.0])]
    law = next_law(verifier, Proposal.sampled(sampler), mx.array([[0.0, -120.0], [0.0, 0.0]]))
    assert sum(mass for (accepted, _), mass in law.items() if accepted) == pytest.approx(math.exp(-1), rel=1e-5)


# --- draws through the real verifiers ---


@pytest.mark.parametrize("verifier", SAMPLING)
@pytest.mark.parametrize("is_sampled", [True, False])
def test_keyed_draws_follow_the_enumerated_law(verifier, is_sampled: bool) -> None:
    """Chi-square of (accepted, next token) over 1,500 seeds against the law of the very same call."""
    logits = mx.random.normal((3, 3), key=mx.random.key(5))
    q = mx.softmax(mx.random.normal((2, 3), key=mx.random.key(6)), axis=-1).tolist()
    proposal = given([2, 0], q) if is_sampled else Proposal(tokens=(2, 0))
    law = next_law(verifier, proposal, logits)
    counts = dict.fromkeys(law, 0)
    for seed in range(1500):
        verdict = verifier.accept(proposal, logits, before(5, RandomStream(seed=seed)))
        counts[verdict.accepted, verdict.next_token] += 1
    observed, expected = np.array(list(counts.values())), 1500 * np.array(list(law.values()))
    # 99.9th percentile for at most 8 degrees of freedom
    assert ((observed - expected) ** 2 / expected).sum() < 26.12


@pytest.mark.parametrize("settings", [{"temperature": 1.0}, {"temperature": 0.7, "top_p": 0.9, "presence_penalty": 1}])
def test_sampled_tokens_are_those_of_plain_sampling_under_the_same_seed(tiny_model: Model, settings: dict) -> None:
    """Another block length or drafter shifts no draw; another seed does."""
    verifier = SampleMatchVerifier(sampling=Sampling(**settings))

    def run(drafter, gamma: int, seed: int, reference=None):
        loop = make_loop(session(tiny_model, drafter, gamma), drafter, gamma, verifier=verifier)
        return collect(
            loop.rounds(Request(prompt=PROMPT, max_tokens=24, random=RandomStream(seed=seed), reference=reference))
        )

    plain = run(NgramDrafter(), 0, 1).tokens
    assert len(plain) == 24
    for gamma in (1, 4):
        oracle = run(OracleDrafter(accept_rate=0.7), gamma, 1, plain)
        assert oracle.tokens == plain
        assert sum(item.accepted for item in oracle.rounds) > 0
        assert run(NgramDrafter(n_max=2, n_min=1), gamma, 1).tokens == plain
    assert run(NgramDrafter(), 0, 2).tokens != plain


@pytest.mark.parametrize("verifier_class", [RejectionVerifier, BlockVerifier])
def test_a_seed_gives_the_same_tokens_twice_and_under_other_traffic(tiny_model: Model, verifier_class) -> None:
    drafter = NgramDrafter(n_max=2, n_min=1)
    verifier = verifier_class(sampling=Sampling(temperature=0.8))
    loop = make_loop(session(tiny_model, drafter, 3), drafter, 3, verifier=verifier)

    def run(stream: str) -> tuple[int, ...]:
        return collect(
            loop.rounds(Request(prompt=PROMPT, max_tokens=12, random=RandomStream(seed=4, stream=stream)))
        ).tokens

    first = run("one")
    assert run("two") != first
    assert run("one") == first


def test_at_temperature_0_every_rule_is_greedy(tiny_model: Model) -> None:
    outputs = set()
    for verifier in GREEDY:
        drafter = NgramDrafter(n_max=2, n_min=1)
        loop = make_loop(session(tiny_model, drafter, 3), drafter, 3, verifier=verifier)
        outputs.add(collect(loop.rounds(Request(prompt=PROMPT, max_tokens=16, random=DRAWS))).tokens)
    assert len(outputs) == 1
