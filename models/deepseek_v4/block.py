"""One layer: hyper-connection around attention, hyper-connection around the mixture of experts."""

import mlx.core as mx
import mlx.nn as nn

from models.deepseek_v4.attention import Attention
from models.deepseek_v4.cache import LayerCache
from models.deepseek_v4.config import DeepseekV4Config
from models.deepseek_v4.hyper_connection import HyperConnection
from models.deepseek_v4.moe import MixtureOfExperts
from models.deepseek_v4.probe import Probe


def make_hyper_connection(config: DeepseekV4Config) -> HyperConnection:
    """A hyper-connection of the configuration's sizes."""
    return HyperConnection(
        config.hc_mult, config.hidden_size, config.hc_sinkhorn_iters, config.hc_eps, config.rms_norm_eps
    )


class Block(nn.Module):
    """A layer of the target.

    Args:
        config: sizes.
        layer: its number; decides attention kind and routing.
    """

    def __init__(self, config: DeepseekV4Config, layer: int) -> None:
        super().__init__()
        self.attn_norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.ffn_norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.hc_attn = make_hyper_connection(config)
        self.hc_ffn = make_hyper_connection(config)
        self.attn = Attention(config, layer)
        self.ffn = MixtureOfExperts(config, is_hash=layer < config.num_hash_layers)
        self._layer = layer

    def __call__(
        self, streams: mx.array, tokens: mx.array, cache: LayerCache | None, probe: Probe | None = None
    ) -> mx.array:
        """Args: streams (B, T, N, H), tokens (B, T) ids, the layer's cache. Returns: streams (B, T, N, H)."""
        x, post, comb = self.hc_attn.collapse(streams)
        streams = self.hc_attn.expand(self.attn(self.attn_norm(x), cache, probe), streams, post, comb)
        x, post, comb = self.hc_ffn.collapse(streams)
        streams = self.hc_ffn.expand(self.ffn(self.ffn_norm(x), tokens, probe, self._layer), streams, post, comb)
        if cache is not None:
            cache.advance(tokens.shape[1])
        return streams
