"""What a cache can still be asked for, read by absolute position; and plain decoding as the reference for it."""

import mlx.core as mx
import numpy as np

from models.deepseek_v4 import DeepseekV4Config, LayerCache, LayerKind, Model
from models.deepseek_v4.cache import CompressorState, RowRing

Snapshot = list[tuple[tuple[str, str, str], list[mx.array]]]


def rows_of(ring: RowRing, first: int, end: int) -> np.ndarray:
    """Rows of positions first .. end - 1 (B, end - first, width), each from slot ``position mod capacity``."""
    if first == end:
        return np.zeros((0,), np.float32)
    return np.array(ring.rows)[:, [position % ring.capacity for position in range(first, end)]]


def compressor_rows(state: CompressorState, ratio: int, offset: int, is_overlapping: bool) -> dict[str, np.ndarray]:
    """Rows of the windows that can still be pooled, and one pooled row a window that the offset has closed."""
    closed = offset // ratio
    first = max((closed - 1 if is_overlapping else closed) * ratio, 0)
    pooled = np.array(state.pooled.rows)[:, :closed] if closed else np.zeros((0,), np.float32)
    return {"frontier": rows_of(state.frontier, first, offset), "pooled": pooled}


def reachable_rows(cache: list[LayerCache], config: DeepseekV4Config) -> dict[str, np.ndarray]:
    """Every row that a later pass can read, by layer and store."""
    found: dict[str, np.ndarray] = {}
    for layer, entry in enumerate(cache):
        kind, ratio = config.kind(layer), config.compress_ratios[layer]
        first = max(entry.offset - (config.sliding_window - 1), 0)
        found[f"{layer} raw"] = rows_of(entry.raw, first, entry.offset)
        if kind is not LayerKind.WINDOW:
            is_overlapping = kind is LayerKind.CSA
            for name, rows in compressor_rows(entry.compressor, ratio, entry.offset, is_overlapping).items():
                found[f"{layer} {name}"] = rows
        if kind is LayerKind.CSA:
            for name, rows in compressor_rows(entry.indexer, ratio, entry.offset, True).items():
                found[f"{layer} index {name}"] = rows
    return found


def assert_same_rows(cache: list[LayerCache], expected: dict[str, np.ndarray], config: DeepseekV4Config) -> None:
    """Every reachable row is bit-equal to the expected ones."""
    found = reachable_rows(cache, config)
    assert found.keys() == expected.keys()
    unequal = [name for name, rows in found.items() if not np.array_equal(rows, expected[name])]
    assert not unequal, f"rows differ at offset {cache[0].offset}: {', '.join(unequal)}"


def snapshot(cache: list[LayerCache]) -> Snapshot:
    """References to everything the cache holds."""
    return [(entry.meta_state, entry.state) for entry in cache]


def restored(model: Model, taken: Snapshot, max_rollback: int) -> list[LayerCache]:
    """A new cache with the contents of a snapshot."""
    cache = model.make_cache(max_rollback)
    for entry, (meta_state, state) in zip(cache, taken, strict=True):
        entry.meta_state = meta_state
        entry.state = state
    return cache


def trim(cache: list[LayerCache], count: int) -> None:
    """Takes back tokens in every layer."""
    for entry in cache:
        assert entry.trim(count) == count


class PlainDecoding:
    """One prefill, then one token a pass: the cache that never sees a token that is taken back.

    Attributes:
        model: the target.
        tokens: (1, length) the committed tokens.
        prefill: tokens in the first pass, 0 for none.
        logits: by position of the input token, (V,), positions prefill .. length - 1.
    """

    def __init__(self, model: Model, tokens: mx.array, prefill: int, max_rollback: int) -> None:
        self.model, self.tokens, self.prefill, self.max_rollback = model, tokens, prefill, max_rollback
        self.logits: dict[int, np.ndarray] = {}
        self._rows: dict[int, dict[str, np.ndarray]] = {}
        cache = model.make_cache(max_rollback)
        if prefill:
            mx.eval(model(tokens[:, :prefill], cache=cache), [entry.state for entry in cache])
        self._snapshots = {prefill: snapshot(cache)}
        for position in range(prefill, tokens.shape[1]):
            logits = model(tokens[:, position : position + 1], cache=cache)
            mx.eval(logits, [entry.state for entry in cache])
            self.logits[position] = np.array(logits[0, 0])
            self._snapshots[position + 1] = snapshot(cache)

    def cache_at(self, position: int) -> list[LayerCache]:
        """A cache that holds the first ``position`` tokens."""
        return restored(self.model, self._snapshots[position], self.max_rollback)

    def rows_at(self, position: int) -> dict[str, np.ndarray]:
        """The reachable rows of that cache."""
        if position not in self._rows:
            self._rows[position] = reachable_rows(self.cache_at(position), self.model.args)
        return self._rows[position]

    def verify(self, cache: list[LayerCache], width: int, accepted: int, seed: int = 0) -> None:
        """One pass over the next ``accepted`` committed tokens and then wrong ones, ``width`` in all.

        The logits at every committed token must be bit-equal to plain decoding's.
        """
        offset, vocab_size = cache[0].offset, self.model.args.vocab_size
        assert offset + width <= self.tokens.shape[1]
        right = self.tokens[:, offset : offset + accepted]
        off_by = np.random.default_rng(seed).integers(1, vocab_size, (1, width - accepted))
        wrong = (np.array(self.tokens[:, offset + accepted : offset + width]) + off_by) % vocab_size
        logits = np.array(self.model(mx.concatenate([right, mx.array(wrong, right.dtype)], axis=1), cache=cache)[0])
        for index in range(accepted):
            assert np.array_equal(logits[index], self.logits[offset + index]), f"logits at {offset + index}"

    def assert_goes_on(self, cache: list[LayerCache], count: int) -> None:
        """The rows, the logits of the next ``count`` tokens in one pass and the rows after it are plain decoding's."""
        position = cache[0].offset
        assert_same_rows(cache, self.rows_at(position), self.model.args)
        self.verify(cache, count, count)
        assert_same_rows(cache, self.rows_at(position + count), self.model.args)
