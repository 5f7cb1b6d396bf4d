"""The reference's quantization simulation: what its KV and index rows lose to fp8 and fp4. Off by default.

Source: DeepSeek-V4's inference kernels (``act_quant``, ``fp4_act_quant``): power-of-two scales per block.
"""

import mlx.core as mx

KV_BLOCK = 64  # fp8 block of the unrotated entries of KV and compressed rows
INDEX_BLOCK = 32  # fp4 block of index rows
E4M3_MAX = 448.0
E2M1_MAX = 6.0


def _block_scale(blocks: mx.array, largest: float, floor: float) -> mx.array:
    """Power-of-two scale of each block (last axis), large enough that nothing saturates."""
    amax = mx.maximum(mx.abs(blocks).max(axis=-1, keepdims=True), floor)
    return mx.power(2.0, mx.ceil(mx.log2(amax / largest)))


def round_kv_rows(x: mx.array, rotated: int) -> mx.array:
    """Rounds the unrotated entries of rows (..., d) to fp8 e4m3 in blocks of 64; the last ``rotated`` stay.

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
    """Hadamard-transforms rows (..., d) and rounds them to fp4 e2m1 in blocks of 32; d a power of two, >= 32."""
    width = x.shape[-1]
    spread = mx.hadamard_transform(x.astype(mx.float32), scale=width**-0.5)
    blocks = spread.reshape(*x.shape[:-1], -1, INDEX_BLOCK)
    scale = _block_scale(blocks, E2M1_MAX, E2M1_MAX * 2.0**-126)
    return (_round_e2m1(blocks / scale) * scale).reshape(x.shape).astype(x.dtype)


def _round_e2m1(x: mx.array) -> mx.array:
    """Nearest of +-{0, .5, 1, 1.5, 2, 3, 4, 6}; ties go to the even code. |x| <= 6."""
    size = mx.abs(x)
    # Spacing is 0.5 below 2, 1 below 4, then 2; mx.round takes ties to even, which is the even code in each range.
    step = mx.where(size < 2.0, 0.5, mx.where(size < 4.0, 1.0, 2.0))
    return mx.sign(x) * mx.minimum(mx.round(size / step) * step, E2M1_MAX)
