"""The stages of DSpark: V4 blocks whose attention sees injected context rows and the whole drafted block."""

import mlx.core as mx
import mlx.nn as nn

from models.deepseek_v4.attention import AttentionProjections
from models.deepseek_v4.block import Block
from models.dspark.config import DSparkConfig


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
        """Attends every row of a block to all context rows and all rows of the block.

        Args:
            x: (B, G, H) normalized input.
            position: of the block's first row; (B,) int32 for one per block.
            context: (B, C, d) from `rows`, or None.
            is_context: (B, C) bool, false for padding; None if there is none.

        Returns:
            (B, G, H).
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


class DSparkStage(Block):
    """A V4 block with DSpark's attention."""

    def __init__(self, config: DSparkConfig) -> None:
        super().__init__(config.block, DSparkAttention(config.block, is_compressed=False))


class FirstStage(DSparkStage):
    """The stage that also fuses the target's features."""

    def __init__(self, config: DSparkConfig) -> None:
        super().__init__(config)
        hidden = config.block.hidden_size
        self.main_proj = nn.Linear(len(config.target_layer_ids) * hidden, hidden, bias=False)
        self.main_norm = nn.RMSNorm(hidden, eps=config.block.rms_norm_eps)
