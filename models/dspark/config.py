"""The configuration of a DSpark drafter that lives in a DeepSeek-V4 checkpoint."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from models.deepseek_v4.config import DeepseekV4Config


@dataclass(frozen=True, kw_only=True)
class DSparkConfig:
    """Sizes of one drafter; the blocks' own are the target's unless given here.

    Attributes:
        block_size: gamma, tokens of one proposal (the anchor not counted).
        target_layer_ids: layers of the target whose outputs are tapped, in the order of concatenation.
        markov_rank: R, rank of the Markov head.
        noise_token_id: token that stands where a block's tokens are not known yet.
        stages: V4 blocks of the network.
        block: configuration of the blocks: the target's, window-only and never hash-routed.
        confidence_input: which hidden state the confidence head reads: ``pre_norm`` (V4's reference) or ``post_norm``
            (ds4, DeepSpec).
    """

    block_size: int
    target_layer_ids: tuple[int, ...]
    markov_rank: int
    noise_token_id: int
    stages: int
    block: DeepseekV4Config
    confidence_input: Literal["pre_norm", "post_norm"] = "pre_norm"

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], target: DeepseekV4Config, stages: int) -> "DSparkConfig":
        """Reads the ``dspark_*`` keys of a ``config.json``.

        Args:
            values: the whole config.json.
            target: the configuration of the target beside it.
            stages: blocks found in the checkpoint. ``num_nextn_predict_layers`` is not to be trusted for it.

        Raises:
            ValueError: a key is missing, of another kind, or does not fit the target.
        """
        needed = ("dspark_block_size", "dspark_target_layer_ids", "dspark_markov_rank", "dspark_noise_token_id")
        missing = [key for key in needed if key not in values]
        if missing:
            raise ValueError(f"config.json has no {', '.join(missing)}: wanted the keys of a DSpark drafter")
        for key, least, end in (
            ("dspark_block_size", 1, math.inf),
            ("dspark_markov_rank", 1, math.inf),
            ("dspark_noise_token_id", 0, target.vocab_size),
        ):
            if type(values[key]) is not int or not least <= values[key] < end:
                bound = f"below {end}" if end < math.inf else "up"
                raise ValueError(f"{key}: wanted an integer from {least} {bound}, got {values[key]!r}")
        layers = values["dspark_target_layer_ids"]
        depth = target.num_hidden_layers
        is_list = isinstance(layers, list | tuple) and len(layers) > 0
        if not is_list or not all(type(layer) is int and 0 <= layer < depth for layer in layers):
            raise ValueError(f"dspark_target_layer_ids: wanted a list of layers in 0..{depth - 1}, got {layers!r}")
        confidence_input = values.get("dspark_confidence_input", "pre_norm")
        if confidence_input not in ("pre_norm", "post_norm"):
            raise ValueError(f"dspark_confidence_input: wanted pre_norm or post_norm, got {confidence_input!r}")
        block = replace(
            target,
            num_hidden_layers=stages,
            compress_ratios=(0,) * stages,
            num_hash_layers=0,
            n_routed_experts=values.get("dspark_n_routed_experts", target.n_routed_experts),
            num_experts_per_tok=values.get("dspark_num_experts_per_tok", target.num_experts_per_tok),
        )
        return cls(
            block_size=values["dspark_block_size"],
            target_layer_ids=tuple(layers),
            markov_rank=values["dspark_markov_rank"],
            noise_token_id=values["dspark_noise_token_id"],
            stages=stages,
            block=block,
            confidence_input=confidence_input,
        )
