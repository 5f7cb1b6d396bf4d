"""The user's limits hold inside a block: nothing is emitted after, the cache ends there, the reason says which."""

from itertools import product

import pytest

from spec import FoldedLoop, FullOnlyCommit, PrefixCommit, Request, RollbackCommit, SeparateLoop, UserError, collect
from tests.spec.doubles import PlannedDrafter, make_loop, scripted_target

SCRIPT = tuple(range(2, 32)) * 3  # no token twice within any block
PROMPT = SCRIPT[:4]
GAMMA = 5
COMMITS = (PrefixCommit(), FullOnlyCommit(), RollbackCommit())


class StopAt:
    """A stop rule that ends the text with a given token."""

    def __init__(self, token: int) -> None:
        self.token = token

    def cut(self, emitted, new):
        return new.index(self.token) + 1 if self.token in new else None


def run(count: int, wrong: frozenset[int] = frozenset(), context: int = 10_000, gamma: int = GAMMA, **limits):
    """Runs with limits, in every loop shape and commit path; plain decoding must give the same tokens and reason.

    Returns:
        The output of the folded loop that adopts prefixes, its target and its drafter.
    """
    outputs = []
    for shape, commit, size in product((FoldedLoop, SeparateLoop), COMMITS, (0, gamma)):
        target = scripted_target(SCRIPT, context_length=context)
        drafter = PlannedDrafter(SCRIPT, wrong)
        loop = make_loop(target, drafter, size, shape, commit=commit)
        done = collect(loop.rounds(Request(prompt=PROMPT, max_tokens=count, **limits)))
        assert_ends_at_output(done, target, drafter)
        outputs.append((done, target, drafter))
    plain = outputs[0][0]
    for done, _, _ in outputs:
        assert done.tokens == plain.tokens == SCRIPT[4 : 4 + len(done.tokens)]
        assert done.finish_reason == plain.finish_reason
    return outputs[1]


def assert_ends_at_output(done, target, drafter) -> None:
    last = (done.prefill, *done.rounds)[-1]
    pending = 0 if last.kind == "none" else 1
    fed = (*PROMPT, *done.tokens)[: len(PROMPT) + len(done.tokens) - pending]
    assert tuple(target.text) == fed
    assert tuple(drafter.seen) == fed
    assert all(item.accepted <= len(item.tokens) for item in done.rounds)
    assert sum(len(item.tokens) for item in (done.prefill, *done.rounds)) == len(done.tokens)


# Lengths 1..14 put the end on the prefill's token and on each place of the first two blocks, the next token included.
@pytest.mark.parametrize("length", range(1, 15))
@pytest.mark.parametrize("wrong", [frozenset(), frozenset({7, 12}), frozenset(range(0, 90))])
def test_end_of_sequence_at_each_position(length: int, wrong: frozenset[int]) -> None:
    done, target, drafter = run(50, wrong, eos=frozenset({SCRIPT[3 + length]}))
    assert len(done.tokens) == length
    assert done.finish_reason == "eos"
    assert_ends_at_output(done, target, drafter)


@pytest.mark.parametrize("length", range(1, 15))
@pytest.mark.parametrize("wrong", [frozenset(), frozenset({7, 12})])
def test_stop_rule_at_each_position(length: int, wrong: frozenset[int]) -> None:
    done, target, drafter = run(50, wrong, stop=StopAt(SCRIPT[3 + length]))
    assert len(done.tokens) == length
    assert done.finish_reason == "stop_string"
    assert_ends_at_output(done, target, drafter)


@pytest.mark.parametrize("length", range(1, 15))
@pytest.mark.parametrize("wrong", [frozenset(), frozenset({7, 12})])
def test_max_tokens_at_each_position(length: int, wrong: frozenset[int]) -> None:
    done, target, drafter = run(length, wrong)
    assert len(done.tokens) == length
    assert done.finish_reason == "max_tokens"
    assert_ends_at_output(done, target, drafter)
    # nothing is drafted that could only be cut off
    assert all(len(item.proposed) < len(done.tokens) for item in done.rounds)


@pytest.mark.parametrize("length", range(1, 15))
@pytest.mark.parametrize("wrong", [frozenset(), frozenset({7, 12})])
def test_context_at_each_position(length: int, wrong: frozenset[int]) -> None:
    done, target, drafter = run(50, wrong, context=len(PROMPT) + length)
    assert len(done.tokens) == length
    assert done.finish_reason == "context"
    assert_ends_at_output(done, target, drafter)


def test_an_end_inside_the_accepted_run_has_no_next_token() -> None:
    done, _, _ = run(50, eos=frozenset({SCRIPT[6]}))  # the second draft of the first block
    (only,) = done.rounds
    assert (len(only.proposed), only.accepted, only.kind, only.outcome) == (5, 2, "none", "partial")
    assert only.tokens == SCRIPT[5:7]


def test_the_budget_clamps_gamma_and_the_last_token_has_no_room() -> None:
    done, target, _ = run(9)  # prefill 1, a full block of 5 and its bonus make 7, two are left
    assert [item.gamma for item in done.rounds] == [5, 1]
    done, target, _ = run(8)
    assert [(item.gamma, item.outcome) for item in done.rounds] == [(5, "full"), (0, "no_room")]
    assert target.widths == [1, 6, 1]


def test_the_text_goes_before_the_budget_when_both_end_on_one_token() -> None:
    for length in (1, 5):
        done, _, _ = run(length, eos=frozenset({SCRIPT[3 + length]}), stop=StopAt(SCRIPT[3 + length]))
        assert done.finish_reason == "eos"
    done, _, _ = run(5, stop=StopAt(SCRIPT[8]))
    assert done.finish_reason == "stop_string"
    done, _, _ = run(5, context=9)
    assert done.finish_reason == "max_tokens"


@pytest.mark.parametrize(
    ("prompt", "limits", "message"),
    [
        ((), {"max_tokens": 4}, "prompt is empty"),
        ((1, 2), {"max_tokens": 0}, "max_tokens must be 1 or more, got 0"),
        (tuple(range(8)), {"max_tokens": 4}, "8 tokens, the context holds 8"),
        (tuple(range(9)), {"max_tokens": 4}, "9 tokens, the context holds 8"),
    ],
)
def test_what_cannot_be_generated_is_refused(prompt: tuple[int, ...], limits: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        next(make_loop(scripted_target(SCRIPT, context_length=8)).rounds(Request(prompt=prompt, **limits)))
