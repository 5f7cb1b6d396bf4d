"""Observation of forward passes for training: the indexers' alignment loss and the experts' load."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import mlx.core as mx
import mlx.nn as nn

from models.deepseek_v4.attention import Attention
from models.deepseek_v4.moe import MixtureOfExperts


@dataclass
class Probe:
    """What was observed."""

    # For each wide pass of a CSA layer, a scalar in nats: the mean KL divergence from the layer's attention over
    # compressed rows to the indexer's distribution.
    alignment: list[mx.array] = field(default_factory=list)
    # By the number of the score-routed layer, the tokens given to each expert, (E,) float32.
    load: dict[int, mx.array] = field(default_factory=dict)

    def record_indexer(self, weights: mx.array, scores: mx.array, is_attended: mx.array) -> None:
        """Adds the alignment loss of one pass of a CSA layer (DeepSeek-V3.2 report, section 2.1, equations 3 and 4).

        The indexer's target is the attention summed over heads and normalized over compressed rows, without gradient.
        Queries without compressed rows do not count.

        Args:
            weights: (B, heads, T, R) attention weights of the compressed rows.
            scores: (B, T, R) index scores.
            is_attended: (B or 1, T, R) bool, the rows that are compared.
        """
        target = mx.stop_gradient(weights).sum(axis=1)
        mass = target.sum(axis=-1, keepdims=True)
        target = target / (mass + 1e-20)
        has_rows = is_attended.any(axis=-1) & (mass[..., 0] > 1e-9)
        masked = mx.where(is_attended, scores, -1e9)
        log_index = masked - mx.logsumexp(masked, axis=-1, keepdims=True)
        log_target = mx.log(mx.maximum(target, 1e-20))
        divergence = mx.where(is_attended, target * (log_target - log_index), 0.0).sum(axis=-1)
        count = mx.maximum(has_rows.sum(), 1)
        self.alignment.append(mx.where(has_rows, divergence, 0.0).sum() / count)

    def record_load(self, layer: int, count: int, experts: mx.array) -> None:
        """Adds to a layer's load the experts (B, T, k) chosen among ``count``."""
        chosen = (mx.expand_dims(experts, -1) == mx.arange(count)).sum(axis=(0, 1, 2)).astype(mx.float32)
        self.load[layer] = self.load.get(layer, 0.0) + chosen


@contextmanager
def observing(network: nn.Module, is_dense: bool = False) -> Iterator[Probe]:
    """Collects a probe from all passes of a network within the context, also while they are being differentiated.

    Args:
        network: a target or a drafter.
        is_dense: CSA layers attend to all visible compressed rows, as in the indexers' warm-up.
    """
    probe = Probe()
    observed = []
    for name, module in network.named_modules():
        if isinstance(module, Attention) and "indexer" in module:
            module.observer, module.is_dense = probe.record_indexer, is_dense
            observed.append(module)
        elif isinstance(module, MixtureOfExperts) and "bias" in module.gate:
            layer = int(name.split(".")[1])  # layers.3.ffn, mtp.0.ffn
            module.observer = partial(probe.record_load, layer, module.gate.weight.shape[0])
            observed.append(module)
    try:
        yield probe
    finally:
        for module in observed:
            module.observer = None
            if isinstance(module, Attention):
                module.is_dense = False
