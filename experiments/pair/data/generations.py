"""The target's own generations on disk: rows of given tokens and the target's continuation."""

import glob
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from spec.errors import UserError

NEEDED = ("tokens", "classes", "class_names", "temperatures", "prompt_length")


@dataclass(frozen=True, kw_only=True)
class Generations:
    """Rows that begin with given tokens and go on with the target's own.

    Attributes:
        tokens: (N, L) uint16.
        classes: (N,) uint8 indices into class_names.
        class_names: (K,) prompt classes.
        temperatures: (N,) float32 of the target's draws; 0 is greedy.
        prompt_lengths: (N,) int32 tokens that were given; those from there on are the target's own.
        prompt_length: the largest of prompt_lengths: from there on all rows are the target's own.
        origins: (N,) str, where a row's beginning comes from: a prompt's id, or ``class@first token`` of a window.
        settings: what decided the rows, as `experiments.pair.generate` stores it; empty for files of other programs.
    """

    tokens: np.ndarray
    classes: np.ndarray
    class_names: tuple[str, ...]
    temperatures: np.ndarray
    prompt_lengths: np.ndarray
    prompt_length: int
    origins: np.ndarray
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def num_own(self) -> int:
        """How many tokens of all rows are the target's own."""
        return int((self.tokens.shape[1] - self.prompt_lengths).sum())

    def own(self, row: int) -> np.ndarray:
        """The target's own tokens of a row, (L - its prompt length,) uint16."""
        return self.tokens[row, self.prompt_lengths[row] :]

    def of(self, class_name: str, temperature: float | None = None) -> np.ndarray:
        """Indices of the rows of a class, and of a temperature if one is given: (n,) int64."""
        is_chosen = self.classes == self.class_names.index(class_name)
        if temperature is not None:
            is_chosen &= self.temperatures == np.float32(temperature)
        return np.flatnonzero(is_chosen)


def write_generations(path: Path, rows: Generations) -> None:
    """Writes one ``.npz`` atomically.

    Beside the arrays that every reader needs (`NEEDED`) it holds prompt_lengths, origins and settings.
    """
    partial = path.with_suffix(".partial")
    with partial.open("wb") as stream:
        np.savez(
            stream,
            tokens=rows.tokens,
            classes=rows.classes,
            class_names=np.array(rows.class_names),
            temperatures=rows.temperatures,
            prompt_length=np.array(rows.prompt_length, dtype=np.int64),
            prompt_lengths=rows.prompt_lengths,
            origins=rows.origins,
            settings=np.array(json.dumps(rows.settings)),
        )
    partial.replace(path)


def find_generations(paths: str | Path | Sequence[str | Path]) -> list[Path]:
    """The ``.npz`` files that a file, a folder, a glob or a list of these names, each once, in order.

    Raises:
        UserError: one of them names none.
    """
    found: dict[Path, None] = {}
    for path in [paths] if isinstance(paths, str | Path) else paths:
        pattern = str(Path(path) / "*.npz") if Path(path).is_dir() else str(path)
        files = sorted(glob.glob(pattern))
        if not files:
            raise UserError(f"no generations at {pattern}: make them with python -m experiments.pair.generate")
        found |= dict.fromkeys(map(Path, files))
    return list(found)


def load_generations(paths: str | Path | Sequence[str | Path]) -> Generations:
    """Reads generations from one or several files, and checks that they belong together.

    Args:
        paths: a file, a folder, a glob or a list of these.

    Raises:
        UserError: there are no files, a file has another format, or two differ in row length, prompt length, classes
            or target.
    """
    files = find_generations(paths)
    parts = [_read(file) for file in files]
    first = parts[0]
    for file, part in zip(files[1:], parts[1:], strict=True):
        for name, wanted, got in (
            ("row length", first.tokens.shape[1], part.tokens.shape[1]),
            ("prompt_length", first.prompt_length, part.prompt_length),
            ("class_names", first.class_names, part.class_names),
            ("target", first.settings.get("target"), part.settings.get("target")),
        ):
            if wanted != got:
                raise UserError(f"{file}: wanted the {name} of {files[0]}, {wanted}, got {got}: read them separately")
    arrays = ("tokens", "classes", "temperatures", "prompt_lengths", "origins")
    return Generations(
        **{name: np.concatenate([getattr(part, name) for part in parts]) for name in arrays},
        class_names=first.class_names,
        prompt_length=first.prompt_length,
        settings=first.settings,
    )


def _read(file: Path) -> Generations:
    """One file, checked."""
    try:
        with np.load(file) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (ValueError, EOFError, OSError) as error:
        raise UserError(f"{file} cannot be read as .npz ({error}): remove it and make it again") from error
    missing = [name for name in NEEDED if name not in arrays]
    if missing:
        raise UserError(f"{file} lacks {', '.join(missing)}: wanted a file of python -m experiments.pair.generate")
    tokens, prompt_length = arrays["tokens"], int(arrays["prompt_length"])
    count = len(tokens)
    class_names = tuple(map(str, arrays["class_names"]))
    lengths = arrays.get("prompt_lengths", np.full(count, prompt_length))
    origins = arrays.get("origins", np.full(count, ""))
    if tokens.ndim != 2 or tokens.dtype != np.uint16:
        raise UserError(f"{file}: wanted tokens (N, L) uint16, got {tokens.shape} {tokens.dtype}")
    short = [array.shape for array in (arrays["classes"], arrays["temperatures"], lengths, origins)]
    if any(shape != (count,) for shape in short):
        raise UserError(f"{file}: wanted a class, temperature, length and origin for each of {count} rows, got {short}")
    if count and not (lengths.min() > 0 and lengths.max() <= prompt_length < tokens.shape[1]):
        raise UserError(f"{file}: wanted prompt lengths in 1..{prompt_length} of rows of {tokens.shape[1]} tokens")
    if count and arrays["classes"].max() >= len(class_names):
        raise UserError(f"{file}: wanted classes below {len(class_names)}, got {arrays['classes'].max()}")
    return Generations(
        tokens=tokens,
        classes=arrays["classes"].astype(np.uint8),
        class_names=class_names,
        temperatures=arrays["temperatures"].astype(np.float32),
        prompt_lengths=lengths.astype(np.int32),
        prompt_length=prompt_length,
        origins=origins,
        settings=json.loads(str(arrays["settings"])) if "settings" in arrays else {},
    )
