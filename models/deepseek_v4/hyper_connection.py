"""Hyper-connections: N residual streams, mixed before and after each sublayer.

Source: Xie et al. 2025 (manifold-constrained hyper-connections), with V4's constants. All arithmetic is float32, cast
back at the end, as in the reference.
"""

import mlx.core as mx
import mlx.nn as nn

from models.deepseek_v4.config import DeepseekV4Config
from models.kernels.sinkhorn import SIZE, fused_sinkhorn, is_available


def sinkhorn(logits: mx.array, iterations: int, eps: float) -> mx.array:
    """Sinkhorn normalization by the fused kernel where it is available, or else by `plain_sinkhorn`."""
    if logits.shape[-1] == SIZE and is_available():
        return fused_sinkhorn(iterations, eps)(logits)
    return plain_sinkhorn(logits, iterations, eps)


def plain_sinkhorn(logits: mx.array, iterations: int, eps: float) -> mx.array:
    """Nearly doubly stochastic matrices of logits (..., N, N) float32: a softmax over rows, then column and row steps.

    There are ``iterations`` column steps, the first and last among them; ``eps`` is added to the softmax and every sum.
    """
    # Sums as products with ones: two operations a half-step instead of three. They dominate a pass on a CPU.
    ones = mx.ones(logits.shape[-2:])
    floor = mx.array(eps)
    matrix = mx.softmax(logits, axis=-1) + eps
    matrix = matrix / mx.addmm(floor, ones, matrix)
    for _ in range(iterations - 1):
        matrix = matrix / mx.addmm(floor, matrix, ones)
        matrix = matrix / mx.addmm(floor, ones, matrix)
    return matrix


class HyperConnection(nn.Module):
    """The mixing around one sublayer: N streams to its input, and its output back to the streams."""

    def __init__(self, config: DeepseekV4Config) -> None:
        super().__init__()
        streams = config.hc_mult
        mixes = streams * (streams + 2)
        self.fn = mx.zeros((mixes, streams * config.hidden_size))
        self.base = mx.zeros((mixes,))
        self.scale = mx.ones((3,))
        self.streams, self.sinkhorn_iterations = streams, config.hc_sinkhorn_iters
        self.eps, self.norm_eps = config.hc_eps, config.rms_norm_eps
        self._scale_of_mix = mx.array([0] * streams + [1] * streams + [2] * streams * streams)

    def collapse(self, streams: mx.array) -> tuple[mx.array, mx.array, mx.array]:
        """Mixes streams (B, T, N, H) into the sublayer's input.

        Returns:
            The input (B, T, H) in the streams' dtype, the output's weights ``post`` (B, T, N) float32, and the mixing
            matrices of the streams ``comb`` (B, T, N, N) float32, source first.
        """
        count = self.streams
        wide = streams.astype(mx.float32)
        flat = mx.fast.rms_norm(wide.flatten(-2), None, self.norm_eps)
        mixes = (flat @ self.fn.T) * self.scale[self._scale_of_mix] + self.base
        pre = mx.sigmoid(mixes[..., :count]) + self.eps
        post = 2.0 * mx.sigmoid(mixes[..., count : 2 * count])
        logits = mixes[..., 2 * count :].reshape(*mixes.shape[:-1], count, count)
        comb = sinkhorn(logits, self.sinkhorn_iterations, self.eps)
        return (pre[..., None] * wide).sum(axis=-2).astype(streams.dtype), post, comb

    def expand(self, output: mx.array, streams: mx.array, post: mx.array, comb: mx.array) -> mx.array:
        """Adds a sublayer's output (B, T, H) to the mixed streams, with ``post`` and ``comb`` from their `collapse`.

        ``new[j] = post[j] * output + sum_i comb[i, j] * streams[i]``, (B, T, N, H) in the streams' dtype.
        """
        kept = comb.swapaxes(-1, -2) @ streams.astype(mx.float32)
        return (post[..., None] * output.astype(mx.float32)[..., None, :] + kept).astype(streams.dtype)


class HyperHead(nn.Module):
    """The final collapse: a sum of the streams weighted by sigmoid gates."""

    def __init__(self, config: DeepseekV4Config) -> None:
        super().__init__()
        streams = config.hc_mult
        self.fn = mx.zeros((streams, streams * config.hidden_size))
        self.base = mx.zeros((streams,))
        self.scale = mx.ones((1,))
        self.eps, self.norm_eps = config.hc_eps, config.rms_norm_eps

    def __call__(self, streams: mx.array) -> mx.array:
        """(B, T, N, H) -> (B, T, H), same dtype."""
        wide = streams.astype(mx.float32)
        flat = mx.fast.rms_norm(wide.flatten(-2), None, self.norm_eps)
        pre = mx.sigmoid((flat @ self.fn.T) * self.scale + self.base) + self.eps
        return (pre[..., None] * wide).sum(axis=-2).astype(streams.dtype)
