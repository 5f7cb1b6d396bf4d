"""The exactness instrument finds what it is for: it is shown outputs with known faults."""

import dataclasses

import mlx.core as mx
import pytest

from models import Model
from spec import OracleDrafter, Request, collect
from spec.measure.exactness import Divergence, Exactness, check, merge, teacher_force
from spec.measure.generation import Generation
from tests.random_models import random_tokens
from tests.spec.doubles import make_loop, session

PROMPT = random_tokens(11, seed=2)[0].tolist()
LENGTH = 18


@pytest.fixture(scope="module")
def outputs() -> tuple[Model, Generation, Generation]:
    """The target, plain decoding's output, and a speculative one with partly accepted blocks."""
    from tests.random_models import random_model

    model = random_model()
    plain = collect(make_loop(session(model)).rounds(Request(prompt=PROMPT, max_tokens=LENGTH)))
    drafter = OracleDrafter(accept_rate=0.7)
    loop = make_loop(session(model, drafter, 4), drafter, 4)
    return model, plain, collect(loop.rounds(Request(prompt=PROMPT, max_tokens=LENGTH, reference=plain.tokens)))


def inspect(
    model: Model | None, generation: Generation, baseline: Generation | None, is_greedy: bool = True
) -> Exactness:
    return check(
        prompt_id="p",
        prompt=PROMPT,
        generation=generation,
        baseline=None if baseline is None else baseline.tokens,
        target=None if model is None else session(model),
        is_greedy=is_greedy,
    )


def with_token(generation: Generation, index: int, token: int) -> Generation:
    tokens = list(generation.tokens)
    tokens[index] = token
    return dataclasses.replace(generation, tokens=tuple(tokens))


def test_a_right_output(outputs) -> None:
    model, plain, speculative = outputs
    found = inspect(model, speculative, plain)
    assert found == Exactness(
        nspec=LENGTH,
        max_chunk=max(len(item.tokens) for item in speculative.rounds),
        worst_argmax_gap=0.0,
        at=-1,
        identical_to_baseline=True,
        first_divergence=None,
    )
    assert 1 < found.max_chunk <= 5


def test_a_wrong_token_is_found_with_its_margin_and_round(outputs) -> None:
    model, plain, speculative = outputs
    index = 7
    rows = teacher_force(session(model), PROMPT, plain.tokens)
    second = mx.argsort(rows[index])[-2].item()
    margin = (mx.max(rows[index]) - rows[index][second]).item()
    assert margin > 0
    found = inspect(model, with_token(speculative, index, second), plain)
    seen, wanted_round = 1, None
    for item in speculative.rounds:
        seen += len(item.tokens)
        if wanted_round is None and index < seen:
            wanted_round = item.index
    assert found.identical_to_baseline is False
    assert found.first_divergence.position == len(PROMPT) + index
    assert found.first_divergence.round == wanted_round
    assert found.first_divergence.prompt_id == "p"
    assert found.first_divergence.logit_margin == pytest.approx(margin, abs=1e-5)
    assert found.worst_argmax_gap >= margin - 1e-5
    assert found.at >= index  # the tokens after it were right for another prefix


def test_teacher_forcing_reads_the_rows_of_plain_decoding(outputs) -> None:
    model, plain, _ = outputs
    rows = teacher_force(session(model), PROMPT, plain.tokens)
    whole = model(mx.array([[*PROMPT, *plain.tokens]]))[0, len(PROMPT) - 1 : -1]
    assert len(rows) == LENGTH
    assert mx.allclose(mx.stack(rows), whole, atol=1e-4)
    assert [mx.argmax(row).item() for row in rows] == list(plain.tokens)


def test_an_output_that_ends_early_diverges_there_without_a_margin(outputs) -> None:
    _, plain, speculative = outputs
    short = dataclasses.replace(speculative, tokens=speculative.tokens[:10])
    found = inspect(None, short, plain)
    assert found.identical_to_baseline is False
    assert found.first_divergence.position == len(PROMPT) + 10
    assert found.first_divergence.logit_margin is None


def test_what_was_not_measured_is_none(outputs) -> None:
    model, plain, speculative = outputs
    assert inspect(None, speculative, None).worst_argmax_gap is None
    assert inspect(None, speculative, None).identical_to_baseline is None
    sampled = inspect(model, speculative, plain, is_greedy=False)
    assert (sampled.worst_argmax_gap, sampled.at, sampled.identical_to_baseline) == (None, None, True)


def test_merging_keeps_the_worst() -> None:
    split = Divergence(prompt_id="b", position=9, round=2, logit_margin=0.1)
    right = Exactness(
        nspec=10, max_chunk=4, worst_argmax_gap=0.0, at=-1, identical_to_baseline=True, first_divergence=None
    )
    wrong = Exactness(
        nspec=5, max_chunk=6, worst_argmax_gap=0.25, at=3, identical_to_baseline=False, first_divergence=split
    )
    assert merge([right, wrong]) == Exactness(
        nspec=15, max_chunk=6, worst_argmax_gap=0.25, at=3, identical_to_baseline=False, first_divergence=split
    )
    assert merge([]).worst_argmax_gap is None
    assert merge([]).identical_to_baseline is None
