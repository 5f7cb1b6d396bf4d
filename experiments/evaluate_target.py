"""Bits per byte of a target on all held-out text: ``python -m experiments.evaluate_target``.

Needs the tokens of `experiments.pair.tokens`. Figures of `experiments.ngram_baseline` and
`experiments.evaluate_reference` are printed beside, where they have been run. With ``storage=fp8`` the target's weights
are first rounded as a base checkpoint of the real model stores them.
"""

import json
import sys
from pathlib import Path

import hydra
import mlx.core as mx
from omegaconf import DictConfig
from rich.console import Console
from rich.table import Table

from experiments.pair.training.batches import load_tokens
from experiments.pair.training.evaluation import bits_per_byte, read_bytes_per_token
from experiments.pair.training.storage import round_as_fp8_checkpoint
from experiments.results import write_json
from models import ModelError, load_model
from spec.errors import UserError
from spec.programs.frame import run


@hydra.main(version_base=None, config_path=str(Path(__file__).parent / "configs"), config_name="evaluate_target")
def main(config: DictConfig) -> None:
    """Evaluates, prints a table and writes it to ``output`` as JSON."""
    target = load_model(config.target, config.dtype)
    if config.storage not in (None, "fp8"):
        raise UserError(f"storage: wanted null (weights as they are) or fp8, got {config.storage!r}")
    if config.storage == "fp8":
        plain, rounded = round_as_fp8_checkpoint(target)
        print(f"weights in bfloat16 {plain / 1e6:.2f} MB, with projections and experts in fp8 {rounded / 1e6:.2f} MB")

    def logits_of(tokens: mx.array) -> mx.array:
        logits = target(tokens)
        mx.eval(logits)  # a window at a time: bounds memory on a CPU
        return logits

    figures = bits_per_byte(
        logits_of,
        load_tokens(config.valid),
        read_bytes_per_token(Path(config.summary), "valid"),
        length=config.length,
        batch_size=config.batch_size,
        limit=config.windows,
    )
    columns = {"target": figures, "5-gram": _ngram_figures(Path(config.ngram))}
    columns["SmolLM2-135M"] = _reference_figures(Path(config.reference))
    table = Table(title=f"bits per byte, {config.target}" + (" in fp8" if config.storage else ""))
    for column in ("class", *columns):
        table.add_column(column)
    for name in figures:
        table.add_row(name, *(f"{column[name]:.4f}" if name in column else "-" for column in columns.values()))
    Console().print(table)
    write_json(config.output, columns)


def _ngram_figures(file: Path) -> dict[str, float]:
    """Bits per byte by class, and over all, from the n-gram model's report; empty without one."""
    if not file.is_file():
        return {}
    classes = json.loads(file.read_text(encoding="utf-8"))["classes"]
    figures = {name: counts["bits_per_byte"] for name, counts in classes.items()}
    bits, size = (sum(counts[key] for counts in classes.values()) for key in ("bits", "bytes"))
    return figures | {"all": bits / size}


def _reference_figures(file: Path) -> dict[str, float]:
    """Bits per byte by class, and over all, from the reference model's report; empty without one."""
    if not file.is_file():
        return {}
    return {name: row["bits_per_byte"] for name, row in json.loads(file.read_text(encoding="utf-8")).items()}


if __name__ == "__main__":
    sys.exit(run(main, ModelError))
