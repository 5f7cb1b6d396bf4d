"""Drafted blocks compared with the target: the terms of a drafter's loss, and its acceptance on held-out text."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
from omegaconf import DictConfig

from experiments.pair.training.batches import (
    evaluation_windows,
    first_own_anchor,
    load_tokens,
    own_rows,
    sample_anchors,
)
from models.deepseek_v4.probe import Probe


@dataclass(frozen=True, kw_only=True)
class BlockComparison:
    """Drafted blocks compared with the target, all (M, G) float32 for M anchors.

    Attributes:
        cross_entropy: nats of the true token. overlap: sum of min(p, q). is_match: 1 where the argmaxes agree.
    """

    cross_entropy: mx.array
    overlap: mx.array
    is_match: mx.array


@dataclass(frozen=True, kw_only=True)
class LossWeights:
    """Weights of the terms that every drafter's loss has; a position's weight is ``exp(-k / position_decay)``."""

    cross_entropy: float = 0.1
    total_variation: float = 0.9
    position_decay: float = 5.0


@dataclass(frozen=True, kw_only=True)
class DSparkLossWeights(LossWeights):
    """Adds the weight of the confidence head's term."""

    confidence: float = 1.0


Judge = Callable[[mx.array, mx.array], BlockComparison]
"""From rows of tokens (B, S) int32 and anchors (B, A) int32 in them to the comparison of the blocks there."""


def compare(drafted: mx.array, wanted: mx.array, truth: mx.array) -> BlockComparison:
    """Compares distributions, given as logits.

    Args:
        drafted: (M, G, V) float32, the drafter's. wanted: (M, G, V) float32, the target's.
        truth: (M, G) int32 tokens of the text.
    """
    log_q = drafted - mx.logsumexp(drafted, axis=-1, keepdims=True)
    p, q = mx.softmax(wanted, axis=-1), mx.exp(log_q)
    return BlockComparison(
        cross_entropy=-mx.take_along_axis(log_q, truth[..., None], axis=-1)[..., 0],
        overlap=mx.minimum(p, q).sum(axis=-1),
        is_match=(mx.argmax(drafted, axis=-1) == mx.argmax(wanted, axis=-1)).astype(mx.float32),
    )


def mean_by_position(values: mx.array, decay: float) -> mx.array:
    """The mean of values (M, G) in which position k weighs ``exp(-k / decay)``: a scalar."""
    weights = mx.exp(-mx.arange(values.shape[1]) / decay)
    return (values.mean(axis=0) * (weights / weights.sum())).sum()


def block_loss(judged: BlockComparison, weights: LossWeights, probe: Probe) -> tuple[mx.array, dict[str, Any]]:
    """The weighted cross entropy and total variation, and what the log has of every drafter: each term, the experts'
    ``load`` by stage from the probe, the share of argmax matches by position."""
    cross_entropy = mean_by_position(judged.cross_entropy, weights.position_decay)
    total_variation = mean_by_position(1.0 - judged.overlap, weights.position_decay)
    loss = weights.cross_entropy * cross_entropy + weights.total_variation * total_variation
    matches = judged.is_match.mean(axis=0)
    return loss, {
        "cross_entropy": cross_entropy,
        "total_variation": total_variation,
        "load": {str(number): value for number, value in probe.load.items()},
        **{f"match_at_{position + 1}": matches[position] for position in range(matches.size)},
    }


def acceptance(
    judge: Judge, gamma: int, batches: Iterable[np.ndarray], anchors: int, seed: int, first_anchor: int = 1
) -> tuple[float, float] | None:
    """Teacher-forced agreement on rows of tokens.

    Args:
        judge: see `Judge`. gamma: tokens of a block.
        batches: rows (b, S) of tokens. anchors: blocks a row, their anchors at ``first_anchor`` or after it.
        seed: decides the anchors.

    Returns:
        The expected accepted drafts of a block when each argmax must match the target's, and the mean of
        sum min(p, q) at the first position; None where there are no rows.
    """
    accepted, overlaps = [], []
    for number, rows in enumerate(batches):
        at = sample_anchors((rows.shape[0], anchors), rows.shape[1], gamma, (seed, 7, number), first_anchor)
        judged = judge(mx.array(rows.astype(np.int32)), at)
        accepted.append(mx.cumprod(judged.is_match, axis=1).sum(axis=1))
        overlaps.append(judged.overlap[:, 0])
        mx.eval(accepted, overlaps)  # bounds memory to one batch
    if not accepted:
        return None
    return mx.concatenate(accepted).mean().item(), mx.concatenate(overlaps).mean().item()


class HeldOutEvaluation:
    """Evaluation of a drafter on held-out text, and on the target's greedy generations from it if there are any.

    Args:
        config: with ``seed, batch_size, length, anchors, evaluation_windows, generated_batch_size, generated_anchors,
            evaluation_rows`` and ``data``, of which ``valid, held_out_generations``.
        gamma: tokens of a block.

    Raises:
        UserError: the generations cannot be used.
    """

    def __init__(self, config: DictConfig, gamma: int) -> None:
        self.config, self.gamma = config, gamma
        self.text = load_tokens(config.data.valid)
        self.own: Mapping[str, np.ndarray] = {}
        if config.data.held_out_generations is not None:
            self.own, prompt_length = own_rows(config.data.held_out_generations, greedy=True)
            length = next(iter(self.own.values())).shape[1]
            self.first_anchor = first_own_anchor(length, prompt_length, gamma)

    def figures(self, judge: Judge) -> dict[str, float]:
        """What `acceptance` gives, by class.

        Returns:
            ``<class>`` and ``<class>_overlap_at_1`` of text; ``own_<class>`` and ``own_<class>_overlap_at_1`` of
            generations. A class without a whole window is left out.
        """
        config = self.config
        found = {}
        for name, source in self.text.items():
            windows = evaluation_windows(source, config.length, config.batch_size, config.evaluation_windows)
            found[name] = acceptance(judge, self.gamma, (rows for rows, _ in windows), config.anchors, config.seed)
        size = config.generated_batch_size
        for name, rows in self.own.items():
            rows = rows[: config.evaluation_rows]
            batches = (rows[first : first + size] for first in range(0, len(rows), size))
            anchors, first = config.generated_anchors, self.first_anchor
            found[f"own_{name}"] = acceptance(judge, self.gamma, batches, anchors, config.seed, first)
        figures = {}
        for name, pair in found.items():
            if pair is not None:
                figures[name], figures[f"{name}_overlap_at_1"] = pair
        return figures
