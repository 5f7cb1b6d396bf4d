"""The lightning indexer of CSA layers: chooses the compressed rows that each query attends to."""

import mlx.core as mx
import mlx.nn as nn

from models.deepseek_v4.cache import CompressorState
from models.deepseek_v4.compressor import Compressor
from models.deepseek_v4.config import DeepseekV4Config
from models.deepseek_v4.quantization import round_index_rows
from models.deepseek_v4.rope import Rotary


class Indexer(nn.Module):
    """Scores compressed rows by small attention heads over keys from a compressor of its own."""

    def __init__(self, config: DeepseekV4Config, ratio: int, rotary: Rotary) -> None:
        super().__init__()
        self.heads, self.width = config.index_n_heads, config.index_head_dim
        self._rotary = rotary
        self._rounding = round_index_rows if config.simulate_quantization else None
        self.wq_b = nn.Linear(config.q_lora_rank, self.heads * self.width, bias=False)
        self.weights_proj = nn.Linear(config.hidden_size, self.heads, bias=False)
        self.compressor = Compressor(config, self.width, ratio, True, rotary, self._rounding)
        self.topk = config.index_topk

    def keys(self, x: mx.array, offset: int, state: CompressorState | None) -> mx.array | None:
        """Keys (B, R, index_head_dim) of all completed windows; arguments as in `Compressor`."""
        return self.compressor(x, offset, state)

    def scores(self, x: mx.array, latent: mx.array, keys: mx.array, offset: int) -> mx.array:
        """Scores every compressed row for every query, without a mask: (B, T, R) float32.

        Args:
            x: (B, T, H) the layer's normalized input.
            latent: (B, T, q_lora_rank) from `AttentionProjections.queries`.
            keys: (B, R, index_head_dim) from `keys`.
            offset: position of the first query.
        """
        batch, count, _ = x.shape
        queries = self.wq_b(latent).reshape(batch, count, self.heads, self.width).swapaxes(1, 2)
        queries = self._rotary(queries, offset)
        if self._rounding is not None:
            queries = self._rounding(queries)
        weights = self.weights_proj(x).astype(mx.float32) * (self.heads * self.width) ** -0.5
        similarity = queries @ keys[:, None].swapaxes(-1, -2)  # (B, heads, T, R)
        positive = mx.maximum(similarity, 0).astype(mx.float32)
        return (positive * weights.swapaxes(1, 2)[..., None]).sum(axis=1)

    def choose(self, scores: mx.array) -> mx.array:
        """Indices (B, T, k), ascending, of the k highest masked scores (B, T, R); earlier rows win ties.

        A stable sort instead of a partition: the choice must not depend on how many masked rows follow, or a verify
        pass could choose other rows than single steps do.
        """
        best = mx.argsort(-scores, axis=-1)[..., : self.topk]
        return mx.sort(best, axis=-1)
