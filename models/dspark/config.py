"""The configuration of a DSpark drafter that lives in a DeepSeek-V4 checkpoint."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from models.deepseek_v4.config import DeepseekV4Config

CALIBRATIONS = ("greedy", "matched", "sampled")
"""What a set of confidence temperatures was fitted for: argmax drafts at temperature 0, argmax drafts above it (which
stand with the target's probability of them), and sampled drafts under rejection sampling."""


@dataclass(frozen=True, kw_only=True)
class DSparkConfig:
    """Sizes of one drafter; the blocks' own are the target's unless given here.

    Attributes:
        block_size: gamma, tokens of one proposal (the anchor not counted).
        target_layer_ids: layers of the target whose outputs are tapped, in the order of concatenation; empty for a
            drafter without context, whose blocks see only their own rows.
        markov_rank: R, rank of the Markov head; 0 for a drafter without one.
        noise_token_id: token that stands where a block's tokens are not known yet.
        stages: V4 blocks of the network.
        block: configuration of the blocks: the target's, window-only and never hash-routed.
        confidence_input: which hidden state the confidence head reads: ``pre_norm`` (V4's reference) or ``post_norm``
            (ds4, DeepSpec).
        confidence_temperatures: for names of `CALIBRATIONS`, what the confidence logit of each of the block's positions
            is divided by (`experiments.calibrate`); empty for a drafter that was not calibrated.
    """

    block_size: int
    target_layer_ids: tuple[int, ...]
    markov_rank: int
    noise_token_id: int
    stages: int
    block: DeepseekV4Config
    confidence_input: Literal["pre_norm", "post_norm"] = "pre_norm"
    confidence_temperatures: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

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
            ("dspark_markov_rank", 0, math.inf),
            ("dspark_noise_token_id", 0, target.vocab_size),
        ):
            if type(values[key]) is not int or not least <= values[key] < end:
                bound = f"below {end}" if end < math.inf else "up"
                raise ValueError(f"{key}: wanted an integer from {least} {bound}, got {values[key]!r}")
        layers = values["dspark_target_layer_ids"]
        depth = target.num_hidden_layers
        is_list = isinstance(layers, list | tuple)
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
            confidence_temperatures=_temperatures(values, values["dspark_block_size"]),
        )


def _temperatures(values: Mapping[str, Any], count: int) -> dict[str, tuple[float, ...]]:
    """The key ``dspark_confidence_temperatures``, which only calibrated checkpoints have.

    Raises:
        ValueError: it is no object of positive numbers, ``count`` a calibration.
    """
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
