"""Toy data, configurations and models of the training programs' tests."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from experiments import pair
from experiments.pair import train_target
from experiments.pair.training import curves
from experiments.pair.training.batches import WindowSampler
from experiments.pair.training.initial import initialize
from experiments.pair.training.loop import TrainingPlan
from models import DeepseekV4Config, Model
from models.deepseek_v4.moe import evaluate_every_expert
from models.dspark import DSparkConfig, DSparkNetwork
from tests.random_models import tiny_config

VOCABULARY, LENGTH = 64, 48
CLASSES = ("prose", "code_gen")
BYTES_PER_TOKEN = {"prose": 3.0, "code_gen": 2.0}
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "head_dim": 16,
    "qk_rope_head_dim": 8,
    "q_lora_rank": 16,
    "o_lora_rank": 8,
    "sliding_window": 12,
    "compress_ratios": [0, 4, 16],
    "index_n_heads": 4,
    "index_head_dim": 8,
    "index_topk": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "num_hash_layers": 1,
    "hc_sinkhorn_iters": 2,
}
DRAFTER = {
    "dspark_block_size": 4,
    "dspark_target_layer_ids": [1, 2],
    "dspark_markov_rank": 8,
    "dspark_noise_token_id": 63,
    "dspark_n_routed_experts": 3,
    "dspark_num_experts_per_tok": 1,
    "dspark_confidence_input": "pre_norm",
}
STEPS = 6


def toy_text(count: int, seed: int) -> np.ndarray:
    """Runs of a fixed cycle through 12 tokens, broken at random: easy to learn, not wholly determined."""
    generator = np.random.default_rng(seed)
    cycle = generator.permutation(VOCABULARY - 4)[:12]
    start = np.cumsum(generator.random(count) < 0.05) * 5
    return cycle[(np.arange(count) + start) % 12].astype(np.uint16)


def write_tokens(folder: Path) -> Path:
    """Token files as `pair.tokens` writes them, scalars of the classes' bytes included; returns the folder."""
    for split, count in (("train", 2000), ("valid", 200)):
        arrays = {name: toy_text(count, seed) for seed, name in enumerate(CLASSES)}
        sizes = {f"{name}_bytes": np.array(int(count * rate), np.int64) for name, rate in BYTES_PER_TOKEN.items()}
        np.savez(folder / f"{split}.npz", **arrays, **sizes)
    counts = {name: {"bytes": 200 * rate, "tokens": 200} for name, rate in BYTES_PER_TOKEN.items()}
    (folder / "summary.json").write_text(json.dumps({"splits": {"valid": {"classes": counts}}}))
    return folder


def write_generations(
    file: Path, *, count: int = 12, length: int = 24, prompt_length: int = 10, classes: tuple[str, ...] = CLASSES
) -> Path:
    """A file of rows as `pair.generate` writes it: classes by turns, every third row sampled; returns it."""
    rows = np.stack([toy_text(length, number % len(classes)) for number in range(count)])
    np.savez(
        file,
        tokens=rows,
        classes=(np.arange(count) % len(classes)).astype(np.uint8),
        class_names=np.array(classes),
        temperatures=np.where(np.arange(count) % 3 == 2, 0.6, 0.0).astype(np.float32),
        prompt_length=np.array(prompt_length),
    )
    return file


def overrides_of(program: str, data: Path, folder: Path, /, **changes: Any) -> list[str]:
    """Overrides that make everything of the program small; ``changes`` by dotted key, with __ for the dot."""
    values = {
        "folder": folder / "run",
        "destination": folder / "checkpoint",
        "batch_size": 2,
        "length": LENGTH,
        "evaluation_windows": 2,
        "data.train": data / "train.npz",
        "data.valid": data / "valid.npz",
        "~data.shares": "",
        "+data.shares": "{prose: 0.75, code_gen: 0.25}",
        "plan.steps": STEPS,
        "plan.warmup_steps": 2,
        "plan.dtype": "float32",
        "plan.log_every": 1,
        "plan.evaluate_every": 4,
        "plan.checkpoint_every": 4,
    }
    if program == "train_target":
        values |= {"data.summary": data / "summary.json"} | {f"model.{key}": value for key, value in SIZES.items()}
    else:
        values |= {"data.generations": "null", "data.held_out_generations": "null"}
        values |= {"anchors": 3, "generated_anchors": 3, "stages": 2} | {
            f"model.{key}": value for key, value in DRAFTER.items()
        }
    values |= {key.replace("__", "."): value for key, value in changes.items()}
    return [f"{key}={value}".removesuffix("=") for key, value in values.items()]


def toy_config(program: str, data: Path, folder: Path, /, **changes: Any) -> DictConfig:
    """The program's own config with `overrides_of`."""
    overrides = overrides_of(program, data, folder, **changes)
    with initialize_config_dir(str(Path(pair.__file__).parent / "configs"), version_base=None):
        return compose(program, overrides=overrides)


def write_checkpoint(folder: Path) -> Path:
    """A target of random weights as `experiments.pair.train_target` writes it; returns the folder."""
    values = OmegaConf.to_container(toy_config("train_target", folder, folder).model, resolve=True)
    model = Model(DeepseekV4Config.from_dict(values))
    initialize(model, model.args.num_hidden_layers, 3)
    train_target.export(model, folder, values)
    return folder


def state_of(folder: Path) -> dict[str, np.ndarray]:
    """Everything that a run remembers: weights, optimizer, selection biases."""
    return {name: np.array(array) for name, array in mx.load(str(folder / "run" / "state.safetensors")).items()}


def assert_same_state(found: Path, expected: Path) -> None:
    ours, theirs = state_of(found), state_of(expected)
    assert ours.keys() == theirs.keys()
    assert any(name.startswith("extra.") for name in ours)
    assert any(name.startswith("optimizer.") for name in ours)
    unequal = [name for name in ours if not np.array_equal(ours[name], theirs[name])]
    assert not unequal


def read_tensors(folder: Path, stem: str) -> dict[str, mx.array]:
    return {name: array for file in folder.glob(f"{stem}-*.safetensors") for name, array in mx.load(str(file)).items()}


def steps_logged(folder: Path) -> list[int]:
    return [line["step"] for line in curves.read_log(folder / "run") if "loss" in line]


def toy_plan(**changes: Any) -> TrainingPlan:
    return TrainingPlan(**({"steps": 25, "learning_rate": 0.01, "warmup_steps": 2, "dtype": "float32"} | changes))


def toy_model(**changes: Any) -> Model:
    model = Model(tiny_config(**(SIZES | {"compress_ratios": (0, 4, 16)} | changes)))
    initialize(model, model.args.num_hidden_layers, 3)
    return evaluate_every_expert(model)


def toy_network(target: Model, **changes: Any) -> DSparkNetwork:
    network = DSparkNetwork(DSparkConfig.from_dict(DRAFTER | changes, target.args, stages=2), target)
    initialize(network, 2, 4)
    return evaluate_every_expert(network)


def toy_sampler(seed: int = 0, rank: int = 0) -> WindowSampler:
    tokens = {name: toy_text(1000, number) for number, name in enumerate(CLASSES)}
    return WindowSampler(tokens, {"prose": 1, "code_gen": 1}, 2, LENGTH, seed, rank=rank)


def losses(folder: Path, name: str) -> list[float]:
    return [line[name] for line in curves.read_log(folder) if name in line]
