"""mlx-lm's own generators run on the target unchanged and give the same greedy tokens as this loop."""

import mlx.core as mx
from mlx_lm.generate import generate_step, speculative_generate_step

from models import Model
from spec import NgramDrafter, OracleDrafter, Request, collect
from tests.random_models import random_tokens
from tests.spec.doubles import make_loop, session

PROMPT = random_tokens(19, seed=5)[0]
LENGTH = 30


def test_same_tokens_as_mlx_lm(tiny_model: Model, other_tiny_model: Model) -> None:
    plain = [int(token) for token, _ in generate_step(PROMPT, tiny_model, max_tokens=LENGTH)]
    speculative = [
        int(token)
        for token, _, _ in speculative_generate_step(
            PROMPT, tiny_model, other_tiny_model, num_draft_tokens=3, max_tokens=LENGTH
        )
    ]
    prompt = PROMPT.tolist()
    ours = collect(make_loop(session(tiny_model)).rounds(Request(prompt=prompt, max_tokens=LENGTH))).tokens
    drafter = NgramDrafter(n_max=3, n_min=1)
    drafted = collect(
        make_loop(session(tiny_model, drafter, 3), drafter, 3).rounds(Request(prompt=prompt, max_tokens=LENGTH))
    ).tokens
    assert plain == speculative == list(ours) == list(drafted)


def test_mlx_lm_goes_on_from_a_cache_that_the_loop_left(tiny_model: Model) -> None:
    """A speculated cache is an ordinary one: plain decoding continues on it as if it had made it."""
    prompt = PROMPT.tolist()
    whole = collect(make_loop(session(tiny_model)).rounds(Request(prompt=prompt, max_tokens=LENGTH))).tokens
    drafter = OracleDrafter(accept_rate=0.5)
    target = session(tiny_model, drafter, 4)
    done = collect(make_loop(target, drafter, 4).rounds(Request(prompt=prompt, max_tokens=12, reference=whole)))
    assert any(0 < item.accepted < len(item.proposed) for item in done.rounds)
    rest = generate_step(mx.array(done.tokens[-1:]), tiny_model, max_tokens=LENGTH - 12, prompt_cache=target.cache)
    assert [int(token) for token, _ in rest] == list(whole[12:])
