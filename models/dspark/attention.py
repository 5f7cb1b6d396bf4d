"""Attention over injected context rows and the whole drafted block."""

import mlx.core as mx

from models.deepseek_v4.attention import AttentionProjections


class DSparkAttention(AttentionProjections):
    """Attention of a drafted block to context rows and to all of its own rows, without a causal mask.

    The target's features enter as KV rows only, through the stage's own ``wkv``, never as queries or into the residual
    streams ("KV injection", DSpark paper section 3.1).
    """

    def __call__(
        self,
        x: mx.array,
        position: int | mx.array,
        context: mx.array | None,
        is_context: mx.array | None = None,
    ) -> mx.array:
        """Attends every row of x (B, G, H) to all context rows and all rows of its block: (B, G, H).

        Args:
            x: normalized input.
            position: of the block's first row; (B,) int32 for one per block.
            context: (B, C, d) from `rows`, or None.
            is_context: (B, C) bool, false for padding; None if there is none.
        """
        _, queries = self.queries(x, position)
        rows = self.rows(x, position)
        if context is not None:
            rows = mx.concatenate([context.astype(x.dtype), rows], axis=1)
        logits = (queries @ rows[:, None].swapaxes(-1, -2)) * self.width**-0.5
        if is_context is not None:
            is_key = mx.concatenate([is_context, mx.ones(x.shape[:2], dtype=mx.bool_)], axis=1)
            logits = mx.where(is_key[:, None, None], logits, -mx.inf)
        attended = self.weights(logits).astype(rows.dtype) @ rows[:, None]
        return self.project(attended, position)
