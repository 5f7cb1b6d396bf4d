"""The MTP drafter's memory: a row a completed slot, none of a draft, the same however it came about."""

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from models import Model
from models.mtp import MTPNetwork
from spec import (
    FixedPolicy,
    GreedyVerifier,
    MTPDrafter,
    OracleDrafter,
    PrefixCommit,
    RandomStream,
    Request,
    Sampling,
    TokenReplay,
    UserError,
    collect,
)
from spec.loop.commit import RollbackCommit
from spec.loop.separate import SeparateLoop
from tests.models.cache_rows import rows_of
from tests.random_models import random_mtp, random_tokens
from tests.spec.doubles import context_at, make_loop, prefilled, session

DRAWS = RandomStream()
PROMPT = random_tokens(21, seed=6)[0].tolist()  # longer than the window of 12
LENGTH = 64


class FaultError(Exception):
    """What a broken part raises."""


@pytest.fixture(scope="module")
def network(tiny_model: Model) -> MTPNetwork:
    return random_mtp(tiny_model)


@pytest.fixture(scope="module")
def plain(tiny_model: Model) -> tuple[int, ...]:
    return collect(make_loop(session(tiny_model)).rounds(Request(prompt=PROMPT, max_tokens=LENGTH))).tokens


class MixedDrafter(MTPDrafter):
    """Remembers as MTP does and proposes as an oracle does, so that any number of drafts is accepted; may skip."""

    def __init__(self, network: MTPNetwork, accept_rate: float) -> None:
        super().__init__(network)
        self.oracle = OracleDrafter(accept_rate=accept_rate)

    def propose(self, context, gamma, admits=None):
        super().propose(context, gamma)  # a chain has run, and must have left nothing
        return self.oracle.propose(context, max(1, gamma - context.position % 4))


class PlainDecoding:
    """A drafter that is shown the committed tokens one plain decode at a time, and never proposes."""

    def __init__(self, network: MTPNetwork, target: Model) -> None:
        self.drafter = MTPDrafter(network)
        self.session = session(target, self.drafter)

    def follow(self, committed: list[int]) -> MTPDrafter:
        for token in committed[self.session.offset :]:
            self.drafter.observe([token], self.session.forward([token]).features)
        return self.drafter


def from_scratch(network: MTPNetwork, committed: list[int], target: Model) -> MTPDrafter:
    """A drafter that is shown the committed tokens all at once."""
    fresh = MTPDrafter(network)
    fresh.observe(committed, prefilled(session(target, fresh), committed))
    return fresh


def assert_same_memory(drafter: MTPDrafter, fresh: MTPDrafter, length: int) -> None:
    """Every row that a later slot can read, and the streams that wait, are those of the other drafter."""
    window = drafter.network.config.sliding_window
    ours, theirs = drafter.context, fresh.context
    assert ours.offset == theirs.offset == length - 1
    first = max(ours.offset - (window - 1), 0)
    np.testing.assert_allclose(
        rows_of(ours.raw, first, ours.offset), rows_of(theirs.raw, first, theirs.offset), rtol=0, atol=1e-5
    )
    assert mx.allclose(drafter.last_streams, fresh.last_streams, atol=1e-5)


def assert_is_from_scratch(drafter: MTPDrafter, committed: list[int], target: Model) -> None:
    assert_same_memory(drafter, from_scratch(drafter.network, committed, target), len(committed))


@pytest.mark.parametrize(("gamma", "accept_rate"), [(1, None), (3, None), (5, None), (1, 0.7), (3, 0.7), (5, 1.0)])
def test_tokens_are_those_of_plain_decoding(
    tiny_model: Model, network: MTPNetwork, plain: tuple[int, ...], gamma: int, accept_rate: float | None
) -> None:
    drafter = MTPDrafter(network) if accept_rate is None else MixedDrafter(network, accept_rate)
    target = session(tiny_model, drafter, gamma)
    emitted = list(PROMPT)
    for item in make_loop(target, drafter, gamma).rounds(Request(prompt=PROMPT, max_tokens=LENGTH, reference=plain)):
        emitted += item.tokens
        assert drafter.context.offset == target.offset - 1
        assert bool(item.proposed) or item.reason
    assert tuple(emitted[len(PROMPT) :]) == plain
    assert_is_from_scratch(drafter, emitted[: target.offset], tiny_model)


def test_rows_are_those_of_plain_decoding_after_any_mix_of_rounds(
    tiny_model: Model, network: MTPNetwork, plain: tuple[int, ...]
) -> None:
    drafter = MixedDrafter(network, 0.7)
    target = session(tiny_model, drafter, 5)
    decoding, emitted, outcomes = PlainDecoding(network, tiny_model), list(PROMPT), set()
    loop = make_loop(target, drafter, 5, commit=RollbackCommit())  # features come from replay as well
    for item in loop.rounds(Request(prompt=PROMPT, max_tokens=40, reference=plain)):
        emitted += item.tokens
        outcomes.add(item.outcome)
        assert_same_memory(drafter, decoding.follow(emitted[: target.offset]), target.offset)
    assert {"full", "partial", "miss_first"} <= outcomes


def test_the_separate_loop_leaves_the_same_memory(
    tiny_model: Model, network: MTPNetwork, plain: tuple[int, ...]
) -> None:
    drafter = MixedDrafter(network, 0.7)
    target = session(tiny_model, drafter, 3)
    parts = {"verifier": GreedyVerifier(sampling=Sampling()), "commit": PrefixCommit(), "replay": TokenReplay()}
    loop = SeparateLoop(target=target, drafter=drafter, block=FixedPolicy(gamma=3), **parts)
    assert collect(loop.rounds(Request(prompt=PROMPT, max_tokens=30, reference=plain))).tokens == plain[:30]
    assert_is_from_scratch(drafter, [*PROMPT, *plain][: target.offset], tiny_model)


@pytest.mark.parametrize("chunk", [1, 5, 16, 64])
def test_rows_do_not_depend_on_prompt_chunks(tiny_model: Model, network: MTPNetwork, chunk: int) -> None:
    drafter = MTPDrafter(network)
    make_loop(session(tiny_model, drafter, prefill_chunk=chunk), drafter, 5).start(Request(prompt=PROMPT, max_tokens=4))
    assert_is_from_scratch(drafter, PROMPT, tiny_model)


def test_a_prompt_of_one_token_has_no_slot_yet(tiny_model: Model, network: MTPNetwork) -> None:
    drafter = MTPDrafter(network)
    loop = make_loop(session(tiny_model, drafter), drafter, 3)
    progress, _ = loop.start(Request(prompt=PROMPT[:1], max_tokens=9))
    assert (drafter.context.offset, drafter.context.empty()) == (0, True)
    while progress.finish_reason is None:
        loop.step(progress)
    expected = collect(make_loop(session(tiny_model)).rounds(Request(prompt=PROMPT[:1], max_tokens=9))).tokens
    assert tuple(progress.emitted) == expected


def test_rounds_without_a_proposal_are_remembered_too(
    tiny_model: Model, network: MTPNetwork, plain: tuple[int, ...]
) -> None:
    drafter = MTPDrafter(network)
    loop = make_loop(session(tiny_model, drafter), drafter, 0)  # gamma 0: nothing is drafted, every token is committed
    assert collect(loop.rounds(Request(prompt=PROMPT, max_tokens=8))).tokens == plain[:8]
    assert_is_from_scratch(drafter, [*PROMPT, *plain[:7]], tiny_model)


@pytest.mark.parametrize("shown", [0, 17])
def test_the_proposal_is_the_same_from_prefill_and_from_rounds(
    tiny_model: Model, network: MTPNetwork, plain: tuple[int, ...], shown: int
) -> None:
    drafter = MixedDrafter(network, 0.5)
    loop = make_loop(session(tiny_model, drafter), drafter, 5)
    progress, _ = loop.start(
        Request(prompt=[*PROMPT, *plain[:shown]], max_tokens=LENGTH - shown, reference=plain[shown:])
    )
    while len(progress.emitted) < 20:
        loop.step(progress)
    at, position = len(progress.tokens) - len(PROMPT), len(progress.tokens) - 1
    fresh = MTPDrafter(network)
    committed = [*PROMPT, *plain[: at - 1]]
    fresh.observe(committed, prefilled(session(tiny_model, fresh), committed))
    expected = fresh.propose(context_at(plain[at - 1], position, DRAWS), 5)
    assert MTPDrafter.propose(drafter, context_at(plain[at - 1], position, DRAWS), 5) == expected


def test_a_slot_joins_the_streams_of_a_token_with_the_token_after_it(tiny_model: Model, network: MTPNetwork) -> None:
    """The first draft pairs the last committed token's streams with the anchor; the others chain."""
    count, window = len(PROMPT), network.config.sliding_window
    drafter = MTPDrafter(network)
    streams = prefilled(session(tiny_model, drafter), PROMPT)
    drafter.observe(PROMPT, streams)
    proposal = drafter.propose(context_at(7, count, DRAWS), 4)
    fed, tokens = streams[None], [*PROMPT[1:], 7]
    for drafted in proposal.tokens:  # without a cache: all slots again for every draft
        logits, output = network(mx.array([tokens]), fed)
        assert mx.argmax(logits[0, -1]).item() == drafted
        fed, tokens = mx.concatenate([fed, output[:, -1:]], axis=1), [*tokens, drafted]
    assert count > window
    shorter = drafter.propose(context_at(7, count, DRAWS), 2)
    assert shorter.tokens == proposal.tokens[:2]
    assert (proposal.draft_probs, proposal.confidence) == (None, None)
    assert drafter.max_gamma is None


def test_misuse_is_refused(tiny_model: Model, network: MTPNetwork) -> None:
    drafter = MTPDrafter(network)
    with pytest.raises(ValueError, match="each of 2 tokens, got None"):
        drafter.observe([1, 2], None)
    with pytest.raises(ValueError, match="must stand at 0"):
        drafter.propose(context_at(7, 0, DRAWS), 5)
    features = prefilled(session(tiny_model, drafter), PROMPT)
    with pytest.raises(ValueError, match="each of 2 tokens"):
        drafter.observe([1, 2], features)
    drafter.observe(PROMPT, features)
    with pytest.raises(ValueError, match="anchor must stand at 21"):
        drafter.propose(context_at(7, 20, DRAWS), 5)


def test_it_is_loaded_from_beside_the_target_or_from_a_path(tiny_model: Model, network: MTPNetwork) -> None:
    asked: list[tuple[str, str | None]] = []

    def loader(path, *, target, quant):
        asked.append((str(path), quant))
        return network

    class Placed:
        path = "here"

    MTPDrafter.load(Placed, loader)
    MTPDrafter.load(Placed, loader, path="elsewhere", quant="q4")
    assert asked == [("here", None), ("elsewhere", "q4")]
    with pytest.raises(UserError, match=r"drafter.path"):
        MTPDrafter.load(tiny_model, loader)


def test_the_main_program_runs_it(program, mtp_checkpoint: Path, checkpoint: Path, capsys) -> None:
    assert program("drafter=mtp", f"drafter.path={mtp_checkpoint}", "block.gamma=3") == 0
    capsys.readouterr()
    assert program("drafter=mtp") == 2  # beside this target stands DSpark
    assert "take drafter=dspark" in capsys.readouterr().err
