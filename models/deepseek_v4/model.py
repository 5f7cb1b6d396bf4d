"""The DeepSeek-V4 target as a language model with mlx-lm's conventions."""

import mlx.core as mx
import mlx.nn as nn

from models.deepseek_v4.block import Block
from models.deepseek_v4.cache import LayerCache
from models.deepseek_v4.config import DeepseekV4Config
from models.deepseek_v4.hyper_connection import HyperHead
from models.deepseek_v4.probe import Probe

STREAMS = -1
"""The tap that stands for the raw streams after the last layer, side by side: what the head collapses."""


class Model(nn.Module):
    """DeepSeek-V4: ``model(tokens, cache=cache) -> logits``.

    Attributes:
        args: the configuration.
        path: the folder it was loaded from, or None.
    """

    def __init__(self, args: DeepseekV4Config) -> None:
        super().__init__()
        self.args = args
        self.path: str | None = None
        self.embed = nn.Embedding(args.vocab_size, args.hidden_size)
        self.layers = [Block(args, layer) for layer in range(args.num_hidden_layers)]
        self.hc_head = HyperHead(args.hc_mult, args.hidden_size, args.hc_eps, args.rms_norm_eps)
        self.norm = nn.RMSNorm(args.hidden_size, eps=args.rms_norm_eps)
        self.head = nn.Linear(args.hidden_size, args.vocab_size, bias=False)

    def __call__(
        self,
        tokens: mx.array,
        cache: list[LayerCache] | None = None,
        *,
        tapped_layers: tuple[int, ...] = (),
        probe: Probe | None = None,
    ) -> mx.array | tuple[mx.array, mx.array]:
        """Logits of the token after each input token.

        Args:
            tokens: (B, T) int, at positions ``offset ..`` of the cache.
            cache: from `make_cache`, updated; None for a sequence that starts here.
            tapped_layers: layers whose output is wanted, streams averaged (the capture point of DSpark on V4);
                `STREAMS` for the last layer's N streams as they are.
            probe: collects what training needs.

        Returns:
            Logits (B, T, V) float32; with tapped layers also features (B, T, L * H), in their order, where
            `STREAMS` takes N * H.
        """
        x = self.embed(tokens)
        streams = mx.broadcast_to(x[:, :, None], (*x.shape[:2], self.args.hc_mult, x.shape[-1]))
        tapped: dict[int, mx.array] = {}
        for number, layer in enumerate(self.layers):
            streams = layer(streams, tokens, cache[number] if cache else None, probe)
            if number in tapped_layers:
                tapped[number] = streams.astype(mx.float32).mean(axis=2).astype(streams.dtype)
        tapped[STREAMS] = streams.flatten(-2)
        logits = self.head(self.norm(self.hc_head(streams))).astype(mx.float32)
        if not tapped_layers:
            return logits
        return logits, mx.concatenate([tapped[number] for number in tapped_layers], axis=-1)

    def make_cache(self, max_rollback: int = 32) -> list[LayerCache]:
        """A fresh cache, one entry a layer.

        Args:
            max_rollback: tokens that can be trimmed, counted from the newest row written (not from what an earlier
                trim left); at least the widest proposal.
        """
        return [LayerCache(self.args, layer, max_rollback) for layer in range(self.args.num_hidden_layers)]
