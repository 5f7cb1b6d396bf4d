"""Attention over a sliding window of raw KV rows and, in CSA and HCA layers, over compressed rows.

One row per token serves as key and value of all heads. There are two implementations:

* *narrow*, for cached passes of up to `NARROW` tokens (decoding, verification): every query reads its own rows from a
  fixed number of slots, so that its arithmetic does not depend on how many tokens share the pass. Verification and
  plain decoding then agree bit for bit wherever the backend's kernels treat rows independently. Slots come in
  multiples of `ALIGNMENT`: masked slots at the end add exact zeros to the lanes of a vectorized sum.
* *wide*, for prefill and training: queries in blocks of the window's length, so that cost grows linearly with T.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import mlx.core as mx
import mlx.nn as nn

from models.deepseek_v4.cache import ALIGNMENT, LayerCache
from models.deepseek_v4.compressor import Compressor
from models.deepseek_v4.config import DeepseekV4Config, LayerKind
from models.deepseek_v4.indexer import Indexer
from models.deepseek_v4.quantization import round_kv_rows
from models.deepseek_v4.rope import Rotary

NARROW = 32  # longest pass, in tokens, of the narrow implementation


@dataclass(frozen=True)
class CompressedRows:
    """Compressed rows and which of them each query attends to."""

    rows: mx.array  # (B, R, d)
    visible: mx.array  # (T, R) bool, windows that end at or before the query's position
    scores: mx.array | None = None  # (B, T, R) float32 of the indexer, -inf where not visible
    chosen: mx.array | None = None  # (B, T, k) the indexer's choice, ascending; None for all visible rows

    def by_query(self) -> tuple[mx.array, mx.array]:
        """Each query's rows (B, 1 or T, R or k, d), and whether they are visible (B or 1, T, R or k)."""
        if self.chosen is None:
            return self.rows[:, None], self.visible[None]
        rows = mx.take_along_axis(self.rows[:, None], self.chosen[..., None], axis=2)
        visible = mx.broadcast_to(self.visible, (self.rows.shape[0], *self.visible.shape))
        return rows, mx.take_along_axis(visible, self.chosen, axis=-1)

    def product(self, queries: mx.array, rows: mx.array) -> mx.array:
        """Queries (B, heads, T, d) times their rows from `by_query`: (B, heads, T, R or k)."""
        if self.chosen is not None:
            return (queries.swapaxes(1, 2) @ rows.swapaxes(-1, -2)).swapaxes(1, 2)
        batch, heads, count, width = queries.shape
        product = queries.reshape(batch, heads * count, width) @ rows[:, 0].swapaxes(-1, -2)
        return product.reshape(batch, heads, count, -1)

    def weighted(self, weights: mx.array, rows: mx.array) -> mx.array:
        """Sums rows from `by_query` with weights (B, heads, T, R or k): (B, heads, T, d)."""
        if self.chosen is not None:
            return (weights.swapaxes(1, 2) @ rows).swapaxes(1, 2)
        batch, heads, count, _ = weights.shape
        return (weights.reshape(batch, heads * count, -1) @ rows[:, 0]).reshape(batch, heads, count, -1)

    def attended(self) -> mx.array:
        """Which rows each query attends to: (B or 1, T, R) bool."""
        if self.chosen is None:
            return self.visible[None]
        is_chosen = mx.zeros((*self.chosen.shape[:2], self.rows.shape[1]), dtype=mx.bool_)
        return self.visible & mx.put_along_axis(is_chosen, self.chosen, mx.array(True), axis=-1)


class AttentionProjections(nn.Module):
    """The projections of V4's attention: low-rank queries, one KV row per token, sinks, grouped output.

    Layers with a compressor (``is_compressed``) have another rotary embedding, with YaRN.
    """

    def __init__(self, config: DeepseekV4Config, is_compressed: bool = False) -> None:
        super().__init__()
        hidden, heads, width = config.hidden_size, config.num_attention_heads, config.head_dim
        self.wq_a = nn.Linear(hidden, config.q_lora_rank, bias=False)
        self.q_norm = nn.RMSNorm(config.q_lora_rank, eps=config.rms_norm_eps)
        self.wq_b = nn.Linear(config.q_lora_rank, heads * width, bias=False)
        self.wkv = nn.Linear(hidden, width, bias=False)
        self.kv_norm = nn.RMSNorm(width, eps=config.rms_norm_eps)
        self.attn_sink = mx.zeros((heads,))
        self.wo_a = nn.Linear(heads * width // config.o_groups, config.o_groups * config.o_lora_rank, bias=False)
        self.wo_b = nn.Linear(config.o_groups * config.o_lora_rank, hidden, bias=False)
        self.heads, self.width, self.groups = heads, width, config.o_groups
        self.window, self.norm_eps = config.sliding_window, config.rms_norm_eps
        if is_compressed:
            self._rotary = Rotary(config.qk_rope_head_dim, config.compress_rope_theta, config.rope_scaling)
        else:
            self._rotary = Rotary(config.qk_rope_head_dim, config.rope_theta)
        self._rounding = None
        if config.simulate_quantization:
            self._rounding = partial(round_kv_rows, rotated=config.qk_rope_head_dim)

    def queries(self, x: mx.array, offset: int | mx.array) -> tuple[mx.array, mx.array]:
        """x (B, T, H) -> normalized latent (B, T, q_lora_rank) and rotated queries (B, heads, T, d)."""
        batch, count, _ = x.shape
        latent = self.q_norm(self.wq_a(x))
        queries = self.wq_b(latent).reshape(batch, count, self.heads, self.width).swapaxes(1, 2)
        return latent, self._rotary(mx.fast.rms_norm(queries, None, self.norm_eps), offset)

    def rows(self, x: mx.array, offset: int | mx.array) -> mx.array:
        """x (B, T, H) at positions ``offset ..`` -> normalized and rotated KV rows (B, T, d)."""
        rows = self._rotary(self.kv_norm(self.wkv(x)), offset)
        return rows if self._rounding is None else self._rounding(rows)

    def project(self, attended: mx.array, offset: int | mx.array) -> mx.array:
        """Attended values (B, heads, T, d) -> (B, T, H): rotated back at the queries' positions, then projected."""
        return self.merge(self._rotary(attended, offset, inverse=True))

    def merge(self, attended: mx.array) -> mx.array:
        """Values (B, heads, T, d), already rotated back -> (B, T, H): the grouped output projection."""
        batch, _, count, _ = attended.shape
        grouped = attended.swapaxes(1, 2).reshape(batch, count, self.groups, -1).swapaxes(1, 2)
        weight = self.wo_a.weight.reshape(self.groups, -1, grouped.shape[-1])
        latent = (grouped @ weight.swapaxes(-1, -2)).swapaxes(1, 2).flatten(-2)
        return self.wo_b(latent)

    def weights(self, logits: mx.array) -> mx.array:
        """Softmax over the last axis of logits (B, heads, ..., L) plus each head's sink; float32, sums to below 1."""
        sinks = self.attn_sink.astype(mx.float32).reshape(-1, *([1] * (logits.ndim - 2)))
        logits = logits.astype(mx.float32)
        largest = mx.stop_gradient(mx.maximum(logits.max(axis=-1, keepdims=True), sinks))
        exponentials = mx.exp(logits - largest)
        return exponentials / (exponentials.sum(axis=-1, keepdims=True) + mx.exp(sinks - largest))


class Attention(AttentionProjections):
    """The attention of one layer of the target, of the kind that the configuration gives it.

    Attributes:
        is_dense: attend to all visible compressed rows instead of the indexer's choice (CSA).
        observer: called in wide passes of CSA layers with the arguments of `Probe.record_indexer`. Both are set by
            `observing`.
    """

    def __init__(self, config: DeepseekV4Config, layer: int) -> None:
        kind, ratio = config.kind(layer), config.compress_ratios[layer]
        super().__init__(config, is_compressed=kind is not LayerKind.WINDOW)
        self.ratio = ratio
        self.is_dense = False
        self.observer: Callable[[mx.array, mx.array, mx.array], None] | None = None
        if kind is not LayerKind.WINDOW:
            overlap = kind is LayerKind.CSA
            self.compressor = Compressor(config, config.head_dim, ratio, overlap, self._rotary, self._rounding)
        if kind is LayerKind.CSA:
            self.indexer = Indexer(config, ratio, self._rotary)

    def __call__(self, x: mx.array, cache: LayerCache | None) -> mx.array:
        """Attends T new tokens, normalized x (B, T, H), to themselves and to the cached ones: (B, T, H).

        The cache is advanced by T tokens; without one, x is a whole sequence.
        """
        offset = 0 if cache is None else cache.offset
        count = x.shape[1]
        latent, queries = self.queries(x, offset)
        rows = self.rows(x, offset)
        compressed = self._compress(x, latent, offset, cache)
        if cache is not None and count <= NARROW:
            attended = self._narrow(queries, rows, compressed, cache)
        else:
            attended = self._wide(queries, rows, compressed, cache)
        if cache is not None:
            cache.raw.append(rows, offset)
            cache.advance(count)
        return self.project(attended, offset)

    def _compress(self, x: mx.array, latent: mx.array, offset: int, cache: LayerCache | None) -> CompressedRows | None:
        """Advances the layer's compressors by x; returns what its queries attend to beyond the window, if anything."""
        if "compressor" not in self:
            return None
        rows = self.compressor(x, offset, cache and cache.compressor)
        if "indexer" in self:
            # The indexer has a loss of its own: its inputs pass no gradient back (DeepSeek-V3.2 report, section 2.1).
            x, latent = mx.stop_gradient(x), mx.stop_gradient(latent)
            keys = self.indexer.keys(x, offset, cache and cache.indexer)
        if rows is None:
            return None
        visible = _visible(offset, x.shape[1], self.ratio, rows.shape[1])
        if "indexer" not in self:
            return CompressedRows(rows, visible)
        has_choice = rows.shape[1] > self.indexer.topk and not self.is_dense
        if not has_choice and self.observer is None:
            return CompressedRows(rows, visible)
        scores = mx.where(visible, self.indexer.scores(x, latent, keys, offset), -mx.inf)
        chosen = self.indexer.choose(mx.stop_gradient(scores)) if has_choice else None
        return CompressedRows(rows, visible, scores, chosen)

    def _narrow(
        self, queries: mx.array, rows: mx.array, compressed: CompressedRows | None, cache: LayerCache
    ) -> mx.array:
        """Every query over its own window slots and compressed rows: (B, heads, T, d)."""
        batch, heads, count, width = queries.shape
        scale = width**-0.5
        slots = -(-self.window // ALIGNMENT) * ALIGNMENT
        held = min(cache.offset, self.window - 1)
        near = [mx.zeros((batch, slots - 1 - held, width), dtype=rows.dtype), rows]
        if held:
            near.insert(1, cache.raw.before(cache.offset, held).astype(rows.dtype))
        near = mx.concatenate(near, axis=1)  # (B, slots - 1 + T, d): query t reads slots t .. t + slots - 1
        stacked = queries.reshape(batch, heads * count, width)
        logits = (stacked @ near.swapaxes(-1, -2)) * scale
        logits = _diagonal_slots(logits.reshape(batch, heads, count, -1), slots)
        if slots != self.window or held < self.window - 1:
            # Slot i of query t holds position offset + t - (slots - 1) + i; outside the window or before 0 is empty.
            slot = mx.arange(slots)
            position = slot + mx.arange(count)[:, None] + (cache.offset - slots + 1)
            logits = mx.where((position >= 0) & (slot >= slots - self.window), logits, -mx.inf)
        if compressed is None:
            weights = self.weights(logits).astype(rows.dtype)
            return (_undo_diagonal(weights) @ near).reshape(batch, heads, count, width)
        far, is_visible = compressed.by_query()
        far_logits = mx.where(is_visible[:, None], compressed.product(queries, far) * scale, -mx.inf)
        weights = self.weights(mx.concatenate([logits, far_logits], axis=-1)).astype(rows.dtype)
        attended = (_undo_diagonal(weights[..., :slots]) @ near).reshape(batch, heads, count, width)
        return attended + compressed.weighted(weights[..., slots:], far)

    def _wide(
        self, queries: mx.array, rows: mx.array, compressed: CompressedRows | None, cache: LayerCache | None
    ) -> mx.array:
        """Queries in blocks of the window's length, each over its own and the previous block: (B, heads, T, d)."""
        batch, heads, count, width = queries.shape
        window = self.window
        offset = 0 if cache is None else cache.offset
        held = min(offset, window - 1)  # the row just outside every query's window is not needed
        blocks = -(-count // window)
        excess = blocks * window - count
        # Row j of near is at position offset - window + j: one block of history, then the new tokens.
        near = mx.pad(rows, [(0, 0), (window, excess), (0, 0)])
        if held:
            history = cache.raw.before(offset, held).astype(rows.dtype)
            near = mx.concatenate([near[:, : window - held], history, near[:, window:]], axis=1)
        near = near.reshape(batch, blocks + 1, window, width)
        near = mx.concatenate([near[:, :-1], near[:, 1:]], axis=2)[:, None]  # (B, 1, blocks, 2 * window, d)
        queries = mx.pad(queries, [(0, 0), (0, 0), (0, excess), (0, 0)])
        each = queries.reshape(batch, heads, blocks, window, width)
        query, key = mx.arange(window)[:, None] + window, mx.arange(2 * window)
        position = key + mx.arange(blocks)[:, None, None] * window + (offset - window)
        is_near = (key <= query) & (key > query - window) & (position >= 0)
        scale = width**-0.5
        logits = mx.where(is_near, (each @ near.swapaxes(-1, -2)) * scale, -mx.inf)
        if compressed is None:
            attended = self.weights(logits).astype(rows.dtype) @ near
            return attended.reshape(batch, heads, -1, width)[:, :, :count]
        is_attended = compressed.attended()
        is_far = mx.pad(is_attended, [(0, 0), (0, excess), (0, 0)])[:, None]
        far = compressed.rows[:, None]
        far_logits = (queries @ far.swapaxes(-1, -2)) * scale
        far_logits = mx.where(is_far, far_logits, -mx.inf).reshape(batch, heads, blocks, window, -1)
        weights = self.weights(mx.concatenate([logits, far_logits], axis=-1))
        far_weights = weights[..., 2 * window :].reshape(batch, heads, blocks * window, -1)
        if self.observer is not None and compressed.scores is not None:
            self.observer(far_weights[:, :, :count], compressed.scores, is_attended)
        attended = (weights[..., : 2 * window].astype(rows.dtype) @ near).reshape(batch, heads, -1, width)
        return (attended + far_weights.astype(rows.dtype) @ far)[:, :, :count]


def _visible(offset: int, count: int, ratio: int, rows: int) -> mx.array:
    """(T, R) bool: the windows that end at or before each query's position."""
    closed = (mx.arange(offset, offset + count) + 1) // ratio
    return mx.arange(rows)[None] < closed[:, None]


def _diagonal_slots(products: mx.array, slots: int) -> mx.array:
    """Columns t .. t + slots - 1 of row t: (B, heads, T, slots - 1 + T) -> (B, heads, T, slots), a view."""
    batch, heads, count, columns = products.shape
    if count == 1:
        return products
    strides = (heads * count * columns, count * columns, columns + 1, 1)
    return mx.as_strided(products, (batch, heads, count, slots), strides)


def _undo_diagonal(weights: mx.array) -> mx.array:
    """Row t moved t columns to the right, zeros elsewhere: (B, heads, T, slots) -> (B, heads * T, slots - 1 + T)."""
    batch, heads, count, slots = weights.shape
    if count == 1:
        return weights.reshape(batch, heads, slots)
    columns = slots - 1 + count
    # Rows padded to one more than the wanted length, read at the wanted length, each begin one column further right.
    longer = mx.pad(weights, [(0, 0), (0, 0), (0, 0), (0, count)]).reshape(batch, heads, -1)
    return longer[..., : count * columns].reshape(batch, heads * count, columns)
