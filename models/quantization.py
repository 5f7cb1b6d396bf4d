"""Quantization of a drafter's matrices after loading."""

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_map
from mlx_lm.models.switch_layers import QuantizedSwitchLinear, SwitchLinear

from models.errors import ModelError

GROUP_SIZE = 32  # what mxfp4 and mxfp8 prescribe; it divides every matrix of the shipped drafters
FORMATS = {f"q{bits}": {"bits": bits, "mode": "affine"} for bits in (8, 6, 4, 3, 2)} | {
    f"mxfp{bits}": {"bits": bits, "mode": f"mxfp{bits}"} for bits in (8, 4)
}
PLAIN_NAMES = ("wo_a", "confidence_head.proj")  # their weights are used as arrays: by group, and in float32


def check_format(quant: str | None) -> None:
    """Raises a `ModelError` unless a format is None or in `FORMATS`."""
    if quant is not None and quant not in FORMATS:
        raise ModelError(
            f"drafter.quant: wanted null (weights as stored) or one of {', '.join(FORMATS)}, got {quant!r}"
        )


def quantize(network: nn.Module, quant: str | None) -> None:
    """Quantizes a network's linear layers, experts and token tables, except `PLAIN_NAMES`, in place; None does nothing.

    Raises:
        ModelError: the format is unknown, or a matrix's number of inputs is no multiple of `GROUP_SIZE`.
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
    """Replaces a network's quantized layers by plain ones of a dtype with the same values, in place.

    Plain products are faster in passes of many rows, and on a CPU in any.
    """

    def plain(module: nn.Module) -> nn.Module:
        if isinstance(module, nn.QuantizedEmbedding):
            made: nn.Module = nn.Embedding(1, 1)
        elif isinstance(module, QuantizedSwitchLinear):
            made = SwitchLinear(1, 1, 1, bias=False)
        elif isinstance(module, nn.QuantizedLinear):
            made = nn.Linear(1, 1, bias=False)
        else:
            return module
        form = {"group_size": module.group_size, "bits": module.bits, "mode": module.mode}
        made.weight = mx.dequantize(module.weight, module.scales, module.get("biases"), **form).astype(dtype)
        return made

    network.update_modules(tree_map(plain, network.leaf_modules(), is_leaf=lambda value: isinstance(value, nn.Module)))
    mx.eval(network.parameters())
