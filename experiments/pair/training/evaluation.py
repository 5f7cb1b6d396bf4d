"""Bits per byte: a loss that is comparable between tokenizers."""

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path

import mlx.core as mx
import numpy as np

from experiments.pair.training.batches import evaluation_windows


def read_bytes_per_token(summary: Path, split: str) -> dict[str, float]:
    """Text bytes over tokens by class, from the summary that `experiments.pair.tokens` writes."""
    classes = json.loads(summary.read_text(encoding="utf-8"))["splits"][split]["classes"]
    return {name: counts["bytes"] / counts["tokens"] for name, counts in classes.items()}


def bits_per_byte(
    logits_of: Callable[[mx.array], mx.array],
    tokens: Mapping[str, np.ndarray],
    bytes_per_token: Mapping[str, float],
    *,
    length: int,
    batch_size: int,
    limit: int | None = None,
) -> dict[str, float]:
    """Bits per byte by class and over all scored tokens.

    Args:
        logits_of: tokens (B, T) int32 -> logits (B, T, V).
        tokens: flat token ids by class. bytes_per_token: text bytes over tokens, by class.
        length, batch_size, limit: as `evaluation_windows`, the limit a class.

    Returns:
        By class, and ``all``: total bits over total bytes.
    """
    result, total_bits, total_bytes = {}, 0.0, 0.0
    for name, source in tokens.items():
        bits, scored = 0.0, 0
        for windows, tail in evaluation_windows(source, length, batch_size, limit):
            inputs = mx.array(windows)
            logits = logits_of(inputs)[:, -tail - 1 : -1].astype(mx.float32)
            targets = inputs[:, -tail:]
            losses = mx.logsumexp(logits, axis=-1) - mx.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
            bits += losses.sum().item() / math.log(2)
            scored += targets.size
        if scored:
            result[name] = bits / (scored * bytes_per_token[name])
            total_bits += bits
            total_bytes += scored * bytes_per_token[name]
    result["all"] = total_bits / total_bytes
    return result
