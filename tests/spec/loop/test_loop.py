"""Both loop shapes are plain decoding, faster: same tokens, same cache rows, whatever the drafter does."""

from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models import Model
from spec import (
    BatchReplay,
    FixedPolicy,
    FoldedLoop,
    FullOnlyCommit,
    GreedyVerifier,
    NgramDrafter,
    NoneDrafter,
    OracleDrafter,
    PrefixCommit,
    Proposal,
    RecordedTarget,
    Request,
    RollbackCommit,
    Sampling,
    SeparateLoop,
    SpeculativeLoop,
    Stopwatch,
    TokenReplay,
    UserError,
    collect,
)
from spec.measure.account import account_for
from tests.models.cache_rows import assert_same_rows, reachable_rows
from tests.random_models import random_model, random_tokens
from tests.spec.doubles import (
    PlannedDrafter,
    SpyPolicy,
    Ticking,
    WrongDrafter,
    make_loop,
    prefilled,
    scripted_target,
    session,
)

PROMPT = tuple(random_tokens(9, seed=3)[0].tolist())
LENGTH = 40
SCRIPT = tuple(random_tokens(120, vocab_size=32, seed=4)[0].tolist())
SHAPES = pytest.mark.parametrize("shape", [FoldedLoop, SeparateLoop])


@cache
def plain_tokens() -> tuple[int, ...]:
    model = random_model()
    return collect(make_loop(session(model)).rounds(Request(prompt=PROMPT, max_tokens=LENGTH))).tokens


def drafter_for(name: str, plain: tuple[int, ...], vocab_size: int):
    return {
        "none": NoneDrafter(),
        "ngram": NgramDrafter(n_max=3, n_min=1),
        "oracle 0": OracleDrafter(accept_rate=0.0),
        "oracle 0.5": OracleDrafter(accept_rate=0.5),
        "oracle 1": OracleDrafter(accept_rate=1.0),
        "wrong": WrongDrafter(plain, len(PROMPT), vocab_size),
    }[name]


@SHAPES
@pytest.mark.parametrize("gamma", [1, 5])
@pytest.mark.parametrize("name", ["none", "ngram", "oracle 0", "oracle 0.5", "oracle 1", "wrong"])
def test_tokens_are_those_of_plain_decoding(tiny_model: Model, name: str, gamma: int, shape) -> None:
    drafter = drafter_for(name, plain_tokens(), tiny_model.args.vocab_size)
    target = session(tiny_model, drafter, gamma)
    loop = make_loop(target, drafter, gamma, shape)
    done = collect(loop.rounds(Request(prompt=PROMPT, max_tokens=LENGTH, reference=plain_tokens())))
    assert done.tokens == plain_tokens()
    assert done.finish_reason == "max_tokens"
    accepted = {item.accepted for item in done.rounds if len(item.proposed) == gamma}
    if name == "oracle 1":
        assert accepted == {gamma}
    if name in ("oracle 0", "wrong"):
        assert accepted == {0}
    if name == "none":
        # in the separate loop the drafter is asked before the room is looked at
        assert {item.outcome for item in done.rounds} - {"no_room"} == {"no_draft"}


@SHAPES
@pytest.mark.parametrize("commit", [PrefixCommit(), FullOnlyCommit(), RollbackCommit()])
@pytest.mark.parametrize("replay", [TokenReplay(), BatchReplay()])
def test_after_every_round_the_cache_is_that_of_plain_decoding(tiny_model: Model, commit, replay, shape) -> None:
    """Every reachable row equals, to the bit, that of a session that was only ever fed the committed tokens."""
    gamma, length = 4, 20
    drafter = OracleDrafter(accept_rate=0.6)
    target, plain = session(tiny_model, drafter, gamma), session(tiny_model, drafter, gamma)
    loop = make_loop(target, drafter, gamma, shape, commit=commit, replay=replay)
    prefilled(plain, PROMPT[:-1])
    plain.forward(PROMPT[-1:])
    fed, emitted, kinds = len(PROMPT), list(PROMPT), set()
    for item in loop.rounds(Request(prompt=PROMPT, max_tokens=length, reference=plain_tokens())):
        emitted += item.tokens
        for token in emitted[fed : target.offset]:
            plain.forward([token])
        fed = target.offset
        assert target.offset == len(emitted) - (item.kind != "none")  # the anchor alone is pending
        assert_same_rows(target.cache, reachable_rows(plain.cache, tiny_model.args), tiny_model.args)
        kinds.add(item.commit_kind)
        kept = item.accepted + 1 - item.decoded  # rows of the verify pass that stand
        assert item.replayed_tokens == (kept if item.commit_kind == "replay" else 0)
    everything = {
        PrefixCommit: {"direct_full", "direct_partial"},
        FullOnlyCommit: {"direct_full", "replay"},
        RollbackCommit: {"replay"},
    }
    assert kinds - {None} == everything[type(commit)]


@given(
    gammas=st.integers(0, 7),
    wrong=st.frozensets(st.integers(4, 60)),
    length=st.integers(1, 50),
    prompt=st.integers(1, 9),
    shape=st.sampled_from([FoldedLoop, SeparateLoop]),
    commit=st.sampled_from([PrefixCommit(), FullOnlyCommit(), RollbackCommit()]),
)
@settings(max_examples=120)
def test_any_pattern_of_errors(gammas: int, wrong: frozenset[int], length: int, prompt: int, shape, commit) -> None:
    target, drafter, block = scripted_target(SCRIPT), PlannedDrafter(SCRIPT, wrong), SpyPolicy(gamma=gammas)
    loop = make_loop(target, drafter, shape=shape, block=block, commit=commit)
    done = collect(loop.rounds(Request(prompt=SCRIPT[:prompt], max_tokens=length)))
    assert done.tokens == SCRIPT[prompt : prompt + length]
    position = prompt
    for item in done.rounds:
        assert item.position == position
        right = 0
        while right < len(item.proposed) and position + 1 + right not in wrong:
            right += 1
        assert item.accepted == right
        assert item.kind == ("bonus" if right == len(item.proposed) else "correction")
        assert len(item.tokens) == right + 1
        position += right + 1
    assert block.seen == list(done.rounds)
    assert drafter.seen == target.text == list(SCRIPT[: prompt + length - 1])
    widths = [1]
    for item in done.rounds:
        assert item.decoded + (item.verify_rows > 0) == (2 if shape is SeparateLoop and item.accepted else 1)
        widths += [1] * item.decoded + [item.verify_rows] * (item.verify_rows > 0) + [1] * item.replayed_tokens
    assert target.widths == widths


def test_one_target_pass_a_round_and_the_clock_is_split() -> None:
    target = scripted_target(SCRIPT)
    loop = make_loop(target, PlannedDrafter(SCRIPT), 3, stopwatch=Stopwatch(clock=Ticking()))
    done = collect(loop.rounds(Request(prompt=SCRIPT[:5], max_tokens=10)))
    for item in done.rounds:
        # a reading at both ends of each part: propose, the pass, its judgment, commit, observe
        assert (item.propose_s, item.replay_s, item.snapshot_s) == (2, 0, 0)
        assert (item.verify_s, item.target_s, item.commit_s) == ((2, 0, 1) if item.proposed else (0, 2, 0))
        assert item.duration_s == (11 if item.proposed else 9)


def test_replay_and_snapshot_are_timed_apart_from_the_commit() -> None:
    drafter = PlannedDrafter(SCRIPT, frozenset({7}))
    loop = make_loop(scripted_target(SCRIPT), drafter, 3, stopwatch=Stopwatch(clock=Ticking()), commit=RollbackCommit())
    first = collect(loop.rounds(Request(prompt=SCRIPT[:5], max_tokens=10))).rounds[0]
    assert (first.accepted, first.replayed_tokens) == (1, 2)
    assert (first.snapshot_s, first.replay_s, first.commit_s) == (1, 1, 1)


def test_a_loop_can_be_used_again(tiny_model: Model) -> None:
    drafter = NgramDrafter(n_max=2, n_min=1)
    loop = make_loop(session(tiny_model, drafter, 3), drafter, 3)
    first = collect(loop.rounds(Request(prompt=PROMPT, max_tokens=15)))
    abandoned = loop.rounds(Request(prompt=PROMPT[::-1], max_tokens=15))
    next(abandoned), next(abandoned)
    again = collect(loop.rounds(Request(prompt=PROMPT, max_tokens=15)))
    assert again.tokens == first.tokens
    assert [item.proposed for item in again.rounds] == [item.proposed for item in first.rounds]


def test_prompt_chunks_change_nothing(tiny_model: Model) -> None:
    prompt = random_tokens(30, seed=8)[0].tolist()
    outputs = set()
    for chunk in (1, 7, 64):
        drafter = NgramDrafter(n_max=2, n_min=1)
        loop = make_loop(session(tiny_model, drafter, 2, prefill_chunk=chunk), drafter, 2)
        outputs.add(collect(loop.rounds(Request(prompt=prompt, max_tokens=6))).tokens)
    assert len(outputs) == 1


class FaultError(Exception):
    pass


STEPS = {
    "propose": (PlannedDrafter, "propose"),
    "forward": (RecordedTarget, "forward"),
    "accept": (GreedyVerifier, "accept"),
    "observe": (PlannedDrafter, "observe"),
    "after": (SpyPolicy, "after"),
    "snapshot": (RecordedTarget, "snapshot"),
    "restore": (RecordedTarget, "restore"),
    "adopts": (RollbackCommit, "adopts"),
}


@SHAPES
@pytest.mark.parametrize("step", STEPS)
def test_a_round_that_raises_ends_its_sequence(monkeypatch: pytest.MonkeyPatch, step: str, shape) -> None:
    """The generation says so and cannot go on; a new one begins with a reset and is right."""
    drafter = PlannedDrafter(SCRIPT, frozenset({9, 12, 15}))
    loop = make_loop(scripted_target(SCRIPT), drafter, shape=shape, block=SpyPolicy(gamma=4), commit=RollbackCommit())
    request = Request(prompt=SCRIPT[:5], max_tokens=30)
    progress, _ = loop.start(request)
    loop.step(progress)
    emitted = list(progress.emitted)
    owner, name = STEPS[step]
    real = getattr(owner, name)

    def faulty(*arguments, **named):
        real(*arguments, **named)  # the fault comes after the part has done its work
        raise FaultError

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, faulty)
        with pytest.raises(FaultError):
            loop.step(progress)
    assert progress.emitted[: len(emitted)] == emitted
    with pytest.raises(UserError, match=r"cannot go on: a round of it raised .* start it again"):
        loop.step(progress)
    assert collect(loop.rounds(request)).tokens == SCRIPT[5:35]


def test_a_pass_that_fails_half_way_through_the_layers_leaves_nothing_behind(
    tiny_model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafter = OracleDrafter(accept_rate=1.0)
    target = session(tiny_model, drafter, 3)
    loop = make_loop(target, drafter, 3)
    request = Request(prompt=PROMPT, max_tokens=12, reference=plain_tokens())
    progress, _ = loop.start(request)
    loop.step(progress)
    layer = tiny_model.layers[2]

    def broken(*arguments):
        raise FaultError

    with monkeypatch.context() as patch:
        patch.setattr(type(layer), "__call__", lambda self, *rest: broken() if self is layer else real(self, *rest))
        real = REAL_BLOCK
        with pytest.raises(FaultError):
            loop.step(progress)
    assert collect(loop.rounds(request)).tokens == plain_tokens()[:12]


def test_a_loop_holds_one_sequence() -> None:
    loop = make_loop(scripted_target(SCRIPT), PlannedDrafter(SCRIPT), 3)
    first, _ = loop.start(Request(prompt=SCRIPT[:5], max_tokens=9))
    second, _ = loop.start(Request(prompt=SCRIPT[:7], max_tokens=9))
    with pytest.raises(UserError, match="another one was started in the same loop"):
        loop.step(first)
    loop.step(second)


REAL_BLOCK = type(random_model().layers[0]).__call__


class ForeignDrafter(NoneDrafter):
    def propose(self, context, gamma, admits=None):
        return Proposal(tokens=(99, 1)[:gamma])


def test_ids_outside_the_vocabulary_are_not_fed() -> None:
    target = scripted_target(SCRIPT)
    done = collect(make_loop(target, ForeignDrafter(), 3).rounds(Request(prompt=SCRIPT[:5], max_tokens=6)))
    assert done.tokens == SCRIPT[5:11]
    assert [item.outcome for item in done.rounds] == ["invalid"] * 4 + ["no_room"]
    assert "99" in done.rounds[0].reason
    assert set(target.widths) == {1}


class LongDrafter(NoneDrafter):
    def propose(self, context, gamma, admits=None):
        return Proposal(tokens=(1,) * (gamma + 1))


class LossyTarget(RecordedTarget):
    def trim(self, count):
        super().trim(count + 1)


@SHAPES
def test_a_target_that_loses_a_token_is_a_fault(shape) -> None:
    target = LossyTarget.of_tokens(SCRIPT, 32)
    loop = make_loop(target, PlannedDrafter(SCRIPT, frozenset({8})), 3, shape)
    with pytest.raises(ValueError, match="must hold 8 tokens after the round, it holds 7"):
        collect(loop.rounds(Request(prompt=SCRIPT[:5], max_tokens=9)))


def test_a_drafter_that_proposes_too_much_is_a_fault() -> None:
    with pytest.raises(ValueError, match="proposed 4 tokens, wanted at most 3"):
        collect(make_loop(scripted_target(SCRIPT), LongDrafter(), 3).rounds(Request(prompt=SCRIPT[:5], max_tokens=9)))


def test_every_undrafted_round_has_a_reason() -> None:
    for drafter, gamma in ((NoneDrafter(), 4), (NgramDrafter(), 0), (NgramDrafter(n_max=9, n_min=9), 4)):
        done = collect(
            make_loop(scripted_target(SCRIPT), drafter, gamma).rounds(Request(prompt=SCRIPT[:5], max_tokens=9))
        )
        assert all(bool(item.proposed) != bool(item.reason) for item in done.rounds)
        assert done.rounds[0].outcome == "no_draft"


class ShortBlockDrafter(NoneDrafter):
    max_gamma = 3


def test_parts_that_do_not_fit_are_refused_at_the_start() -> None:
    with pytest.raises(UserError, match=r"at most 3 tokens .* got 4: set block.gamma to 3 or less"):
        make_loop(scripted_target(SCRIPT), ShortBlockDrafter(), 4)
    make_loop(scripted_target(SCRIPT), ShortBlockDrafter(), 3)
    with pytest.raises(UserError, match=r"take back 6 tokens .* max_rollback is 5"):
        make_loop(scripted_target(SCRIPT, max_rollback=5), gamma=5)
    with pytest.raises(UserError, match="prefill_chunk"):
        session(random_model(), prefill_chunk=0)
    for gamma in (-1, 2.5, True, "3"):
        with pytest.raises(UserError, match=r"block.gamma must be a whole number"):
            FixedPolicy(gamma=gamma)


def test_rounds_that_are_cut_short_cannot_be_collected() -> None:
    rounds = make_loop(scripted_target(SCRIPT)).rounds(Request(prompt=SCRIPT[:5], max_tokens=9))
    with pytest.raises(ValueError, match="end before the generation does"):
        collect([next(rounds), next(rounds)])


@SHAPES
def test_a_correction_without_residual_is_counted(shape: type[SpeculativeLoop]) -> None:

    class Rounding(GreedyVerifier):
        def accept(self, proposal, logits, context):
            verdict = super().accept(proposal, logits, context)
            return replace(verdict, has_no_residual=verdict.accepted < len(proposal.tokens))

    script = list(range(1, 31))
    drafter = PlannedDrafter(script, wrong=frozenset(range(5, 12)))
    loop = make_loop(scripted_target(script), drafter, 3, shape=shape, verifier=Rounding(sampling=Sampling()))
    generation = collect(loop.rounds(Request(prompt=script[:3], max_tokens=12)))
    corrected = [item for item in generation.rounds if item.kind == "correction"]
    assert len(corrected) > 2
    assert [item for item in generation.rounds if item.has_no_residual] == corrected
    assert account_for([generation], [None]).residual_fallbacks == len(corrected)
