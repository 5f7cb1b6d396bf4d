"""Loss curves from a training log."""

import json
from pathlib import Path

from experiments.results import load_pyplot


def read_log(folder: Path) -> list[dict]:
    """The lines of ``log.jsonl``, if any; of steps logged twice (a resumed run) the later line counts."""
    if not (folder / "log.jsonl").is_file():
        return []
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    by_key = {(line["step"], "evaluation" in line): line for line in lines}
    return [by_key[key] for key in sorted(by_key)]


def draw_curves(folder: Path) -> Path | None:
    """Draws loss and held-out figures to ``curves.png``; returns it, or None without a log or matplotlib."""
    lines = read_log(folder)
    training = [line for line in lines if "evaluation" not in line]
    if not training:  # stopped before the first line
        return None
    pyplot = load_pyplot()
    if pyplot is None:
        return None
    evaluations = [line for line in lines if "evaluation" in line]
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4), layout="constrained")
    skipped = ("step", "tokens_per_s", "gradient_norm", "worst_overload", "match_at_", "is_generated")
    for name in [key for key in training[0] if not key.startswith(skipped)]:
        left.plot([line["step"] for line in training], [line[name] for line in training], label=name, linewidth=1)
    left.set(xlabel="step", ylabel="training loss (nats a token)", yscale="log")
    left.legend()
    for name in evaluations[0]["evaluation"] if evaluations else ():
        steps = [line["step"] for line in evaluations]
        right.plot(steps, [line["evaluation"][name] for line in evaluations], marker="o", markersize=3, label=name)
    right.set(xlabel="step", ylabel="held out")
    right.legend()
    file = folder / "curves.png"
    figure.savefig(file, dpi=120)
    pyplot.close(figure)
    return file
