"""Initial weights for training from scratch."""

import math

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten, tree_unflatten


def initialize(model: nn.Module, layers: int, seed: int) -> None:
    """Fills a target or a drafter with random weights to train from.

    Matrices are normal with variance 1 / fan-in; those that write into the residual streams are scaled down with depth
    (GPT-2's rule). Hyper-connections begin near "read the mean, write to all, keep the streams apart" with small random
    differences between streams, since equal streams would stay equal.

    Args:
        model: filled in place.
        layers: depth that the scaling counts.
        seed: decides every weight.
    """
    keys = iter(mx.random.split(mx.random.key(seed), 4096))
    generator = np.random.default_rng(seed)
    filled = []
    for name, array in tree_flatten(model.parameters()):
        shape = array.shape

        def normal(scale: float, shape: tuple[int, ...] = shape) -> mx.array:
            return mx.random.normal(shape, key=next(keys)) * scale

        last = name.rsplit(".", 1)[-1]
        if last == "tid2eid":
            experts = _experts_of(model, name)
            rows = generator.permuted(np.tile(np.arange(experts), (shape[0], 1)), axis=1)[:, : shape[1]]
            value = mx.array(rows.astype(np.int64))
        elif last == "base":
            value = _stream_gates(shape[0]) + normal(0.1)
        elif last == "scale":
            value = mx.full(shape, 0.1)
        elif last in ("ape", "attn_sink", "bias"):
            value = mx.zeros(shape)
        elif len(shape) == 1:  # RMSNorm
            value = mx.ones(shape)
        elif name.endswith("embed.weight"):
            value = normal(0.5)
        elif name.endswith("markov_w2.weight"):
            value = mx.zeros(shape)  # the Markov term starts as no term
        elif name.endswith(("wo_b.weight", "w2.weight", "down_proj.weight")):
            value = normal(1.0 / math.sqrt(shape[-1] * 2 * layers))
        else:
            value = normal(1.0 / math.sqrt(shape[-1]))
        filled.append((name, value))
    model.update(tree_unflatten(filled))
    mx.eval(model.parameters())


def _stream_gates(mixes: int) -> mx.array:
    """Bases of a hyper-connection (N * (N + 2) mixes) or of the head (N): the mean in, one out, streams kept."""
    streams = round(math.sqrt(mixes + 1)) - 1
    if streams * (streams + 2) != mixes:
        return mx.full((mixes,), math.log(1.0 / (mixes - 1)))
    read = mx.full((streams,), math.log(1.0 / (streams - 1)))  # sigmoid gives 1 / N
    write = mx.zeros((streams,))  # 2 * sigmoid gives 1
    return mx.concatenate([read, write, (4.0 * mx.eye(streams)).flatten()])


def _experts_of(model: nn.Module, table: str) -> int:
    """Experts of the layer that a ``...ffn.gate.tid2eid`` belongs to."""
    sibling = table.removesuffix("tid2eid") + "weight"
    return dict(tree_flatten(model.parameters()))[sibling].shape[0]
