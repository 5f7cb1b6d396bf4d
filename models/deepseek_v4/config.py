"""The configuration of a DeepSeek-V4 target, in the field names of the checkpoint's ``config.json``."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any


class LayerKind(StrEnum):
    """How a layer attends beyond its sliding window."""

    WINDOW = "window"  # raw rows of the sliding window only
    CSA = "csa"  # compressed rows of an overlapping compressor, chosen by an indexer
    HCA = "hca"  # all compressed rows of a non-overlapping compressor


@dataclass(frozen=True, kw_only=True)
class YarnScaling:
    """YaRN's parameters (Peng et al. 2023); V4 applies them at every context length and scales no magnitude."""

    factor: float
    original_max_position_embeddings: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0


@dataclass(frozen=True, kw_only=True)
class DeepseekV4Config:
    """Sizes and constants of one DeepSeek-V4 target. Field names are the checkpoint's.

    ``compress_ratios`` holds one entry a layer: 0 is a window-only layer, ``csa_ratio`` a CSA layer, any other
    value an HCA layer of that ratio. Entries past ``num_hidden_layers`` belong to drafter blocks and are dropped.
    """

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    head_dim: int
    qk_rope_head_dim: int
    q_lora_rank: int
    o_groups: int
    o_lora_rank: int
    sliding_window: int
    compress_ratios: tuple[int, ...]
    index_n_heads: int
    index_head_dim: int
    index_topk: int
    n_routed_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    num_hash_layers: int
    routed_scaling_factor: float = 1.5
    swiglu_limit: float = 10.0
    hc_mult: int = 4
    hc_sinkhorn_iters: int = 20
    hc_eps: float = 1e-6
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    compress_rope_theta: float = 160000.0
    rope_scaling: YarnScaling | None = None
    max_position_embeddings: int = 1048576
    csa_ratio: int = 4
    simulate_quantization: bool = False

    def __post_init__(self) -> None:
        if len(self.compress_ratios) < self.num_hidden_layers:
            raise ValueError(
                f"compress_ratios needs an entry for each of the {self.num_hidden_layers} layers, "
                f"got {len(self.compress_ratios)}: pass the checkpoint's own list"
            )
        object.__setattr__(self, "compress_ratios", tuple(self.compress_ratios[: self.num_hidden_layers]))
        if self.num_attention_heads % self.o_groups:
            raise ValueError(
                f"num_attention_heads ({self.num_attention_heads}) must be a multiple of o_groups ({self.o_groups})"
            )
        if not 0 < self.num_experts_per_tok <= self.n_routed_experts:
            raise ValueError(
                f"num_experts_per_tok must lie in 1..n_routed_experts ({self.n_routed_experts}), "
                f"got {self.num_experts_per_tok}"
            )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "DeepseekV4Config":
        """Reads a ``config.json``; keys that this architecture does not use are ignored.

        Raises:
            ValueError: a needed key is missing, or a key asks for a variant that V4 does not have.
        """
        fixed = {
            "model_type": "deepseek_v4",
            "scoring_func": "sqrtsoftplus",
            "n_shared_experts": 1,
            "num_key_value_heads": 1,
            "attention_bias": False,
            "tie_word_embeddings": False,
        }
        for key, wanted in fixed.items():
            if values.get(key, wanted) != wanted:
                raise ValueError(f"config key {key}: wanted {wanted!r}, got {values[key]!r}; this is no DeepSeek-V4")
        known = {field.name for field in fields(cls)}
        chosen = {key: value for key, value in values.items() if key in known}
        chosen["compress_ratios"] = tuple(chosen.get("compress_ratios", ()))
        scaling = chosen.get("rope_scaling")
        if isinstance(scaling, Mapping):
            chosen["rope_scaling"] = YarnScaling(
                **{field.name: scaling[field.name] for field in fields(YarnScaling) if field.name in scaling}
            )
        try:
            return cls(**chosen)
        except TypeError as error:
            raise ValueError(f"config.json does not describe a DeepSeek-V4 model: {error}") from error

    def kind(self, layer: int) -> LayerKind:
        """The attention kind of a layer (0-based)."""
        ratio = self.compress_ratios[layer]
        if ratio == 0:
            return LayerKind.WINDOW
        return LayerKind.CSA if ratio == self.csa_ratio else LayerKind.HCA
