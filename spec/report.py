"""``python -m spec.report FOLDER...``: one table of runs and sweeps, from their ``summary.json``.

``--csv`` and ``--json`` print the same rows for other programs.
"""

import argparse
import csv
import json
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from spec.errors import UserError
from spec.measure.records import SUMMARY, read_summary
from spec.programs.frame import run

WIDTH = 100  # where output goes to a file or a pipe, which has no width of its own
PARTS = ("propose", "snapshot", "verify", "commit", "replay", "target", "other")

Summary = Mapping[str, Any]


def print_table(summaries: Sequence[Summary], console: Console) -> None:
    """Prints one table, a row a job and prompt class, and a line a row about acceptance and time below it.

    Args:
        summaries: as in ``summary.json``, at least one.
        console: where to.
    """
    keys = differing_overrides(summaries)
    names = {f"{row['class']} ({row['num_prompts']})" for summary in summaries for row in summary["by_class"]}
    has_names = len(names) > 1  # one prompt class for all goes into the title
    table = Table(
        title=escape(_title(summaries, names)),
        box=box.SIMPLE_HEAD,
        padding=(0, int(console.width > 80), 0, 0),  # a narrow terminal needs the room for the words
        pad_edge=False,
        show_edge=False,
    )
    for name in _short(keys):
        table.add_column(name, overflow="fold")
    if has_names:
        table.add_column("prompts", no_wrap=True)
    for column in ("tokens/s", "baseline", "speed-up", "tau", "exactness"):
        is_number = column in ("tokens/s", "baseline", "tau")
        table.add_column(column, justify="right" if is_number else "left", no_wrap=column != "exactness")
    below = []
    for summary in summaries:
        given = parse_overrides(summary)
        values = [given.get(key, "-") for key in keys]
        for row in summary["by_class"]:
            name = f"{row['class']} ({row['num_prompts']})"
            table.add_row(
                *map(escape, values),
                *([escape(name)] if has_names else []),
                number(row["tokens_per_s"], 1),
                number(row["baseline_tokens_per_s"], 1),
                speedup(row),
                number(row["tau"], 2),
                escape(row["exactness"]["verdict"]),
            )
            given_here = [f"{key}={value}" for key, value in zip(_short(keys), values, strict=True)]
            below.append(f"{' '.join([*given_here, name])}: {details(row)}")
    console.print(table)
    for line in below:
        console.print(line, highlight=False, markup=False)


def print_notes(summaries: Sequence[Summary], console: Console) -> None:
    """Prints what the figures of a table mean, and what to heed in them."""
    notes = ["speed-up: median over repeats (least to most). tau: tokens a round, next token included."]
    baselines = [value for summary in summaries if (value := summary["baseline_tokens_per_s"]) is not None]
    if len(set(baselines)) > 1:
        notes.append(
            f"The baselines lie between {min(baselines):.1f} and {max(baselines):.1f} tokens/s: these jobs were not "
            "measured in one rotation, so compare their speed-ups and not their speeds."
        )
    for note in notes:
        console.print(note, style="dim", highlight=False, markup=False)
    for summary in summaries:
        if summary.get("state") is not None:
            console.print(state(summary["state"]), highlight=False)


def _title(summaries: Sequence[Summary], names: Collection[str]) -> str:
    experiments = dict.fromkeys(summary["experiment"] for summary in summaries)
    machines = dict.fromkeys(f"{one['device']} ({one['backend']})" for one in (s["environment"] for s in summaries))
    prompts = f", {next(iter(names))}" if len(names) == 1 else ""
    return f"{', '.join(experiments)}{prompts}, on {', '.join(machines)}"


def parse_overrides(summary: Summary) -> dict[str, str]:
    """The command line's overrides by key; what is local to a folder left out."""
    pairs = [text.lstrip("+~").partition("=") for text in summary.get("overrides", [])]
    return {key: value for key, _, value in pairs if not key.startswith("hydra.")}


def differing_overrides(summaries: Sequence[Summary]) -> list[str]:
    """Keys whose values are not the same in all summaries, in the order of the command line."""
    given = [parse_overrides(summary) for summary in summaries]
    keys = dict.fromkeys(key for one in given for key in one)
    return [key for key in keys if len({one.get(key) for one in given}) > 1]


def _short(keys: Sequence[str]) -> list[str]:
    """The last part of each key, or all of it where two end alike."""
    ends = [key.rpartition(".")[2] for key in keys]
    return [end if ends.count(end) == 1 else key for key, end in zip(keys, ends, strict=True)]


def rows(summaries: Sequence[Summary]) -> list[dict[str, Any]]:
    """The table as flat objects, a job and prompt class each."""
    keys = differing_overrides(summaries)
    return [
        {
            "experiment": summary["experiment"],
            **{key: parse_overrides(summary).get(key) for key in keys},
            "class": row["class"],
            **{
                name: row[name]
                for name in (
                    *("num_prompts", "num_tokens", "tokens_per_s", "baseline_tokens_per_s"),
                    *("speedup", "speedup_min", "speedup_max", "tau", "acceptance_rate", "repeated_4gram_share"),
                )
            },
            "accept_rate_at": " ".join(number(rate, 4) for rate in row["accept_rate_at"]),
            "exactness": row["exactness"]["verdict"],
            **{f"{part}_ms": value for part, value in ms_a_round(row["account"]).items()},
            "net_saved_ms": row["account"]["time_ms"].get("net_saved"),
        }
        for summary in summaries
        for row in summary["by_class"]
    ]


def number(value: float | None, digits: int) -> str:
    """A number for the table; a dash for what was not measured."""
    return "-" if value is None else f"{value:.{digits}f}"


def speedup(row: Mapping[str, Any]) -> str:
    """Median and spread."""
    if row["speedup"] is None:
        return "-"
    median, least, most = (f"{row[name]:.2f}" for name in ("speedup", "speedup_min", "speedup_max"))
    return f"{median}x" if least == most else f"{median}x ({least} to {most})"


def details(row: Mapping[str, Any]) -> str:
    """What does not fit into a row of the table: acceptance by position, time by part, repetition."""
    parts = []
    if row["accept_rate_at"]:
        parts.append(f"accepted at 1 to {len(row['accept_rate_at'])}: ")
        parts[-1] += " ".join(number(rate, 2) for rate in row["accept_rate_at"])
    parts.append(f"ms a round: {time_split(row['account'])}")
    parts.append(f"4-grams that repeat: {number(row['repeated_4gram_share'], 2)}")
    return "; ".join(parts)


def ms_a_round(account: Mapping[str, Any]) -> dict[str, float]:
    """Milliseconds a round by part; empty without rounds."""
    if not account["cycles"]:
        return {}
    return {part: account["time_ms"].get(part, 0.0) / account["cycles"] for part in PARTS}


def time_split(account: Mapping[str, Any]) -> str:
    """Where a round's time went, parts that took none left out."""
    return ", ".join(f"{part} {value:.2f}" for part, value in ms_a_round(account).items() if value >= 0.005) or "-"


def state(values: Mapping[str, Any]) -> str:
    """Whether cache rows were plain decoding's after every round."""
    difference = values["first_difference"]
    if difference is None:
        return f"cache rows: equal to plain decoding's to the bit after each of {values['rounds']} rounds"
    return (
        f"cache rows: differ from plain decoding's by up to {values['worst_gap']:.3g}, first after round "
        f"{difference['round']} of {difference['prompt_id']} in {difference['rows']}"
    )


def make_console() -> Console:
    """Standard output; wide enough for the table where it is no terminal."""
    console = Console()
    return console if console.is_terminal else Console(width=WIDTH)


def find_summaries(folders: Sequence[str]) -> list[dict[str, Any]]:
    """The summaries of runs and of every finished job of sweeps, in the order of their folders.

    Raises:
        UserError: a folder holds none.
    """
    found = []
    for folder in folders:
        paths = sorted(Path(folder).rglob(SUMMARY), key=_in_number_order)
        if not paths:
            raise UserError(f"{folder} holds no {SUMMARY}: wanted the output folder of a finished run or a sweep")
        found += [read_summary(path.parent) for path in paths]
    return found


def _in_number_order(path: Path) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in path.parts]


def main(arguments: Sequence[str] | None = None) -> int:
    """The program. Returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m spec.report", description="One table of runs and sweeps.")
    parser.add_argument("folders", nargs="+", metavar="FOLDER", help="output folder of a run or of a sweep")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--csv", action="store_true", help="the rows as comma-separated values")
    form.add_argument("--json", action="store_true", help="the rows as a JSON list")
    chosen = parser.parse_args(arguments)

    def program() -> None:
        summaries = find_summaries(chosen.folders)
        if chosen.json:
            print(json.dumps(rows(summaries), indent=2, ensure_ascii=False))
        elif chosen.csv:
            flat = rows(summaries)
            writer = csv.DictWriter(sys.stdout, list(dict.fromkeys(key for row in flat for key in row)))
            writer.writeheader()
            writer.writerows(flat)
        else:
            console = make_console()
            print_table(summaries, console)
            print_notes(summaries, console)

    return run(program)


if __name__ == "__main__":
    sys.exit(main())
