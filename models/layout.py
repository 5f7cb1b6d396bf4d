"""How weights lie in memory."""

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.switch_layers import SwitchLinear

from models.deepseek_v4.hyper_connection import HyperConnection, HyperHead


def lay_out_for_device(model: nn.Module) -> None:
    """On the CPU, stores matrices so that ``x @ W.T`` reads them row by row; shapes and values stay.

    The plain CPU wheel's BLAS multiplies by an untransposed matrix about twice as fast as by a transposed one. Other
    devices are left alone, and so is ``wo_a``, which is split by group before it is used.
    """
    if mx.default_device().type != mx.DeviceType.cpu:
        return
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | SwitchLinear) and not name.endswith("wo_a"):
            module.weight = _by_columns(module.weight)
        elif isinstance(module, HyperConnection | HyperHead):
            module.fn = _by_columns(module.fn)


def _by_columns(matrix: mx.array) -> mx.array:
    """The same matrices (..., M, N), stored column by column."""
    return mx.contiguous(matrix.swapaxes(-1, -2)).swapaxes(-1, -2)
