"""The configuration of a DeepSeek-V4 target, in the field names of the checkpoint's ``config.json``."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

from models.deepseek_v4.quantization import INDEX_BLOCK, KV_BLOCK

FIXED = {
    "model_type": "deepseek_v4",
    "scoring_func": "sqrtsoftplus",
    "n_shared_experts": 1,
    "num_key_value_heads": 1,
    "attention_bias": False,
    "tie_word_embeddings": False,
}
"""Keys of ``config.json`` that may have only one value, or be absent."""


class LayerKind(StrEnum):
    """What a layer attends to beside its sliding window."""

    WINDOW = "window"  # nothing
    CSA = "csa"  # compressed rows of overlapping windows, chosen by an indexer
    HCA = "hca"  # all compressed rows, of windows that do not overlap


def _known_values(cls: type, values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The values that are fields of a dataclass; a ValueError (``prefix`` before the name) if one has another type."""
    kinds = {int: ("an integer", (int,)), float: ("a number", (int, float)), bool: ("true or false", (bool,))}
    chosen = {field.name: values[field.name] for field in fields(cls) if field.name in values}
    for field in fields(cls):
        if field.name in chosen and field.type in kinds:
            wanted, types = kinds[field.type]
            if type(chosen[field.name]) not in types:
                raise ValueError(f"config key {prefix}{field.name}: wanted {wanted}, got {chosen[field.name]!r}")
    return chosen


@dataclass(frozen=True, kw_only=True)
class YarnScaling:
    """Parameters of YaRN (Peng et al. 2023), which V4 applies at every context length, without scaling magnitudes."""

    factor: float
    original_max_position_embeddings: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0

    @classmethod
    def from_dict(cls, values: Any) -> "YarnScaling | None":
        """Reads ``rope_scaling``, which may be None.

        Raises:
            ValueError: it is of another type than YaRN, or a key is missing or no number.
        """
        if values is None or isinstance(values, cls):
            return values
        if not isinstance(values, Mapping):
            raise ValueError(f"config key rope_scaling: wanted an object or null, got {values!r}")
        kind = values.get("type", values.get("rope_type", "yarn"))
        if kind != "yarn":
            raise ValueError(f"config key rope_scaling: wanted type yarn, got {kind!r}")
        missing = [key for key in ("factor", "original_max_position_embeddings") if key not in values]
        if missing:
            raise ValueError(f"config key rope_scaling has no {', '.join(missing)}: copy it from the checkpoint")
        return cls(**_known_values(cls, values, "rope_scaling."))


@dataclass(frozen=True, kw_only=True)
class DeepseekV4Config:
    """Sizes and constants of a DeepSeek-V4 model.

    ``compress_ratios`` has an entry per layer: 0 for a window-only layer, ``csa_ratio`` for a CSA layer, any other
    value for an HCA layer. Entries past ``num_hidden_layers`` belong to drafters and are dropped.

    Raises:
        ValueError: the sizes do not fit one another.
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
        unrotated, width = self.head_dim - self.qk_rope_head_dim, self.index_head_dim
        wanted = None
        if unrotated % KV_BLOCK:
            wanted = f"head_dim - qk_rope_head_dim in multiples of {KV_BLOCK}, got {unrotated}"
        elif width < INDEX_BLOCK or width & (width - 1):
            wanted = f"index_head_dim to be a power of two of at least {INDEX_BLOCK}, got {width}"
        if self.simulate_quantization and wanted:
            raise ValueError(f"simulate_quantization needs {wanted}: set simulate_quantization to false for this model")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "DeepseekV4Config":
        """Reads a ``config.json``, ignoring keys that the architecture does not have.

        Raises:
            ValueError: a key is missing, has a value of another type, or describes an architecture other than V4.
        """
        for key, wanted in FIXED.items():
            if values.get(key, wanted) != wanted:
                raise ValueError(f"config key {key}: wanted {wanted!r}, got {values[key]!r}; this is no DeepSeek-V4")
        chosen = _known_values(cls, values)
        ratios = chosen.get("compress_ratios", ())
        if not isinstance(ratios, list | tuple) or not all(type(ratio) is int and ratio >= 0 for ratio in ratios):
            raise ValueError(f"config key compress_ratios: wanted a list of integers from 0, got {ratios!r}")
        chosen["compress_ratios"] = tuple(ratios)
        chosen["rope_scaling"] = YarnScaling.from_dict(chosen.get("rope_scaling"))
        try:
            return cls(**chosen)
        except TypeError as error:
            raise ValueError(f"config.json does not describe a DeepSeek-V4 model: {error}") from error

    def kind(self, layer: int) -> LayerKind:
        """The kind of a layer, counted from 0."""
        ratio = self.compress_ratios[layer]
        if ratio == 0:
            return LayerKind.WINDOW
        return LayerKind.CSA if ratio == self.csa_ratio else LayerKind.HCA
