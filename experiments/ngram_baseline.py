"""Bits per byte of a 5-gram model on the valid tokens: `python -m experiments.ngram_baseline`.

The floor that a trained target has to beat: an interpolated modified Kneser-Ney model of the same training tokens, in
bits per byte by class and over all. Every token but the begin of sentence is scored, the end of sentence included; the
denominator is the UTF-8 bytes of the texts.
"""

import logging
import sys
import time
from pathlib import Path

import hydra
import numpy as np
from omegaconf import DictConfig

from experiments.pair.data.kneser_ney import KneserNeyModel
from experiments.results import write_json
from models import ModelError
from spec.programs.frame import run

logger = logging.getLogger(__name__)


def bits_per_byte(model: KneserNeyModel, tokens: np.ndarray, num_bytes: int, begin: int) -> dict:
    """Bits per byte and per token of one class.

    Args:
        model: the n-gram model.
        tokens: (T,) uint16, documents that start with `begin`.
        num_bytes: UTF-8 bytes of the documents.
        begin: id of the begin of sentence token, which is given and not scored.

    Returns:
        `{"bits_per_byte", "bits_per_token", "bits", "tokens", "bytes"}`.
    """
    bits = -np.log2(model.probabilities(tokens))[tokens != begin]
    total = float(bits.sum())
    return {
        "bits_per_byte": total / num_bytes,
        "bits_per_token": total / len(bits),
        "bits": total,
        "tokens": len(bits),
        "bytes": num_bytes,
    }


@hydra.main(version_base="1.3", config_path=str(Path(__file__).parent / "configs"), config_name="ngram_baseline")
def main(config: DictConfig) -> None:
    """Entry point of `python -m experiments.ngram_baseline`."""
    started = time.perf_counter()
    with np.load(Path(config.tokens) / "train.npz") as arrays:
        classes = [name for name in arrays.files if not name.endswith("_bytes")]
        train = np.concatenate([arrays[kind] for kind in classes])
    model = KneserNeyModel(train, config.vocabulary_size, config.order)
    logger.info("counted %d tokens in %.0f s", len(train), time.perf_counter() - started)
    result: dict = {
        "model": f"{config.order}-gram, interpolated modified Kneser-Ney",
        "train_tokens": len(train),
        "ngrams": [len(table.keys) for table in model.orders],
        "classes": {},
    }
    with np.load(Path(config.tokens) / "valid.npz") as arrays:
        for kind in classes:
            row = bits_per_byte(model, arrays[kind], int(arrays[f"{kind}_bytes"]), config.begin_id)
            result["classes"][kind] = row
            logger.info("%-16s %.4f bits a byte, %.3f bits a token", kind, row["bits_per_byte"], row["bits_per_token"])
    rows = result["classes"].values()
    result["bits_per_byte"] = sum(row["bits"] for row in rows) / sum(row["bytes"] for row in rows)
    logger.info("%-16s %.4f bits a byte", "all", result["bits_per_byte"])
    write_json(config.output, result)


if __name__ == "__main__":
    sys.exit(run(main, ModelError))
