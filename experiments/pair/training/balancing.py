"""Balance of experts by the routers' selection biases (DeepSeek-V3 report, arXiv 2412.19437, section 2.1.2)."""

from collections.abc import Mapping, Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn


def selection_biases(blocks: Sequence[nn.Module]) -> dict[str, mx.array]:
    """Selection bias (E,) of each score-routed block, by its number; hash-routed blocks have none."""
    return {str(number): block.ffn.gate.bias for number, block in enumerate(blocks) if "bias" in block.ffn.gate}


def set_biases(blocks: Sequence[nn.Module], biases: Mapping[str, mx.array]) -> None:
    """Puts selection biases (E,) into their blocks: the layers of a target or the stages of a drafter."""
    for number, bias in biases.items():
        blocks[int(number)].ffn.gate.bias = bias


class Balancer:
    """Moves the selection biases: down by ``rate`` a step for an overloaded expert, up for an underloaded one.

    Args:
        biases: (E,) float32 by block, changed in place. rate: how far a bias moves a step.
    """

    def __init__(self, biases: dict[str, mx.array], rate: float) -> None:
        self.biases = biases
        self.rate = rate

    def after_step(self, auxiliary: dict[str, Any]) -> None:
        """Moves every bias; replaces ``load`` in the auxiliary values by ``worst_overload`` (load over mean load)."""
        load = auxiliary.pop("load")
        overload = mx.array(0.0)
        for block, counts in load.items():
            mean = counts.mean()
            self.biases[block] = self.biases[block] + self.rate * mx.sign(mean - counts)
            overload = mx.maximum(overload, counts.max() / mean)
        auxiliary["worst_overload"] = overload
