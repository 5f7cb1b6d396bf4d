"""Bits per byte of a target on all held-out text, beside the 5-gram model's: ``python -m experiments.evaluate_target``.

Needs the tokens of `experiments.tokens`; compares with `experiments.ngram_baseline` where that has been run.
"""

import json
from pathlib import Path

import hydra
import mlx.core as mx
from omegaconf import DictConfig
from rich.console import Console
from rich.table import Table

from experiments.program import run
from experiments.training.batches import load_tokens
from experiments.training.evaluation import bits_per_byte, read_bytes_per_token
from models import load_model


@hydra.main(version_base=None, config_path="configs", config_name="evaluate_target")
def main(config: DictConfig) -> None:
    """Evaluates, prints a table and writes it to ``output`` as JSON."""
    target = load_model(config.target, config.dtype)

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
    ngram = Path(config.ngram)
    baseline = _ngram_figures(json.loads(ngram.read_text(encoding="utf-8"))) if ngram.is_file() else {}
    table = Table(title=f"bits per byte, {config.target}")
    for column in ("class", "target", "5-gram"):
        table.add_column(column)
    for name, value in figures.items():
        table.add_row(name, f"{value:.3f}", f"{baseline[name]:.3f}" if name in baseline else "-")
    Console().print(table)
    output = Path(config.output)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps({"target": figures, "ngram": baseline}, indent=2) + "\n", encoding="utf-8")


def _ngram_figures(report: dict) -> dict[str, float]:
    """Bits per byte by class, and over all, from the baseline's report."""
    classes = report["classes"]
    figures = {name: counts["bits_per_byte"] for name, counts in classes.items()}
    bits, size = (sum(counts[key] for counts in classes.values()) for key in ("bits", "bytes"))
    return figures | {"all": bits / size}


if __name__ == "__main__":
    run(main)
