"""The DSpark drafter: the contract, and what is its own, a ring of rows a stage and blocks that are cut to gamma."""

from functools import cache
from pathlib import Path

import mlx.core as mx
import pytest

from models import Model, load_dspark, load_model
from models.dspark import DSparkNetwork
from spec import DSparkDrafter, RandomStream, UserError
from spec.testing import DrafterContract
from spec.testing.paths import PATHS
from tests.random_models import random_tokens
from tests.spec.doubles import context_at, make_loop, prefilled, session

FIXTURES = Path(__file__).parents[2] / "fixtures"
DRAWS = RandomStream()
PROMPT = random_tokens(21, vocab_size=96, seed=6)[0].tolist()  # longer than the window of 16


@cache
def load_target() -> Model:
    return load_model(FIXTURES / "target" / "flashlike")


@cache
def load_network() -> DSparkNetwork:
    return load_dspark(FIXTURES / "dspark" / "flashlike", target=load_target())


@pytest.fixture
def target() -> Model:
    return load_target()


@pytest.fixture
def network() -> DSparkNetwork:
    return load_network()


class TestDSparkDrafter(DrafterContract):
    prompt = PROMPT

    def model(self) -> Model:
        return load_target()

    def make(self, target: Model) -> DSparkDrafter:
        return DSparkDrafter(load_network())

    def memory(self, drafter: DSparkDrafter) -> list[mx.array]:
        return list(drafter.context_rows)


class TestSampledDrafts(TestDSparkDrafter):
    length, paths = 14, PATHS[::3]

    def make(self, target: Model) -> DSparkDrafter:
        return DSparkDrafter(load_network(), proposal="sampled", temperature=0.8)


def test_the_ring_holds_a_row_a_token_up_to_the_window(target: Model, network: DSparkNetwork) -> None:
    drafter, decoding = DSparkDrafter(network), session(target, DSparkDrafter(network))
    for count, token in enumerate(PROMPT, start=1):
        drafter.observe([token], decoding.forward([token]).features)
        assert {rows.shape[1] for rows in drafter.context_rows} == {min(network.window, count)}


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
