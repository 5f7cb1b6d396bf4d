"""The processed distribution is mlx-lm's, and draws depend on their position alone."""

import math

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from mlx_lm import sample_utils
from mlx_lm.generate import generate_step
from mlx_lm.sample_utils import make_logits_processors, make_sampler

from models import Model
from spec import (
    DraftSampler,
    GreedyVerifier,
    NgramDrafter,
    Proposal,
    RandomStream,
    Request,
    SampleMatchVerifier,
    Sampling,
    UserError,
    collect,
)
from spec.sampling import check_rows
from tests.random_models import random_tokens
from tests.spec.doubles import before, make_loop, session

LOGITS = 2.0 * mx.random.normal((12, 40), key=mx.random.key(7))
SETTINGS = [
    {"temperature": 1.0},
    {"temperature": 0.6, "top_p": 0.8},
    {"temperature": 1.4, "top_k": 5},
    {"temperature": 0.9, "min_p": 0.1},
    {"temperature": 0.7, "top_p": 0.9, "min_p": 0.05, "top_k": 6},
]


@pytest.mark.parametrize("settings", SETTINGS)
def test_mlx_lms_sampler_draws_the_same_tokens(settings: dict) -> None:
    """Under one seed both draw from the same array, so every one of many draws must agree."""
    theirs = make_sampler(
        temp=settings["temperature"],
        top_p=settings.get("top_p", 0.0),
        min_p=settings.get("min_p", 0.0),
        top_k=settings.get("top_k", 0),
    )
    plain = LOGITS - mx.logsumexp(LOGITS, axis=-1, keepdims=True)
    logprobs = Sampling(**settings).logprobs(LOGITS)
    assert mx.allclose(mx.exp(logprobs).sum(axis=-1), mx.ones(12), atol=1e-5)
    for seed in range(20):
        mx.random.seed(seed)
        expected = theirs(plain).tolist()
        mx.random.seed(seed)
        assert mx.random.categorical(logprobs).tolist() == expected


PENALTIES = [
    {},
    {"repetition_penalty": 1.4},
    {"repetition_penalty": 0.6, "penalty_context": 3},
    {"presence_penalty": 0.8, "penalty_context": 5},
    {"frequency_penalty": 0.5},
    {"frequency_penalty": -0.5, "penalty_context": 0},
    {"logit_bias": {3: 2.0, 0: -math.inf, 39: -1.5}},
    {
        "repetition_penalty": 1.3,
        "presence_penalty": 0.4,
        "frequency_penalty": 0.3,
        "penalty_context": 6,
        "logit_bias": {1: 1.0},
    },
]


def mlx_lms_law(sampling: Sampling, tokens: list[int], logits: mx.array) -> mx.array:
    """(1, V): the distribution that mlx-lm's own sampler and processors would draw from, after a text."""
    seen: list[mx.array] = []
    context = {f"{name}_context_size": sampling.penalty_context for name in ("repetition", "presence", "frequency")}
    processors = make_logits_processors(
        logit_bias=dict(sampling.logit_bias),
        repetition_penalty=sampling.repetition_penalty,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        **context,
    )
    sampler = make_sampler(temp=sampling.temperature, top_p=sampling.top_p, min_p=sampling.min_p, top_k=sampling.top_k)
    for process in processors:
        logits = process(mx.array(tokens), logits)
    with pytest.MonkeyPatch.context() as patch:
        # What it would draw from is caught at its last step.
        patch.setattr(sample_utils, "categorical_sampling", lambda rows, temp: seen.append(rows * (1 / temp)))
        sampler(logits - mx.logsumexp(logits, keepdims=True))
    return mx.softmax(seen[0], axis=-1)


@pytest.mark.parametrize("penalties", PENALTIES)
@pytest.mark.parametrize("filters", SETTINGS)
def test_the_law_is_mlx_lms(filters: dict, penalties: dict) -> None:
    """Every row of a verify pass, against mlx-lm decoding the same text a token at a time."""
    sampling = Sampling(**filters, **penalties)
    committed, drafted = [3, 5, 3, 11, 39, 0], [5, 5, 7, 3]
    probs = mx.exp(sampling.logprobs(LOGITS[:5], committed, drafted))
    for row in range(5):
        expected = mlx_lms_law(sampling, committed + drafted[:row], LOGITS[row][None] + 0)
        assert mx.abs(probs[row] - expected[0]).max().item() < 1e-6
        alone = mx.exp(sampling.logprobs(LOGITS[row][None], committed + drafted[:row]))
        assert mx.abs(probs[row] - alone[0]).max().item() < 1e-7


@pytest.mark.parametrize("penalties", PENALTIES[1:])
def test_greedy_decoding_under_penalties_is_mlx_lms(tiny_model: Model, penalties: dict) -> None:
    """The real loop with drafts, against mlx-lm's generator: penalties see the prompt and the drafts before a row."""
    prompt = random_tokens(13, seed=2)[0]
    given = {key: value for key, value in penalties.items() if key != "penalty_context"}
    sizes = {
        f"{key.removesuffix('_penalty')}_context_size": penalties.get("penalty_context", 20)
        for key in given
        if key.endswith("_penalty")
    }
    processors = make_logits_processors(**given, **sizes)
    plain = [int(token) for token, _ in generate_step(prompt, tiny_model, max_tokens=16, logits_processors=processors)]
    verifier, drafter = GreedyVerifier(sampling=Sampling(**penalties)), NgramDrafter(n_max=2, n_min=1)
    loop = make_loop(session(tiny_model, drafter, 3), drafter, 3, verifier=verifier)
    assert list(collect(loop.rounds(Request(prompt=prompt.tolist(), max_tokens=16))).tokens) == plain


@given(
    logits=st.lists(st.integers(-4, 4), min_size=4, max_size=4),
    text=st.lists(st.integers(0, 3), max_size=6),
    context=st.integers(0, 4),
)
@examples(max_examples=50)
def test_penalties_by_hand(logits: list[int], text: list[int], context: int) -> None:
    sampling = Sampling(repetition_penalty=2.0, presence_penalty=0.5, frequency_penalty=0.25, penalty_context=context)
    window = text[len(text) - context :] if 0 < context < len(text) else text
    expected = []
    for token, logit in enumerate(logits):
        if token in window:
            logit = (logit * 2 if logit < 0 else logit / 2) - 0.5 - 0.25 * window.count(token)
        expected.append(logit)
    assert sampling.process(mx.array([logits]), text)[0].tolist() == expected


def test_what_penalties_need_is_checked() -> None:
    sampling = Sampling(presence_penalty=1.0)
    with pytest.raises(ValueError, match=r"T - 1 drafted tokens, got \(3, 40\) and 1"):
        sampling.process(LOGITS[:3], [1], [2])
    with pytest.raises(ValueError, match="penalties need"):
        sampling.process(LOGITS[0], [1])
    with pytest.raises(UserError, match="wanted ids below 40, got 40"):
        Sampling(logit_bias={40: 1.0}).process(LOGITS)
    assert mx.array_equal(sampling.process(LOGITS[:1]), LOGITS[:1])  # nothing is seen yet
    assert (sampling.has_penalties, sampling.changes_logits) == (True, True)
    assert (Sampling(logit_bias={1: 1.0}).has_penalties, Sampling(logit_bias={1: 1.0}).changes_logits) == (False, True)
    assert not Sampling(repetition_penalty=1.0).changes_logits


def test_the_law_by_hand() -> None:
    logits = mx.log(mx.array([0.5, 0.3, 0.15, 0.05]))
    probs = mx.exp(Sampling(temperature=1.0, top_p=0.8).logprobs(logits)).tolist()
    assert probs == pytest.approx([0.625, 0.375, 0, 0], abs=1e-6)
    probs = mx.exp(Sampling(temperature=0.5, top_k=2).logprobs(logits)).tolist()
    assert probs == pytest.approx([25 / 34, 9 / 34, 0, 0], abs=1e-6)
    probs = mx.exp(Sampling(temperature=1.0, min_p=0.2).logprobs(logits)).tolist()
    assert probs == pytest.approx([0.5 / 0.95, 0.3 / 0.95, 0.15 / 0.95, 0], abs=1e-6)


@pytest.mark.parametrize("temperature", [1e-5, 1e-3, 0.1, 1.0, 50.0])
def test_the_law_sums_to_1_at_every_temperature(temperature: float) -> None:
    """Of near ties, too, whose scaled log-probabilities are large: p must be normalized where it enters a ratio."""
    rows = mx.array([[1.0, 3.0, 3.0, 3.0], [40.0, 0.0, 40.0, 39.99], [-3.0, -3.0, -90.0, -3.00001]])
    sums = np.exp(np.array(Sampling(temperature=temperature).logprobs(rows), dtype=np.float64)).sum(axis=1)
    assert sums == pytest.approx([1, 1, 1], abs=1e-6)


def test_filters_that_keep_all_are_off() -> None:
    plain = Sampling(temperature=1.0).logprobs(LOGITS)
    for settings in ({"top_p": 1.0}, {"top_p": 0.0}, {"top_k": 40}, {"top_k": 400}, {"min_p": 0.0}):
        assert mx.array_equal(Sampling(temperature=1.0, **settings).logprobs(LOGITS), plain)


def test_temperature_0_is_the_lowest_argmax() -> None:
    logprobs = Sampling().logprobs(mx.array([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]]))
    assert logprobs.tolist() == [[-math.inf, 0.0, -math.inf], [0.0, -math.inf, -math.inf]]


def test_half_precision_logits_are_processed_in_float32() -> None:
    half = LOGITS.astype(mx.bfloat16)
    assert mx.array_equal(
        Sampling(temperature=0.7).logprobs(half), Sampling(temperature=0.7).logprobs(half.astype(mx.float32))
    )


@pytest.mark.parametrize(
    "values",
    [
        {"temperature": -0.1},
        {"temperature": math.nan},
        {"top_p": 1.5},
        {"min_p": -1.0},
        {"top_k": -1},
        {"top_k": 2.0},
        {"top_k": True},
        {"repetition_penalty": -1.0},
        {"repetition_penalty": math.inf},
        {"presence_penalty": math.nan},
        {"frequency_penalty": math.inf},
        {"penalty_context": -1},
        {"logit_bias": {"a": 1.0}},
        {"logit_bias": {-1: 1.0}},
        {"logit_bias": {1: math.nan}},
    ],
)
def test_values_out_of_range_are_refused(values: dict) -> None:
    with pytest.raises(UserError, match=f"sampling.{next(iter(values))}"):
        Sampling(**values)


def test_as_the_temperature_falls_the_law_becomes_the_argmax() -> None:
    greedy = mx.exp(Sampling().logprobs(LOGITS))
    for temperature, tolerance in ((1e-2, 0.2), (1e-4, 0), (1e-5, 0), (9e-6, 0), (1e-30, 0), (1e-45, 0)):
        probs = mx.exp(Sampling(temperature=temperature).logprobs(LOGITS))
        assert mx.abs(probs - greedy).max().item() <= tolerance, temperature
    ties = mx.array([[1.0, 3.0, 3.0]])
    assert mx.exp(Sampling(temperature=1e-5).logprobs(ties))[0].tolist() == pytest.approx([0, 0.5, 0.5])
    assert mx.exp(Sampling(temperature=1e-6).logprobs(ties)).tolist() == [[0, 1, 0]]
    assert (Sampling(temperature=1e-6).is_greedy, Sampling(temperature=1e-5).is_greedy) == (True, False)


def test_rows_without_a_token_to_draw_are_refused() -> None:
    check_rows(mx.array([[0.0, -math.inf], [1.0, 2.0]]))
    for bad in (math.nan, math.inf):
        with pytest.raises(ValueError, match=r"rows \[1\]"):
            check_rows(mx.array([[0.0, 1.0], [bad, 2.0]]))
    with pytest.raises(ValueError, match=r"rows \[0\]"):
        check_rows(mx.array([[-math.inf, -math.inf], [1.0, 2.0]]))
    for verifier in (GreedyVerifier(sampling=Sampling()), SampleMatchVerifier(sampling=Sampling(temperature=1.0))):
        with pytest.raises(ValueError, match="finite"):
            verifier.accept(Proposal(reason="none"), mx.array([[math.nan, 1.0]]), before(0, RandomStream()))


def test_draws_are_keyed() -> None:
    draws = RandomStream(seed=1, stream="a")
    assert draws.uniform(5, "draft") == RandomStream(seed=1, stream="a").uniform(5, "draft")
    others = [
        draws.uniform(6, "draft"),
        draws.uniform(5, "target"),
        RandomStream(seed=2, stream="a").uniform(5, "draft"),
        RandomStream(seed=1, stream="b").uniform(5, "draft"),
    ]
    assert draws.uniform(5, "draft") not in others
    assert len({tuple(one.key(5, "target").tolist()) for one in (draws, RandomStream(seed=2, stream="a"))}) == 2
    values = [draws.uniform(position, "draft") for position in range(4000)]
    assert all(0 <= value < 1 for value in values)
    assert abs(sum(values) / 4000 - 0.5) < 0.02


def test_a_round_has_draws_of_its_own() -> None:
    draws = RandomStream(seed=1, stream="a")
    own = draws.in_round(4)
    assert own.uniform(5, "draft") == RandomStream(seed=1, stream="a").in_round(4).uniform(5, "draft")
    others = [
        draws,
        draws.in_round(5),
        RandomStream(seed=1, stream="a/5").in_round(4),
        RandomStream(seed=1, stream="b").in_round(4),
    ]
    assert own.uniform(5, "draft") not in [other.uniform(5, "draft") for other in others]
    assert len({draws.uniform(5, purpose) for purpose in ("target", "draft", "accept", "residual", "bonus")}) == 5


@pytest.mark.parametrize("position", [0, 7, 100_000])
def test_blocks_prompts_and_discarded_drafts_shift_no_draw(position: int) -> None:
    """A token's draws are the same whatever was drawn before them, and how often."""
    logprobs = Sampling(temperature=1.0).logprobs(LOGITS[0])
    draws = RandomStream(seed=3, stream="one")
    token, number = int(draws.categorical(logprobs, position, "target")), draws.uniform(position, "accept")
    for other in range(20):
        draws.uniform(other, "accept"), draws.categorical(logprobs, other, "residual")
        RandomStream(seed=3, stream="another").categorical(logprobs, position, "target")
        sampler = DraftSampler(draws, position - other, Sampling(temperature=1.0))
        sampler.draw(LOGITS[1]), sampler.draw(LOGITS[2])
    assert int(draws.categorical(logprobs, position, "target")) == token
    assert draws.uniform(position, "accept") == number


def test_a_shorter_block_draws_the_same_drafts() -> None:
    def block(gamma: int) -> tuple[int, ...]:
        sampler = DraftSampler(RandomStream(seed=5), 30, Sampling(temperature=1.0))
        for row in range(gamma):
            sampler.draw(LOGITS[row])
        return sampler.tokens

    assert [block(gamma) for gamma in range(1, 7)] == [block(6)[:gamma] for gamma in range(1, 7)]


def test_categorical_draws_from_its_argument() -> None:
    """Chi-square over 2,000 positions: 3 degrees of freedom, the 99.9th percentile is 16.27."""
    probs = np.array([0.4, 0.3, 0.2, 0.1])
    logprobs = mx.log(mx.array(probs)) - 3.0  # need not be normalized
    drawn = mx.stack([RandomStream().categorical(logprobs, position, "bonus") for position in range(2000)])
    counts = np.bincount(np.array(drawn), minlength=4)
    assert (((counts - 2000 * probs) ** 2) / (2000 * probs)).sum() < 16.27


@pytest.mark.parametrize("probability", [math.nan, -0.1, 1.1, math.inf])
def test_what_is_no_probability_is_neither_accepted_nor_rejected(probability: float) -> None:
    with pytest.raises(ValueError, match=r"wanted one in 0\.\.1"):
        RandomStream().accepts(probability, 0)


class Lowest(RandomStream):
    """A stream whose every number is 0, the least that `RandomStream.uniform` can give."""

    def uniform(self, position, purpose) -> float:
        return 0.0


def test_u_of_0_accepts_any_probability_but_0() -> None:
    assert not Lowest().accepts(0.0, 3)
    assert Lowest().accepts(5e-324, 3)
    assert all(
        RandomStream().accepts(1.0, position) and not RandomStream().accepts(0.0, position) for position in range(200)
    )


def test_a_draft_sampler_is_the_only_way_to_a_softmax_q() -> None:
    sampler = DraftSampler(RandomStream(seed=2), 10, Sampling(temperature=0.8, top_k=4))
    for row in range(3):
        sampler.draw(LOGITS[row].astype(mx.bfloat16))
    proposal = Proposal.sampled(sampler, (0.5, 0.5, 0.5))
    assert proposal.tokens == sampler.tokens
    assert (proposal.draft_probs > 0).sum(axis=1).tolist() == [4, 4, 4]
    assert proposal.draft_probs.sum(axis=1).tolist() == pytest.approx([1, 1, 1])
    # what is judged is to the bit what was drawn from
    assert mx.array_equal(proposal.draft_logprobs(40), sampler.logprobs)
    with pytest.raises(TypeError, match="draft_probs"):
        Proposal(tokens=(1,), draft_probs=mx.full((1, 40), 1 / 40))
    with pytest.raises(ValueError, match="the sampler drew"):
        Proposal(tokens=(39, 39, 39), sampler=sampler)
    argmax = Proposal(tokens=(3, 1))
    assert argmax.draft_probs is None
    assert mx.exp(argmax.draft_logprobs(5)).tolist() == [[0, 0, 0, 1, 0], [0, 1, 0, 0, 0]]


def test_a_part_of_a_sampled_proposal() -> None:
    sampler = DraftSampler(RandomStream(seed=2), 10, Sampling(temperature=1.0))
    tokens = [int(sampler.draw(LOGITS[row])) for row in range(4)]
    part = sampler[1:3]
    assert part.tokens == tuple(tokens[1:3])
    assert mx.array_equal(part.logprobs, sampler.logprobs[1:3])
    assert sampler.tokens == tuple(tokens)
    again = sampler[:2]
    assert [int(again.draw(LOGITS[row])) for row in (2, 3)] == tokens[2:]  # its draws go on where it ends


def test_a_drafters_vocabulary_may_be_smaller_than_the_targets() -> None:
    sampler = DraftSampler(RandomStream(), 0, Sampling(temperature=1.0))
    sampler.draw(LOGITS[0])
    proposal = Proposal.sampled(sampler)
    assert mx.exp(proposal.draft_logprobs(43))[0, 40:].tolist() == [0, 0, 0]
    with pytest.raises(ValueError, match="over the target's 39 ids, got 40"):
        proposal.draft_logprobs(39)


def test_drafts_are_sampled_with_a_temperature_and_no_history() -> None:
    with pytest.raises(UserError, match="temperature above 0"):
        DraftSampler(RandomStream(), 0, Sampling())
    with pytest.raises(UserError, match="do not know penalties"):
        DraftSampler(RandomStream(), 0, Sampling(temperature=1.0, presence_penalty=1.0))
