"""Record sets as JSON arrays and as Markdown documents with tables, in the styles that people use."""

import json
import random
import re

from experiments.pair.data.records import RecordSet
from spec.errors import UserError

_INTROS = (
    "The following table lists {count} {title}.",
    "Below is an overview of the {title}.",
    "This document summarizes the {title} that are known at present.",
    "Here are the {title}, one per row.",
    "An overview of {count} {title} with their {columns}.",
    "The table shows {columns} for each entry.",
    "All {title} are listed here. Each row gives the {columns}.",
    "These {title} were exported from the main data set.",
)
_SECTIONS = ("Overview", "Details", "Data", "List", "Summary", "Full table", "Results", "Entries", "Reference")
_CLOSINGS = (
    "Values may change without notice.",
    "Empty cells mean that no value is known.",
    "See the notes above for the meaning of each column.",
    "The list is updated regularly.",
    "Rows are in the order of the source.",
    "Please report mistakes to the maintainers.",
)


RULE_LINE = re.compile(r"\|?(?:\s*:?-+:?\s*\|)*\s*:?-+:?\s*\|?")
"""The line of dashes, with alignment colons, between the headings and the rows of a table."""


def camel_case(key: str) -> str:
    """`unit_price` as `unitPrice`."""
    head, *tail = re.split(r"[_\s-]+", key)
    return head + "".join(part[:1].upper() + part[1:] for part in tail)


def heading(key: str, style: str) -> str:
    """A key as a column heading; style is `title`, `sentence` or `raw`."""
    words = key.replace("_", " ").strip()
    if style == "title":
        return " ".join(word if word.isupper() else word[:1].upper() + word[1:] for word in words.split(" "))
    return words[:1].upper() + words[1:] if style == "sentence" else key


def render_json(records: RecordSet, draw: random.Random) -> str:
    """A record array as JSON text.

    The style is drawn: indented by 2 or 4, one record a line, or compact; bare or under a key; snake or camel case.
    """
    rows = records.rows
    if draw.random() < 0.3:
        rows = [{camel_case(key): value for key, value in row.items()} for row in rows]
    style = draw.choices(("two", "four", "lines", "compact"), (50, 18, 22, 10))[0]
    name = re.sub(r"\W+", "_", records.title.lower()).strip("_")
    wrapped = draw.random() < 0.35
    if style == "lines":
        lines = ",\n".join("  " + ("  " if wrapped else "") + json.dumps(row, ensure_ascii=False) for row in rows)
        return f'{{\n  "{name}": [\n{lines}\n  ]\n}}\n' if wrapped else f"[\n{lines}\n]\n"
    value = {name: rows} if wrapped else rows
    if wrapped and draw.random() < 0.4:
        value = {"count": len(rows), **value} if draw.random() < 0.5 else {**value, "total": len(rows)}
    if style == "compact":
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n"
    return json.dumps(value, ensure_ascii=False, indent=2 if style == "two" else 4) + "\n"


def cell(value) -> str:
    """A value as table cell text, pipes escaped."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        value = ", ".join(map(str, value))
    return re.sub(r"\s+", " ", str(value)).strip().replace("\\", "\\\\").replace("|", "\\|")


def render_table(headings: list[str], rows: list[list[str]], align: list[str], padded: bool, outer: bool = True) -> str:
    """A GitHub-flavoured Markdown table.

    Args:
        headings: column headings.
        rows: cells, already escaped by `cell`, as many a row as headings.
        align: for each column `left`, `right`, `center` or `none`.
        padded: pad cells to the width of their column, as people do by hand.
        outer: write the outer pipes.

    Raises:
        UserError: when a row has another number of cells than there are headings.
    """
    if any(len(row) != len(headings) for row in rows):
        raise UserError(f"wanted {len(headings)} cells in every row, got {sorted({len(row) for row in rows})}")
    widths = [max(3, *(len(row[i]) for row in [headings, *rows])) if padded else 3 for i in range(len(headings))]
    rules = []
    for width, side in zip(widths, align, strict=True):
        left, right = side in ("left", "center"), side in ("right", "center")
        rules.append(":" * left + "-" * (width - left - right) + ":" * right)

    def line(cells: list[str]) -> str:
        if padded:
            cells = [c.rjust(w) if a == "right" else c.ljust(w) for c, w, a in zip(cells, widths, align, strict=True)]
        text = " | ".join(cells)
        return f"| {text} |" if outer else text

    return "\n".join([line(headings), line(rules), *map(line, rows)]) + "\n"


def parse_table(text: str) -> tuple[list[str], list[list[str]]]:
    """Headings and unescaped cells of the first table of a Markdown text: the inverse of `render_table`.

    Raises:
        UserError: when the text holds no table.
    """

    def cells(line: str) -> list[str]:
        # Escapes are set aside as control characters, which no cell holds, so that pipes can be split on.
        line = line.replace("\\\\", "\x01").replace("\\|", "\x02").rstrip()
        parts = line.removeprefix("|").removesuffix("|").split("|")
        return [part.strip().replace("\x02", "|").replace("\x01", "\\") for part in parts]

    lines = text.split("\n")
    for index in range(1, len(lines)):
        if RULE_LINE.fullmatch(lines[index]) and "|" in lines[index - 1]:
            rows = []
            for line in lines[index + 1 :]:
                if "|" not in line:
                    break
                rows.append(cells(line))
            return cells(lines[index - 1]), rows
    raise UserError("no Markdown table in the text")


def render_markdown(records: RecordSet, draw: random.Random) -> str:
    """A short Markdown document: title, sentence, one table (or two, the rows divided), perhaps a closing sentence."""
    keys = list(records.rows[0])
    style = draw.choices(("title", "sentence", "raw"), (50, 30, 20))[0]
    numeric = [
        all(isinstance(row[k], int | float) and not isinstance(row[k], bool) for row in records.rows) for k in keys
    ]
    if draw.random() < 0.5:
        align = ["right" if flag else "left" for flag in numeric]
    else:
        align = [draw.choice(("none", "left", "center"))] * len(keys) if draw.random() < 0.4 else ["none"] * len(keys)
    body = [[cell(row.get(key)) for key in keys] for row in records.rows]
    padded = draw.random() < 0.45 and max(len(text) for row in body for text in row) < 60
    words = [heading(key, "sentence").lower() for key in keys]
    facts = {"title": records.title, "count": len(body), "columns": ", ".join(words[:-1]) + " and " + words[-1]}
    title = records.title[:1].upper() + records.title[1:]
    parts = []
    if draw.random() < 0.85:
        parts.append(f"{'#' * draw.choice((1, 1, 2, 3))} {title}\n")
    if draw.random() < 0.7:
        parts.append(draw.choice(_INTROS).format(**facts) + "\n")
    halves = [body]
    if len(body) > 24 and draw.random() < 0.3:
        halves = [body[: len(body) // 2], body[len(body) // 2 :]]
    for half in halves:
        if len(halves) > 1 or draw.random() < 0.2:
            parts.append(f"## {draw.choice(_SECTIONS)}\n")
        # Without outer pipes an empty first or last cell would be lost.
        outer = draw.random() < 0.97 or not all(row[0] and row[-1] for row in half)
        parts.append(render_table([heading(key, style) for key in keys], half, align, padded, outer))
    if draw.random() < 0.35:
        parts.append(draw.choice(_CLOSINGS) + "\n")
    return "\n".join(parts)
