"""The mixture of experts: hash- or score-routed experts and one shared expert."""

from collections.abc import Callable
from typing import TypeVar

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.switch_layers import QuantizedSwitchLinear, SwitchGLU

from models.deepseek_v4.config import DeepseekV4Config

AnyModule = TypeVar("AnyModule", bound=nn.Module)

COPIED = 64  # tokens whose experts are copied at a time, see `MixtureOfExperts._copied_experts`


def can_gather(dtype: mx.Dtype) -> bool:
    """Whether ``mx.gather_mm`` supports a dtype on the current device: on a CPU only float32 (mlx 0.32)."""
    return dtype == mx.float32 or mx.default_device().type != mx.DeviceType.cpu


class ClampedSwiGLU(nn.Module):
    """``silu(min(gate, limit)) * clip(up, -limit, limit)``."""

    def __init__(self, limit: float) -> None:
        super().__init__()
        self.limit = limit

    def __call__(self, up: mx.array, gate: mx.array) -> mx.array:
        """Arrays of one shape -> the same shape."""
        return nn.silu(mx.minimum(gate, self.limit)) * mx.clip(up, -self.limit, self.limit)


class Gate(nn.Module):
    """Chooses each token's experts and weights them.

    Hash-routed layers look experts up by token id; others take the k experts of the highest score + bias. In both the
    weights are the scores without bias, scaled to sum to ``routed_scaling_factor``.
    """

    def __init__(self, config: DeepseekV4Config, is_hash_routed: bool) -> None:
        super().__init__()
        self.weight = mx.zeros((config.n_routed_experts, config.hidden_size))
        self.topk = config.num_experts_per_tok
        self.scaling = config.routed_scaling_factor
        if is_hash_routed:
            self.tid2eid = mx.zeros((config.vocab_size, self.topk), dtype=mx.int64)
        else:
            self.bias = mx.zeros((config.n_routed_experts,))
        # The table is fixed, and training moves the bias by a balancing rule: neither has a gradient.
        self.freeze(keys=["tid2eid", "bias"], strict=False)

    def __call__(self, x: mx.array, tokens: mx.array) -> tuple[mx.array, mx.array]:
        """Inputs (B, T, H) and token ids (B, T) -> experts (B, T, k) and weights (B, T, k) float32."""
        scores = mx.sqrt(nn.softplus(x.astype(mx.float32) @ self.weight.astype(mx.float32).T))
        if "tid2eid" in self:
            experts = self.tid2eid[tokens]
        else:
            biased = mx.stop_gradient(scores) + self.bias
            experts = mx.argpartition(-biased, kth=self.topk - 1, axis=-1)[..., : self.topk]
        weights = mx.take_along_axis(scores, experts, axis=-1)
        return experts, weights / (weights.sum(axis=-1, keepdims=True) + 1e-20) * self.scaling


class SharedExpert(nn.Module):
    """The expert of every token; w1 is the gate, w3 up, w2 down."""

    def __init__(self, config: DeepseekV4Config) -> None:
        super().__init__()
        hidden, inner = config.hidden_size, config.moe_intermediate_size
        self.w1 = nn.Linear(hidden, inner, bias=False)
        self.w2 = nn.Linear(inner, hidden, bias=False)
        self.w3 = nn.Linear(hidden, inner, bias=False)
        self.activation = ClampedSwiGLU(config.swiglu_limit)

    def __call__(self, x: mx.array) -> mx.array:
        """(B, T, H) -> (B, T, H)."""
        return self.w2(self.activation(self.w3(x), self.w1(x)))


class MixtureOfExperts(nn.Module):
    """The weighted sum of each token's routed experts, plus the shared expert.

    Attributes:
        evaluates_every_expert: run all experts on all tokens and weight most by zero, instead of gathering each token's
            own; see `evaluate_every_expert`.
        observer: called with the chosen experts (B, T, k) of every pass; set by `observing`.
    """

    def __init__(self, config: DeepseekV4Config, is_hash_routed: bool) -> None:
        super().__init__()
        self.gate = Gate(config, is_hash_routed)
        hidden, inner, activation = config.hidden_size, config.moe_intermediate_size, ClampedSwiGLU(config.swiglu_limit)
        self.experts = SwitchGLU(hidden, inner, config.n_routed_experts, activation)
        self.shared_experts = SharedExpert(config)
        self.evaluates_every_expert = False
        self.observer: Callable[[mx.array], None] | None = None

    def __call__(self, x: mx.array, tokens: mx.array) -> mx.array:
        """Inputs (B, T, H) and token ids (B, T) -> (B, T, H) in x's dtype, summed in float32."""
        experts, weights = self.gate(x, tokens)
        if self.observer is not None:
            self.observer(experts)
        if self.evaluates_every_expert:
            routed = self._every_expert(x, experts, weights)
        else:
            # Products with quantized matrices are gathered in every dtype.
            is_gathered = can_gather(x.dtype) or isinstance(self.experts.gate_proj, QuantizedSwitchLinear)
            each = self.experts(x, experts) if is_gathered else self._copied_experts(x, experts)
            routed = (each.astype(mx.float32) * weights[..., None]).sum(axis=-2)
        return (routed + self.shared_experts(x).astype(mx.float32)).astype(x.dtype)

    def _copied_experts(self, x: mx.array, experts: mx.array) -> mx.array:
        """The result of ``self.experts``, (B, T, k, H), by plain products with a copy of each token's experts.

        In groups of `COPIED` tokens, which bounds the memory for copies in a long prefill.
        """
        projections = (self.experts.gate_proj, self.experts.up_proj, self.experts.down_proj)
        gate_proj, up_proj, down_proj = (projection.weight.swapaxes(-1, -2) for projection in projections)
        rows, chosen = x.reshape(-1, 1, 1, x.shape[-1]), experts.reshape(-1, experts.shape[-1])
        outputs = []
        for start in range(0, rows.shape[0], COPIED):
            row, index = rows[start : start + COPIED], chosen[start : start + COPIED]
            inside = self.experts.activation(row @ up_proj[index], row @ gate_proj[index])
            outputs.append(inside @ down_proj[index])
        return mx.concatenate(outputs).reshape(*experts.shape, x.shape[-1])

    def _every_expert(self, x: mx.array, experts: mx.array, weights: mx.array) -> mx.array:
        """The routed sum (B, T, H) float32, with all experts evaluated."""
        count, inner, hidden = self.experts.gate_proj.weight.shape
        gates = (mx.expand_dims(weights, -1) * (mx.expand_dims(experts, -1) == mx.arange(count))).sum(axis=-2)
        gate = x @ self.experts.gate_proj.weight.reshape(count * inner, hidden).T
        up = x @ self.experts.up_proj.weight.reshape(count * inner, hidden).T
        inside = self.experts.activation(up, gate).reshape(*x.shape[:-1], count, inner)
        inside = (inside * gates[..., None].astype(x.dtype)).flatten(-2)
        return (inside @ self.experts.down_proj.weight.swapaxes(1, 2).reshape(count * inner, hidden)).astype(mx.float32)


def evaluate_every_expert(network: AnyModule, enabled: bool = True) -> AnyModule:
    """Switches all of a network's mixtures to evaluating every expert, or back; returns the network.

    Three plain products replace gathers, whose gradients are slow: faster in training and in wide passes of small
    models. The sums are the same up to rounding. Quantized experts do not support it.
    """
    for module in network.modules():
        if isinstance(module, MixtureOfExperts):
            module.evaluates_every_expert = enabled
    return network
