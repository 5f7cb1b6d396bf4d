"""Random tiny DeepSeek-V4 models: every mechanism, no checkpoint, some ten thousand parameters."""

import math

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from models.deepseek_v4 import DeepseekV4Config, Model
from models.deepseek_v4.config import YarnScaling
from models.mtp import MTPNetwork

TINY = {
    "vocab_size": 48,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "head_dim": 16,
    "qk_rope_head_dim": 8,
    "q_lora_rank": 16,
    "o_groups": 2,
    "o_lora_rank": 8,
    "sliding_window": 12,
    "compress_ratios": (0, 4, 16),
    "index_n_heads": 16,
    "index_head_dim": 32,
    "index_topk": 4,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "num_hash_layers": 1,
    "hc_sinkhorn_iters": 3,
    "rope_scaling": YarnScaling(factor=4.0, original_max_position_embeddings=32),
}
"""A window-only, a CSA and an HCA layer; hash- and score-routed experts; the window is no multiple of a ratio."""


def tiny_config(**changes: object) -> DeepseekV4Config:
    """The configuration `TINY` with some fields changed."""
    return DeepseekV4Config(**(TINY | changes))


def random_model(config: DeepseekV4Config | None = None, seed: int = 0) -> Model:
    """A model whose every parameter is random."""
    model = Model(config or tiny_config())
    fill_randomly(model, model.args, seed)
    return model


def random_mtp(target: Model, seed: int = 3, config: DeepseekV4Config | None = None) -> MTPNetwork:
    """An MTP block for a target, likewise; its configuration follows from the target's unless given."""
    network = MTPNetwork(target, config=config)
    fill_randomly(network, network.config, seed)
    return network


def fill_randomly(model: nn.Module, config: DeepseekV4Config, seed: int) -> None:
    """Random parameters in the sizes that trained ones have.

    Tables, sinks, position biases and hyper-connection bases are far from zero: zeros there would hide errors.
    """
    keys = iter(mx.random.split(mx.random.key(seed), 1000))
    weights = []
    for name, array in tree_flatten(model.parameters()):
        normal = mx.random.normal(array.shape, key=next(keys))
        leaf = name.rsplit(".", 1)[-1]
        if leaf == "tid2eid":
            scores = mx.random.uniform(shape=(array.shape[0], config.n_routed_experts), key=next(keys))
            value = mx.argsort(scores, axis=-1)[:, : array.shape[1]].astype(array.dtype)
        elif leaf == "attn_sink" or name == "embed.weight":
            value = normal
        elif leaf == "bias":
            value = 0.1 * normal
        elif leaf in ("ape", "base"):
            value = 0.5 * normal
        elif leaf == "scale":
            value = 0.3 + mx.random.uniform(shape=array.shape, key=next(keys))
        elif leaf == "fn":
            value = 0.05 * normal
        elif "norm" in name.split(".")[-2]:
            value = 1.0 + 0.1 * normal
        else:
            value = normal / math.sqrt(array.shape[-1])
        weights.append((name, value))
    model.load_weights(weights)
    mx.eval(model.parameters())


def random_tokens(count: int, vocab_size: int = TINY["vocab_size"], batch: int = 1, seed: int = 0) -> mx.array:
    """Token ids (batch, count) int32; a longer draw from the same seed begins with the shorter one."""
    return mx.random.randint(0, vocab_size, (512, batch), key=mx.random.key(1000 + seed))[:count].T
