"""Quantizing a drafter's matrices after it is loaded."""

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_map
from mlx_lm.models.switch_layers import QuantizedSwitchLinear, SwitchLinear

from models.errors import ModelError

GROUP_SIZE = 32  # divides every matrix of the shipped drafters, and is what mxfp4 and mxfp8 prescribe
FORMATS = {
    "q8": {"bits": 8, "mode": "affine"},
    "q6": {"bits": 6, "mode": "affine"},
    "q4": {"bits": 4, "mode": "affine"},
    "q3": {"bits": 3, "mode": "affine"},
    "q2": {"bits": 2, "mode": "affine"},
    "mxfp8": {"bits": 8, "mode": "mxfp8"},
    "mxfp4": {"bits": 4, "mode": "mxfp4"},
}
PLAIN_NAMES = ("wo_a", "confidence_head.proj")  # used as arrays: by group, and in float32


def check_format(quant: str | None) -> None:
    """Refuses an unknown format before anything is loaded.

    Raises:
        ModelError: there is no such format.
    """
    if quant is not None and quant not in FORMATS:
        raise ModelError(
            f"drafter.quant: wanted null (weights as stored) or one of {', '.join(FORMATS)}, got {quant!r}"
        )


def quantize(network: nn.Module, quant: str | None) -> None:
    """Quantizes a network's linear layers, experts and token tables in place.

    Norms, gates, hyper-connections and the few matrices of `PLAIN_NAMES` stay as they are, and so does the embedding
    and head that a drafter shares with its target.

    Args:
        network: evaluated parameters.
        quant: a name of `FORMATS`, in groups of 32 along the input; None leaves the network alone.

    Raises:
        ModelError: the format is unknown, or a matrix's input is no multiple of 32.
    """
    check_format(quant)
    if quant is None:
        return

    def is_quantized(name: str, module: nn.Module) -> bool:
        if not isinstance(module, nn.Linear | SwitchLinear | nn.Embedding) or name.endswith(PLAIN_NAMES):
            return False
        if module.weight.shape[-1] % GROUP_SIZE:
            raise ModelError(
                f"drafter.quant={quant} works in groups of {GROUP_SIZE}, {name} has {module.weight.shape[-1]} inputs: "
                "use drafter.quant=null for this checkpoint"
            )
        return True

    nn.quantize(network, group_size=GROUP_SIZE, class_predicate=is_quantized, **FORMATS[quant])


def dequantize(network: nn.Module, dtype: mx.Dtype) -> None:
    """Puts plain layers with the quantized weights' values in the places of a network's quantized layers.

    For passes of many rows: products with quantized matrices are made for few (on a CPU they are never faster).

    Args:
        network: changed in place. dtype: of the plain weights.
    """

    def plain(module: nn.Module) -> nn.Module:
        if not isinstance(module, nn.QuantizedLinear | QuantizedSwitchLinear | nn.QuantizedEmbedding):
            return module
        weight = mx.dequantize(
            module.weight,
            module.scales,
            module.get("biases"),
            group_size=module.group_size,
            bits=module.bits,
            mode=module.mode,
        ).astype(dtype)
        if isinstance(module, nn.QuantizedEmbedding):
            made: nn.Module = nn.Embedding(1, 1)
        elif isinstance(module, QuantizedSwitchLinear):
            made = SwitchLinear(1, 1, 1, bias=False)
        else:
            made = nn.Linear(1, 1, bias=False)
        made.weight = weight
        return made

    network.update_modules(tree_map(plain, network.leaf_modules(), is_leaf=lambda value: isinstance(value, nn.Module)))
    mx.eval(network.parameters())
