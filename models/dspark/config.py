"""The configuration of a DSpark drafter in a DeepSeek-V4 checkpoint."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from models.deepseek_v4.config import DeepseekV4Config

CALIBRATIONS = ("greedy", "matched", "sampled")
"""What confidence temperatures can be fitted for: argmax drafts at temperature 0; argmax drafts above it, accepted with
their probability under the target; sampled drafts under rejection sampling."""

ConfidenceInput = Literal["pre_norm", "post_norm"]


@dataclass(frozen=True, kw_only=True)
class DSparkConfig:
    """Sizes of a drafter."""

    block_size: int  # gamma, tokens of a proposal, without the anchor
    target_layer_ids: tuple[int, ...]  # whose outputs are the features, in this order; empty for blocks without context
    markov_rank: int  # R, rank of the Markov head; 0 for none
    noise_token_id: int  # input at positions that are to be drafted
    stages: int  # number of V4 blocks
    block: DeepseekV4Config  # of the V4 blocks: the target's, but window-only and score-routed
    # What the confidence head reads: the hidden state before the final norm (V4's reference) or after (ds4, DeepSpec).
    confidence_input: ConfidenceInput = "pre_norm"
    # Divisors of the confidence logits by position, for names of `CALIBRATIONS`; empty if not calibrated.
    confidence_temperatures: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], target: DeepseekV4Config, stages: int) -> "DSparkConfig":
        """Reads the ``dspark_*`` keys of a ``config.json``, which does not tell the number of stages reliably.

        Raises:
            ValueError: a key is missing, has a value of another type, or does not fit the target.
        """
        needed = ("dspark_block_size", "dspark_target_layer_ids", "dspark_markov_rank", "dspark_noise_token_id")
        missing = [key for key in needed if key not in values]
        if missing:
            raise ValueError(f"config.json has no {', '.join(missing)}: wanted the keys of a DSpark drafter")
        for key, least, end in (
            ("dspark_block_size", 1, math.inf),
            ("dspark_markov_rank", 0, math.inf),
            ("dspark_noise_token_id", 0, target.vocab_size),
            ("dspark_n_routed_experts", 1, math.inf),
            ("dspark_num_experts_per_tok", 1, math.inf),
        ):
            if key in values and (type(values[key]) is not int or not least <= values[key] < end):
                bound = f"below {end}" if end < math.inf else "up"
                raise ValueError(f"{key}: wanted an integer from {least} {bound}, got {values[key]!r}")
        layers, depth = values["dspark_target_layer_ids"], target.num_hidden_layers
        is_list = isinstance(layers, list | tuple)
        if not is_list or not all(type(layer) is int and 0 <= layer < depth for layer in layers):
            raise ValueError(f"dspark_target_layer_ids: wanted a list of layers in 0..{depth - 1}, got {layers!r}")
        confidence_input = values.get("dspark_confidence_input", "pre_norm")
        if confidence_input not in get_args(ConfidenceInput):
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
            confidence_temperatures=_temperatures(values, values["dspark_block_size"]),
        )


def _temperatures(values: Mapping[str, Any], count: int) -> dict[str, tuple[float, ...]]:
    """Reads ``dspark_confidence_temperatures``, ``count`` for each calibration, or raises a ValueError."""
    given = values.get("dspark_confidence_temperatures", {})
    is_fit = isinstance(given, Mapping) and all(
        name in CALIBRATIONS
        and isinstance(row, list | tuple)
        and len(row) == count
        and all(type(value) in (int, float) and 0 < value < math.inf for value in row)
        for name, row in given.items()
    )
    if not is_fit:
        raise ValueError(
            f"dspark_confidence_temperatures: wanted {count} positive numbers for each of "
            f"{', '.join(CALIBRATIONS)}, got {given!r}: run python -m experiments.calibrate again, or remove the key"
        )
    return {name: tuple(float(value) for value in row) for name, row in given.items()}
