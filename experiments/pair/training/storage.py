"""Rounding of weights as the real checkpoints store them: fp8 e4m3 with one scale for each block of 128 x 128.

It measures what fp8 storage would cost (`experiments/LOG.md`); nothing is stored in fp8 here. Which matrices are
rounded follows DeepSeek-V4's base checkpoints: projections and experts; embedding, head, routers, compressors,
hyper-connections and norms stay.
"""

import re

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_unflatten

BLOCK = 128
E4M3_MAX = 448.0
ROUNDED = re.compile(
    r"attn\.(?:wq_a|wq_b|wkv|wo_a|wo_b)\.weight|indexer\.wq_b\.weight|ffn\.(?:experts|shared_experts)\..*weight"
)
"""Names of the parameters that are stored in fp8."""


def round_fp8(weight: mx.array) -> mx.array:
    """A matrix (..., O, I) rounded to e4m3 in blocks of 128 x 128 with power-of-two scales; same shape and dtype."""
    *_, rows, columns = weight.shape
    padding = [(0, 0)] * (weight.ndim - 2) + [(0, -rows % BLOCK), (0, -columns % BLOCK)]
    padded = mx.pad(weight.astype(mx.float32), padding)
    blocks = padded.reshape(*weight.shape[:-2], padded.shape[-2] // BLOCK, BLOCK, padded.shape[-1] // BLOCK, BLOCK)
    largest = mx.maximum(mx.abs(blocks).max(axis=(-3, -1), keepdims=True), 1e-12)
    scale = mx.power(2.0, mx.ceil(mx.log2(largest / E4M3_MAX)))
    coded = mx.from_fp8(mx.to_fp8(blocks / scale), dtype=mx.float32)
    return (coded * scale).reshape(padded.shape)[..., :rows, :columns].astype(weight.dtype)


def round_as_fp8_checkpoint(model: nn.Module) -> tuple[int, int]:
    """Rounds a target's weights in place, as a base checkpoint stores them.

    Returns:
        Bytes of the weights with everything in bfloat16, and with the rounded ones in fp8 (1 byte an entry; the scales,
        a byte a block, are counted).

    Raises:
        ValueError: the model has no weight of the names that are rounded.
    """
    rounded, plain_bytes, fp8_bytes = [], 0, 0
    for name, array in tree_flatten(model.parameters()):
        plain_bytes += 2 * array.size
        if ROUNDED.search(name):
            rounded.append((name, round_fp8(array)))
            *stack, rows, columns = array.shape
            blocks = -(-rows // BLOCK) * -(-columns // BLOCK)
            for extent in stack:
                blocks *= extent
            fp8_bytes += array.size + blocks
        else:
            fp8_bytes += 2 * array.size
    if not rounded:
        raise ValueError("the model has no projection or expert by DeepSeek-V4's names")
    model.update(tree_unflatten(rounded))
    mx.eval(model.parameters())
    return plain_bytes, fp8_bytes
