"""What a training program needs to see inside a forward pass, collected without the layers knowing why."""

from dataclasses import dataclass, field

import mlx.core as mx


@dataclass
class Probe:
    """Collects the indexer's alignment loss and the experts' load over the layers of one pass.

    Attributes:
        is_dense: CSA layers attend to every visible row and ignore the indexer's choice (its warm-up).
        alignment: one scalar a CSA layer: mean KL divergence from the layer's attention over compressed rows to the
            indexer's distribution, nats.
        load: for each score-routed layer (by its number) the tokens each expert got, (E,) float32.
    """

    is_dense: bool = False
    alignment: list[mx.array] = field(default_factory=list)
    load: dict[int, mx.array] = field(default_factory=dict)

    def record_indexer(self, weights: mx.array, scores: mx.array, is_attended: mx.array) -> None:
        """Adds one CSA layer's alignment loss.

        The target is the attention summed over heads and normalized over compressed rows, without gradient; queries
        that see no compressed row do not count. Source: DeepSeek-V3.2 report, section 2.1 (equations 3 and 4).

        Args:
            weights: (B, heads, T, R) attention weights of the compressed rows. scores: (B, T, R) index scores.
            is_attended: (B or 1, T, R) bool, the rows over which both are compared.
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

    def record_load(self, layer: int, experts: mx.array, count: int) -> None:
        """Adds to the load of one layer: experts (B, T, k) chosen out of ``count``."""
        chosen = (mx.expand_dims(experts, -1) == mx.arange(count)).sum(axis=(0, 1, 2)).astype(mx.float32)
        self.load[layer] = self.load.get(layer, 0.0) + chosen
