"""Compares the acceptance of drafters on the same recorded continuations: ``python -m experiments.acceptance``.

Nothing is decoded: the recordings say which token the target emits next. Two figures are computed:

- *tau*: each sequence is walked from its first generated token in steps of accepted + 1, as the loop does.
- *accepted drafts*: every position of the target's own text is an anchor, the same ones for all drafters. More precise,
  and what quantized drafters are compared by; only DSpark can draft at all positions at once.

Intervals are 95% over resampled sequences, differences to the reference are paired.

Record with ``python -m experiments.pair.generate``. On a CPU the BLAS of MLX's wheel takes minutes a drafter; OpenBLAS
or MKL (by ``LD_PRELOAD``) are much faster.
"""

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hydra
import numpy as np
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.progress import track
from rich.table import Table

from experiments.evaluation.blocks import BlocksDrafter, DraftedBlocks, accepted_drafts, draft_everywhere
from experiments.evaluation.bootstrap import Estimate, Sums, difference, ratio
from experiments.evaluation.continuations import Continuation, batches, group_names, load_continuations, members
from experiments.evaluation.drafters import DrafterEntry, Features, make_drafter
from experiments.evaluation.walk import walk
from experiments.results import write_json
from experiments.settings import default_dtype, texts
from models import ModelError, load_model
from models.deepseek_v4.moe import evaluate_every_expert
from spec.errors import UserError
from spec.measure.environment import describe
from spec.measure.repetition import repeated_ngram_share
from spec.measure.summary import acceptance
from spec.programs.frame import run
from spec.rounds import Round


@dataclass(kw_only=True)
class DrafterResult:
    """Results of one drafter.

    Attributes:
        rounds: of the walk, by sequence.
        accepted: (A,) accepted drafts at every anchor, by sequence; empty for a drafter that only walks.
        seconds: drafting time, the target's passes excluded.
    """

    rounds: dict[int, list[Round]] = field(default_factory=dict)
    accepted: dict[int, np.ndarray] = field(default_factory=dict)
    seconds: float = 0.0

    def tau(self, numbers: Sequence[int]) -> Sums:
        """Emitted tokens and rounds of the sequences: their ratio is tau."""
        rounds = [self.rounds[number] for number in numbers]
        return [sum(len(item.tokens) for item in ours) for ours in rounds], [len(ours) for ours in rounds]

    def accepted_drafts(self, numbers: Sequence[int]) -> Sums:
        """Accepted drafts and positions of the sequences; empty for a drafter that only walks."""
        accepted = [self.accepted[number] for number in numbers if number in self.accepted]
        return [int(ours.sum()) for ours in accepted], [len(ours) for ours in accepted]


def measure(
    continuations: Sequence[Continuation], drafters: Sequence[DrafterEntry], target: Any, console: Console
) -> dict[str, DrafterResult]:
    """Runs every drafter over every sequence.

    Args:
        continuations: recordings. drafters: whose results are wanted. target: the model that both belong to.
        console: gets the progress.

    Returns:
        By drafter's name.
    """
    measured = {item.name: DrafterResult() for item in drafters}
    # Only positions that every drafter's block fits after, so that drafters of different lengths share their anchors.
    longest = max((item.gamma for item in drafters if item.is_parallel), default=0)
    every = list(batches(continuations))
    for batch in track(every, description="sequences", console=console, transient=True):
        features = Features(target, batch.tokens)
        for item in drafters:
            tapped = features.at(item.drafter.tapped_layers)
            started = time.perf_counter()
            ours = measured[item.name]
            if item.is_parallel:
                spans = [range(one.start, len(one.tokens) - 1) for one in batch.continuations]
                blocks = draft_everywhere(item.drafter.network, batch.tokens, tapped, spans)
                for number, one, each in zip(batch.numbers, batch.continuations, blocks, strict=True):
                    cut = DraftedBlocks(
                        first=each.first,
                        drafts=each.drafts[:, : item.gamma],
                        confidence_logits=each.confidence_logits[:, : item.gamma],
                    )
                    ours.rounds[number] = walk(one, BlocksDrafter(cut), None, item.gamma, target.args.vocab_size)
                    ours.accepted[number] = accepted_drafts(cut, one.tokens, max(0, len(one.own) - longest))
            else:
                for row, (number, one) in enumerate(zip(batch.numbers, batch.continuations, strict=True)):
                    seen = None if tapped is None else tapped[row, : len(one.tokens)]
                    ours.rounds[number] = walk(one, item.drafter, seen, item.gamma, target.args.vocab_size)
            ours.seconds += time.perf_counter() - started
    return measured


def describe_group(
    name: str,
    temperature: float,
    measured: Mapping[str, DrafterResult],
    reference: str | None,
    continuations: Sequence[Continuation],
) -> list[dict[str, Any]]:
    """A row for each drafter, for one class and temperature; see `report`."""
    numbers = members(continuations, name, temperature)
    repeated = float(np.mean([repeated_ngram_share(continuations[number].own.tolist()) for number in numbers]))
    base = measured.get(reference) if reference else None
    rows = []
    for drafter, ours in measured.items():
        rounds = [item for number in numbers for item in ours.rounds[number]]
        tau, accepted = ours.tau(numbers), ours.accepted_drafts(numbers)
        gaps = None
        if base is not None and drafter != reference:
            gaps = {
                "tau": _json(difference(tau, base.tau(numbers))),
                "accepted_drafts": _json(difference(accepted, base.accepted_drafts(numbers)))
                if accepted[0] and base.accepted
                else None,
            }
        rows.append(
            {
                "drafter": drafter,
                "class": name,
                "temperature": temperature,
                "num_sequences": len(numbers),
                "num_rounds": len(rounds),
                "num_positions": sum(accepted[1]),
                **acceptance(rounds),
                "tau": _json(ratio(tau)),
                "accepted_drafts": _json(ratio(accepted)),
                "survival_at": _survival([ours.accepted[number] for number in numbers if number in ours.accepted]),
                "against_reference": gaps,
                "repeated_4gram_share": repeated,
            }
        )
    return rows


def _json(estimate: Estimate | None) -> dict[str, float] | None:
    return None if estimate is None else estimate.to_json()


def _survival(accepted: Sequence[np.ndarray]) -> list[float]:
    """Share of all positions at which drafts 1..k are accepted, for k from 1 to the largest accepted count."""
    joined = np.concatenate([*accepted, np.zeros(0, dtype=np.int64)])
    return [float((joined >= count).mean()) for count in range(1, int(joined.max(initial=0)) + 1)]


def report(
    continuations: Sequence[Continuation], measured: Mapping[str, DrafterResult], reference: str | None
) -> list[dict[str, Any]]:
    """Figures of every class (``all`` classes first), temperature and drafter.

    Returns:
        Rows of ``drafter, class, temperature, num_sequences, num_rounds, num_positions``; of the walk ``tau`` (value,
        low, high: tokens a round, next token included), ``acceptance_rate`` and ``accept_rate_at`` as in
        ``summary.json``; of all positions ``accepted_drafts`` (value, low, high) and ``survival_at`` (share at which
        drafts 1..k are accepted); ``against_reference``: differences of both to the reference; ``repeated_4gram_share``
        of the recordings.
    """
    return [
        row
        for name, temperature in group_names(continuations)
        if members(continuations, name, temperature)
        for row in describe_group(name, temperature, measured, reference, continuations)
    ]


def print_report(rows: Sequence[Mapping[str, Any]], reference: str | None, console: Console) -> None:
    """Prints two tables for each temperature: tau, and accepted drafts at all positions."""
    for temperature in dict.fromkeys(row["temperature"] for row in rows):
        ours = [row for row in rows if row["temperature"] == temperature]
        classes = list(dict.fromkeys(row["class"] for row in ours))
        for figure, title in (("tau", "tau"), ("accepted_drafts", "accepted drafts at all positions")):
            table = Table(title=f"{title}, temperature {temperature:g}")
            for column in ("drafter", *classes, "accepted at"):
                table.add_column(column)
            for drafter in dict.fromkeys(row["drafter"] for row in ours):
                by_class = {row["class"]: row for row in ours if row["drafter"] == drafter}
                if by_class["all"][figure] is None:
                    continue
                at = by_class["all"]["accept_rate_at" if figure == "tau" else "survival_at"]
                table.add_row(
                    drafter,
                    *(_cell(by_class[name], figure) for name in classes),
                    " ".join(f"{rate:.2f}" for rate in at),
                )
            if table.row_count:
                console.print(table)
    console.print(
        "tau: tokens a round, next token included. In brackets, 95% over resampled sequences: "
        f"of the figure, and of its difference to {reference}. Accepted at: by position of the walk's blocks, of all "
        "classes; in the second table, share of positions at which drafts 1 to k are accepted."
    )


def _cell(row: Mapping[str, Any], figure: str) -> str:
    value, gap = row[figure], row["against_reference"] and row["against_reference"][figure]
    if value is None:
        return "-"
    if gap is None:
        return f"{value['value']:.3f} ({value['low']:.2f} to {value['high']:.2f})"
    return f"{value['value']:.3f} ({gap['low']:+.3f} to {gap['high']:+.3f})"


@hydra.main(version_base=None, config_path=str(Path(__file__).parent / "configs"), config_name="acceptance")
def main(config: DictConfig) -> None:
    """Measures, prints tables and writes ``output``."""
    entries = _chosen(config)
    continuations = load_continuations(
        texts(config.continuations), temperatures=config.temperatures, limit=config.limit
    )
    dtype = config.dtype or default_dtype()
    target = load_model(config.target, dtype)
    evaluate_every_expert(target)
    drafters = [make_drafter(name, entry, target) for name, entry in entries.items()]
    console = Console(width=None if Console().is_terminal else 180)
    measured = measure(continuations, drafters, target, console)
    rows = report(continuations, measured, config.reference)
    print_report(rows, config.reference, console)
    whole = {
        "continuations": texts(config.continuations),
        "reference": config.reference,
        "drafters": {
            item.name: {"gamma": item.gamma} | OmegaConf.to_container(entries[item.name]) for item in drafters
        },
        "seconds": {name: round(item.seconds, 2) for name, item in measured.items()},
        "environment": describe(seed=0, dtype=dtype, checkpoints={"target": target.path}),
        "rows": rows,
    }
    write_json(config.output, whole)
    console.print(f"{sum(item.seconds for item in measured.values()):.0f} s of drafting; figures in {config.output}")


def _chosen(config: DictConfig) -> dict[str, DictConfig]:
    """The drafters to compare, by name.

    Raises:
        UserError: ``only`` names a drafter that is not configured, none is left, or the reference is not among them.
    """
    names = list(config.drafters) if config.only is None else texts(config.only)
    missing = [name for name in names if name not in config.drafters]
    if missing or not names:
        raise UserError(f"only: wanted some of {', '.join(config.drafters)}, got {', '.join(missing) or 'none'}")
    if config.reference is not None and config.reference not in names:
        raise UserError(f"reference: wanted null or one of {', '.join(names)}, got {config.reference!r}")
    return {name: config.drafters[name] for name in names}


if __name__ == "__main__":
    sys.exit(run(main, ModelError))
