"""Text as rounds end, and stop strings wherever they fall."""

import pytest

from spec import Request, StopStrings, TextStream, UserError, collect, stream_text
from spec.text import decode
from tests.spec.doubles import PlannedDrafter, make_loop, scripted_target
from tests.spec.tiny_text import wrapped_tokenizer

TOKENIZER = wrapped_tokenizer(merges=(("a", "b"), ("ab", "c"), ("o", "n"), ("Ġ", "on")))
TEXT = "one abc, two abcabc; naïve — 東京\nand on, and on."
IDS = tuple(TOKENIZER.encode(TEXT))
PROMPT = 3


def generate(gamma: int, stop: tuple[str, ...]):
    """Runs a target that wants TEXT's tokens after the prompt."""
    script = (*([2] * PROMPT), *IDS, *([1] * 40))
    target, drafter = scripted_target(script, vocab_size=len(TOKENIZER)), PlannedDrafter(script, frozenset({9, 20}))
    rounds = make_loop(target, drafter, gamma).rounds(
        Request(
            prompt=script[:PROMPT],
            max_tokens=200,
            eos=frozenset(TOKENIZER.eos_token_ids),
            stop=StopStrings(TOKENIZER, stop) if stop else None,
        )
    )
    return list(rounds)


@pytest.mark.parametrize("gamma", [0, 1, 4, 7])
def test_the_pieces_make_the_text(gamma: int) -> None:
    rounds = generate(gamma, ())
    pieces = list(stream_text(rounds, TOKENIZER))
    assert "".join(pieces) == TEXT
    assert len(pieces) == len(rounds) + 1
    assert pieces[0] == "on"  # text arrives with the prefill's round already
    assert all("\ufffd" not in piece for piece in pieces)  # no half characters on the way


# Every substring of up to three characters that occurs, and some longer ones: each place of the text is an end once.
STOPS = [
    *sorted({TEXT[start : start + size] for start in range(len(TEXT)) for size in (1, 2, 3)} - {" "}),
    "abcabc; na",
    "東京\nand",
]


@pytest.mark.parametrize("gamma", [0, 5])
def test_stop_strings_across_rounds(gamma: int) -> None:
    for stop in STOPS:
        rounds = generate(gamma, (stop,))
        done = collect(rounds)
        assert done.finish_reason == "stop_string", stop
        shown = list(stream_text(rounds, TOKENIZER, (stop,)))
        assert "".join(shown) == TEXT[: TEXT.index(stop)], stop
        assert decode(done.tokens, TOKENIZER, (stop,)) == TEXT[: TEXT.index(stop)]
        # the last token completes the stop string: without it the string is not there
        assert stop in TOKENIZER.decode(list(done.tokens))
        if not stop.endswith(" "):  # mlx-lm's detokenizer holds a lone space back until the next token
            assert stop not in TOKENIZER.decode(list(done.tokens[:-1])), stop


def test_the_earliest_of_several_wins() -> None:
    done = collect(generate(5, ("two", "abc", "zzz")))
    assert decode(done.tokens, TOKENIZER, ("two", "abc", "zzz")) == "one "


def test_what_may_become_a_stop_string_is_withheld() -> None:
    stream = TextStream(TOKENIZER, ("abcabd", "xy"))
    assert stream.push(TOKENIZER.encode("one abc")) == "one "
    assert stream.push(TOKENIZER.encode("ab")) == ""
    assert stream.push(TOKENIZER.encode("c")) == "abc"
    assert stream.push(TOKENIZER.encode("x")) == "abc"
    assert stream.finish() == "x"
    assert stream.text == "one abcabcx"


def test_nothing_is_shown_after_a_stop_string() -> None:
    stream = TextStream(TOKENIZER, ("on",))
    assert stream.push(TOKENIZER.encode("abc on abc")) == "abc "
    assert stream.push(TOKENIZER.encode("abc")) == ""
    assert stream.finish() == ""
    assert stream.text == "abc "


def test_end_of_sequence_has_no_text() -> None:
    assert decode([*IDS, 1], TOKENIZER) == TEXT


def test_the_stop_rule_depends_on_its_arguments_alone() -> None:
    """A round that was undone, or another text, must not leave a trace."""
    rule = StopStrings(TOKENIZER, ("abc",))
    ab, c, dot = TOKENIZER.encode("ab"), TOKENIZER.encode("c"), TOKENIZER.encode(".")
    assert rule.cut([], ab) is None
    assert rule.cut([], c) is None  # "ab" was undone
    assert rule.cut(ab, (*c, *dot)) == 1
    assert rule.cut(ab, dot) is None
    assert rule.cut((*ab, *dot), c) is None


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(UserError, match="must not be empty"):
        StopStrings(TOKENIZER, ("a", ""))
