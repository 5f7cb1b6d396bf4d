"""Trains a DeepSeek-V4 target from scratch: ``python -m experiments.train_target``.

On several GPUs, one process each: ``mlx.launch --backend nccl -n 4 -- python -m experiments.train_target``.

Next-token loss, plus each indexer's alignment loss (first with dense attention over compressed rows, then with the
indexer's own choice). Routers are balanced by their selection bias: after every step the bias of an overloaded expert
falls and that of an underloaded one rises (DeepSeek-V3 report, section 2.1.2).
"""

from functools import partial
from pathlib import Path
from typing import Any

import hydra
import mlx.core as mx
import mlx.nn as nn
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from experiments.program import run
from experiments.training.batches import WindowSampler, load_tokens
from experiments.training.curves import draw_curves
from experiments.training.evaluation import bits_per_byte, read_bytes_per_token
from experiments.training.export import update_config, write_shards
from experiments.training.initial import initialize
from experiments.training.loop import Trainer
from experiments.training.parallel import process_group, rank_of, wait_for_all
from models.deepseek_v4 import DeepseekV4Config, Model
from models.deepseek_v4.checkpoint import checkpoint_tensors
from models.deepseek_v4.moe import evaluate_every_expert
from models.deepseek_v4.probe import observing


def loss_function(
    model: Model, parameters: dict[str, Any], is_dense: bool, tokens: mx.array, biases: dict[str, mx.array]
) -> tuple[mx.array, dict[str, Any]]:
    """Mean next-token cross entropy in nats, plus the mean alignment loss of the indexers.

    Args:
        model: filled with the parameters. is_dense: the indexers' warm-up.
        tokens: (B, T) int32. biases: selection bias of each score-routed layer, by its number.
    """
    model.update(parameters)
    set_biases(model, biases)
    with observing(model, is_dense) as probe:
        logits = model(tokens)[:, :-1]
    cross_entropy = nn.losses.cross_entropy(logits, tokens[:, 1:], reduction="mean")
    alignment = mx.stack(probe.alignment).mean() if probe.alignment else mx.array(0.0)
    load = {str(layer): value for layer, value in probe.load.items()}
    return cross_entropy + alignment, {"cross_entropy": cross_entropy, "alignment": alignment, "load": load}


def set_biases(model: Model, biases: dict[str, mx.array]) -> None:
    """Puts selection biases (E,) into their layers."""
    for layer, bias in biases.items():
        model.layers[int(layer)].ffn.gate.bias = bias


class Balancer:
    """Keeps and moves the selection biases.

    Args:
        biases: (E,) float32 by layer. rate: how far a bias moves a step.
    """

    def __init__(self, biases: dict[str, mx.array], rate: float) -> None:
        self.biases = biases
        self.rate = rate

    def after_step(self, auxiliary: dict[str, Any]) -> None:
        """Moves every bias against its expert's load; adds the worst overload (load over mean) to the log."""
        load = auxiliary.pop("load")
        overload = mx.array(0.0)
        for layer, counts in load.items():
            mean = counts.mean()
            self.biases[layer] = self.biases[layer] + self.rate * mx.sign(mean - counts)
            overload = mx.maximum(overload, counts.max() / mean)
        auxiliary["worst_overload"] = overload


def export(model: Model, folder: Path, values: dict[str, Any]) -> None:
    """Writes config.json and bfloat16 shards."""
    write_shards(folder, checkpoint_tensors(model, mx.bfloat16), stem="model")
    update_config(folder, values)


@hydra.main(version_base=None, config_path="configs", config_name="train_target")
def main(config: DictConfig) -> None:
    """Trains, evaluates and exports as the config says; continues an interrupted run."""
    values = OmegaConf.to_container(config.model, resolve=True)
    model = Model(DeepseekV4Config.from_dict(values))
    folder, destination = Path(config.folder), Path(config.destination)
    group = process_group()
    if rank_of(group) == 0:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.yaml").write_text(OmegaConf.to_yaml(config, resolve=True), encoding="utf-8")
    initialize(model, config.model.num_hidden_layers, config.seed)
    evaluate_every_expert(model)
    tokens = load_tokens(config.data.train)
    held_out = load_tokens(config.data.valid)
    bytes_per_token = read_bytes_per_token(Path(config.data.summary), "valid")
    sampler = WindowSampler(
        tokens, config.data.shares, config.batch_size, config.length, config.seed, rank=rank_of(group)
    )
    plan = instantiate(config.plan)
    biases = {str(number): layer.ffn.gate.bias for number, layer in enumerate(model.layers) if "bias" in layer.ffn.gate}
    balancer = Balancer(biases, config.balance_rate)
    loss = partial(loss_function, model)
    trainer = Trainer(model.trainable_parameters(), loss, plan, folder, balancer.biases, group)

    def evaluate(parameters: dict[str, Any]) -> dict[str, float]:
        model.update(parameters)
        set_biases(model, balancer.biases)
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
        set_biases(model, balancer.biases)
        export(model, destination, {"architectures": ["DeepseekV4ForCausalLM"], "torch_dtype": "bfloat16", **values})
        draw_curves(folder)
        print(f"{'finished' if is_done else 'stopped for time'} at step {trainer.step}; checkpoint in {destination}")
    wait_for_all(group)  # a launcher may end all processes when one has ended


if __name__ == "__main__":
    run(main)
