"""mlx-lm's own generation loops run on the target unchanged and produce the tokens of plain greedy decoding."""

import functools

import mlx.core as mx
import pytest
from mlx_lm.generate import generate_step, speculative_generate_step
from mlx_lm.models.cache import can_trim_prompt_cache, make_prompt_cache, trim_prompt_cache

from models import Model
from models.deepseek_v4 import LayerCache
from tests.random_models import random_model, random_tokens, tiny_config

PROMPT = random_tokens(75)[0]  # past the window, four HCA windows, and no multiple of a ratio
NEW = 24


@functools.cache
def target() -> Model:
    return random_model()


@functools.cache
def drafter() -> Model:
    """Another model with the same vocabulary; near the target, so that some of its tokens are accepted."""
    near = random_model()
    far = random_model(tiny_config(), seed=1)
    near.head.weight = near.head.weight + 0.3 * far.head.weight
    near.layers[1].attn.wkv.weight = near.layers[1].attn.wkv.weight + 0.3 * far.layers[1].attn.wkv.weight
    return near


@functools.cache
def stranger() -> Model:
    return random_model(tiny_config(num_hidden_layers=2, compress_ratios=(4, 16)), seed=2)


@functools.cache
def greedy_tokens(count: int = NEW) -> tuple[int, ...]:
    """Plain decoding: one pass over the prompt, then a token a pass."""
    cache = target().make_cache()
    logits = target()(PROMPT[None], cache=cache)
    produced: list[int] = []
    while True:
        produced.append(mx.argmax(logits[0, -1]).item())
        if len(produced) == count:
            return tuple(produced)
        logits = target()(mx.array([produced[-1:]]), cache=cache)


def test_the_prompt_leads_to_varied_tokens() -> None:
    assert len(set(greedy_tokens())) > NEW // 3


@pytest.mark.parametrize("prefill_step_size", [2048, 32, 17, 1])
def test_generate_step(prefill_step_size: int) -> None:
    steps = generate_step(PROMPT, target(), max_tokens=NEW, prefill_step_size=prefill_step_size)
    tokens, log_probabilities = zip(*steps, strict=True)
    assert tokens == greedy_tokens()
    assert abs(mx.logsumexp(log_probabilities[-1]).item()) < 1e-4


def test_generate_step_continues_a_prompt_cache() -> None:
    cache = make_prompt_cache(target())
    first = [token for token, _ in generate_step(PROMPT, target(), max_tokens=9, prompt_cache=cache)]
    # It runs a token ahead of what it yields: the cache ends one token after the ninth's input.
    assert cache[0].offset == len(PROMPT) + 9
    trim_prompt_cache(cache, 1)
    last = mx.array(first[-1:])
    second = [token for token, _ in generate_step(last, target(), max_tokens=NEW - 9, prompt_cache=cache)]
    assert (*first, *second) == greedy_tokens()


@pytest.mark.parametrize("num_draft_tokens", [1, 2, 5, 16])
@pytest.mark.parametrize("make_drafter", [drafter, stranger, target], ids=lambda make: make.__name__)
def test_speculative_generate_step(make_drafter: functools._lru_cache_wrapper, num_draft_tokens: int) -> None:
    steps = speculative_generate_step(
        PROMPT, target(), make_drafter(), max_tokens=NEW, num_draft_tokens=num_draft_tokens, prefill_step_size=32
    )
    tokens, _, from_draft = zip(*steps, strict=True)
    assert tokens == greedy_tokens()
    if make_drafter is target:
        assert sum(from_draft) >= NEW * num_draft_tokens // (num_draft_tokens + 1)
    if make_drafter is drafter:
        assert 0 < sum(from_draft) < NEW * num_draft_tokens // (num_draft_tokens + 1)


def test_speculative_generate_step_leaves_a_cache_that_goes_on() -> None:
    cache = make_prompt_cache(target()) + make_prompt_cache(drafter())
    steps = speculative_generate_step(
        PROMPT, target(), drafter(), max_tokens=15, num_draft_tokens=4, prompt_cache=cache, prefill_step_size=32
    )
    tokens = [token for token, _, _ in steps]
    target_cache = cache[: len(target().layers)]
    position = target_cache[0].offset
    committed = [*PROMPT.tolist(), *tokens]
    # At most the last token is not in the cache yet; what it holds is what was produced.
    assert len(committed) - 1 <= position <= len(committed)
    trim_prompt_cache(target_cache, position - (len(committed) - 1))
    rest = [
        token for token, _ in generate_step(mx.array(tokens[-1:]), target(), max_tokens=5, prompt_cache=target_cache)
    ]
    assert (*tokens, *rest) == greedy_tokens()[:20]


def test_speculative_generate_step_refuses_a_cache_without_headroom() -> None:
    cache = target().make_cache(max_rollback=0) + drafter().make_cache(max_rollback=0)
    with pytest.raises(ValueError, match="trimmable"):
        next(speculative_generate_step(PROMPT, target(), drafter(), prompt_cache=cache))


def test_prompt_cache_functions() -> None:
    cache = make_prompt_cache(target())
    assert len(cache) == len(target().layers)
    assert all(isinstance(entry, LayerCache) for entry in cache)
    assert all(entry.empty() for entry in cache)
    assert can_trim_prompt_cache(cache)
    target()(PROMPT[None], cache=cache)
    assert trim_prompt_cache(cache, 32) == 32
    assert {entry.offset for entry in cache} == {len(PROMPT) - 32}
    with pytest.raises(ValueError, match="headroom"):
        trim_prompt_cache(cache, 1)
    logits = target()(PROMPT[None, -32:], cache=cache)
    assert mx.argmax(logits[0, -1]).item() == greedy_tokens()[0]
    assert sum(entry.nbytes for entry in cache) > 0
    assert not can_trim_prompt_cache(target().make_cache(max_rollback=0))
