"""Simulation of the reference's cache quantization: KV rows in fp8, index rows in fp4. Off by default.

Source: DeepSeek-V4's inference kernels (``act_quant``, ``fp4_act_quant``), with a power-of-two scale per block.
"""

import mlx.core as mx

KV_BLOCK = 64  # entries that share a scale in KV and compressed rows
INDEX_BLOCK = 32  # and in index rows
E4M3_MAX = 448.0
E2M1_MAX = 6.0


def _block_scale(blocks: mx.array, largest: float, floor: float) -> mx.array:
    """The smallest power-of-two scale of each block (last axis) at which nothing saturates."""
    amax = mx.maximum(mx.abs(blocks).max(axis=-1, keepdims=True), floor)
    return mx.power(2.0, mx.ceil(mx.log2(amax / largest)))


def round_kv_rows(x: mx.array, rotated: int) -> mx.array:
    """Rounds rows (..., d) to fp8 e4m3 in blocks of 64, except for the last ``rotated`` entries.

    Raises:
        ValueError: d - rotated is no multiple of 64.
    """
    plain = x[..., :-rotated]
    if plain.shape[-1] % KV_BLOCK:
        raise ValueError(
            f"simulate_quantization needs head_dim - qk_rope_head_dim in multiples of {KV_BLOCK}, "
            f"got {plain.shape[-1]}: set simulate_quantization to false for this model"
        )
    blocks = plain.astype(mx.float32).reshape(*plain.shape[:-1], -1, KV_BLOCK)
    scale = _block_scale(blocks, E4M3_MAX, 1e-4)
    coded = mx.from_fp8(mx.to_fp8(mx.clip(blocks / scale, -E4M3_MAX, E4M3_MAX)), dtype=mx.float32)
    rounded = (coded * scale).reshape(plain.shape).astype(x.dtype)
    return mx.concatenate([rounded, x[..., -rotated:]], axis=-1)


def round_index_rows(x: mx.array) -> mx.array:
    """Hadamard transform of rows (..., d), rounded to fp4 e2m1 in blocks of 32; d is a power of two from 32."""
    width = x.shape[-1]
    spread = mx.hadamard_transform(x.astype(mx.float32), scale=width**-0.5)
    blocks = spread.reshape(*x.shape[:-1], -1, INDEX_BLOCK)
    scale = _block_scale(blocks, E2M1_MAX, E2M1_MAX * 2.0**-126)
    return (_round_e2m1(blocks / scale) * scale).reshape(x.shape).astype(x.dtype)


def _round_e2m1(x: mx.array) -> mx.array:
    """The nearest of +-{0, .5, 1, 1.5, 2, 3, 4, 6}, ties to the even code, for |x| <= 6."""
    size = mx.abs(x)
    # The codes' spacing is 0.5 below 2, 1 below 4, then 2; mx.round takes ties to even, the even code in each range.
    step = mx.where(size < 2.0, 0.5, mx.where(size < 4.0, 1.0, 2.0))
    return mx.sign(x) * mx.minimum(mx.round(size / step) * step, E2M1_MAX)
