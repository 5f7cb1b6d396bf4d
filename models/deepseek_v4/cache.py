"""The state of a layer: rows kept by absolute position, so that rollback only changes a counter.

All state of a V4 layer is a function of per-token rows (raw KV, compressor rows, index compressor rows) or of complete
windows of them. `RowRing` keeps the most recent rows at slot ``position mod capacity`` and never shifts them;
`GrowingRows` keeps one row per complete window. Appending M tokens writes M rows. Committing a prefix of them, or
rolling back, only changes `LayerCache.offset`: rows past it are never read, and are overwritten when their position is
written again.
"""

import mlx.core as mx

from models.deepseek_v4.config import DeepseekV4Config, LayerKind

GROWTH = 256  # compressed rows allocated at a time
ALIGNMENT = 32  # attention reads compressed rows in multiples of this, see attention.py


def _updated(rows: mx.array, update: mx.array, start: int) -> mx.array:
    """Rows with a range replaced, as a new array: item assignment would also change what a snapshot refers to."""
    return mx.slice_update(rows, update, mx.array([start]), axes=(1,))


class RowRing:
    """The most recent rows, by position, in ``rows`` (B, capacity, width), which is None at first.

    Without a dtype, they have that of the first rows appended.
    """

    def __init__(self, capacity: int, width: int, dtype: mx.Dtype | None = None) -> None:
        self.capacity, self.width, self.dtype = capacity, width, dtype
        self.rows: mx.array | None = None

    def append(self, rows: mx.array, offset: int) -> None:
        """Writes rows (B, T, width) of positions ``offset ..``; if they exceed the capacity, the last ones."""
        count = min(rows.shape[1], self.capacity)
        if count == 0:
            return
        first = offset + rows.shape[1] - count
        if self.rows is None:
            self.rows = mx.zeros((rows.shape[0], self.capacity, self.width), dtype=self.dtype or rows.dtype)
        rows = rows[:, -count:].astype(self.rows.dtype)
        start = first % self.capacity
        until_wrap = min(count, self.capacity - start)
        self.rows = _updated(self.rows, rows[:, :until_wrap], start)
        if until_wrap < count:
            self.rows = _updated(self.rows, rows[:, until_wrap:], 0)

    def before(self, offset: int, count: int) -> mx.array:
        """Rows (B, count, width) of positions ``offset - count .. offset - 1``, in order; count <= offset."""
        start = (offset - count) % self.capacity
        until_wrap = min(count, self.capacity - start)
        rows = self.rows[:, start : start + until_wrap]
        if until_wrap == count:
            return rows
        return mx.concatenate([rows, self.rows[:, : count - until_wrap]], axis=1)


class GrowingRows:
    """One row per complete window, in a buffer that grows; ``rows`` (B, allocated, width) is None at first."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.rows: mx.array | None = None

    def write(self, rows: mx.array, first: int) -> None:
        """Writes rows (B, n, width) of windows ``first .. first + n - 1``."""
        count = rows.shape[1]
        if count == 0:
            return
        allocated = 0 if self.rows is None else self.rows.shape[1]
        if first + count > allocated:
            added = -(-(first + count - allocated) // GROWTH) * GROWTH
            fresh = mx.zeros((rows.shape[0], added, self.width), dtype=rows.dtype)
            self.rows = fresh if self.rows is None else mx.concatenate([self.rows, fresh], axis=1)
        self.rows = _updated(self.rows, rows, first)

    def read(self, count: int) -> mx.array | None:
        """The first rows, ``count`` rounded up to `ALIGNMENT`; rows past count are zero or stale and to be masked."""
        if count == 0:
            return None
        return self.rows[:, : -(-count // ALIGNMENT) * ALIGNMENT]


class CompressorState:
    """State of one `Compressor`: token rows of windows that may still be pooled, and a row per complete window."""

    def __init__(self, ratio: int, overlap: bool, width: int, max_rollback: int) -> None:
        halves = 2 if overlap else 1
        self.ratio, self.halves = ratio, halves
        # After a rollback the oldest row needed is at most halves * ratio - 1 tokens back, and the newest row written
        # max_rollback tokens ahead. Rows hold [k | score + ape] in float32, in which the reference pools.
        self.frontier = RowRing(halves * ratio - 1 + max_rollback, 2 * halves * width, mx.float32)
        self.pooled = GrowingRows(width)

    def reachable(self, offset: int) -> dict[str, mx.array]:
        """The rows that a pass at ``offset`` can read, by store."""
        closed = offset // self.ratio
        first = max((closed - self.halves + 1) * self.ratio, 0)
        return {
            "frontier": self.frontier.before(offset, offset - first),
            "pooled": mx.zeros((0,)) if closed == 0 else self.pooled.rows[:, :closed],
        }


class LayerCache:
    """The state of one layer, in mlx-lm's cache protocol; it can be trimmed to ``max_rollback`` behind ``written``."""

    def __init__(self, config: DeepseekV4Config, layer: int, max_rollback: int) -> None:
        kind, ratio = config.kind(layer), config.compress_ratios[layer]
        self.max_rollback = max_rollback
        self.offset = 0  # committed tokens
        self.written = 0  # one past the newest position ever written
        self.window = config.sliding_window
        self.raw = RowRing(self.window - 1 + max_rollback, config.head_dim)
        self.compressor: CompressorState | None = None
        self.indexer: CompressorState | None = None
        if kind is not LayerKind.WINDOW:
            overlap = kind is LayerKind.CSA
            self.compressor = CompressorState(ratio, overlap, config.head_dim, max_rollback)
            if overlap:
                self.indexer = CompressorState(ratio, overlap, config.index_head_dim, max_rollback)

    def advance(self, count: int) -> None:
        """Commits tokens, once all of their rows have been written."""
        self.offset += count
        self.written = max(self.written, self.offset)

    def is_trimmable(self) -> bool:
        """Whether `trim` can take any token back."""
        return self.max_rollback > 0

    def trim(self, n: int) -> int:
        """Takes back the last n tokens, exactly.

        The limit counts from the newest row ever written: tokens that an earlier trim took back use it up until they
        are overwritten.

        Returns:
            The tokens taken back: n, or all there are if fewer.

        Raises:
            ValueError: n is negative or exceeds the limit.
        """
        if n < 0:
            raise ValueError(f"cannot trim {n} tokens: wanted 0 or more; tokens that were taken back must be run again")
        n = min(n, self.offset)
        if self.written - (self.offset - n) > self.max_rollback:
            raise ValueError(
                f"cannot trim {n} tokens at offset {self.offset}: the cache keeps {self.max_rollback} tokens of "
                f"headroom behind position {self.written}; make it with make_cache(max_rollback=...) of at least "
                f"{self.written - (self.offset - n)}"
            )
        self.offset -= n
        return n

    def size(self) -> int:
        """Committed tokens."""
        return self.offset

    def empty(self) -> bool:
        """Whether nothing was ever written."""
        return self.raw.rows is None

    def reachable_rows(self) -> dict[str, mx.array]:
        """All rows that a later pass can read, (B, n, width) in order of position, by the name of their store."""
        rows = {"raw": self.raw.before(self.offset, min(self.offset, self.window - 1))}
        for kind, state in (("compressor", self.compressor), ("indexer", self.indexer)):
            if state is not None:
                rows |= {f"{kind} {name}": array for name, array in state.reachable(self.offset).items()}
        return rows

    @property
    def nbytes(self) -> int:
        """Bytes allocated."""
        return sum(array.nbytes for array in self.state)

    def _stores(self) -> list[RowRing | GrowingRows]:
        compressors = [state for state in (self.compressor, self.indexer) if state is not None]
        return [self.raw, *(store for state in compressors for store in (state.frontier, state.pooled))]

    @property
    def state(self) -> list[mx.array]:
        """The arrays written so far, in a fixed order. References, not copies: no array is changed in place."""
        return [store.rows for store in self._stores() if store.rows is not None]

    @state.setter
    def state(self, arrays: list[mx.array]) -> None:
        present = iter(arrays)
        for store, is_present in zip(self._stores(), self._present, strict=True):
            store.rows = next(present) if is_present else None

    @property
    def meta_state(self) -> tuple[str, str, str]:
        """``offset``, ``written``, and for each store 0 or 1: whether `state` has its array. Set it before `state`."""
        flags = "".join("0" if store.rows is None else "1" for store in self._stores())
        return str(self.offset), str(self.written), flags

    @meta_state.setter
    def meta_state(self, values: tuple[str, str, str]) -> None:
        self.offset, self.written = int(values[0]), int(values[1])
        self._present = [flag == "1" for flag in values[2]]
