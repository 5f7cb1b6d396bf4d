"""Bits per byte of SmolLM2-135M-Instruct on the held-out text: `python -m experiments.evaluate_reference`.

An external reference: a model 13 times as large as the shipped target, trained on 2 trillion tokens of other text. It
reads each held-out document alone, after its begin token, in half-overlapping windows. Bits per byte are comparable
although the tokenizers differ. Best on a GPU.
"""

import math
import sys
from pathlib import Path

import hydra
import mlx.core as mx
import numpy as np
from omegaconf import DictConfig
from rich.console import Console
from rich.progress import track
from rich.table import Table

from experiments.pair.data.documents import CLASSES, read_documents
from experiments.pair.data.smollm import LanguageModel, find_gguf, load_llama
from experiments.results import write_json
from models import ModelError
from spec.programs.frame import run


def windows(tokens: list[int], length: int) -> list[tuple[list[int], int]]:
    """Half-overlapping windows of one document, each with how many tokens at its end are to be scored.

    Every token but the first is scored once, after at least ``length // 2`` tokens or all that there are before it.
    """
    found = [(tokens[:length], min(len(tokens), length) - 1)]
    stride = length // 2
    for end in range(length + stride, len(tokens) + stride, stride):
        last = min(end, len(tokens))
        found.append((tokens[last - length : last], last - (end - stride)))
    return [(window, tail) for window, tail in found if tail > 0]


def document_bits(language_model: LanguageModel, texts: list[str], length: int, batch_size: int) -> float:
    """Total bits of the texts, each predicted from its own beginning only.

    Args:
        language_model: its tokens 0 to 2 begin and end texts; the first is put before each text and is not scored.
        texts: whole documents. length: tokens a window, even. batch_size: windows a pass.
    """
    begin = language_model.tokenizer.token_to_id("<|endoftext|>")
    encodings = language_model.tokenizer.encode_batch(texts, add_special_tokens=False)
    pairs = sorted(
        (pair for encoding in encodings for pair in windows([begin, *encoding.ids], length)),
        key=lambda pair: len(pair[0]),
    )
    bits = 0.0
    for first in track(range(0, len(pairs), batch_size), description="batches", transient=True):
        group = pairs[first : first + batch_size]
        width = max(len(window) for window, _ in group)
        padded = np.array([window + [begin] * (width - len(window)) for window, _ in group], dtype=np.int32)
        ends = np.array([len(window) for window, _ in group])[:, None]
        tails = np.array([tail for _, tail in group])[:, None]
        places = np.arange(1, width)[None]
        is_scored = mx.array((places < ends) & (places >= ends - tails))
        inputs = mx.array(padded)
        logits = language_model.model(inputs)[:, :-1].astype(mx.float32)
        truth = mx.take_along_axis(logits, inputs[:, 1:, None], axis=-1)[..., 0]
        losses = mx.logsumexp(logits, axis=-1) - truth
        bits += mx.where(is_scored, losses, 0.0).sum().item() / math.log(2)
    return bits


@hydra.main(version_base=None, config_path=str(Path(__file__).parent / "configs"), config_name="evaluate_reference")
def main(config: DictConfig) -> None:
    """Evaluates, prints a table and writes it to ``output`` as JSON."""
    language_model = load_llama(find_gguf(Path(config.downloads)), config.dtype)
    figures, totals = {}, [0.0, 0]
    for kind in CLASSES:
        texts = [document.text for document in read_documents(Path(config.corpus), "valid", kind)][: config.documents]
        size = sum(len(text.encode("utf-8")) for text in texts)
        bits = document_bits(language_model, texts, config.length, config.batch_size)
        figures[kind] = {"bits_per_byte": bits / size, "bytes": size, "documents": len(texts)}
        totals = [totals[0] + bits, totals[1] + size]
    figures["all"] = {"bits_per_byte": totals[0] / totals[1], "bytes": totals[1]}
    table = Table(title="bits per byte, SmolLM2-135M-Instruct")
    for column in ("class", "bits per byte", "bytes"):
        table.add_column(column)
    for name, row in figures.items():
        table.add_row(name, f"{row['bits_per_byte']:.3f}", str(row["bytes"]))
    Console().print(table)
    write_json(config.output, figures)


if __name__ == "__main__":
    sys.exit(run(main, ModelError))
