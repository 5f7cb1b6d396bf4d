"""Exactness by design, in full: every loop x commit x replay x block policy x drafter gives plain decoding's tokens.

In float32 on the plain CPU backend also its very cache rows, after every round. A second test forces the first
rejection to every position of a block at every phase of the position modulo each compress ratio.
"""

import itertools
from collections.abc import Callable, Sequence
from functools import partial

import mlx.core as mx
import pytest

from models import Model
from spec import (
    AutoPolicy,
    BatchReplay,
    BlockPolicy,
    BreakEvenPolicy,
    CappedPolicy,
    CommitPath,
    ConfidencePolicy,
    CostTable,
    Ds4SchedulerPolicy,
    FixedPolicy,
    FoldedLoop,
    FullOnlyCommit,
    OracleDrafter,
    PrefixCommit,
    Proposal,
    RandomStream,
    Request,
    RollbackCommit,
    SeparateLoop,
    SingleJumpPolicy,
    SpeculativeLoop,
    StagedPolicy,
    ThroughputPolicy,
    TokenReplay,
    WindowPolicy,
)
from spec.testing import ConfidentOracle
from tests.models.cache_rows import PlainDecoding, assert_same_rows
from tests.random_models import TINY, random_model, random_tokens
from tests.spec.doubles import make_loop, session

GAMMA = 5
PROMPT = 14  # past the window of 12, and in the middle of a window of every ratio
LENGTH = 20  # windows of every ratio close on the way, two of ratio 16 among them
CYCLE = max(TINY["compress_ratios"])
COSTS = CostTable(name="test", passes={1: 10.0, 2: 14.0, 6: 24.0}, propose={0: 1.0, 5: 4.0})


LOOPS: dict[str, Callable[..., SpeculativeLoop]] = {
    "folded": FoldedLoop,
    "separate": SeparateLoop,
    "separate, corrections replayed": partial(SeparateLoop, correction="replay"),
}
COMMITS: list[type[CommitPath]] = [PrefixCommit, FullOnlyCommit, RollbackCommit]
REPLAYS = [TokenReplay, BatchReplay]
BLOCKS: dict[str, Callable[[], BlockPolicy]] = {
    "fixed": partial(FixedPolicy, gamma=GAMMA),
    "single_jump": partial(SingleJumpPolicy, gamma=GAMMA),
    "staged": partial(StagedPolicy, gamma=GAMMA),
    "capped": partial(CappedPolicy, gamma=GAMMA),
    "window": partial(WindowPolicy, gamma=GAMMA),
    "confidence": partial(ConfidencePolicy, gamma=GAMMA, threshold=0.3),
    "throughput": partial(ThroughputPolicy, gamma=GAMMA, costs=COSTS),
    "break_even": partial(BreakEvenPolicy, gamma=GAMMA, costs=COSTS, inner=None),
    "ds4_scheduler": partial(
        Ds4SchedulerPolicy, gamma=GAMMA, costs=COSTS, inner=ConfidencePolicy(gamma=GAMMA, threshold=0.2)
    ),
    "auto": partial(AutoPolicy, gamma=GAMMA, costs=COSTS, threshold=0.3),
}
DRAFTERS = {"always right": 1.0, "always wrong": 0.0, "random": 0.6}


@pytest.fixture(scope="module")
def model() -> Model:
    return random_model(seed=4)


@pytest.fixture(scope="module")
def plain(model: Model) -> PlainDecoding:
    """Plain greedy decoding of a random prompt, past what any run here emits."""
    tokens = random_tokens(PROMPT, seed=9)
    cache = model.make_cache(GAMMA + 1)
    model(tokens[:, :-1], cache=cache)
    while tokens.shape[1] < PROMPT + CYCLE + LENGTH + GAMMA + 2:
        best = mx.argmax(model(tokens[:, -1:], cache=cache)[:, -1:], axis=-1).astype(tokens.dtype)
        tokens = mx.concatenate([tokens, best], axis=1)
    return PlainDecoding(model, tokens, PROMPT - 1, GAMMA + 1)


def known(plain: PlainDecoding) -> list[int]:
    return plain.tokens[0, PROMPT:].tolist()


def run(loop: SpeculativeLoop, plain: PlainDecoding, model: Model, max_tokens: int) -> list[str]:
    """Generates, checks rows after every round and tokens at the end; returns the outcomes."""
    emitted: list[int] = []
    outcomes = []
    prompt = plain.tokens[0, :PROMPT].tolist()
    for item in loop.rounds(
        Request(prompt=prompt, max_tokens=max_tokens, random=RandomStream(seed=3), reference=known(plain))
    ):
        emitted += item.tokens
        outcomes.append(item.outcome)
        assert_same_rows(loop.target.cache, plain.rows_at(loop.target.offset), model.args)
    assert emitted == known(plain)[:max_tokens]
    return outcomes


@pytest.mark.parametrize("shape", LOOPS)
@pytest.mark.parametrize("block", BLOCKS)
def test_every_combination_is_plain_decoding(model: Model, plain: PlainDecoding, shape: str, block: str) -> None:
    seen: set[str] = set()
    for commit, replay, accept_rate in itertools.product(COMMITS, REPLAYS, DRAFTERS.values()):
        drafter = ConfidentOracle(accept_rate=accept_rate)
        loop = make_loop(
            session(model, drafter, GAMMA),
            drafter,
            shape=LOOPS[shape],
            commit=commit(),
            replay=replay(),
            block=BLOCKS[block](),
        )
        seen.update(run(loop, plain, model, LENGTH))
    assert {"full", "miss_first"} <= seen  # the drafters did what they are named for


class MissAt(OracleDrafter):
    """Right up to one place of every block, wrong there."""

    def __init__(self, place: int) -> None:
        super().__init__(accept_rate=1.0)
        self.place = place

    def propose(self, context, gamma, admits=None) -> Proposal:
        tokens = list(super().propose(context, gamma).tokens)
        if self.place < len(tokens):
            tokens[self.place] = (tokens[self.place] + 1) % TINY["vocab_size"]
        return Proposal(tokens=tuple(tokens))


@pytest.mark.parametrize("shape", LOOPS)
@pytest.mark.parametrize("commit", COMMITS)
def test_a_rejection_anywhere_at_every_phase(
    model: Model, plain: PlainDecoding, shape: str, commit: type[CommitPath]
) -> None:
    assert plain.tokens.shape[1] > PROMPT + CYCLE + GAMMA + 2  # the reference reaches past the last round
    for place, phase in itertools.product(range(GAMMA + 1), range(CYCLE)):  # place GAMMA: nothing is rejected
        drafter = MissAt(place)
        loop = make_loop(
            session(model, drafter, GAMMA), drafter, GAMMA, shape=LOOPS[shape], commit=commit(), replay=BatchReplay()
        )
        start = PROMPT + phase
        tokens: Sequence[int] = plain.tokens[0].tolist()
        progress, _ = loop.start(Request(prompt=tokens[:start], max_tokens=64, reference=tokens[start:]))
        finished = loop.step(progress)
        assert finished.accepted == min(place, GAMMA)
        assert list(finished.tokens) == tokens[start + 1 : start + 2 + finished.accepted]
        assert_same_rows(loop.target.cache, plain.rows_at(loop.target.offset), model.args)
