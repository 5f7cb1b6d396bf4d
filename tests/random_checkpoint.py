"""A whole checkpoint folder with random weights: a DeepSeek-V4 target, its DSpark drafter, and a tokenizer."""

import dataclasses
import json
import math
from pathlib import Path

import mlx.core as mx
from mlx.utils import tree_map_with_path

from models.deepseek_v4.checkpoint import checkpoint_tensors
from models.dspark import DSparkConfig, DSparkNetwork
from tests.random_models import random_model, random_mtp, tiny_config
from tests.spec.tiny_text import save_tokenizer

SIZES = {
    "vocab_size": 96,
    "compress_ratios": (0, 4, 128),
}  # the ratios that transformers knows, which reads the tokenizer
DRAFTER = {
    "dspark_block_size": 5,
    "dspark_target_layer_ids": [0, 1, 2],
    "dspark_markov_rank": 6,
    "dspark_noise_token_id": 95,
}


def write_checkpoint(folder: Path) -> None:
    """Fills a folder in the layout of what ships."""
    target = random_model(tiny_config(**SIZES))
    network = DSparkNetwork(DSparkConfig.from_dict(DRAFTER, target.args, stages=2), target)
    keys = iter(mx.random.split(mx.random.key(5), 1000))
    network.update(
        tree_map_with_path(
            lambda name, array: mx.random.normal(array.shape, key=next(keys)) / math.sqrt(array.shape[-1]),
            network.parameters(),
        )
    )
    mx.save_safetensors(str(folder / "model.safetensors"), checkpoint_tensors(target))
    mx.save_safetensors(str(folder / "drafter.safetensors"), checkpoint_tensors(network))
    config = {"model_type": "deepseek_v4", **dataclasses.asdict(target.args), **DRAFTER}
    config["rope_scaling"]["type"] = "yarn"
    config["compress_ratios"] = [*target.args.compress_ratios, 0, 0]
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_tokenizer(folder, size=96)


def write_mtp(folder: Path) -> None:
    """Fills a folder with the original MTP block of the same target, and no target."""
    target = random_model(tiny_config(**SIZES))
    mx.save_safetensors(str(folder / "mtp.safetensors"), checkpoint_tensors(random_mtp(target)))
    config = {"model_type": "deepseek_v4", **dataclasses.asdict(target.args)}
    config["compress_ratios"] = [*target.args.compress_ratios, 0]
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
