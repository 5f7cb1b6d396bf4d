"""Rotary embedding of the *last* entries of a row, with YaRN for the compressed layers."""

import math

import mlx.core as mx

from models.deepseek_v4.config import YarnScaling


def inverse_frequencies(dims: int, theta: float, yarn: YarnScaling | None = None) -> mx.array:
    """Angle per position of each interleaved pair.

    Args:
        dims: rotated entries of a row (even).
        theta: base of the geometric series.
        yarn: YaRN interpolation, or None. As in V4 the magnitudes are not scaled.

    Returns:
        (dims / 2,) float32, radians per position.

    Source: Peng et al. 2023 (YaRN) section 3.2, with V4's constants.
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
    """Rotates the last ``dims`` entries of rows by their position.

    Not a module: it holds no parameters. Angles are computed in float32 whatever the rows' dtype.
    """

    def __init__(self, dims: int, theta: float, yarn: YarnScaling | None = None) -> None:
        self.dims = dims
        self.periods = 1.0 / inverse_frequencies(dims, theta, yarn)  # what mx.fast.rope calls freqs

    def __call__(self, x: mx.array, offset: int | mx.array, *, stride: int = 1, inverse: bool = False) -> mx.array:
        """Rotates rows at positions ``(offset + t) * stride``.

        Args:
            x: (..., T, d) rows, d >= dims, any float dtype.
            offset: index of the first row; an int32 array (B,) gives each sequence its own.
            stride: positions from one row to the next (a compressor's ratio; 1 for tokens).
            inverse: rotate back.

        Returns:
            Rows of the same shape and dtype.
        """
        scale = float(-stride if inverse else stride)
        plain, rotated = x[..., : -self.dims], x[..., -self.dims :]
        rotated = mx.fast.rope(
            rotated, self.dims, traditional=True, base=None, scale=scale, offset=offset, freqs=self.periods
        )
        return mx.concatenate([plain, rotated], axis=-1)
