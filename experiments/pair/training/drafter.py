"""What the training of every drafter shares: blocks of text and of generations, balancing, evaluation, the loop."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from hydra.utils import instantiate
from omegaconf import DictConfig

from experiments.pair.training.balancing import Balancer, selection_biases, set_biases
from experiments.pair.training.batches import BlockSampler
from experiments.pair.training.curves import draw_curves
from experiments.pair.training.flat import Tree
from experiments.pair.training.initial import initialize
from experiments.pair.training.judging import HeldOutEvaluation, Judge
from experiments.pair.training.loop import LossFunction, Trainer
from experiments.pair.training.parallel import Group, rank_of, wait_for_all
from models import load_model
from models.deepseek_v4 import Model
from models.deepseek_v4.moe import evaluate_every_expert


def load_frozen_target(path: str | Path, dtype: str) -> Model:
    """The target that a drafter is trained for. It evaluates every expert: faster for wide passes of a small model.

    Args:
        path: checkpoint folder. dtype: of the arithmetic.

    Raises:
        ModelError: as `models.load_model`.
    """
    target = load_model(path, dtype)
    evaluate_every_expert(target).freeze()
    return target


def fill(network: nn.Module, parameters: Tree, biases: Mapping[str, mx.array]) -> None:
    """Puts a step's parameters, and the selection biases (E,) of its stages ``network.mtp``, into a drafter."""
    network.update(parameters)
    set_biases(network.mtp, biases)


def train_drafter(
    network: nn.Module,
    gamma: int,
    loss: LossFunction,
    judge: Judge,
    config: DictConfig,
    group: Group | None,
    export: Callable[[], None],
) -> None:
    """Initializes, trains, evaluates and exports a drafter as its configuration says; continues an interrupted run.

    Returns when every process of the group has come to the end.

    Args:
        network: filled in place; its stages are ``network.mtp``.
        gamma: tokens of a block.
        loss: ``(parameters, phase, tokens, anchors, biases) -> (loss, auxiliary)``, with ``load`` by stage.
        judge: compares the network's blocks with the target.
        config: of `train_dspark` or `train_mtp`.
        group: the processes that train together.
        export: writes the network; called in rank 0 at the end.
    """
    folder = Path(config.folder)
    initialize(network, len(network.mtp), config.seed)
    evaluate_every_expert(network)
    sampler = BlockSampler.from_config(config, gamma, rank_of(group))
    held_out = HeldOutEvaluation(config, gamma)
    balancer = Balancer(selection_biases(network.mtp), config.balance_rate)
    plan = instantiate(config.plan)
    trainer = Trainer(network.trainable_parameters(), loss, plan, folder, balancer.biases, group)

    def after_step(auxiliary: dict[str, Any]) -> None:
        balancer.after_step(auxiliary)
        auxiliary["is_generated"] = mx.array(float(sampler.is_generated(trainer.step)))

    def evaluate(parameters: Tree) -> dict[str, float]:
        fill(network, parameters, balancer.biases)
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
        fill(network, trainer.parameters, balancer.biases)
        export()
        draw_curves(folder)
        print(f"{'finished' if is_done else 'stopped for time'} at step {trainer.step}; {config.destination} written")
    wait_for_all(group)  # a launcher may end all processes when one has ended
