"""The MTP block of the original DeepSeek-V4 checkpoints: a V4 block over the target's last streams and the next token.

Slot i joins what the target knows after token i with token i + 1, and predicts token i + 2. Source: DeepSeek-V3 report
(arXiv 2412.19437) section 2.2 for the shift; vLLM's and mlx-vlm's DeepSeek-V4 MTP for the streams; the checkpoint's
``mtp.0.*`` tensors, under whose names the parameters stand.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import mlx.core as mx
import mlx.nn as nn

from models.deepseek_v4.cache import ALIGNMENT, LayerCache
from models.deepseek_v4.config import DeepseekV4Config
from models.deepseek_v4.model import STREAMS, Model
from models.deepseek_v4.probe import Probe
from models.mtp.stage import MTPStage

Collapse = Literal["own", "target"]

EXPERT_KEYS = {"mtp_n_routed_experts": "n_routed_experts", "mtp_num_experts_per_tok": "num_experts_per_tok"}
"""Keys of a ``config.json`` by which a block has experts of its own number; real checkpoints have none of them."""


def block_config(target: DeepseekV4Config, values: Mapping[str, Any] | None = None) -> DeepseekV4Config:
    """The block's configuration: the target's sizes, one window-only layer, never hash-routed.

    Args:
        target: the configuration of the target that it drafts for.
        values: a ``config.json`` with, perhaps, `EXPERT_KEYS`.

    Raises:
        ValueError: one of the keys is no positive integer, or they do not fit one another.
    """
    own = {key: values[key] for key in EXPERT_KEYS if values and values.get(key) is not None}
    for key, value in own.items():
        if type(value) is not int or value < 1:
            raise ValueError(f"{key}: wanted a positive integer, got {value!r}")
    experts = {EXPERT_KEYS[key]: value for key, value in own.items()}
    return replace(target, num_hidden_layers=1, compress_ratios=(0,), num_hash_layers=0, **experts)


class MTPNetwork(nn.Module):
    """The MTP block for a DeepSeek-V4 target, whose embedding and head it shares.

    Args:
        target: the model it drafts for.
        collapse: which ``hc_head`` collapses the block's streams before its norm: its ``own``, which the checkpoint
            stores, or the ``target``'s (what llama.cpp does, whose files have no place for the other).
        zero_first_embedding: the token of slot 0 counts as a zero vector, as in vLLM (``deepseek_v4/*/mtp.py``:
            "masking inputs at position 0"); mlx-vlm does not, and which one was trained is not known.
        config: of the block; None for `block_config` of the target's.

    Attributes:
        config: of the block.
        tapped_layers: what the target must be tapped for.
    """

    def __init__(
        self,
        target: Model,
        collapse: Collapse = "own",
        zero_first_embedding: bool = False,
        config: DeepseekV4Config | None = None,
    ) -> None:
        super().__init__()
        self.config = block_config(target.args) if config is None else config
        self.tapped_layers = (STREAMS,)
        self.zero_first_embedding = zero_first_embedding
        self.mtp = [MTPStage(self.config)]  # the name under which checkpoints keep a drafter
        # Behind functions: what is shared with the target is no child of this network, so that freezing, quantizing or
        # counting the one does not reach the other.
        self._embed = lambda tokens: target.embed(tokens)
        self._head = lambda normed: target.head(normed)
        hc_head = self.mtp[0].hc_head if collapse == "own" else target.hc_head
        self._collapse = lambda streams: hc_head(streams)

    def make_cache(self, max_rollback: int = 32) -> LayerCache:
        """A fresh cache: the raw rows of a window-only layer. Its ``offset`` is the next slot.

        Args:
            max_rollback: slots that can be trimmed, as in `Model.make_cache`.
        """
        return LayerCache(self.config, 0, max_rollback)

    def __call__(
        self, tokens: mx.array, streams: mx.array, cache: LayerCache | None = None, probe: Probe | None = None
    ) -> tuple[mx.array, mx.array]:
        """Predicts from slots ``offset ..`` of the cache, and writes their rows to it.

        Args:
            tokens: (B, T) int; the token *after* each slot's position.
            streams: (B, T, N * H) at the slots' positions: the target's, or this block's own when drafts are chained.
            cache: from `make_cache`, updated; None for slots that start at 0 and are not continued.
            probe: collects what training needs.

        Returns:
            Logits (B, T, V) float32 of the token two after each slot's position, and the block's output streams
            (B, T, N * H), the input of a chained slot.
        """
        joined = self._join(tokens, streams, 0 if cache is None else cache.offset)
        output = self.mtp[0](joined, tokens, cache, probe)
        return self._logits(output), output.flatten(-2)

    def fill(self, tokens: mx.array, streams: mx.array, cache: LayerCache) -> None:
        """Writes the rows of slots whose predictions nobody reads: no attention, no experts, no head.

        One layer's row depends on its own slot alone, so the rows are those that `__call__` writes. Arguments as there;
        T may be 0.
        """
        skipped = max(tokens.shape[1] - cache.raw.capacity, 0)  # their rows would be overwritten at once
        cache.advance(skipped)
        tokens, streams = tokens[:, skipped:], streams[:, skipped:]
        if tokens.shape[1] == 0:
            return
        cache.raw.append(self.mtp[0].rows(self._join(tokens, streams, cache.offset), cache.offset), cache.offset)
        cache.advance(tokens.shape[1])

    def chains(
        self, tokens: mx.array, streams: mx.array, anchors: mx.array, depth: int, probe: Probe | None = None
    ) -> mx.array:
        """Runs a chain of slots at each of many anchors in one computation, fed with the text's own tokens.

        A chain is what drafting at its anchor runs: slots before the anchor's hold rows made of the target's streams;
        from the slot of the anchor's predecessor on, rows and inputs are made of the block's own streams. So that every
        step reads as many rows, and lengths stay multiples of `ALIGNMENT`, a chain reads a fixed stretch of slots and
        masks what its window or the future hides.

        Args:
            tokens: (B, S) int32, text from its beginning.
            streams: (B, S, N * H) the target's there.
            anchors: (B, A) int32 positions, each from 1 to S - depth.
            depth: G, slots a chain.
            probe: collects what training needs, over all steps.

        Returns:
            (B * A, G, V) float32; row k predicts the token k + 1 after the anchor.
        """
        window, stage = self.config.sliding_window, self.mtp[0]
        length = -(-(window - 1 + depth) // ALIGNMENT) * ALIGNMENT
        place = length - depth  # of a chain's first row
        slots = (anchors - 1 - place)[..., None] + mx.arange(length)  # (B, A, L), some before 0 or past the text
        rows = stage.rows(self._join(tokens[:, 1:], streams[:, :-1], 0), 0)
        rows = _of_each(rows, mx.clip(slots, 0, tokens.shape[1] - 2)).flatten(0, 1)  # (M, L, d)
        slots = slots.flatten(0, 1)
        fed = _of_each(tokens, anchors[..., None] + mx.arange(depth)).flatten(0, 1)  # (M, G)
        streams = _of_each(streams, anchors - 1).flatten(0, 1)[:, None]  # (M, 1, N * H)
        position = (anchors - 1).reshape(-1)
        logits = []
        for step in range(depth):
            token, here = fed[:, step : step + 1], position + step
            is_seen = (slots >= 0) & (slots > here[:, None] - window) & (slots <= here[:, None])
            joined = self._join(token, streams, here)
            output, rows = stage.chained(joined, token, here, rows, place + step, is_seen, probe)
            streams = output.flatten(-2)
            logits.append(self._logits(output))
        return mx.concatenate(logits, axis=1)

    def _logits(self, output: mx.array) -> mx.array:
        """The block's output streams (B, T, N, H) -> logits (B, T, V) float32."""
        return self._head(self.mtp[0].norm(self._collapse(output))).astype(mx.float32)

    def _join(self, tokens: mx.array, streams: mx.array, offset: int | mx.array) -> mx.array:
        """Tokens (B, T) and flat streams (B, T, N * H) of slots ``offset ..`` -> input streams (B, T, N, H)."""
        embedded = self._embed(tokens)
        if self.zero_first_embedding:
            slots = mx.array(offset).reshape(-1, 1, 1) + mx.arange(tokens.shape[1])[:, None]  # (1 or B, T, 1)
            embedded = mx.where(slots == 0, 0.0, embedded).astype(embedded.dtype)
        streams = streams.reshape(*streams.shape[:2], self.config.hc_mult, -1)
        return self.mtp[0].join(embedded, streams.astype(embedded.dtype))


def _of_each(array: mx.array, index: mx.array) -> mx.array:
    """Entries (B, ..., *rest) of each sequence of an array (B, T, *rest), at its own indices (B, ...)."""
    batch, length = array.shape[:2]
    start = (mx.arange(batch) * length).reshape(batch, *[1] * (index.ndim - 1))
    return array.reshape(batch * length, *array.shape[2:])[start + index]
