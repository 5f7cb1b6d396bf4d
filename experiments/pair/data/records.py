"""Record sets: rows with the same keys, read from JSON and CSV, to be rendered as JSON arrays and Markdown tables."""

import csv
import io
import json
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from experiments.pair.data.archives import members


@dataclass(frozen=True, kw_only=True)
class RecordSet:
    """Rows that share their keys.

    Attributes:
        title: plural noun phrase in lower case that says what a row is.
        rows: dictionaries with the same keys in the same order; values are JSON values.
        origin: where the rows come from, unique together with the reader's source.
    """

    title: str
    rows: list[dict]
    origin: str


def views(records: RecordSet, draw: random.Random, max_columns: int = 7) -> Iterator[RecordSet]:
    """Disjoint runs of a set's rows, each with its own choice of columns.

    Every row is in one view only, so two documents never hold the same rows. The first column, which names the row, is
    always kept; columns that are empty throughout a view are dropped, and so are views most of whose rows are equal.
    """
    stop = 0
    while stop < len(records.rows):
        start, stop = stop, min(stop + draw.choice((8, 12, 16, 20, 25, 30, 40, 50)), len(records.rows))
        rows = records.rows[start:stop]
        keys = [key for key in rows[0] if any(row.get(key) not in (None, "", []) for row in rows)]
        if len(rows) >= 6 and len(keys) >= 2:
            wanted = draw.randrange(2, min(max_columns, len(keys)) + 1)
            kept = {keys[0], *draw.sample(keys, wanted)}
            view = [{key: row.get(key) for key in keys if key in kept} for row in rows]
            if len({str(row) for row in view}) < 0.8 * len(view):
                continue
            yield RecordSet(title=records.title, rows=view, origin=f"{records.origin}[{start}:{stop}]")


def mostly_latin(text: str) -> bool:
    """Whether text is in Latin letters and common marks; others cost a small byte-level vocabulary too many tokens."""
    return sum(ord(character) < 0x250 or ord(character) in range(0x2010, 0x2040) for character in text) >= 0.8 * len(
        text
    )


@dataclass(frozen=True, kw_only=True)
class JsonRecords:
    """A JSON array of flat objects, or a JSON object of objects.

    Attributes:
        include: member patterns, each a file with one array or object.
        title: what a row is.
        keys: keys to keep, in order; None keeps all with plain values.
        name_key: for an object of objects, the key that gets the outer name.
    """

    include: list[str]
    title: str
    keys: list[str] | None = None
    name_key: str = "name"

    def record_sets(self, archive: Path) -> Iterator[RecordSet]:
        """One record set a file."""
        for name, content in members(archive, self.include):
            data = json.loads(content)
            if isinstance(data, dict):
                data = [{self.name_key: key, **value} for key, value in data.items()]
            keys = self.keys or [key for key, value in data[0].items() if not isinstance(value, dict)]
            rows = [{key: row.get(key) for key in keys} for row in data]
            rows = [row for row in rows if mostly_latin(json.dumps(row, ensure_ascii=False))]
            yield RecordSet(title=self.title, rows=rows, origin=name)


@dataclass(frozen=True, kw_only=True)
class CsvRecords:
    """CSV files with a header line; numbers become JSON numbers.

    Attributes:
        include: member patterns.
        titles: what a row is, by a part of the member's name.
    """

    titles: dict[str, str]

    def record_sets(self, archive: Path) -> Iterator[RecordSet]:
        """One record set a file."""
        for part, title in self.titles.items():
            for name, content in members(archive, [f"*/{part}/data/data.csv"]):
                rows = list(csv.DictReader(io.StringIO(content.decode("utf-8", "replace"))))
                yield RecordSet(
                    title=title, rows=[{k: _number(v) for k, v in row.items()} for row in rows], origin=name
                )


def _number(text: str):
    if re.fullmatch(r"-?\d{1,15}", text):
        return int(text)
    return float(text) if re.fullmatch(r"-?\d+\.\d{1,8}", text) else text
