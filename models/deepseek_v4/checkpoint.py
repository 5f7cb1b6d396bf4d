"""Weights of V4 networks (the target and its drafters) from and to checkpoint tensors."""

from collections.abc import Mapping
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from models.deepseek_v4.layout import lay_out_for_device
from models.deepseek_v4.names import FLOAT32_NAMES, checkpoint_names
from models.formats.checkpoint import TensorHeader, census, read_tensors


def load_weights(
    network: nn.Module, headers: Mapping[str, TensorHeader], dtype: mx.Dtype | None, folder: Path, owner: str
) -> None:
    """Fills a network with a checkpoint's weights and evaluates them.

    Args:
        network: filled in place.
        headers: of exactly the network's tensors.
        dtype: dtype of the floating-point weights, except those that V4 computes in float32; None keeps the stored one.
        folder: of the checkpoint, for the message, as ``owner``: what the network is.

    Raises:
        ModelError: the tensors are not the network's; nothing has been loaded.
    """
    parameters = [
        (name, checkpoint_names(name, array.shape), array.shape) for name, array in tree_flatten(network.parameters())
    ]
    census({name: shape for _, parts, _ in parameters for name, shape in parts}, headers, folder, owner)
    tensors = read_tensors(headers)

    def cast(name: str) -> mx.array:
        array = tensors[name]
        if not mx.issubdtype(array.dtype, mx.floating):
            return array
        if FLOAT32_NAMES.search(name):
            return array.astype(mx.float32)
        return array if dtype is None else array.astype(dtype)

    weights = []
    for parameter, parts, shape in parameters:
        arrays = [cast(name) for name, _ in parts]
        weights.append((parameter, arrays[0] if parts[0][1] == shape else mx.stack(arrays)))
    network.load_weights(weights, strict=True)
    lay_out_for_device(network)
    mx.eval(network.parameters())


def checkpoint_tensors(network: nn.Module, dtype: mx.Dtype | None = None) -> dict[str, mx.array]:
    """A network's weights under the names of a checkpoint, in its own dtypes or cast to one.

    As in the real checkpoints, a cast leaves sinks, biases and hyper-connections in float32, but not the matrices of
    routers and compressors.
    """
    tensors: dict[str, mx.array] = {}
    for parameter, array in tree_flatten(network.parameters()):
        names = checkpoint_names(parameter, array.shape)
        parts = [array] if names[0][1] == array.shape else list(array)
        for (name, _), part in zip(names, parts, strict=True):
            if dtype is not None and mx.issubdtype(part.dtype, mx.floating):
                is_float32 = FLOAT32_NAMES.search(name) and not name.endswith(".weight")
                part = part.astype(mx.float32 if is_float32 else dtype)
            tensors[name] = part
    return tensors
