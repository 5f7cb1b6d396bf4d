"""The front doors: text in, text out, the statistics of the whole, everything else defaulted."""

from pathlib import Path

import pytest

from models import Model, load, load_dspark
from spec import (
    DSparkDrafter,
    FixedPolicy,
    FoldedLoop,
    NgramDrafter,
    RandomStream,
    RejectionVerifier,
    Request,
    SampleMatchVerifier,
    Sampling,
    UserError,
    collect,
    generate,
    stream_generate,
    stream_text,
)
from tests.spec.doubles import make_loop, session

PROMPT = "the cat and the cat and the"


@pytest.fixture(scope="module")
def pair(checkpoint: Path):
    """Model, tokenizer and drafter of a random checkpoint."""
    model, tokenizer = load(checkpoint)
    return model, tokenizer, DSparkDrafter(load_dspark(target=model))


def test_a_loop_of_a_model_and_a_drafter_makes_the_rest(pair) -> None:
    model, tokenizer, drafter = pair
    loop = FoldedLoop(model, drafter)
    assert loop.target.tapped_layers == drafter.tapped_layers
    assert loop.target.max_rollback == loop.block.max_gamma + 1 == drafter.max_gamma + 1
    request = Request(prompt=tokenizer.encode(PROMPT), max_tokens=20)
    done = collect(loop.rounds(request))
    assert done.tokens == collect(make_loop(session(model)).rounds(request)).tokens
    assert max(item.gamma for item in done.rounds) == drafter.max_gamma
    assert FoldedLoop(model, NgramDrafter()).block == FixedPolicy(gamma=5)
    assert collect(FoldedLoop(model).rounds(request)).tokens == done.tokens


def test_segments_are_the_loop_s_text_with_statistics(pair) -> None:
    model, tokenizer, drafter = pair
    segments = list(stream_generate(model, tokenizer, PROMPT, drafter, max_tokens=20))
    request = Request(prompt=tokenizer.encode(PROMPT), max_tokens=20, eos=frozenset(tokenizer.eos_token_ids))
    rounds = list(FoldedLoop(model, drafter).rounds(request))
    assert [item.tokens for item in segments] == [item.tokens for item in rounds]
    assert "".join(item.text for item in segments) == "".join(stream_text(rounds, tokenizer))
    assert [item.finish_reason for item in segments[:-1]] == [None] * (len(segments) - 1)
    last, drafted = segments[-1], rounds[1:]
    assert last.finish_reason == rounds[-1].finish_reason
    assert last.prompt_tokens == len(request.prompt)
    assert last.generation_tokens == sum(len(item.tokens) for item in rounds)
    assert last.tau == sum(len(item.tokens) for item in drafted) / len(drafted)
    proposed, accepted = sum(len(item.proposed) for item in drafted), sum(item.accepted for item in drafted)
    assert last.acceptance_rate == accepted / proposed
    assert last.generation_tps > 0
    assert last.prompt_tps > 0
    assert (segments[0].tau, segments[0].generation_tps) == (None, None)


def test_the_whole_text_and_a_line_about_it(pair, capsys: pytest.CaptureFixture) -> None:
    model, tokenizer, drafter = pair
    text = generate(model, tokenizer, PROMPT, drafter, max_tokens=20)
    assert text == "".join(item.text for item in stream_generate(model, tokenizer, PROMPT, drafter, max_tokens=20))
    assert capsys.readouterr().out == ""
    assert generate(model, tokenizer, PROMPT, drafter, max_tokens=20, verbose=True) == text
    shown = capsys.readouterr().out
    assert shown.startswith(text + "\n")
    assert "20 tokens, " in shown
    assert "tau " in shown
    assert "ended by max_tokens" in shown
    assert generate(model, tokenizer, tokenizer.encode(PROMPT), max_tokens=20) == text  # ids, and without a drafter


def test_sampling_goes_by_name_and_is_plain_sampling(pair) -> None:
    model, tokenizer, drafter = pair
    given = {"max_tokens": 20, "seed": 3, "temperature": 0.9, "top_k": 20}
    text = generate(model, tokenizer, PROMPT, drafter, **given)
    assert text == generate(model, tokenizer, PROMPT, **given)
    assert text != generate(model, tokenizer, PROMPT, **(given | {"seed": 4}))
    verifier = SampleMatchVerifier(sampling=Sampling(temperature=0.9, top_k=20))
    request = Request(
        prompt=tokenizer.encode(PROMPT),
        max_tokens=20,
        eos=frozenset(tokenizer.eos_token_ids),
        random=RandomStream(seed=3),
    )
    rounds = make_loop(session(model), verifier=verifier).rounds(request)
    assert text == "".join(stream_text(rounds, tokenizer))
    law = RejectionVerifier(sampling=Sampling(temperature=0.9))
    assert generate(model, tokenizer, PROMPT, drafter, max_tokens=5, verifier=law)
    with pytest.raises(TypeError, match="a verifier has its own sampling, got temperature"):
        generate(model, tokenizer, PROMPT, drafter, verifier=law, temperature=0.5)
    with pytest.raises(UserError, match=r"sampling: unexpected keyword argument 'warmth'"):
        generate(model, tokenizer, PROMPT, warmth=1)


def test_stop_strings_and_blocks(pair) -> None:
    model, tokenizer, drafter = pair
    whole = generate(model, tokenizer, PROMPT, max_tokens=30)
    stop = whole[5:7]
    for given in (stop, [stop]):
        segments = list(stream_generate(model, tokenizer, PROMPT, drafter, max_tokens=30, stop=given))
        assert "".join(item.text for item in segments) == whole[: whole.index(stop)]
        assert segments[-1].finish_reason == "stop_string"
    short = list(stream_generate(model, tokenizer, PROMPT, drafter, max_tokens=30, block=FixedPolicy(gamma=1)))
    assert all(len(item.tokens) <= 2 for item in short)


class ChattyTokenizer:
    """A tokenizer with a chat template that writes the roles out."""

    has_chat_template = True

    def __init__(self, tokenizer) -> None:
        self._tokenizer = tokenizer

    def __getattr__(self, name: str):
        return getattr(self._tokenizer, name)

    def apply_chat_template(self, messages, add_generation_prompt: bool) -> list[int]:
        assert add_generation_prompt
        return self._tokenizer.encode("".join(f"{item['role']} {item['content']} " for item in messages))


def test_messages_go_through_the_chat_template(pair, tiny_model: Model) -> None:
    model, tokenizer, drafter = pair
    messages = [{"role": "user", "content": "a b"}]
    text = generate(model, ChattyTokenizer(tokenizer), messages, drafter, max_tokens=9)
    assert text == generate(model, tokenizer, "user a b ", max_tokens=9)
    with pytest.raises(UserError, match="no chat template: give the prompt as a text"):
        generate(model, tokenizer, messages)
