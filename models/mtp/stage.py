"""The V4 block of the MTP drafter, with what it needs to run many chains of slots at once, as training does."""

import mlx.core as mx
import mlx.nn as nn

from models.deepseek_v4.attention import Attention
from models.deepseek_v4.block import Block
from models.deepseek_v4.config import DeepseekV4Config
from models.deepseek_v4.hyper_connection import HyperHead
from models.deepseek_v4.probe import Probe


class MTPAttention(Attention):
    """Window-only attention that can also attend one slot of each of many chains, every chain at its own position."""

    def attend(self, x: mx.array, position: mx.array, rows: mx.array, is_seen: mx.array) -> mx.array:
        """Attends M slots, each to rows of its own.

        The chains lie along the products' rows and not along their batch: one product of M rows instead of M of one.

        Args:
            x: (M, 1, H) normed input. position: (M,) int32, of the slots.
            rows: (M, L, d) made by `rows`, the slot's own among them. is_seen: (M, L) bool.

        Returns:
            (M, 1, H).
        """
        _, queries = self.queries(x, position)  # (M, heads, 1, d)
        logits = (queries.squeeze(2) @ rows.swapaxes(-1, -2)) * self.width**-0.5
        weights = self.weights(mx.where(is_seen[:, None], logits, -mx.inf)).astype(rows.dtype)
        attended = self._rotary((weights @ rows)[:, :, None], position, inverse=True).squeeze(2)
        return self.merge(attended.swapaxes(0, 1)[None]).swapaxes(0, 1)


class MTPStage(Block):
    """A V4 block with the projections that make its input and the norm and collapse of its output."""

    def __init__(self, config: DeepseekV4Config) -> None:
        super().__init__(config, 0)
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.attn = MTPAttention(config, 0)
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

    def rows(self, joined: mx.array, offset: int) -> mx.array:
        """The KV rows (B, T, d) of slots ``offset ..`` from their input streams (B, T, N, H), and nothing else."""
        x, _, _ = self.hc_attn.collapse(joined)
        return self.attn.rows(self.attn_norm(x), offset)

    def chained(
        self,
        joined: mx.array,
        tokens: mx.array,
        position: mx.array,
        rows: mx.array,
        place: int,
        is_seen: mx.array,
        probe: Probe | None = None,
    ) -> tuple[mx.array, mx.array]:
        """Runs one slot of each of M chains.

        Args:
            joined: (M, 1, N, H) input streams. tokens: (M, 1) ids. position: (M,) int32, of the slots.
            rows: (M, L, d), in which those of earlier slots stand. place: where the slots' own rows go.
            is_seen: (M, L) bool, the rows that a slot attends to, its own among them.
            probe: collects what training needs.

        Returns:
            Output streams (M, 1, N, H), and the rows with the slots' own (M, L, d).
        """
        x, post, comb = self.hc_attn.collapse(joined)
        x = self.attn_norm(x)
        rows = mx.concatenate([rows[:, :place], self.attn.rows(x, position), rows[:, place + 1 :]], axis=1)
        streams = self.hc_attn.expand(self.attn.attend(x, position, rows, is_seen), joined, post, comb)
        x, post, comb = self.hc_ffn.collapse(streams)
        output = self.ffn(self.ffn_norm(x), tokens, probe, self._layer)
        return self.hc_ffn.expand(output, streams, post, comb), rows
