"""The MTP block of the original DeepSeek-V4 checkpoints: a V4 block over the target's last streams and the next token.

Slot i combines the target's streams at token i with token i + 1 and predicts token i + 2. Source: DeepSeek-V3 report
(arXiv 2412.19437) section 2.2 for the shift; the DeepSeek-V4 MTP of vLLM and mlx-vlm for the streams; the ``mtp.0.*``
tensors of the checkpoints for the parameters.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import mlx.core as mx
import mlx.nn as nn

from models.deepseek_v4.cache import ALIGNMENT, LayerCache
from models.deepseek_v4.config import DeepseekV4Config
from models.deepseek_v4.model import STREAMS, Model
from models.mtp.stage import Chains, MTPStage

Collapse = Literal["own", "target"]

EXPERT_KEYS = {"mtp_n_routed_experts": "n_routed_experts", "mtp_num_experts_per_tok": "num_experts_per_tok"}
"""Keys of ``config.json`` that give a block other experts than the target's; the real checkpoints have none of them."""


def block_config(target: DeepseekV4Config, values: Mapping[str, Any] | None = None) -> DeepseekV4Config:
    """The block's configuration: the target's, with one window-only, score-routed layer and the `EXPERT_KEYS` given.

    Raises:
        ValueError: one of these keys is no positive integer, or they do not fit one another.
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
        target: read through the tap `STREAMS`.
        collapse: whose ``hc_head`` collapses the block's streams: its ``own``, from the checkpoint, or the
            ``target``'s, as in llama.cpp, whose files lack the other.
        zero_first_embedding: replace the token embedding of slot 0 by zeros, as vLLM does (``deepseek_v4/*/mtp.py``:
            "masking inputs at position 0") and mlx-vlm does not. How the block was trained is not known.
        config: the block's configuration; None for the target's `block_config`.
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
        self.mtp = [MTPStage(self.config)]  # the checkpoints' name for drafters of any kind
        # As functions, so that the target's modules are not this network's: freezing, quantizing or counting the
        # parameters of one does not touch the other.
        self._embed = lambda tokens: target.embed(tokens)
        self._head = lambda normed: target.head(normed)
        hc_head = self.mtp[0].hc_head if collapse == "own" else target.hc_head
        self._collapse = lambda streams: hc_head(streams)

    def make_cache(self, max_rollback: int = 32) -> LayerCache:
        """An empty cache, whose ``offset`` is the next slot; see `Model.make_cache`."""
        return LayerCache(self.config, 0, max_rollback)

    def __call__(
        self, tokens: mx.array, streams: mx.array, cache: LayerCache | None = None
    ) -> tuple[mx.array, mx.array]:
        """Runs T slots: logits (B, T, V) float32 of the token two after each slot, and output streams (B, T, N * H).

        Args:
            tokens: (B, T) int, the token *after* each slot.
            streams: (B, T, N * H) at the slots: the target's, or this block's output when chaining drafts.
            cache: from `make_cache`, advanced by T slots; None for all slots of a sequence.
        """
        joined = self._join(tokens, streams, 0 if cache is None else cache.offset)
        output = self.mtp[0](joined, tokens, cache)
        return self._logits(output), output.flatten(-2)

    def fill(self, tokens: mx.array, streams: mx.array, cache: LayerCache) -> None:
        """Advances a cache as `__call__` does, with the same arguments, without computing predictions; T may be 0."""
        skipped = max(tokens.shape[1] - cache.raw.capacity, 0)  # their rows would be overwritten at once
        cache.advance(skipped)
        tokens, streams = tokens[:, skipped:], streams[:, skipped:]
        if tokens.shape[1] == 0:
            return
        cache.raw.append(self.mtp[0].rows(self._join(tokens, streams, cache.offset), cache.offset), cache.offset)
        cache.advance(tokens.shape[1])

    def chains(self, tokens: mx.array, streams: mx.array, anchors: mx.array, depth: int) -> mx.array:
        """Runs a chain of slots at each of many anchors at once, as drafting would, but fed with the text's tokens.

        A chain begins one position before its anchor, at the last streams of the target that drafting knows, and goes
        on from the block's own. All chains read the same number of rows, a multiple of `ALIGNMENT`, with a mask.

        Args:
            tokens: (B, S) int32, whole texts.
            streams: (B, S, N * H) of the target.
            anchors: (B, A) int32 positions, each from 1 to S - depth.
            depth: G, slots of a chain.

        Returns:
            Logits (B * A, G, V) float32; row k predicts the token k + 1 after the anchor.
        """
        window, stage = self.config.sliding_window, self.mtp[0]
        length = -(-(window - 1 + depth) // ALIGNMENT) * ALIGNMENT
        place = length - depth  # of a chain's first slot
        slots = (anchors - 1 - place)[..., None] + mx.arange(length)  # (B, A, L), some before 0 or past the text
        rows = stage.rows(self._join(tokens[:, 1:], streams[:, :-1], 0), 0)
        rows = _of_each(rows, mx.clip(slots, 0, tokens.shape[1] - 2)).flatten(0, 1)  # (M, L, d)
        chains = Chains(rows, slots.flatten(0, 1), place, window)
        fed = _of_each(tokens, anchors[..., None] + mx.arange(depth)).flatten(0, 1)  # (M, G)
        streams = _of_each(streams, anchors - 1).flatten(0, 1)[:, None]  # (M, 1, N * H)
        logits = []
        for step in range(depth):
            token = fed[:, step : step + 1]
            output = stage.chained(self._join(token, streams, chains.position), token, chains)
            streams = output.flatten(-2)
            logits.append(self._logits(output))
        return mx.concatenate(logits, axis=1)

    def _logits(self, output: mx.array) -> mx.array:
        """Output streams (B, T, N, H) -> logits (B, T, V) float32."""
        return self._head(self.mtp[0].norm(self._collapse(output))).astype(mx.float32)

    def _join(self, tokens: mx.array, streams: mx.array, offset: int | mx.array) -> mx.array:
        """Tokens (B, T) and streams (B, T, N * H) of slots ``offset ..`` -> input streams (B, T, N, H)."""
        embedded = self._embed(tokens)
        if self.zero_first_embedding:
            slots = mx.array(offset).reshape(-1, 1, 1) + mx.arange(tokens.shape[1])[:, None]  # (1 or B, T, 1)
            embedded = mx.where(slots == 0, 0.0, embedded).astype(embedded.dtype)
        streams = streams.reshape(*streams.shape[:2], self.config.hc_mult, -1)
        return self.mtp[0].join(embedded, streams.astype(embedded.dtype))


def _of_each(array: mx.array, index: mx.array) -> mx.array:
    """Entries of each sequence of an array (B, T, *rest) at the sequence's own indices (B, ...): (B, ..., *rest)."""
    batch, length = array.shape[:2]
    start = (mx.arange(batch) * length).reshape(batch, *[1] * (index.ndim - 1))
    return array.reshape(batch * length, *array.shape[2:])[start + index]
