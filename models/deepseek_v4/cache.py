"""What a layer remembers: rows keyed by absolute position, so that rollback is a counter.

Every piece of a V4 layer's state is a function of per-token rows (raw KV, compressor rows, index compressor rows) or of
a closed window of them. `RowRing` keeps recent rows at slot ``position mod capacity`` and never shifts them;
`GrowingRows` keeps one row a closed window. Neither knows how many tokens are committed: `LayerCache.offset` does.
Appending M tokens writes M rows; committing any prefix of them, or rolling back, only changes ``offset``. Rows past
it are unreachable and overwritten when their position comes again.
"""

import mlx.core as mx

from models.deepseek_v4.config import DeepseekV4Config, LayerKind

GROWTH = 256  # compressed rows allocated at a time
ALIGNMENT = 32  # attention reads compressed rows in multiples of this, see attention.py


def _updated(rows: mx.array, update: mx.array, start: int) -> mx.array:
    """Rows with a range replaced, as a new array: item assignment would also change what a snapshot refers to."""
    return mx.slice_update(rows, update, mx.array([start]), axes=(1,))


class RowRing:
    """The most recent rows by position.

    Args:
        capacity: rows kept.
        width: entries a row.
        dtype: dtype of the rows; None takes that of the first rows appended.
    """

    def __init__(self, capacity: int, width: int, dtype: mx.Dtype | None = None) -> None:
        self.capacity = capacity
        self.width = width
        self.dtype = dtype
        self.rows: mx.array | None = None  # (B, capacity, width)

    def append(self, rows: mx.array, offset: int) -> None:
        """Writes rows (B, T, width) of positions ``offset .. offset + T - 1``; of more than fit, the last are kept."""
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
        """Rows (B, count, width) of positions ``offset - count .. offset - 1``, in that order; count <= offset."""
        start = (offset - count) % self.capacity
        until_wrap = min(count, self.capacity - start)
        rows = self.rows[:, start : start + until_wrap]
        if until_wrap == count:
            return rows
        return mx.concatenate([rows, self.rows[:, : count - until_wrap]], axis=1)


class GrowingRows:
    """One row a closed window, by window number, in a buffer that grows."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.rows: mx.array | None = None  # (B, allocated, width)

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
        """The first rows, count rounded up to `ALIGNMENT` (what lies past count is zero or stale: mask it)."""
        if count == 0:
            return None
        return self.rows[:, : -(-count // ALIGNMENT) * ALIGNMENT]


class CompressorState:
    """State of one compressor: per-token rows of the windows still needed, and one row a closed window.

    Args:
        ratio: tokens a window.
        overlap: whether a window also reads its predecessor (CSA).
        width: entries of a pooled row, d.
        max_rollback: tokens that can be trimmed.
    """

    def __init__(self, ratio: int, overlap: bool, width: int, max_rollback: int) -> None:
        halves = 2 if overlap else 1
        self.ratio, self.halves = ratio, halves
        # After a rollback the oldest row needed lies at most halves * ratio - 1 tokens back, and the newest
        # row written lies max_rollback tokens ahead. Rows hold [k | score + ape] in float32, as the reference pools.
        self.frontier = RowRing(halves * ratio - 1 + max_rollback, 2 * halves * width, mx.float32)
        self.pooled = GrowingRows(width)

    def reachable(self, offset: int) -> dict[str, mx.array]:
        """Rows that a pass at ``offset`` can still read: tokens of windows not pooled for good, and pooled rows."""
        closed = offset // self.ratio
        first = max((closed - self.halves + 1) * self.ratio, 0)
        return {
            "frontier": self.frontier.before(offset, offset - first),
            "pooled": mx.zeros((0,)) if closed == 0 else self.pooled.rows[:, :closed],
        }


class LayerCache:
    """One layer's state, in mlx-lm's cache protocol (``offset, is_trimmable(), trim(n), state, meta_state``).

    Args:
        config: the target's configuration.
        layer: which layer.
        max_rollback: how far behind the newest row written `trim` can go.
    """

    def __init__(self, config: DeepseekV4Config, layer: int, max_rollback: int) -> None:
        kind, ratio = config.kind(layer), config.compress_ratios[layer]
        self.max_rollback = max_rollback
        self.offset = 0
        self.written = 0  # one past the newest position ever written: what bounds a rollback
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
        """Counts tokens whose rows have all been written."""
        self.offset += count
        self.written = max(self.written, self.offset)

    def is_trimmable(self) -> bool:
        """Whether `trim` can take anything back."""
        return self.max_rollback > 0

    def trim(self, n: int) -> int:
        """Takes back the last n tokens exactly.

        Args:
            n: tokens, 0 or more. The headroom counts from the newest row ever written: tokens that an earlier trim
                took back use it up until they are overwritten.

        Returns:
            n, or the tokens there are if fewer.

        Raises:
            ValueError: n is negative, or reaches further back than the headroom keeps.
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
        """Every row that a later pass can read, in order of position, by store; what rounds must leave as it should be.

        Returns:
            (B, n, width) each, for ``raw``, and with compressors ``compressor frontier``, ``compressor pooled`` and the
            indexer's.
        """
        rows = {"raw": self.raw.before(self.offset, min(self.offset, self.window - 1))}
        for kind, state in (("compressor", self.compressor), ("indexer", self.indexer)):
            if state is not None:
                rows |= {f"{kind} {name}": array for name, array in state.reachable(self.offset).items()}
        return rows

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(array.nbytes for array in self.state)

    def _stores(self) -> list[RowRing | GrowingRows]:
        stores: list[RowRing | GrowingRows] = [self.raw]
        for compressor in (self.compressor, self.indexer):
            if compressor is not None:
                stores += [compressor.frontier, compressor.pooled]
        return stores

    @property
    def state(self) -> list[mx.array]:
        """The arrays that have been written, in a fixed order (`meta_state` says which). References, not copies."""
        return [store.rows for store in self._stores() if store.rows is not None]

    @state.setter
    def state(self, arrays: list[mx.array]) -> None:
        present = iter(arrays)
        for store, is_present in zip(self._stores(), self._present, strict=True):
            store.rows = next(present) if is_present else None

    @property
    def meta_state(self) -> tuple[str, str, str]:
        """Offset, newest position written, and a 0/1 flag a store. Set it before `state`."""
        flags = "".join("0" if store.rows is None else "1" for store in self._stores())
        return str(self.offset), str(self.written), flags

    @meta_state.setter
    def meta_state(self, values: tuple[str, str, str]) -> None:
        self.offset, self.written = int(values[0]), int(values[1])
        self._present = [flag == "1" for flag in values[2]]
