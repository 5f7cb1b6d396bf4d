"""The MTP drafter: the contract, and what is its own, a row a completed slot and the streams that wait for the next."""

from functools import cache
from pathlib import Path

import mlx.core as mx
import pytest

from models import Model
from models.mtp import MTPNetwork
from spec import MTPDrafter, RandomStream, Request, UserError
from spec.testing import DrafterContract
from tests.models.cache_rows import rows_of
from tests.random_models import random_model, random_mtp, random_tokens
from tests.spec.doubles import context_at, make_loop, prefilled, session

DRAWS = RandomStream()
PROMPT = random_tokens(21, seed=6)[0].tolist()  # longer than the window of 12


@cache
def make_target() -> Model:
    return random_model()


@cache
def make_network() -> MTPNetwork:
    return random_mtp(make_target())


@pytest.fixture
def network() -> MTPNetwork:
    return make_network()


class TestMTPDrafter(DrafterContract):
    prompt, length = PROMPT, 30

    def model(self) -> Model:
        return make_target()

    def make(self, target: Model) -> MTPDrafter:
        return MTPDrafter(make_network())

    def memory(self, drafter: MTPDrafter) -> list[mx.array]:
        """Every row that a later slot can read, and the streams that wait."""
        cache, window = drafter.cache, drafter.network.config.sliding_window
        rows = rows_of(cache.raw, max(cache.offset - (window - 1), 0), cache.offset)
        waiting = [] if drafter.last_streams is None else [drafter.last_streams]
        return [mx.array(cache.offset), mx.array(rows), *waiting]


def test_there_is_a_slot_less_than_tokens(tiny_model: Model, network: MTPNetwork) -> None:
    """Also from a prompt of one token, which has no slot yet, and after every round."""
    for prompt in (PROMPT[:1], PROMPT):
        drafter = MTPDrafter(network)
        target = session(tiny_model, drafter, 3)
        loop = make_loop(target, drafter, 3)
        progress, _ = loop.start(Request(prompt=prompt, max_tokens=9))
        assert (drafter.cache.offset, drafter.cache.empty()) == (len(prompt) - 1, len(prompt) == 1)
        while progress.finish_reason is None:
            loop.step(progress)
            assert drafter.cache.offset == target.offset - 1


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
