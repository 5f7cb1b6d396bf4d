"""Recorded continuations: token sequences of which the last part is the target's own."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx
import numpy as np

from experiments.pair.data.generations import Generations, load_generations
from spec.errors import UserError
from spec.measure.records import RUNS, read_lines

CHUNK = 2048  # tokens of a target pass: bounds its memory


@dataclass(frozen=True, kw_only=True)
class Continuation:
    """One sequence.

    Attributes:
        tokens: (S,) int32 ids.
        start: index of the first token that is the target's own; at least 1.
        prompt_class: what results are grouped by. temperature: of the target's draws, 0 for greedy.
        origin: what its beginning was cut from; two of the same origin share their document.
    """

    tokens: np.ndarray
    start: int
    prompt_class: str
    temperature: float
    origin: str

    @property
    def own(self) -> np.ndarray:
        """(S - start,) the target's own tokens."""
        return self.tokens[self.start :]


@dataclass(frozen=True, kw_only=True)
class ContinuationBatch:
    """Sequences that share a target pass.

    Attributes:
        numbers: (B,) which sequences these are, in the order of the whole set.
        continuations: the sequences.
        tokens: (B, S) int32, the shorter ones padded with 0 at their end, which no earlier token sees.
    """

    numbers: tuple[int, ...]
    continuations: tuple[Continuation, ...]
    tokens: mx.array


def load_continuations(
    sources: str | Sequence[str],
    *,
    temperatures: Sequence[float] | None = None,
    limit: int | None = None,
) -> list[Continuation]:
    """Reads recorded continuations.

    Args:
        sources: ``.npz`` files, folders or globs of them as `experiments.pair.generate` writes, and output folders of
            ``spec.run``.
        temperatures: only these; None takes all.
        limit: most sequences of a class and temperature; None takes all.

    Raises:
        UserError: a source is missing or none of these, or nothing is left.
    """
    found: list[Continuation] = []
    for source in [sources] if isinstance(sources, str) else sources:
        if (Path(source) / RUNS).is_file():
            found += _of_run(Path(source))
        else:
            found += _of_generations(load_generations(source))
    kept, counts = [], {}
    for item in found:
        key = (item.prompt_class, item.temperature)
        is_wanted = temperatures is None or item.temperature in temperatures
        if is_wanted and len(item.own) > 1 and (limit is None or counts.get(key, 0) < limit):
            counts[key] = counts.get(key, 0) + 1
            kept.append(item)
    if not kept:
        there = sorted({item.temperature for item in found})
        raise UserError(f"no continuations of temperatures {temperatures} in {sources}, which hold {there}")
    return kept


def _of_generations(rows: Generations) -> list[Continuation]:
    return [
        Continuation(
            tokens=rows.tokens[row].astype(np.int32),
            start=int(rows.prompt_lengths[row]),
            prompt_class=rows.class_names[rows.classes[row]],
            temperature=round(float(rows.temperatures[row]), 6),  # stored as float32
            origin=str(rows.origins[row]),
        )
        for row in range(len(rows))
    ]


def _of_run(folder: Path) -> list[Continuation]:
    """The speculative runs of a folder of ``spec.run``, first repeats: the others have the same seed."""
    return [
        Continuation(
            tokens=np.array([*record["prompt"], *record["tokens"]], dtype=np.int32),
            start=len(record["prompt"]),
            prompt_class=record["class"],
            temperature=float(record["sampling"]["temperature"]),
            origin=record["prompt_id"],
        )
        for record in read_lines(folder / RUNS)
        if record["mode"] == "speculative" and record["repeat"] == 0
    ]


def batches(continuations: Sequence[Continuation], chunk: int = CHUNK) -> Iterator[ContinuationBatch]:
    """Batches of all sequences, those of similar length together.

    Args:
        continuations: at least one.
        chunk: most tokens of a batch; a longer sequence goes alone.
    """
    order = sorted(range(len(continuations)), key=lambda number: len(continuations[number].tokens))
    while order:
        longest, count = 0, 0
        for number in order:
            longest = max(longest, len(continuations[number].tokens))
            if count and longest * (count + 1) > chunk:
                break
            count += 1
        numbers, order = order[:count], order[count:]
        chosen = tuple(continuations[number] for number in numbers)
        width = max(len(item.tokens) for item in chosen)
        padded = np.stack([np.pad(item.tokens, (0, width - len(item.tokens))) for item in chosen])
        yield ContinuationBatch(numbers=tuple(numbers), continuations=chosen, tokens=mx.array(padded))


def group_names(continuations: Sequence[Continuation]) -> list[tuple[str, float]]:
    """Classes and temperatures that results are grouped by, ``all`` classes of a temperature first."""
    temperatures = sorted({item.temperature for item in continuations})
    names = list(dict.fromkeys(item.prompt_class for item in continuations))
    return [(name, temperature) for temperature in temperatures for name in ("all", *names)]


def members(continuations: Sequence[Continuation], name: str, temperature: float) -> list[int]:
    """Indices of the sequences of a group of `group_names`."""
    return [
        number
        for number, item in enumerate(continuations)
        if name in ("all", item.prompt_class) and item.temperature == temperature
    ]
