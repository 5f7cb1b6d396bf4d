"""The DeepSeek-V4 target, a language model with mlx-lm's conventions."""

import mlx.core as mx
import mlx.nn as nn

from models.deepseek_v4.attention import Attention
from models.deepseek_v4.block import Block
from models.deepseek_v4.cache import LayerCache
from models.deepseek_v4.config import DeepseekV4Config
from models.deepseek_v4.hyper_connection import HyperHead

STREAMS = -1
"""In `tapped_layers`: the last layer's N residual streams, concatenated, before the head collapses them."""


class Model(nn.Module):
    """DeepSeek-V4: ``model(tokens, cache=cache) -> logits``.

    Attributes:
        args: the configuration.
        path: folder that it was loaded from, or None.
    """

    def __init__(self, args: DeepseekV4Config) -> None:
        super().__init__()
        self.args = args
        self.path: str | None = None
        self.embed = nn.Embedding(args.vocab_size, args.hidden_size)
        self.layers = [
            Block(args, Attention(args, layer), is_hash_routed=layer < args.num_hash_layers)
            for layer in range(args.num_hidden_layers)
        ]
        self.hc_head = HyperHead(args)
        self.norm = nn.RMSNorm(args.hidden_size, eps=args.rms_norm_eps)
        self.head = nn.Linear(args.hidden_size, args.vocab_size, bias=False)

    def __call__(
        self, tokens: mx.array, cache: list[LayerCache] | None = None, *, tapped_layers: tuple[int, ...] = ()
    ) -> mx.array | tuple[mx.array, mx.array]:
        """Logits of the token after each input token.

        Args:
            tokens: (B, T) int.
            cache: from `make_cache`, advanced by T tokens; None for a whole sequence.
            tapped_layers: layers whose outputs are returned as features, each the mean of its streams (what DSpark
                reads), or `STREAMS`.

        Returns:
            Logits (B, T, V) float32. With tapped layers also features (B, T, L * H), in the order asked for; `STREAMS`
            counts as N layers.
        """
        x = self.embed(tokens)
        streams = mx.broadcast_to(x[:, :, None], (*x.shape[:2], self.args.hc_mult, x.shape[-1]))
        tapped: dict[int, mx.array] = {}
        for number, layer in enumerate(self.layers):
            streams = layer(streams, tokens, cache[number] if cache else None)
            if number in tapped_layers:
                tapped[number] = streams.astype(mx.float32).mean(axis=2).astype(streams.dtype)
        tapped[STREAMS] = streams.flatten(-2)
        logits = self.head(self.norm(self.hc_head(streams))).astype(mx.float32)
        if not tapped_layers:
            return logits
        return logits, mx.concatenate([tapped[number] for number in tapped_layers], axis=-1)

    def make_cache(self, max_rollback: int = 32) -> list[LayerCache]:
        """An empty cache, one entry per layer, that can be trimmed to ``max_rollback`` tokens behind its newest row."""
        return [LayerCache(self.args, layer, max_rollback) for layer in range(self.args.num_hidden_layers)]
