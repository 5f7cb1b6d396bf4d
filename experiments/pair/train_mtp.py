"""Trains the original one-stage MTP block of a frozen target: ``python -m experiments.pair.train_mtp``.

On several GPUs, one process each: ``mlx.launch --backend nccl -n 4 -- python -m experiments.pair.train_mtp``.

Anchors are sampled as for DSpark. At each, a chain of steps runs as in drafting, but is fed the text's own tokens; step
k is compared with the target's distribution after the true tokens up to k: ``0.1 CE + 0.9 TV``, later steps weighing
less. So the block learns to continue from its own streams and not only from the target's.

Source: DeepSeek-V3 report (arXiv 2412.19437) section 2.2 for the block, DSpark paper (arXiv 2607.05147) section 3.3 for
the loss.
"""

import sys
from functools import partial
from pathlib import Path
from typing import Any

import hydra
import mlx.core as mx
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from experiments.pair.training.drafter import fill, load_frozen_target, train_drafter
from experiments.pair.training.export import update_config, write_shards
from experiments.pair.training.judging import BlockComparison, LossWeights, block_loss, compare
from experiments.pair.training.startup import start
from models import ModelError
from models.deepseek_v4 import DeepseekV4Config, Model
from models.deepseek_v4.checkpoint import checkpoint_tensors
from models.deepseek_v4.probe import observing
from models.loading import find_checkpoint, read_config
from models.mtp import MTPNetwork, block_config
from spec.errors import UserError
from spec.programs.frame import run


def judge_chains(
    network: MTPNetwork, target: Model, tokens: mx.array, anchors: mx.array, depth: int
) -> BlockComparison:
    """Runs a chain at each anchor and compares it with the target, teacher-forced.

    Args:
        network: the block. target: frozen. tokens: (B, S) int32.
        anchors: (B, A) int32 positions of the anchors, each at most S - depth - 1 and at least 1.
        depth: G, slots a chain.
    """
    batch, length = tokens.shape
    logits, streams = target(tokens, tapped_layers=network.tapped_layers)
    logits, streams = mx.stop_gradient(logits), mx.stop_gradient(streams)
    drafted = network.chains(tokens, streams, anchors, depth)
    # (M, G) in the flattened batch: where the target predicts what step k drafts
    row = (mx.arange(batch)[:, None] * length + anchors).reshape(-1, 1) + mx.arange(depth)
    wanted, truth = logits.reshape(batch * length, -1)[row], tokens.reshape(-1)[row + 1]
    return compare(drafted, wanted, truth)


def loss_function(
    network: MTPNetwork,
    target: Model,
    weights: LossWeights,
    depth: int,
    parameters: dict[str, Any],
    phase: None,
    tokens: mx.array,
    anchors: mx.array,
    biases: dict[str, mx.array],
) -> tuple[mx.array, dict[str, Any]]:
    """The loss over all chains; arguments as `judge_chains`."""
    fill(network, parameters, biases)
    with observing(network) as probe:
        judged = judge_chains(network, target, tokens, anchors, depth)
    return block_loss(judged, weights, probe)


def check_sizes(config: DictConfig, target: DeepseekV4Config) -> DeepseekV4Config:
    """The block's configuration, once all sizes are known to fit.

    Raises:
        UserError: they do not.
    """
    if not 1 <= config.depth <= config.length - 2:
        raise UserError(
            f"depth: wanted from 1 to {config.length - 2}, which a window of {config.length} tokens has room for, got "
            f"{config.depth}"
        )
    try:
        return block_config(target, OmegaConf.to_container(config.model, resolve=True))
    except ValueError as error:
        raise UserError(f"model: {error}") from error


def export(network: MTPNetwork, target_folder: Path, destination: Path) -> None:
    """Writes the block as bfloat16 shards, with the configuration of the target that it belongs to."""
    config = network.config
    values = {name: value for name, value in read_config(target_folder).items() if not name.startswith("dspark_")}
    values["compress_ratios"] = [*values["compress_ratios"][: values["num_hidden_layers"]], 0]
    values["mtp_n_routed_experts"] = config.n_routed_experts
    values["mtp_num_experts_per_tok"] = config.num_experts_per_tok
    write_shards(destination, checkpoint_tensors(network, mx.bfloat16), stem="mtp")
    update_config(destination, values, replaced="")


@hydra.main(version_base=None, config_path=str(Path(__file__).parent / "configs"), config_name="train_mtp")
def main(config: DictConfig) -> None:
    """Trains, evaluates and exports as the config says; continues an interrupted run."""
    destination, source = Path(config.destination), find_checkpoint(config.target)
    if destination.resolve() == source.resolve():
        raise UserError(
            "destination: wanted another folder than the target's, whose mtp-*.safetensors may be DSpark's, got "
            f"{destination}: take its sub-folder {destination / 'mtp'}"
        )
    group = start(config)
    target = load_frozen_target(source, config.plan.dtype)
    network = MTPNetwork(target, config=check_sizes(config, target.args))
    loss = partial(loss_function, network, target, instantiate(config.weights), config.depth)
    judge = partial(judge_chains, network, target, depth=config.depth)
    train_drafter(network, config.depth, loss, judge, config, group, partial(export, network, source, destination))


if __name__ == "__main__":
    sys.exit(run(main, ModelError))
