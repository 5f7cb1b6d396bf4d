"""Rotary embedding of the last entries of a row, with YaRN in compressed layers."""

import math

import mlx.core as mx

from models.deepseek_v4.config import YarnScaling


def inverse_frequencies(dims: int, theta: float, yarn: YarnScaling | None = None) -> mx.array:
    """Radians per position for each pair of ``dims`` rotated entries: (dims / 2,) float32.

    Source: Peng et al. 2023 (YaRN) section 3.2, with V4's constants and without scaling of magnitudes.
    """
    pairs = [theta ** (-2.0 * pair / dims) for pair in range(dims // 2)]
    if yarn is None:
        return mx.array(pairs, dtype=mx.float32)

    def pair_of_rotations(rotations: float) -> float:
        span = yarn.original_max_position_embeddings / (2 * math.pi * rotations)
        return dims * math.log(span) / (2 * math.log(theta))

    low = max(math.floor(pair_of_rotations(yarn.beta_fast)), 0)
    high = min(math.ceil(pair_of_rotations(yarn.beta_slow)), dims - 1)
    width = high - low if high != low else 0.001
    scaled = []
    for pair, frequency in enumerate(pairs):
        interpolated = min(max((pair - low) / width, 0.0), 1.0)
        scaled.append(frequency / yarn.factor * interpolated + frequency * (1.0 - interpolated))
    return mx.array(scaled, dtype=mx.float32)


class Rotary:
    """Rotates the last ``dims`` entries of rows by position, with angles in float32."""

    def __init__(self, dims: int, theta: float, yarn: YarnScaling | None = None) -> None:
        self.dims = dims
        self.periods = 1.0 / inverse_frequencies(dims, theta, yarn)  # the freqs of mx.fast.rope

    def __call__(self, x: mx.array, offset: int | mx.array, *, stride: int = 1, inverse: bool = False) -> mx.array:
        """Rotates rows x (..., T, d) by the positions ``(offset + t) * stride``, or back; same dtype.

        Args:
            x: rows.
            offset: index of the first row; (B,) int32 for one per sequence.
            stride: positions between rows: 1 for tokens, a compressor's ratio for its rows.
            inverse: rotate back.
        """
        scale = float(-stride if inverse else stride)
        plain, rotated = x[..., : -self.dims], x[..., -self.dims :]
        rotated = mx.fast.rope(
            rotated, self.dims, traditional=True, base=None, scale=scale, offset=offset, freqs=self.periods
        )
        return mx.concatenate([plain, rotated], axis=-1)
