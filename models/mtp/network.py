"""The MTP block of the original DeepSeek-V4 checkpoints: a V4 block over the target's last streams and the next token.

Slot i joins what the target knows after token i with token i + 1, and predicts token i + 2. Source: DeepSeek-V3 report
(arXiv 2412.19437) section 2.2 for the shift; vLLM's and mlx-vlm's DeepSeek-V4 MTP for the streams; the checkpoint's
``mtp.0.*`` tensors, under whose names the parameters stand.
"""

from dataclasses import replace
from typing import Literal

import mlx.core as mx
import mlx.nn as nn

from models.deepseek_v4.block import Block
from models.deepseek_v4.cache import LayerCache
from models.deepseek_v4.config import DeepseekV4Config
from models.deepseek_v4.hyper_connection import HyperHead
from models.deepseek_v4.model import STREAMS, Model
from models.deepseek_v4.probe import Probe

Collapse = Literal["own", "target"]


def block_config(target: DeepseekV4Config) -> DeepseekV4Config:
    """The block's configuration: the target's sizes, one window-only layer, never hash-routed."""
    return replace(target, num_hidden_layers=1, compress_ratios=(0,), num_hash_layers=0)


class Stage(Block):
    """A V4 block with the projections that make its input and the norm and collapse of its output."""

    def __init__(self, config: DeepseekV4Config) -> None:
        super().__init__(config, 0)
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.e_proj = nn.Linear(hidden, hidden, bias=False)
        self.h_proj = nn.Linear(hidden, hidden, bias=False)
        self.enorm = nn.RMSNorm(hidden, eps=eps)
        self.hnorm = nn.RMSNorm(hidden, eps=eps)
        self.norm = nn.RMSNorm(hidden, eps=eps)
        self.hc_head = HyperHead(config.hc_mult, hidden, config.hc_eps, eps)

    def join(self, embedded: mx.array, streams: mx.array) -> mx.array:
        """Embedded tokens (B, T, H) and streams (B, T, N, H) -> the block's input streams (B, T, N, H).

        ``h_proj`` and ``hnorm`` are shared by the streams; the token enters all of them alike.
        """
        return self.e_proj(self.enorm(embedded))[:, :, None] + self.h_proj(self.hnorm(streams))


class Network(nn.Module):
    """The MTP block for a DeepSeek-V4 target, whose embedding and head it shares.

    Args:
        target: the model it drafts for.
        collapse: which ``hc_head`` collapses the block's streams before its norm: its ``own``, which the checkpoint
            stores, or the ``target``'s (what llama.cpp does, whose files have no place for the other).
        zero_first_embedding: the token of slot 0 counts as a zero vector, as in vLLM (``deepseek_v4/*/mtp.py``:
            "masking inputs at position 0"); mlx-vlm does not, and which one was trained is not known.

    Attributes:
        config: of the block.
        taps: what the target must be tapped for.
    """

    def __init__(self, target: Model, collapse: Collapse = "own", zero_first_embedding: bool = False) -> None:
        super().__init__()
        self.config = block_config(target.args)
        self.taps = (STREAMS,)
        self.zero_first_embedding = zero_first_embedding
        self.mtp = [Stage(self.config)]  # the name under which checkpoints keep a drafter
        # Behind functions: what is shared with the target is no child of this network, so that freezing, quantising or
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
        logits = self._head(self.mtp[0].norm(self._collapse(output))).astype(mx.float32)
        return logits, output.flatten(-2)

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
        stage = self.mtp[0]
        x, _, _ = stage.hc_attn.collapse(self._join(tokens, streams, cache.offset))
        cache.raw.append(stage.attn.rows(stage.attn_norm(x), cache.offset), cache.offset)
        cache.advance(tokens.shape[1])

    def _join(self, tokens: mx.array, streams: mx.array, offset: int) -> mx.array:
        """Tokens (B, T) and flat streams (B, T, N * H) of slots ``offset ..`` -> input streams (B, T, N, H)."""
        embedded = self._embed(tokens)
        if self.zero_first_embedding and offset == 0:
            embedded = mx.where(mx.arange(tokens.shape[1])[:, None] == 0, 0.0, embedded).astype(embedded.dtype)
        streams = streams.reshape(*streams.shape[:2], self.config.hc_mult, -1)
        return self.mtp[0].join(embedded, streams.astype(embedded.dtype))
