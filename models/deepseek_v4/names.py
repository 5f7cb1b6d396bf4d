"""From parameter names of this library to tensor names of the DeepSeek-V4 checkpoints.

They are the same except for hyper-connections (modules here, flat names there) and experts (one stacked array here, a
tensor for each expert there).
"""

import re

EXPERT_WEIGHTS = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}
_STACKED = re.compile(r"(.*ffn\.experts)\.(gate_proj|up_proj|down_proj)\.weight")
_HYPER_CONNECTION = re.compile(r"(.*)(hc_attn|hc_ffn|hc_head)\.(fn|base|scale)")

FLOAT32_NAMES = re.compile(
    r"hc_(attn|ffn|head)_(fn|base|scale)|attn_sink|\.ape$|gate\.(weight|bias)$|compressor\.(wkv|wgate)\.weight$"
)
"""Tensors that DeepSeek's reference keeps and computes in float32 whatever the model's dtype."""


def checkpoint_names(parameter: str, shape: tuple[int, ...]) -> list[tuple[str, tuple[int, ...]]]:
    """Names and shapes of the checkpoint tensors that make up a parameter: one, or one per expert in order."""
    stacked = _STACKED.fullmatch(parameter)
    if stacked:
        prefix, weight = stacked[1], EXPERT_WEIGHTS[stacked[2]]
        return [(f"{prefix}.{expert}.{weight}.weight", shape[1:]) for expert in range(shape[0])]
    flat = _HYPER_CONNECTION.fullmatch(parameter)
    if flat:
        return [(f"{flat[1]}{flat[2]}_{flat[3]}", shape)]
    return [(parameter, shape)]
