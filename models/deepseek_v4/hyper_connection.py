"""Hyper-connections: N residual streams, mixed anew around each sublayer.

Source: Xie et al. 2025 (manifold-constrained hyper-connections) with V4's constants. All arithmetic is float32 and
cast back, as in the reference.
"""

import mlx.core as mx
import mlx.nn as nn

from models.kernels.sinkhorn import SIZE, fused_sinkhorn, is_available


def sinkhorn(logits: mx.array, iterations: int, eps: float) -> mx.array:
    """Makes matrices of logits nearly doubly stochastic, by a fused kernel where there is one."""
    if logits.shape[-1] == SIZE and is_available():
        return fused_sinkhorn(iterations, eps)(logits)
    return plain_sinkhorn(logits, iterations, eps)


def plain_sinkhorn(logits: mx.array, iterations: int, eps: float) -> mx.array:
    """The same in plain operations.

    Starts from a softmax over the last axis and ends with a column step; ``iterations`` counts column steps.

    Args:
        logits: (..., N, N) float32.
        iterations: column normalizations, at least 1.
        eps: added to the matrix once and to every sum.

    Returns:
        (..., N, N) float32; first index is the source stream, second the destination.
    """
    # Sums as products with ones: two operations a half-step instead of three, and they are most of a CPU pass.
    ones = mx.ones(logits.shape[-2:])
    floor = mx.array(eps)
    matrix = mx.softmax(logits, axis=-1) + eps
    matrix = matrix / mx.addmm(floor, ones, matrix)
    for _ in range(iterations - 1):
        matrix = matrix / mx.addmm(floor, matrix, ones)
        matrix = matrix / mx.addmm(floor, ones, matrix)
    return matrix


class HyperConnection(nn.Module):
    """The mixing around one sublayer: streams in, sublayer input out, and back.

    Args:
        streams: N, the number of residual streams.
        hidden_size: H.
        sinkhorn_iterations: column steps of the stream mixing.
        eps: added to gates and Sinkhorn sums.
        norm_eps: epsilon of the RMS over all N * H entries.
    """

    def __init__(self, streams: int, hidden_size: int, sinkhorn_iterations: int, eps: float, norm_eps: float) -> None:
        super().__init__()
        mixes = streams * (streams + 2)
        self.fn = mx.zeros((mixes, streams * hidden_size))
        self.base = mx.zeros((mixes,))
        self.scale = mx.ones((3,))
        self.streams = streams
        self.sinkhorn_iterations = sinkhorn_iterations
        self.eps = eps
        self.norm_eps = norm_eps
        self._scale_of_mix = mx.array([0] * streams + [1] * streams + [2] * streams * streams)

    def collapse(self, streams: mx.array) -> tuple[mx.array, mx.array, mx.array]:
        """Mixes the streams into one sublayer input.

        Args:
            streams: (B, T, N, H).

        Returns:
            The input (B, T, H) in the streams' dtype, ``post`` (B, T, N) float32 and the stream mixing
            ``comb`` (B, T, N, N) float32, source stream first.
        """
        count = self.streams
        wide = streams.astype(mx.float32)
        flat = mx.fast.rms_norm(wide.flatten(-2), None, self.norm_eps)
        mixes = (flat @ self.fn.T) * self.scale[self._scale_of_mix] + self.base
        pre = mx.sigmoid(mixes[..., :count]) + self.eps
        post = 2.0 * mx.sigmoid(mixes[..., count : 2 * count])
        comb = sinkhorn(
            mixes[..., 2 * count :].reshape(*mixes.shape[:-1], count, count), self.sinkhorn_iterations, self.eps
        )
        collapsed = (pre[..., None] * wide).sum(axis=-2)
        return collapsed.astype(streams.dtype), post, comb

    def expand(self, output: mx.array, streams: mx.array, post: mx.array, comb: mx.array) -> mx.array:
        """Writes a sublayer's output back: ``new[j] = post[j] * output + sum_i comb[i, j] * streams[i]``.

        Args:
            output: (B, T, H). streams: (B, T, N, H). post, comb: from `collapse`.

        Returns:
            (B, T, N, H) in the streams' dtype.
        """
        kept = comb.swapaxes(-1, -2) @ streams.astype(mx.float32)
        return (post[..., None] * output.astype(mx.float32)[..., None, :] + kept).astype(streams.dtype)


class HyperHead(nn.Module):
    """The last collapse of the streams, a sigmoid gate a stream and no Sinkhorn."""

    def __init__(self, streams: int, hidden_size: int, eps: float, norm_eps: float) -> None:
        super().__init__()
        self.fn = mx.zeros((streams, streams * hidden_size))
        self.base = mx.zeros((streams,))
        self.scale = mx.ones((1,))
        self.eps = eps
        self.norm_eps = norm_eps

    def __call__(self, streams: mx.array) -> mx.array:
        """(B, T, N, H) -> (B, T, H), same dtype."""
        wide = streams.astype(mx.float32)
        flat = mx.fast.rms_norm(wide.flatten(-2), None, self.norm_eps)
        pre = mx.sigmoid((flat @ self.fn.T) * self.scale + self.base) + self.eps
        return (pre[..., None] * wide).sum(axis=-2).astype(streams.dtype)
