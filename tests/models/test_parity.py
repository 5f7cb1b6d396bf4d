"""The target computes what transformers computes: logits and layer outputs of the stored random checkpoints.

`tests/fixtures/make_target_fixtures.py` made them; torch is not needed here.
"""

import functools
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from models import Model, load_model
from models.deepseek_v4 import LayerKind
from models.deepseek_v4.attention import NARROW

FIXTURES = sorted(path.parent for path in (Path(__file__).parent.parent / "fixtures" / "target").glob("*/config.json"))
TOLERANCE = 1e-4

fixtures = pytest.mark.parametrize("folder", FIXTURES, ids=lambda folder: folder.name)


@dataclass(frozen=True, kw_only=True)
class Reference:
    """One checkpoint and what transformers computed for it: logits (B, S, V), streams' means (B, S, L * H)."""

    model: Model
    tokens: mx.array
    logits: np.ndarray
    hidden: np.ndarray
    tapped_layers: tuple[int, ...]


@functools.cache
def reference(folder: Path) -> Reference:
    with np.load(folder / "reference.npz") as arrays:
        hidden = arrays["hidden"]
        return Reference(
            model=load_model(folder),
            tokens=mx.array(arrays["tokens"]),
            logits=arrays["logits"],
            hidden=hidden.reshape(*hidden.shape[:2], -1),
            tapped_layers=tuple(arrays["tapped_layers"].tolist()),
        )


def assert_parity(known: Reference, widths: list[int], max_rollback: int = 0) -> None:
    """Logits and tapped features of passes of the given widths are the reference's."""
    cache = known.model.make_cache(max_rollback)
    logits, features, offset = [], [], 0
    for width in widths:
        found = known.model(known.tokens[:, offset : offset + width], cache=cache, tapped_layers=known.tapped_layers)
        mx.eval(found)
        logits.append(found[0])
        features.append(found[1])
        offset += width
    assert offset == known.tokens.shape[1]
    np.testing.assert_allclose(mx.concatenate(logits, axis=1), known.logits, rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(mx.concatenate(features, axis=1), known.hidden, rtol=0, atol=TOLERANCE)


def random_widths(total: int, widest: int, seed: int) -> list[int]:
    generator = np.random.default_rng(seed)
    widths: list[int] = []
    while sum(widths) < total:
        widths.append(min(int(generator.integers(1, widest + 1)), total - sum(widths)))
    return widths


def test_there_are_fixtures() -> None:
    assert {folder.name for folder in FIXTURES} >= {"flashlike", "prolike", "ratio128", "clamped"}


@fixtures
def test_one_pass_without_a_cache(folder: Path) -> None:
    known = reference(folder)
    logits, features = known.model(known.tokens, tapped_layers=known.tapped_layers)
    assert logits.dtype == mx.float32
    np.testing.assert_allclose(logits, known.logits, rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(features, known.hidden, rtol=0, atol=TOLERANCE)


@fixtures
def test_one_pass_with_a_cache(folder: Path) -> None:
    known = reference(folder)
    assert_parity(known, [known.tokens.shape[1]])


@fixtures
def test_token_by_token(folder: Path) -> None:
    known = reference(folder)
    assert_parity(known, [1] * known.tokens.shape[1])


@fixtures
@pytest.mark.parametrize(("widest", "seed"), [(9, 0), (17, 1), (70, 2)])
def test_random_chunks(folder: Path, widest: int, seed: int) -> None:
    known = reference(folder)
    assert_parity(known, random_widths(known.tokens.shape[1], widest, seed), max_rollback=seed)


@fixtures
def test_a_wide_prefill_and_then_decoding(folder: Path) -> None:
    known = reference(folder)
    prefill = known.tokens.shape[1] - 21
    assert prefill > NARROW
    assert_parity(known, [prefill, *[1] * 21], max_rollback=4)


@fixtures
def test_taps_come_in_the_order_asked_and_leave_the_logits_alone(folder: Path) -> None:
    known = reference(folder)
    tokens = known.tokens[:, :20]
    plain = known.model(tokens)
    logits, features = known.model(tokens, tapped_layers=known.tapped_layers)
    assert mx.array_equal(plain, logits)
    _, reversed_features = known.model(tokens, tapped_layers=known.tapped_layers[::-1])
    parts = mx.split(features, len(known.tapped_layers), axis=-1)
    assert mx.array_equal(reversed_features, mx.concatenate(parts[::-1], axis=-1))


@fixtures
def test_the_fixture_can_show_errors(folder: Path) -> None:
    """A fixture shorter than the window, with few rows or with zero tables would let errors pass."""
    known = reference(folder)
    config, length = known.model.args, known.tokens.shape[1]
    kinds = [config.kind(layer) for layer in range(config.num_hidden_layers)]
    assert LayerKind.CSA in kinds
    assert LayerKind.HCA in kinds
    assert length > 2 * config.sliding_window
    for kind, ratio in zip(kinds, config.compress_ratios, strict=True):
        if kind is LayerKind.HCA:
            assert length // ratio >= 2
        if kind is LayerKind.CSA:
            assert length // ratio > 2 * config.index_topk
        if ratio:
            assert length % ratio, "the last window must stay open"
    assert config.index_n_heads >= 16
    assert config.index_head_dim != config.head_dim
    assert 0 < config.num_hash_layers < config.num_hidden_layers
    assert np.abs(known.logits).max() > 1
    for name, array in tree_flatten(known.model.parameters()):
        leaf = name.rsplit(".", 1)[-1]
        if leaf in ("ape", "attn_sink", "base", "bias"):
            assert mx.abs(array).max() > 0.05, name
        if "norm" in name:
            assert mx.abs(array - 1).max() > 0.05, name
        if leaf == "tid2eid":
            table = np.sort(np.array(array), axis=-1)
            assert (table[:, 1:] > table[:, :-1]).all(), f"{name}: an expert twice for one token"
            assert len(np.unique(table, axis=0)) > 1, name


def test_the_fixtures_cover_what_one_alone_does_not() -> None:
    configs = [reference(folder).model.args for folder in FIXTURES]
    assert any(128 in config.compress_ratios for config in configs)
    assert any(config.compress_ratios[0] == 0 for config in configs)
    assert any(config.kind(0) is LayerKind.HCA for config in configs)
    assert any(
        config.kind(layer) is LayerKind.CSA and layer < config.num_hash_layers
        for config in configs
        for layer in range(config.num_hidden_layers)
    )
    assert any(reference(folder).tokens.shape[0] > 1 for folder in FIXTURES)
    longest = max(reference(folder).tokens.shape[1] for folder in FIXTURES)
    assert longest > max(config.rope_scaling.original_max_position_embeddings for config in configs)
