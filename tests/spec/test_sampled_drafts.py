"""DSpark's sampled proposals: q is the chain's own softmax row, given the tokens that were drawn."""

import json
from pathlib import Path

import mlx.core as mx
import pytest

from models import Model, load_dspark, load_model
from models.dspark import DSparkNetwork
from spec import DraftSampler, DSparkDrafter, RandomStream, Sampling, UserError
from tests.random_models import random_tokens
from tests.spec.doubles import context_at, prefilled, session

FIXTURES = Path(__file__).parents[1] / "fixtures"
PROMPT = random_tokens(21, vocab_size=96, seed=6)[0].tolist()
DRAWS = RandomStream(seed=5)


@pytest.fixture(scope="module")
def target() -> Model:
    return load_model(FIXTURES / "target" / "flashlike")


@pytest.fixture(scope="module")
def network(target: Model) -> DSparkNetwork:
    return load_dspark(FIXTURES / "dspark" / "flashlike", target=target)


def ready(target: Model, network: DSparkNetwork, **options) -> DSparkDrafter:
    drafter = DSparkDrafter(network, **options)
    drafter.observe(PROMPT, prefilled(session(target, drafter), PROMPT))
    return drafter


def test_every_row_is_the_chains_softmax_given_the_drawn_token(target: Model, network: DSparkNetwork) -> None:
    drafter = ready(target, network, proposal="sampled", temperature=0.7)
    proposal = drafter.propose(context_at(7, len(PROMPT), DRAWS), 5)
    output = network.block(mx.array([7], dtype=mx.int32), len(PROMPT), list(drafter.context_rows))
    previous = mx.array([[7, *proposal.tokens[:-1]]], dtype=mx.int32)
    embedded = network.markov_head.embed(previous)
    expected = mx.softmax((output.logits + network.markov_head.bias(embedded)) / 0.7, axis=-1)[0]
    assert mx.allclose(proposal.draft_probs, expected, atol=1e-6)
    confidence = mx.sigmoid(network.confidence_logits(output, embedded))[0].tolist()
    assert proposal.confidence == pytest.approx(confidence, abs=1e-6)
    drawn = [
        int(DRAWS.in_round(len(PROMPT) + 1).categorical(row, len(PROMPT) + 1 + at, "draft"))
        for at, row in enumerate(mx.log(proposal.draft_probs))
    ]
    assert list(proposal.tokens) == drawn


def test_drafts_differ_from_the_argmax_and_follow_the_seed(target: Model, network: DSparkNetwork) -> None:
    drafter = ready(target, network, proposal="sampled", temperature=1.0)
    seen = {drafter.propose(context_at(7, len(PROMPT), RandomStream(seed=seed)), 5).tokens for seed in range(8)}
    assert len(seen) > 4
    assert ready(target, network).propose(context_at(7, len(PROMPT), DRAWS), 5).draft_probs is None
    assert (
        drafter.propose(context_at(7, len(PROMPT), DRAWS), 5).tokens
        == drafter.propose(context_at(7, len(PROMPT), DRAWS), 5).tokens
    )
    cold = ready(target, network, proposal="sampled", temperature=1e-4)
    assert (
        cold.propose(context_at(7, len(PROMPT), DRAWS), 5).tokens
        == ready(target, network).propose(context_at(7, len(PROMPT), DRAWS), 5).tokens
    )


def test_a_shorter_block_draws_the_same_tokens(target: Model, network: DSparkNetwork) -> None:
    drafter = ready(target, network, proposal="sampled", temperature=1.0)
    whole = drafter.propose(context_at(7, len(PROMPT), DRAWS), 5)
    for gamma in (1, 3):
        cut = drafter.propose(context_at(7, len(PROMPT), DRAWS), gamma)
        assert cut.tokens == whole.tokens[:gamma]
        assert mx.allclose(cut.draft_probs, whole.draft_probs[:gamma], atol=1e-6)


def test_a_refused_token_leaves_the_drafts_before_it_and_their_rows(target: Model, network: DSparkNetwork) -> None:
    drafter = ready(target, network, proposal="sampled", temperature=1.0)
    whole = drafter.propose(context_at(7, len(PROMPT), DRAWS), 5)
    cut = drafter.propose(context_at(7, len(PROMPT), DRAWS), 5, lambda confidences: len(confidences) < 3)
    assert cut.tokens == whole.tokens[:2]
    assert mx.array_equal(cut.draft_probs, whole.draft_probs[:2])
    none = drafter.propose(context_at(7, len(PROMPT), DRAWS), 5, lambda confidences: False)
    assert (none.tokens, none.draft_probs) == ((), None)


def test_what_cannot_be_sampled_is_refused(network: DSparkNetwork) -> None:
    with pytest.raises(UserError, match=r"drafter\.proposal must be argmax or sampled, got 'beam'"):
        DSparkDrafter(network, proposal="beam")
    with pytest.raises(UserError, match=r"drafter\.proposal=sampled needs drafter\.temperature above 0, got 0"):
        DSparkDrafter(network, proposal="sampled", temperature=0)
    assert isinstance(DSparkDrafter(network, proposal="sampled", temperature=1.0).sampling, Sampling)
    assert DSparkDrafter(network, temperature=0).sampling is None


@pytest.mark.parametrize("verifier", ["b2", "block"])
def test_the_program_samples_drafts(program, tmp_path: Path, verifier: str) -> None:
    given = (f"verifier={verifier}", "drafter.proposal=sampled", "exactness=false", "block.gamma=3")
    assert program(*given, "sampling.temperature=0.9", "sampling.repetition_penalty=1.2") == 0
    summary = json.loads((tmp_path / "out" / "summary.json").read_text(encoding="utf-8"))
    assert summary["account"]["proposed"] > 0
    assert program(*given) == 2  # temperature 0


def test_the_programs_drafter_takes_the_targets_temperature(program, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []
    real = DraftSampler.__init__

    def spy(self, draws, position, sampling) -> None:
        seen.append(sampling.temperature)
        real(self, draws, position, sampling)

    monkeypatch.setattr(DraftSampler, "__init__", spy)
    given = ("verifier=b2", "drafter.proposal=sampled", "exactness=false", "sampling.temperature=0.8")
    assert program(*given) == 0
    assert set(seen) == {0.8}
    seen.clear()
    assert program(*given, "drafter.temperature=1.1") == 0
    assert set(seen) == {1.1}
