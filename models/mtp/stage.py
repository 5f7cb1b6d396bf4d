"""The V4 block of the MTP drafter, which can also run many chains of slots at once, as training does."""

from dataclasses import dataclass

import mlx.core as mx
import mlx.nn as nn

from models.deepseek_v4.attention import Attention
from models.deepseek_v4.block import Block
from models.deepseek_v4.config import DeepseekV4Config
from models.deepseek_v4.hyper_connection import HyperHead


@dataclass
class Chains:
    """The state of M chains of slots, each at its own position."""

    rows: mx.array  # (M, L, d) KV rows of L consecutive slots of each chain
    slots: mx.array  # (M, L) int32, the slots' numbers; negative for none
    place: int  # which of the L slots runs next; the rows before it are known
    window: int  # slots that a slot attends to, itself included

    @property
    def position(self) -> mx.array:
        """(M,) int32 number of each chain's next slot."""
        return self.slots[:, self.place]

    def is_seen(self) -> mx.array:
        """(M, L) bool: the rows that the next slot attends to, its own among them."""
        here = self.position[:, None]
        return (self.slots >= 0) & (self.slots > here - self.window) & (self.slots <= here)

    def write(self, rows: mx.array) -> None:
        """Writes the rows (M, 1, d) of the next slot."""
        self.rows = mx.concatenate([self.rows[:, : self.place], rows, self.rows[:, self.place + 1 :]], axis=1)


class MTPAttention(Attention):
    """Window-only attention, also for one slot of each of many chains."""

    def attend(self, x: mx.array, chains: Chains) -> mx.array:
        """Writes the row of each chain's next slot, x (M, 1, H), and attends the slot to the chain's rows: (M, 1, H).

        Chains are rows of one matrix product instead of a batch of products of one row.
        """
        chains.write(self.rows(x, chains.position))
        rows = chains.rows
        _, queries = self.queries(x, chains.position)  # (M, heads, 1, d)
        logits = (queries.squeeze(2) @ rows.swapaxes(-1, -2)) * self.width**-0.5
        weights = self.weights(mx.where(chains.is_seen()[:, None], logits, -mx.inf)).astype(rows.dtype)
        attended = self._rotary((weights @ rows)[:, :, None], chains.position, inverse=True).squeeze(2)
        return self.merge(attended.swapaxes(0, 1)[None]).swapaxes(0, 1)


class MTPStage(Block):
    """A V4 block with the projections that make its input, and the norm and collapse of its output."""

    def __init__(self, config: DeepseekV4Config) -> None:
        super().__init__(config, MTPAttention(config, 0))
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.e_proj = nn.Linear(hidden, hidden, bias=False)
        self.h_proj = nn.Linear(hidden, hidden, bias=False)
        self.enorm = nn.RMSNorm(hidden, eps=eps)
        self.hnorm = nn.RMSNorm(hidden, eps=eps)
        self.norm = nn.RMSNorm(hidden, eps=eps)
        self.hc_head = HyperHead(config)

    def join(self, embedded: mx.array, streams: mx.array) -> mx.array:
        """Embedded tokens (B, T, H) and streams (B, T, N, H) -> the block's input streams (B, T, N, H)."""
        return self.e_proj(self.enorm(embedded))[:, :, None] + self.h_proj(self.hnorm(streams))

    def rows(self, joined: mx.array, offset: int) -> mx.array:
        """KV rows (B, T, d) of slots ``offset ..`` from their input streams (B, T, N, H)."""
        x, _, _ = self.hc_attn.collapse(joined)
        return self.attn.rows(self.attn_norm(x), offset)

    def chained(self, joined: mx.array, tokens: mx.array, chains: Chains) -> mx.array:
        """Runs the next slot of each of M chains: input streams (M, 1, N, H), tokens (M, 1) -> output streams."""
        output = self.run(joined, tokens, lambda x: self.attn.attend(x, chains))
        chains.place += 1
        return output
