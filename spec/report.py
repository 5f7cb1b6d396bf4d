"""``python -m spec.report <folder>``: the table of a finished run, from its ``summary.json``."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from spec.errors import UserError, one_line
from spec.measure.records import read_summary

WIDTH = 150  # where output goes to a file or a pipe, which has no width of its own
COLUMNS = ("prompts", "tokens/s", "baseline", "speed-up", "tau", "accepted at", "exactness", "4-grams", "ms a round")
PARTS = ("propose", "snapshot", "verify", "commit", "replay", "target", "other")


def print_summary(summary: Mapping[str, Any], console: Console) -> None:
    """Prints one table, a row a prompt class, and the notes that its figures need.

    Args:
        summary: as in ``summary.json``.
        console: where to.
    """
    environment = summary["environment"]
    table = Table(title=f"{summary['experiment']} on {environment['device']} ({environment['backend']})")
    for column in COLUMNS:
        table.add_column(column)
    for row in summary["by_class"]:
        table.add_row(
            f"{row['class']} ({row['num_prompts']})",
            number(row["tokens_per_s"], 1),
            number(row["baseline_tokens_per_s"], 1),
            speedup(row),
            number(row["tau"], 2),
            " ".join(number(rate, 2) for rate in row["accept_rate_at"]) or "-",
            exactness(row["exactness"]),
            number(row["repeated_4gram_share"], 2),
            time_split(row["account"]),
        )
    console.print(table)
    console.print(
        "speed-up: median over repeats (least to most). tau: tokens a round, next token included. "
        "4-grams: share that repeats an earlier one of the same output.",
        style="dim",
    )
    if summary.get("state") is not None:
        console.print(state(summary["state"]))


def number(value: float | None, digits: int) -> str:
    """A number for the table; a dash for what was not measured."""
    return "-" if value is None else f"{value:.{digits}f}"


def speedup(row: Mapping[str, Any]) -> str:
    """Median and spread."""
    if row["speedup"] is None:
        return "-"
    return f"{row['speedup']:.2f}x ({row['speedup_min']:.2f} to {row['speedup_max']:.2f})"


def exactness(values: Mapping[str, Any]) -> str:
    """Whether the baseline's tokens came out, or where not, and the worst gap to the argmax."""
    parts = []
    split = values["first_divergence"]
    if values["identical_to_baseline"]:
        parts.append("as baseline")
    elif split is not None:
        margin = "" if split["logit_margin"] is None else f", margin {split['logit_margin']:.3g}"
        parts.append(f"{split['prompt_id']} differs at {split['position']}{margin}")
    if values["worst_argmax_gap"] is not None:
        parts.append(f"gap {values['worst_argmax_gap']:.3f} at {values['at']}")
    return ", ".join(parts) or "not checked"


def state(values: Mapping[str, Any]) -> str:
    """Whether cache rows were plain decoding's after every round."""
    difference = values["first_difference"]
    if difference is None:
        return f"cache rows: equal to plain decoding's to the bit after each of {values['rounds']} rounds"
    return (
        f"cache rows: differ from plain decoding's by up to {values['worst_gap']:.3g}, first after round "
        f"{difference['round']} of {difference['prompt_id']} in {difference['rows']}"
    )


def time_split(account: Mapping[str, Any]) -> str:
    """Where a round's time went, parts that took none left out."""
    if not account["cycles"]:
        return "-"
    each = {part: account["time_ms"].get(part, 0.0) / account["cycles"] for part in PARTS}
    return ", ".join(f"{part} {value:.2f}" for part, value in each.items() if value >= 0.005) or "-"


def make_console() -> Console:
    """Standard output; wide enough for the table where it is no terminal."""
    console = Console()
    return console if console.is_terminal else Console(width=WIDTH)


def main(arguments: Sequence[str]) -> int:
    """The program. Returns its exit code."""
    console = make_console()
    try:
        if len(arguments) != 1:
            raise UserError("usage: python -m spec.report <output folder of a run>")
        print_summary(read_summary(arguments[0]), console)
    except UserError as error:
        print(f"error: {one_line(error)}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
