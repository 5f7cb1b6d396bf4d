"""What the steps of a round cost on this machine: ``python -m spec.measure_costs``, then ``costs=this_machine``.

Block policies and the virtual clock take their prices from the table that this writes, so that what they decide depends
on one measurement and not on the load of the moment. Medians; widths take turns, so that a drift falls on all of them.
"""

import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import hydra
import mlx.core as mx
from omegaconf import DictConfig
from rich.console import Console
from rich.table import Table

from spec import Context, CostTable, TargetSession
from spec.measure.environment import backend
from spec.programs.frame import CONFIGS, run
from spec.programs.parts import as_yaml, build_drafter, load_target
from spec.prompts import encode, load_prompts
from spec.protocols import Drafter


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """Milliseconds of a call, and what it returned."""
    started = time.perf_counter()
    result = call()
    return 1000 * (time.perf_counter() - started), result


def measure(
    model: Any, drafter: Drafter, prompt: Sequence[int], *, name: str, rows: int, gamma: int, repeats: int
) -> CostTable:
    """Times passes of 1..rows tokens and proposals of 0..gamma, after a prompt.

    Args:
        model: the target.
        drafter: its drafter.
        prompt: at least two tokens, whose beginning is also what the passes run.
        name: of the table.
        rows: widest pass.
        gamma: longest proposal.
        repeats: times each is run; one more, the first, is not counted.
    """
    session = TargetSession(model, tapped_layers=drafter.tapped_layers, max_rollback=rows)
    drafter.reset(len(prompt))
    context = Context(prompt, reference=prompt[: gamma + 1], prompt_length=len(prompt))
    for tokens, features in session.prefill(prompt[:-1]):
        drafter.observe(tokens, features)
    inputs = [prompt[index % len(prompt)] for index in range(rows)]
    passes, proposals, snapshots, commits = defaultdict(list), defaultdict(list), [], []
    for repeat in range(repeats + 1):
        snapshot, _ = timed(session.snapshot)
        if repeat:
            snapshots.append(snapshot)
        for width in range(1, rows + 1):
            passed, _ = timed(lambda width=width: session.forward(inputs[:width]))
            committed, _ = timed(lambda width=width: session.trim(width))
            if repeat:
                passes[width].append(passed)
                commits.append(committed)
        for count in range(gamma + 1):
            # A proposal of none is one whose first confidence is refused; a drafter without confidences has no such.
            took, proposal = timed(
                lambda count=count: drafter.propose(
                    context, max(1, count), None if count else lambda confidences: False
                )
            )
            if repeat:
                proposals[len(proposal.tokens)].append(took)
    return CostTable(
        name=name,
        passes={width: round(median(times), 4) for width, times in passes.items()},
        propose={count: round(median(times), 4) for count, times in proposals.items()},
        snapshot=round(median(snapshots), 4),
        commit=round(median(commits), 4),
    )


@hydra.main(version_base=None, config_path=CONFIGS, config_name="measure_costs")
def main(config: DictConfig) -> None:
    """Measures, prints the table and writes it to ``output``."""
    model, tokenizer = load_target(as_yaml(config.target))
    drafter = build_drafter(config.drafter, model)
    prompt = encode(load_prompts([config.prompts], name="costs", limit=1)[0], tokenizer)
    gamma = config.gamma if drafter.max_gamma is None else min(config.gamma, drafter.max_gamma)
    info = mx.device_info()
    table = measure(
        model,
        drafter,
        prompt,
        name=f"{info.get('device_name', info.get('architecture', 'unknown'))} ({backend()})",
        rows=config.rows,
        gamma=gamma,
        repeats=config.repeats,
    )
    table.save(Path(config.output))
    shown = Table(title=f"ms on {table.name}")
    for column in ("tokens", "pass", "to one row", "propose"):
        shown.add_column(column)
    for count in range(config.rows + 1):
        took, proposed = table.passes.get(count), table.propose.get(count)
        shown.add_row(
            str(count),
            "-" if took is None else f"{took:.2f}",
            "-" if took is None else f"{took / table.pass_ms(1):.2f}",
            "-" if proposed is None else f"{proposed:.2f}",
        )
    Console().print(shown)


if __name__ == "__main__":
    sys.exit(run(main))
