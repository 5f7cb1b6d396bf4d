"""The processed distribution is mlx-lm's, and draws depend on their position alone."""

import math

import mlx.core as mx
import pytest
from mlx_lm.sample_utils import make_sampler

from spec import Draws, GreedyVerifier, Proposal, SampleMatchVerifier, Sampling, UserError
from spec.sampling import check_rows

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


def test_the_law_by_hand() -> None:
    logits = mx.log(mx.array([0.5, 0.3, 0.15, 0.05]))
    probs = mx.exp(Sampling(temperature=1.0, top_p=0.8).logprobs(logits)).tolist()
    assert probs == pytest.approx([0.625, 0.375, 0, 0], abs=1e-6)
    probs = mx.exp(Sampling(temperature=0.5, top_k=2).logprobs(logits)).tolist()
    assert probs == pytest.approx([25 / 34, 9 / 34, 0, 0], abs=1e-6)
    probs = mx.exp(Sampling(temperature=1.0, min_p=0.2).logprobs(logits)).tolist()
    assert probs == pytest.approx([0.5 / 0.95, 0.3 / 0.95, 0.15 / 0.95, 0], abs=1e-6)


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
    "settings",
    [{"temperature": -0.1}, {"temperature": math.nan}, {"top_p": 1.5}, {"min_p": -1.0}, {"top_k": -1}, {"top_k": 2.0}],
)
def test_values_out_of_range_are_refused(settings: dict) -> None:
    with pytest.raises(UserError, match=f"sampling.{next(iter(settings))}"):
        Sampling(**settings)


def test_rows_without_a_token_to_draw_are_refused() -> None:
    check_rows(mx.array([[0.0, -math.inf], [1.0, 2.0]]))
    for bad in (math.nan, math.inf):
        with pytest.raises(ValueError, match=r"rows \[1\]"):
            check_rows(mx.array([[0.0, 1.0], [bad, 2.0]]))
    with pytest.raises(ValueError, match=r"rows \[0\]"):
        check_rows(mx.array([[-math.inf, -math.inf], [1.0, 2.0]]))
    for verifier in (GreedyVerifier(), SampleMatchVerifier(sampling=Sampling(temperature=1.0))):
        with pytest.raises(ValueError, match="finite"):
            verifier.accept(Proposal(reason="none"), mx.array([[math.nan, 1.0]]), 0, Draws())


def test_draws_are_keyed() -> None:
    draws = Draws(seed=1, stream="a")
    assert draws.uniform(5, "draft") == Draws(seed=1, stream="a").uniform(5, "draft")
    others = [
        draws.uniform(6, "draft"),
        draws.uniform(5, "target"),
        Draws(seed=2, stream="a").uniform(5, "draft"),
        Draws(seed=1, stream="b").uniform(5, "draft"),
    ]
    assert draws.uniform(5, "draft") not in others
    assert len({tuple(one.key(5, "target").tolist()) for one in (draws, Draws(seed=2, stream="a"))}) == 2
    values = [draws.uniform(position, "draft") for position in range(4000)]
    assert all(0 <= value < 1 for value in values)
    assert abs(sum(values) / 4000 - 0.5) < 0.02


def test_greedy_refuses_a_temperature() -> None:
    with pytest.raises(UserError, match=r"verifier=greedy .* 0.7: choose verifier=sample_match"):
        GreedyVerifier(sampling=Sampling(temperature=0.7))
