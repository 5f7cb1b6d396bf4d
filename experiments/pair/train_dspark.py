"""Trains the DSpark drafter of a frozen target: ``python -m experiments.pair.train_dspark``.

On several GPUs, one process each: ``mlx.launch --backend nccl -n 4 -- python -m experiments.pair.train_dspark``.

Anchors are sampled in windows of real text and, on a share of the steps, in the target's own generations. Row k of an
anchor's block is compared with the target's distribution after the text's tokens up to k, with the true previous token
in the Markov head: ``0.1 CE + 0.9 TV + 1.0 BCE``, later positions weighing less. The confidence head learns the
analytic acceptance ``sum min(p, q) = 1 - TV``.

Source: DSpark paper (arXiv 2607.05147) section 3.3.
"""

import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import hydra
import mlx.core as mx
import mlx.nn as nn
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from experiments.pair.training.drafter import fill, load_frozen_target, train_drafter
from experiments.pair.training.export import update_config, write_shards
from experiments.pair.training.judging import BlockComparison, DSparkLossWeights, block_loss, compare, mean_by_position
from experiments.pair.training.startup import start
from models import ModelError
from models.deepseek_v4 import Model
from models.deepseek_v4.checkpoint import checkpoint_tensors
from models.deepseek_v4.probe import observing
from models.dspark import DSparkConfig, DSparkNetwork
from spec.errors import UserError
from spec.programs.frame import run


@dataclass(frozen=True, kw_only=True)
class DSparkBlockComparison(BlockComparison):
    """Adds ``confidence_logits`` (M, G) float32, of the confidence head."""

    confidence_logits: mx.array


def judge_blocks(network: DSparkNetwork, target: Model, tokens: mx.array, anchors: mx.array) -> DSparkBlockComparison:
    """Runs a block at each anchor and compares it with the target, teacher-forced.

    Args:
        network: the drafter. target: frozen. tokens: (B, S) int32.
        anchors: (B, A) int32 positions of the anchors, each at most S - gamma - 1 and at least 1.
    """
    batch, length = tokens.shape
    gamma, window = network.block_size, network.window
    output = target(tokens, tapped_layers=network.tapped_layers)
    logits, features = map(mx.stop_gradient, output) if network.tapped_layers else (mx.stop_gradient(output), None)
    start = mx.arange(batch)[:, None] * length  # of each sequence in the flattened batch
    flat_tokens = tokens.reshape(-1)
    behind = anchors[..., None] - window + mx.arange(window)  # (B, A, window) positions of the context
    is_context = (behind >= 0).reshape(-1, window)
    index = (start[..., None] + mx.maximum(behind, 0)).reshape(-1, window)
    context = [rows.reshape(batch * length, -1)[index] for rows in network.context_rows(features)]
    row = (start + anchors).reshape(-1, 1) + mx.arange(gamma)  # (M, G): where the target predicts what row k drafts
    previous, truth = flat_tokens[row], flat_tokens[row + 1]
    block = network.block(previous[:, 0], anchors.reshape(-1), context, is_context)
    embedded = network.markov_head.embed(previous)
    drafted = block.logits + network.markov_head.bias(embedded)
    judged = compare(drafted, logits.reshape(batch * length, -1)[row], truth)
    return DSparkBlockComparison(**vars(judged), confidence_logits=network.confidence_logits(block, embedded))


def loss_function(
    network: DSparkNetwork,
    target: Model,
    weights: DSparkLossWeights,
    parameters: dict[str, Any],
    phase: None,
    tokens: mx.array,
    anchors: mx.array,
    biases: dict[str, mx.array],
) -> tuple[mx.array, dict[str, Any]]:
    """The paper's loss over all blocks; arguments as `judge_blocks`."""
    fill(network, parameters, biases)
    with observing(network) as probe:
        judged = judge_blocks(network, target, tokens, anchors)
    loss, auxiliary = block_loss(judged, weights, probe)
    label = mx.stop_gradient(judged.overlap)
    entropies = nn.losses.binary_cross_entropy(judged.confidence_logits, label, reduction="none")
    confidence = mean_by_position(entropies, weights.position_decay)
    return loss + weights.confidence * confidence, auxiliary | {"confidence": confidence}


@hydra.main(version_base=None, config_path=str(Path(__file__).parent / "configs"), config_name="train_dspark")
def main(config: DictConfig) -> None:
    """Trains, evaluates and exports as the config says; continues an interrupted run."""
    group, destination = start(config), Path(config.destination)
    target = load_frozen_target(config.target, config.plan.dtype)
    values = OmegaConf.to_container(config.model, resolve=True)
    try:
        drafter = DSparkConfig.from_dict(values, target.args, config.stages)
    except ValueError as error:
        raise UserError(f"model.{error}") from error
    network = DSparkNetwork(drafter, target)
    loss = partial(loss_function, network, target, instantiate(config.weights))

    def export() -> None:
        write_shards(destination, checkpoint_tensors(network, mx.bfloat16), stem="mtp")
        update_config(destination, values, replaced="dspark_")  # an older drafter's calibration is none of this one's

    train_drafter(network, network.block_size, loss, partial(judge_blocks, network, target), config, group, export)


if __name__ == "__main__":
    sys.exit(run(main, ModelError))
