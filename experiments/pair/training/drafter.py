"""What the training of every drafter shares: blocks of text and of generations, balancing, evaluation, the loop."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from hydra.utils import instantiate
from omegaconf import DictConfig

from experiments.pair.train_target import Balancer
from experiments.pair.training.batches import BlockSampler
from experiments.pair.training.judging import HeldOut, Judge
from experiments.pair.training.loop import LossFunction, Trainer
from experiments.pair.training.parallel import Group, rank_of


def set_biases(network: nn.Module, biases: dict[str, mx.array]) -> None:
    """Puts selection biases (E,) into their stages."""
    for stage, bias in biases.items():
        network.mtp[int(stage)].ffn.gate.bias = bias


def train_drafter(
    network: nn.Module,
    gamma: int,
    loss: LossFunction,
    judge: Judge,
    config: DictConfig,
    group: Group | None,
    export: Callable[[], None],
) -> None:
    """Trains, evaluates and exports a drafter as its program's configuration says; continues an interrupted run.

    Args:
        network: filled in place; its stages are ``network.mtp``.
        gamma: tokens of a block.
        loss: ``(parameters, phase, tokens, anchors, biases) -> (loss, auxiliary)``, with ``load`` by stage.
        judge: blocks of the network as it stands, beside the target.
        config: of `train_dspark` or `train_mtp`.
        group: the processes that train together.
        export: writes the network as it stands; called in rank 0 at the end.
    """
    folder = Path(config.folder)
    sampler = BlockSampler.from_config(config, gamma, rank_of(group))
    held_out = HeldOut(config, gamma)
    biases = {str(number): stage.ffn.gate.bias for number, stage in enumerate(network.mtp)}
    balancer = Balancer(biases, config.balance_rate)
    plan = instantiate(config.plan)
    trainer = Trainer(network.trainable_parameters(), loss, plan, folder, balancer.biases, group)

    def take(parameters: dict[str, Any]) -> None:
        network.update(parameters)
        set_biases(network, balancer.biases)

    def after_step(auxiliary: dict[str, Any]) -> None:
        balancer.after_step(auxiliary)
        auxiliary["is_generated"] = mx.array(float(sampler.is_generated(trainer.step)))

    def evaluate(parameters: dict[str, Any]) -> dict[str, float]:
        take(parameters)
        figures = held_out.figures(judge)
        print(f"step {trainer.step}: accepted drafts", {name: round(value, 3) for name, value in figures.items()})
        return figures

    is_done = trainer.run(
        lambda step: (*sampler.batch(step), balancer.biases),
        after_step=after_step,
        evaluate=evaluate,
        tokens_per_step=sampler.tokens,
        max_seconds=config.max_seconds,
    )
    if trainer.is_first:
        take(trainer.parameters)
        export()
        print(f"{'finished' if is_done else 'stopped for time'} at step {trainer.step}; {config.destination} written")
