"""Trains the DSpark drafter of a frozen target: ``python -m experiments.train_dspark``.

Anchors are sampled in windows of real text. Row k of an anchor's block is judged against the target's distribution
after the true tokens up to k, with the true previous token in the Markov head: ``0.1 CE + 0.9 TV + 1.0 BCE``, later
positions weighing less. The confidence head learns the analytic acceptance ``sum min(p, q) = 1 - TV``.

Source: DSpark paper (arXiv 2607.05147) section 3.3.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import hydra
import mlx.core as mx
import mlx.nn as nn
import numpy as np
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from experiments.program import run
from experiments.train_target import Balancer
from experiments.training.batches import WindowSampler, evaluation_windows, load_tokens
from experiments.training.curves import draw_curves
from experiments.training.export import update_config, write_shards
from experiments.training.initial import initialise
from experiments.training.loop import Trainer
from models import load_model
from models.deepseek_v4 import Model
from models.deepseek_v4.probe import Probe
from models.dspark import DSparkConfig, Network
from models.formats.checkpoint import checkpoint_tensors


@dataclass(frozen=True, kw_only=True)
class Weights:
    """Weights of the loss's terms; a position's weight is ``exp(-k / position_decay)``."""

    cross_entropy: float = 0.1
    total_variation: float = 0.9
    confidence: float = 1.0
    position_decay: float = 5.0


@dataclass(frozen=True, kw_only=True)
class Judged:
    """Blocks beside the target, all (M, G) float32 for M anchors.

    Attributes:
        cross_entropy: nats of the true token. overlap: sum of min(p, q). is_match: 1 where the argmaxes agree.
        confidence_logits: of the confidence head.
    """

    cross_entropy: mx.array
    overlap: mx.array
    is_match: mx.array
    confidence_logits: mx.array


def judge_blocks(
    network: Network, target: Model, tokens: mx.array, anchors: mx.array, probe: Probe | None = None
) -> Judged:
    """Runs a block at each anchor and compares it with the target, teacher-forced.

    Args:
        network: the drafter. target: frozen. tokens: (B, S) int32.
        anchors: (B, A) int32 positions of the anchors, each at most S - gamma - 1 and at least 1.
    """
    batch, length = tokens.shape
    gamma, window = network.block_size, network.window
    logits, features = target(tokens, taps=network.taps)
    logits, features = mx.stop_gradient(logits), mx.stop_gradient(features)
    start = mx.arange(batch)[:, None] * length  # of each sequence in the flattened batch
    flat_tokens = tokens.reshape(-1)
    behind = anchors[..., None] - window + mx.arange(window)  # (B, A, window) positions of the context
    is_context = (behind >= 0).reshape(-1, window)
    index = (start[..., None] + mx.maximum(behind, 0)).reshape(-1, window)
    context = [rows.reshape(batch * length, -1)[index] for rows in network.context_rows(features)]
    row = (start + anchors).reshape(-1, 1) + mx.arange(gamma)  # (M, G): where the target predicts what row k drafts
    previous, truth = flat_tokens[row], flat_tokens[row + 1]
    output = network.block(previous[:, 0], anchors.reshape(-1), context, is_context, probe)
    embedded = network.markov_head.embed(previous)
    drafted = output.logits + network.markov_head.bias(embedded)
    wanted = logits.reshape(batch * length, -1)[row]
    log_q = drafted - mx.logsumexp(drafted, axis=-1, keepdims=True)
    p, q = mx.softmax(wanted, axis=-1), mx.exp(log_q)
    return Judged(
        cross_entropy=-mx.take_along_axis(log_q, truth[..., None], axis=-1)[..., 0],
        overlap=mx.minimum(p, q).sum(axis=-1),
        is_match=(mx.argmax(drafted, axis=-1) == mx.argmax(wanted, axis=-1)).astype(mx.float32),
        confidence_logits=network.confidence_logits(output, embedded),
    )


def loss_function(
    network: Network,
    target: Model,
    weights: Weights,
    parameters: dict[str, Any],
    phase: None,
    tokens: mx.array,
    anchors: mx.array,
    biases: dict[str, mx.array],
) -> tuple[mx.array, dict[str, Any]]:
    """The paper's loss over all blocks; arguments as `judge_blocks`."""
    network.update(parameters)
    set_biases(network, biases)
    probe = Probe()
    judged = judge_blocks(network, target, tokens, anchors, probe)
    by_position = mx.exp(-mx.arange(network.block_size) / weights.position_decay)
    by_position = by_position / by_position.sum()

    def mean(values: mx.array) -> mx.array:
        return (values.mean(axis=0) * by_position).sum()

    cross_entropy = mean(judged.cross_entropy)
    total_variation = mean(1.0 - judged.overlap)
    label = mx.stop_gradient(judged.overlap)
    confidence = mean(nn.losses.binary_cross_entropy(judged.confidence_logits, label, reduction="none"))
    loss = (
        weights.cross_entropy * cross_entropy
        + weights.total_variation * total_variation
        + weights.confidence * confidence
    )
    auxiliary = {
        "cross_entropy": cross_entropy,
        "total_variation": total_variation,
        "confidence": confidence,
        "load": {str(number): value for number, value in probe.load.items()},
    }
    return loss, auxiliary


def set_biases(network: Network, biases: dict[str, mx.array]) -> None:
    """Puts selection biases (E,) into their stages."""
    for stage, bias in biases.items():
        network.mtp[int(stage)].ffn.gate.bias = bias


def sample_anchors(shape: tuple[int, int], length: int, gamma: int, seed: tuple[int, ...]) -> mx.array:
    """(B, A) int32 anchor positions, uniform over those that leave room for a whole block."""
    return mx.array(np.random.default_rng(seed).integers(1, length - gamma, size=shape).astype(np.int32))


def acceptance(
    network: Network, target: Model, held_out: dict[str, np.ndarray], config: DictConfig
) -> dict[str, float]:
    """Teacher-forced agreement on held-out text.

    Returns:
        By class: ``<class>`` the expected accepted drafts of a block when each argmax must match the target's, and
        ``<class>_overlap_at_1`` the mean of sum min(p, q) at the first position.
    """
    figures = {}
    for name, source in held_out.items():
        matches, overlaps = [], []
        for number, (windows, _) in enumerate(
            evaluation_windows(source, config.length, config.batch_size, config.evaluation_windows)
        ):
            shape = (windows.shape[0], config.anchors)
            anchors = sample_anchors(shape, config.length, network.block_size, (config.seed, 7, number))
            judged = judge_blocks(network, target, mx.array(windows), anchors)
            matches.append(mx.cumprod(judged.is_match, axis=1).sum(axis=1))
            overlaps.append(judged.overlap[:, 0])
            mx.eval(matches, overlaps)
        figures[name] = mx.concatenate(matches).mean().item()
        figures[f"{name}_overlap_at_1"] = mx.concatenate(overlaps).mean().item()
    return figures


@hydra.main(version_base=None, config_path="configs", config_name="train_dspark")
def main(config: DictConfig) -> None:
    """Trains, evaluates and exports as the config says; continues an interrupted run."""
    folder, destination = Path(config.folder), Path(config.destination)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(OmegaConf.to_yaml(config, resolve=True), encoding="utf-8")
    plan = instantiate(config.plan)
    target = load_model(config.target, plan.dtype)
    # Training mode evaluates every expert at once, which is the fast way for wide passes of a small model.
    target.train().freeze()
    values = OmegaConf.to_container(config.model, resolve=True)
    network = Network(DSparkConfig.from_dict(values, target.args, config.stages), target)
    initialise(network, config.stages, config.seed)
    network.train()
    sampler = WindowSampler(
        load_tokens(config.data.train), config.data.shares, config.batch_size, config.length, config.seed
    )
    held_out = load_tokens(config.data.valid)
    balancer = Balancer(
        {str(number): stage.ffn.gate.bias for number, stage in enumerate(network.mtp)}, config.balance_rate
    )
    loss = partial(loss_function, network, target, instantiate(config.weights))
    trainer = Trainer(network.trainable_parameters(), loss, plan, folder, extra=balancer.biases)

    def batch(step: int) -> tuple[Any, ...]:
        shape = (config.batch_size, config.anchors)
        anchors = sample_anchors(shape, config.length, network.block_size, (config.seed, 11, step))
        return mx.array(sampler.batch(step)), anchors, balancer.biases

    def evaluate(parameters: dict[str, Any]) -> dict[str, float]:
        network.update(parameters)
        set_biases(network, balancer.biases)
        figures = acceptance(network, target, held_out, config)
        print(f"step {trainer.step}: accepted drafts", {name: round(value, 3) for name, value in figures.items()})
        return figures

    is_done = trainer.run(
        batch,
        after_step=balancer.after_step,
        evaluate=evaluate,
        tokens_per_step=config.batch_size * config.length,
        max_seconds=config.max_seconds,
    )
    network.update(trainer.parameters)
    set_biases(network, balancer.biases)
    write_shards(destination, checkpoint_tensors(network, mx.bfloat16), stem="mtp")
    update_config(destination, values)
    draw_curves(folder)
    print(f"{'finished' if is_done else 'stopped for time'} at step {trainer.step}; drafter in {destination}")


if __name__ == "__main__":
    run(main)
