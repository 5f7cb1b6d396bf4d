"""One stage of the drafter: a V4 block whose attention sees injected context rows and the whole block."""

import mlx.core as mx
import mlx.nn as nn

from models.deepseek_v4.attention import AttentionProjections
from models.deepseek_v4.block import make_hyper_connection
from models.deepseek_v4.config import DeepseekV4Config
from models.deepseek_v4.moe import MixtureOfExperts
from models.deepseek_v4.probe import Probe


class DSparkAttention(AttentionProjections):
    """Window-mode attention without a causal mask inside the block.

    Context features enter as KV rows only, through the stage's own ``wkv``: never as queries and never into the
    residual streams ("KV injection", DSpark paper section 3.1).
    """

    def __init__(self, config: DeepseekV4Config) -> None:
        super().__init__(config, is_compressed=False)

    def __call__(
        self, x: mx.array, position: int | mx.array, context: mx.array | None, is_context: mx.array | None
    ) -> mx.array:
        """Attends every block row to all context rows and all block rows.

        Args:
            x: (B, G, H) normed block input.
            position: of the block's first row; an int32 array (B,) gives each block its own.
            context: (B, C, d) rows made by `rows`, C may be 0; None for none.
            is_context: (B, C) bool, which of them exist; None if all do.

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


class DSparkStage(nn.Module):
    """One V4 block in window mode."""

    def __init__(self, config: DeepseekV4Config, number: int) -> None:
        super().__init__()
        self.attn_norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.ffn_norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.hc_attn = make_hyper_connection(config)
        self.hc_ffn = make_hyper_connection(config)
        self.attn = DSparkAttention(config)
        self.ffn = MixtureOfExperts(config, is_hash=False)
        self._number = number

    def __call__(
        self,
        streams: mx.array,
        tokens: mx.array,
        position: int | mx.array,
        context: mx.array | None,
        is_context: mx.array | None = None,
        probe: Probe | None = None,
    ) -> mx.array:
        """Args: streams (B, G, N, H), block token ids (B, G), the rest as `DSparkAttention`. Returns: streams."""
        x, post, comb = self.hc_attn.collapse(streams)
        attended = self.attn(self.attn_norm(x), position, context, is_context)
        streams = self.hc_attn.expand(attended, streams, post, comb)
        x, post, comb = self.hc_ffn.collapse(streams)
        return self.hc_ffn.expand(self.ffn(self.ffn_norm(x), tokens, probe, self._number), streams, post, comb)
