"""Which prefix stands, and that sampling is exact to the token."""

import mlx.core as mx
import pytest

from models import Model
from spec import Draws, GreedyVerifier, NgramDrafter, OracleDrafter, Proposal, SampleMatchVerifier, Sampling, collect
from tests.random_models import random_tokens
from tests.spec.doubles import make_loop, session

DRAWS = Draws(seed=9)
PROMPT = random_tokens(12, seed=9)[0].tolist()


def one_hot(wanted: list[int], vocab_size: int = 8) -> mx.array:
    return (mx.arange(vocab_size) == mx.array(wanted)[:, None]).astype(mx.float32)


@pytest.mark.parametrize("verifier", [GreedyVerifier(), SampleMatchVerifier()])
@pytest.mark.parametrize("right", range(4))
def test_the_longest_right_prefix_stands(verifier, right: int) -> None:
    wanted = [3, 1, 4, 5]
    drafted = tuple(token if index < right else 7 - token for index, token in enumerate(wanted[:3]))
    verdict = verifier.accept(Proposal(tokens=drafted), one_hot(wanted), 10, DRAWS)
    assert (verdict.accepted, verdict.next_token) == (right, wanted[right])
    assert verdict.kind == ("bonus" if right == 3 else "correction")


@pytest.mark.parametrize("verifier", [GreedyVerifier(), SampleMatchVerifier()])
def test_a_right_token_after_a_wrong_one_does_not_stand(verifier) -> None:
    verdict = verifier.accept(Proposal(tokens=(0, 1, 4)), one_hot([3, 1, 4, 5]), 10, DRAWS)
    assert (verdict.accepted, verdict.next_token, verdict.kind) == (0, 3, "correction")


@pytest.mark.parametrize("verifier", [GreedyVerifier(), SampleMatchVerifier()])
def test_an_empty_proposal_yields_a_bonus(verifier) -> None:
    verdict = verifier.accept(Proposal(reason="none"), one_hot([6]), 10, DRAWS)
    assert (verdict.accepted, verdict.next_token, verdict.kind) == (0, 6, "bonus")


def test_ties_go_to_the_lowest_id() -> None:
    logits = mx.array([[0.0, 2.0, 2.0]])
    for verifier in (GreedyVerifier(), SampleMatchVerifier()):
        assert verifier.accept(Proposal(reason="none"), logits, 0, DRAWS).next_token == 1


def test_sample_match_draws_from_the_processed_distribution() -> None:
    """Chi-square over 3,000 positions: 3 degrees of freedom, the 99.9th percentile is 16.27."""
    probs = mx.array([0.4, 0.3, 0.2, 0.1])
    verifier = SampleMatchVerifier(sampling=Sampling(temperature=1.0))
    counts = [0, 0, 0, 0]
    for position in range(0, 3000, 50):
        # a proposal that is always right up to a row would bias a rule that looked at it
        drawn = verifier.accept(Proposal(reason="none"), mx.log(probs)[None], position, DRAWS).next_token
        counts[drawn] += 1
        rows = mx.broadcast_to(mx.log(probs), (50, 4))
        wanted = [
            verifier.accept(Proposal(reason="none"), rows[:1], position + row, DRAWS).next_token for row in range(50)
        ]
        verdict = verifier.accept(Proposal(tokens=tuple(wanted[:49])), rows, position, DRAWS)
        assert (verdict.accepted, verdict.next_token) == (49, wanted[49])
        for token in wanted[1:]:
            counts[token] += 1
    expected = [3000 * prob for prob in probs.tolist()]
    assert sum(counts) == 3000
    assert sum((count - mean) ** 2 / mean for count, mean in zip(counts, expected, strict=True)) < 16.27


@pytest.mark.parametrize("settings", [{"temperature": 1.0}, {"temperature": 0.7, "top_p": 0.9, "top_k": 12}])
def test_sampled_tokens_are_those_of_plain_sampling_under_the_same_seed(tiny_model: Model, settings: dict) -> None:
    """Another block length or drafter shifts no draw; another seed does."""
    verifier = SampleMatchVerifier(sampling=Sampling(**settings))

    def run(drafter, gamma: int, seed: int, reference=None):
        loop = make_loop(session(tiny_model, drafter, gamma), drafter, gamma, verifier=verifier)
        return collect(loop.rounds(PROMPT, max_tokens=24, draws=Draws(seed=seed), reference=reference))

    plain = run(NgramDrafter(), 0, 1).tokens
    assert len(plain) == 24
    for gamma in (1, 4):
        oracle = run(OracleDrafter(accept_rate=0.7), gamma, 1, plain)
        assert oracle.tokens == plain
        assert sum(item.accepted for item in oracle.rounds) > 0
        assert run(NgramDrafter(n_max=2, n_min=1), gamma, 1).tokens == plain
    assert run(NgramDrafter(), 0, 2).tokens != plain


def test_at_temperature_0_sampling_is_greedy(tiny_model: Model) -> None:
    outputs = set()
    for verifier in (GreedyVerifier(), SampleMatchVerifier()):
        drafter = NgramDrafter(n_max=2, n_min=1)
        loop = make_loop(session(tiny_model, drafter, 3), drafter, 3, verifier=verifier)
        outputs.add(collect(loop.rounds(PROMPT, max_tokens=16, draws=DRAWS)).tokens)
    assert len(outputs) == 1
