"""The DSpark drafter's memory: a row a committed token and stage, none of a block, the same however it came about."""

from pathlib import Path

import mlx.core as mx
import pytest

from models import Model, load_dspark, load_model
from models.dspark import DSparkNetwork
from spec import (
    DSparkDrafter,
    FoldedLoop,
    OracleDrafter,
    PrefixCommit,
    RandomStream,
    Request,
    RollbackCommit,
    SeparateLoop,
    UserError,
    collect,
)
from tests.random_models import random_tokens
from tests.spec.doubles import context_at, make_loop, prefilled, session

FIXTURES = Path(__file__).parents[1] / "fixtures"
DRAWS = RandomStream()
PROMPT = random_tokens(21, vocab_size=96, seed=6)[0].tolist()  # longer than the window of 16


@pytest.fixture(scope="module")
def target() -> Model:
    return load_model(FIXTURES / "target" / "flashlike")


@pytest.fixture(scope="module")
def network(target: Model) -> DSparkNetwork:
    return load_dspark(FIXTURES / "dspark" / "flashlike", target=target)


@pytest.fixture(scope="module")
def plain(target: Model) -> tuple[int, ...]:
    return collect(make_loop(session(target)).rounds(Request(prompt=PROMPT, max_tokens=30))).tokens


def assert_is_from_scratch(drafter: DSparkDrafter, committed: list[int], target: Model) -> None:
    """The ring equals that of a fresh drafter which is shown the committed tokens one plain decode at a time."""
    fresh, decoding = DSparkDrafter(drafter.network), session(target, drafter)
    for token in committed:
        fresh.observe([token], decoding.forward([token]).features)
    window = drafter.network.window
    for ours, theirs in zip(drafter.context, fresh.context, strict=True):
        assert ours.shape[1] == min(window, len(committed))
        assert mx.allclose(ours, theirs, atol=1e-5)


class MixedDrafter(DSparkDrafter):
    """Remembers as DSpark does and proposes as an oracle does, so that any number of drafts is accepted; may skip."""

    def __init__(self, network: DSparkNetwork, accept_rate: float) -> None:
        super().__init__(network)
        self.oracle = OracleDrafter(accept_rate=accept_rate)

    def propose(self, context, gamma, admits=None):
        super().propose(context, gamma)  # a block has run, and must have left nothing
        return self.oracle.propose(context, max(1, gamma - context.position % 4))


@pytest.mark.parametrize(
    ("shape", "commit"),
    [(FoldedLoop, PrefixCommit()), (SeparateLoop, PrefixCommit()), (SeparateLoop, RollbackCommit())],
)
def test_the_ring_is_that_of_plain_decoding_after_any_mix_of_rounds(
    target: Model, network: DSparkNetwork, plain: tuple[int, ...], shape, commit
) -> None:
    drafter = MixedDrafter(network, 0.7)
    target_session = session(target, drafter)
    loop = make_loop(target_session, drafter, 5, shape, commit=commit)
    emitted, outcomes = list(PROMPT), set()
    for item in loop.rounds(Request(prompt=PROMPT, max_tokens=30, reference=plain)):
        emitted += item.tokens
        outcomes.add(item.outcome)
        if item.index % 3 == 0:
            assert_is_from_scratch(drafter, emitted[: target_session.offset], target)
    assert tuple(emitted[len(PROMPT) :]) == plain
    assert {"full", "partial", "miss_first"} <= outcomes
    assert_is_from_scratch(drafter, emitted[: target_session.offset], target)


@pytest.mark.parametrize("chunk", [1, 5, 16, 64])
def test_the_ring_does_not_depend_on_prompt_chunks(target: Model, network: DSparkNetwork, chunk: int) -> None:
    drafter = DSparkDrafter(network)
    loop = make_loop(session(target, drafter, prefill_chunk=chunk), drafter, 5)
    loop.start(Request(prompt=PROMPT, max_tokens=4))
    assert_is_from_scratch(drafter, PROMPT, target)


def test_rounds_without_a_proposal_are_remembered_too(
    target: Model, network: DSparkNetwork, plain: tuple[int, ...]
) -> None:
    drafter = DSparkDrafter(network)
    loop = make_loop(session(target, drafter), drafter, 0)  # gamma 0: nothing is drafted, every token is committed
    done = collect(loop.rounds(Request(prompt=PROMPT, max_tokens=8)))
    assert done.tokens == plain[:8]
    assert_is_from_scratch(drafter, [*PROMPT, *plain[:7]], target)


def test_the_proposal_is_the_same_from_prefill_and_from_rounds(
    target: Model, network: DSparkNetwork, plain: tuple[int, ...]
) -> None:
    ways = []
    for shown in (0, 6, 12):
        drafter = MixedDrafter(network, 0.5)
        loop = make_loop(session(target, drafter), drafter, 5)
        progress, _ = loop.start(
            Request(prompt=[*PROMPT, *plain[:shown]], max_tokens=30 - shown, reference=plain[shown:])
        )
        while shown + len(progress.emitted) <= 15:
            loop.step(progress)
        at = len(progress.tokens) - len(PROMPT)
        position = len(progress.tokens) - 1
        ways.append((at, DSparkDrafter.propose(drafter, context_at(plain[at - 1], position, DRAWS), 5)))
    for at, proposal in ways:
        drafter, decoding = DSparkDrafter(network), session(target, DSparkDrafter(network))
        drafter.observe([*PROMPT, *plain[: at - 1]], prefilled(decoding, [*PROMPT, *plain[: at - 1]]))
        expected = drafter.propose(context_at(plain[at - 1], len(PROMPT) + at - 1, DRAWS), 5)
        assert proposal.tokens == expected.tokens
        assert proposal.confidence == pytest.approx(expected.confidence, abs=1e-5)


def test_blocks_run_whole_and_are_cut_to_gamma(target: Model, network: DSparkNetwork) -> None:
    drafter = DSparkDrafter(network)
    drafter.observe(PROMPT, prefilled(session(target, drafter), PROMPT))
    whole = drafter.propose(context_at(7, len(PROMPT), DRAWS), 5)
    assert (len(whole.tokens), len(whole.confidence), whole.draft_probs) == (5, 5, None)
    assert all(0 < value < 1 for value in whole.confidence)
    for gamma in (1, 3):
        cut = drafter.propose(context_at(7, len(PROMPT), DRAWS), gamma)
        assert cut.tokens == whole.tokens[:gamma]
        assert cut.confidence == pytest.approx(whole.confidence[:gamma], abs=1e-6)


def test_only_the_window_is_seen(target: Model, network: DSparkNetwork) -> None:
    """Perturbing a committed token older than the window changes no proposal; perturbing one inside does."""
    features = prefilled(session(target, DSparkDrafter(network)), PROMPT)
    window, count = network.window, len(PROMPT)

    def confidence(changed: int) -> tuple[float, ...]:
        drafter = DSparkDrafter(network)
        values = mx.where(mx.arange(count)[:, None] == changed, features + 1.0, features)
        drafter.observe(PROMPT, values)
        return drafter.propose(context_at(7, count, DRAWS), 5).confidence

    untouched = confidence(-1)
    assert confidence(count - window - 1) == untouched
    assert confidence(count - window) != untouched


def test_misuse_is_refused(target: Model, network: DSparkNetwork) -> None:
    drafter = DSparkDrafter(network)
    with pytest.raises(ValueError, match="features of each of 2 tokens, got None"):
        drafter.observe([1, 2], None)
    features = prefilled(session(target, drafter), PROMPT)
    with pytest.raises(ValueError, match="features of each of 2 tokens"):
        drafter.observe([1, 2], features)
    drafter.observe(PROMPT, features)
    with pytest.raises(ValueError, match="anchor must stand at 21"):
        drafter.propose(context_at(7, 20, DRAWS), 5)
    with pytest.raises(UserError, match="at most 5 tokens"):
        make_loop(session(target, drafter, 6), drafter, 6)


def test_it_is_loaded_from_beside_the_target_or_from_a_path(target: Model) -> None:
    asked: list[tuple[str, str | None]] = []

    def loader(path, *, target, quant):
        asked.append((str(path), quant))
        return load_dspark(FIXTURES / "dspark" / "flashlike", target=target, quant=quant)

    drafter = DSparkDrafter.load(target, loader)
    assert (drafter.tapped_layers, drafter.max_gamma) == ((2, 3, 4), 5)
    DSparkDrafter.load(target, loader, path="elsewhere")
    assert asked == [(target.path, None), ("elsewhere", None)]
    with pytest.raises(ValueError, match="quant"):
        DSparkDrafter.load(target, loader, quant="q4")
