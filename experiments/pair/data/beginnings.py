"""The given tokens that generations continue: windows of a corpus, or prompts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from spec.errors import UserError
from spec.prompts import encode, load_prompts


@dataclass(frozen=True, kw_only=True)
class Beginnings:
    """The given tokens of a batch.

    Attributes:
        tokens: (B, P) int32, zeros past the end of a beginning shorter than P.
        lengths: (B,) int32, 1..P. classes: (B,) uint8. temperatures: (B,) float32. origins: (B,) str.
    """

    tokens: np.ndarray
    lengths: np.ndarray
    classes: np.ndarray
    temperatures: np.ndarray
    origins: np.ndarray


class BeginningSource(Protocol):
    """A numbered sequence of batches of beginnings, at most ``prompt_length`` tokens long."""

    class_names: tuple[str, ...]
    batches: int
    prompt_length: int

    def batch(self, number: int) -> Beginnings:
        """The beginnings of one batch."""
        ...


class WindowBeginnings:
    """Beginnings cut anywhere in a corpus.

    Args:
        tokens: flat token ids by class. shares: weight of each class that is to be drawn from.
        temperatures: each is that of equally many rows of a batch, at random.
        prompt_length: tokens. batch_size: rows. batches: how many. seed: with a batch's number it decides every draw.

    Raises:
        UserError: a class has fewer tokens than a beginning.
    """

    def __init__(
        self,
        tokens: Mapping[str, np.ndarray],
        shares: Mapping[str, float],
        temperatures: Sequence[float],
        prompt_length: int,
        batch_size: int,
        batches: int,
        seed: int,
    ) -> None:
        short = [name for name in shares if name not in tokens or len(tokens[name]) < prompt_length]
        if short:
            raise UserError(
                f"wanted at least {prompt_length} tokens a class, got fewer or none of {', '.join(short)}: set the "
                f"shares of such classes to 0 (the file has {', '.join(tokens)})"
            )
        self.tokens, self.class_names = tokens, tuple(shares)
        self.weights = np.array(list(shares.values()), dtype=np.float64) / sum(shares.values())
        self.temperatures = np.array(temperatures, dtype=np.float32)
        self.prompt_length, self.batch_size, self.batches, self.seed = prompt_length, batch_size, batches, seed

    def batch(self, number: int) -> Beginnings:
        """The beginnings of one batch."""
        generator = np.random.default_rng((self.seed, number))
        classes = generator.choice(len(self.class_names), size=self.batch_size, p=self.weights)
        rows, origins = [], []
        for name in (self.class_names[index] for index in classes):
            source = self.tokens[name]
            start = int(generator.integers(0, len(source) - self.prompt_length + 1))
            rows.append(source[start : start + self.prompt_length])
            origins.append(f"{name}@{start}")
        return Beginnings(
            tokens=np.stack(rows).astype(np.int32),
            lengths=np.full(self.batch_size, self.prompt_length, dtype=np.int32),
            classes=classes.astype(np.uint8),
            temperatures=generator.permutation(np.resize(self.temperatures, self.batch_size)),
            origins=np.array(origins),
        )


class PromptBeginnings:
    """Whole prompts, each once at every temperature, those of like length together.

    Args:
        folder: holds ``<class>.jsonl``. class_names: which classes. tokenizer: of the target.
        temperatures: one continuation each; repeat one for more.
        longest: tokens; of a longer prompt the last so many are taken. batch_size: rows.

    Raises:
        UserError: a file is missing or broken.
    """

    def __init__(
        self,
        folder: Path,
        class_names: tuple[str, ...],
        tokenizer: Any,
        temperatures: Sequence[float],
        longest: int,
        batch_size: int,
    ) -> None:
        self.class_names = class_names
        self.files = [folder / f"{name}.jsonl" for name in class_names]
        rows = []
        for index, (name, file) in enumerate(zip(class_names, self.files, strict=True)):
            for prompt in load_prompts([str(file)], name=name):
                tokens = encode(prompt, tokenizer)[-longest:]
                rows += [(tokens, index, temperature, prompt.prompt_id) for temperature in temperatures]
        self.rows = sorted(rows, key=lambda row: len(row[0]))
        self.batch_size, self.batches = batch_size, -(-len(rows) // batch_size)
        self.prompt_length = len(self.rows[-1][0])

    def batch(self, number: int) -> Beginnings:
        """The beginnings of one batch; the last may be smaller."""
        rows = self.rows[number * self.batch_size : (number + 1) * self.batch_size]
        tokens = np.zeros((len(rows), self.prompt_length), dtype=np.int32)
        for row, (given, *_) in zip(tokens, rows, strict=True):
            row[: len(given)] = given
        return Beginnings(
            tokens=tokens,
            lengths=np.array([len(row[0]) for row in rows], dtype=np.int32),
            classes=np.array([row[1] for row in rows], dtype=np.uint8),
            temperatures=np.array([row[2] for row in rows], dtype=np.float32),
            origins=np.array([row[3] for row in rows]),
        )
