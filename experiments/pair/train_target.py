"""Trains a DeepSeek-V4 target from scratch: ``python -m experiments.pair.train_target``.

On several GPUs, one process each: ``mlx.launch --backend nccl -n 4 -- python -m experiments.pair.train_target``.

Next-token loss, plus each indexer's alignment loss (first with dense attention over compressed rows, then with the
indexer's own choice). Routers are balanced by their selection biases (`experiments.pair.training.balancing`).
"""

import sys
from functools import partial
from pathlib import Path
from typing import Any

import hydra
import mlx.core as mx
import mlx.nn as nn
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from experiments.pair.training.balancing import Balancer, selection_biases, set_biases
from experiments.pair.training.batches import WindowSampler, load_tokens
from experiments.pair.training.curves import draw_curves
from experiments.pair.training.evaluation import bits_per_byte, read_bytes_per_token
from experiments.pair.training.export import update_config, write_shards
from experiments.pair.training.initial import initialize
from experiments.pair.training.loop import Trainer
from experiments.pair.training.parallel import rank_of, wait_for_all
from experiments.pair.training.startup import start
from models import ModelError
from models.deepseek_v4 import DeepseekV4Config, Model
from models.deepseek_v4.checkpoint import checkpoint_tensors
from models.deepseek_v4.moe import evaluate_every_expert
from models.deepseek_v4.probe import observing
from spec.programs.frame import run


def loss_function(
    model: Model, parameters: dict[str, Any], is_dense: bool, tokens: mx.array, biases: dict[str, mx.array]
) -> tuple[mx.array, dict[str, Any]]:
    """Mean next-token cross entropy in nats, plus the mean alignment loss of the indexers.

    Args:
        model: filled with the parameters. is_dense: the indexers' warm-up.
        tokens: (B, T) int32. biases: selection bias of each score-routed layer, by its number.
    """
    model.update(parameters)
    set_biases(model.layers, biases)
    with observing(model, is_dense) as probe:
        logits = model(tokens)[:, :-1]
    cross_entropy = nn.losses.cross_entropy(logits, tokens[:, 1:], reduction="mean")
    alignment = mx.stack(probe.alignment).mean() if probe.alignment else mx.array(0.0)
    load = {str(layer): value for layer, value in probe.load.items()}
    return cross_entropy + alignment, {"cross_entropy": cross_entropy, "alignment": alignment, "load": load}


def export(model: Model, folder: Path, values: dict[str, Any]) -> None:
    """Writes config.json and bfloat16 shards."""
    write_shards(folder, checkpoint_tensors(model, mx.bfloat16), stem="model")
    update_config(folder, values)


@hydra.main(version_base=None, config_path=str(Path(__file__).parent / "configs"), config_name="train_target")
def main(config: DictConfig) -> None:
    """Trains, evaluates and exports as the config says; continues an interrupted run."""
    values = OmegaConf.to_container(config.model, resolve=True)
    model = Model(DeepseekV4Config.from_dict(values))
    folder, destination = Path(config.folder), Path(config.destination)
    group = start(config)
    initialize(model, config.model.num_hidden_layers, config.seed)
    evaluate_every_expert(model)
    tokens = load_tokens(config.data.train)
    held_out = load_tokens(config.data.valid)
    bytes_per_token = read_bytes_per_token(Path(config.data.summary), "valid")
    sampler = WindowSampler(
        tokens, config.data.shares, config.batch_size, config.length, config.seed, rank=rank_of(group)
    )
    plan = instantiate(config.plan)
    balancer = Balancer(selection_biases(model.layers), config.balance_rate)
    loss = partial(loss_function, model)
    trainer = Trainer(model.trainable_parameters(), loss, plan, folder, balancer.biases, group)

    def evaluate(parameters: dict[str, Any]) -> dict[str, float]:
        model.update(parameters)
        set_biases(model.layers, balancer.biases)
        figures = bits_per_byte(
            model,
            held_out,
            bytes_per_token,
            length=config.length,
            batch_size=config.batch_size,
            limit=config.evaluation_windows,
        )
        print(f"step {trainer.step}: bits per byte", {name: round(value, 4) for name, value in figures.items()})
        return figures

    is_done = trainer.run(
        lambda step: (mx.array(sampler.batch(step)), balancer.biases),
        phase=lambda step: step < config.dense_share * plan.steps,
        after_step=balancer.after_step,
        evaluate=evaluate,
        tokens_per_step=config.batch_size * config.length,
        max_seconds=config.max_seconds,
    )
    if trainer.is_first:
        model.update(trainer.parameters)
        set_biases(model.layers, balancer.biases)
        export(model, destination, {"architectures": ["DeepseekV4ForCausalLM"], "torch_dtype": "bfloat16", **values})
        draw_curves(folder)
        print(f"{'finished' if is_done else 'stopped for time'} at step {trainer.step}; checkpoint in {destination}")
    wait_for_all(group)  # a launcher may end all processes when one has ended


if __name__ == "__main__":
    sys.exit(run(main, ModelError))
