"""One layer: hyper-connections around attention and around a mixture of experts."""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from models.deepseek_v4.config import DeepseekV4Config
from models.deepseek_v4.hyper_connection import HyperConnection
from models.deepseek_v4.moe import MixtureOfExperts


class Block(nn.Module):
    """A layer of the target or of a drafter.

    Args:
        config: the model's configuration.
        attention: from the normalized input (B, T, H), and further arguments, to (B, T, H).
        is_hash_routed: whether experts are looked up by token id.
    """

    def __init__(self, config: DeepseekV4Config, attention: nn.Module, is_hash_routed: bool = False) -> None:
        super().__init__()
        self.attn_norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.ffn_norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.hc_attn = HyperConnection(config)
        self.hc_ffn = HyperConnection(config)
        self.attn = attention
        self.ffn = MixtureOfExperts(config, is_hash_routed)

    def __call__(self, streams: mx.array, tokens: mx.array, *inputs: Any) -> mx.array:
        """Runs the layer on streams (B, T, N, H) and, for hash routing, token ids (B, T); returns streams.

        The attention takes the further ``inputs``: in the target, the layer's cache.
        """
        return self.run(streams, tokens, lambda x: self.attn(x, *inputs))

    def run(self, streams: mx.array, tokens: mx.array, attend: Callable[[mx.array], mx.array]) -> mx.array:
        """Runs the layer with ``attend`` in place of its attention; other arguments as in `__call__`."""
        x, post, comb = self.hc_attn.collapse(streams)
        streams = self.hc_attn.expand(attend(self.attn_norm(x)), streams, post, comb)
        x, post, comb = self.hc_ffn.collapse(streams)
        return self.hc_ffn.expand(self.ffn(self.ffn_norm(x), tokens), streams, post, comb)
