"""Batches of token windows: step n gets the same batch in a resumed run as in an unbroken one.

Every draw is a function of seed, step and the process's rank. NumPy pads short seeds with zeros, so rank 0 draws what a
single process draws.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx
import numpy as np
from omegaconf import DictConfig

from experiments.pair.data.generations import load_generations
from spec.errors import UserError


def load_tokens(path: str | Path) -> dict[str, np.ndarray]:
    """Token ids by prompt class.

    Args:
        path: an ``.npz`` of flat uint16 arrays, one a class, as `experiments.pair.tokens` writes it.

    Raises:
        FileNotFoundError: there is none; the message says which program makes it.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"{path} does not exist: make it with python -m experiments.pair.tokens")
    with np.load(path) as arrays:
        present = {name: arrays[name] for name in arrays.files}
    return {name: array for name, array in present.items() if array.ndim == 1 and array.dtype == np.uint16}


def own_rows(paths: str | Path | Sequence[str | Path], *, greedy: bool = False) -> tuple[dict[str, np.ndarray], int]:
    """Rows of the target's own generations, by class.

    Args:
        paths: as `load_generations`. greedy: only rows of temperature 0.

    Returns:
        (N, L) uint16 token ids by class, for classes that have any; and the position from which on the tokens of every
        row are the target's own.

    Raises:
        UserError: the files cannot be used, or hold no such row.
    """
    generations = load_generations(paths)
    chosen = {name: generations.of(name, 0.0 if greedy else None) for name in generations.class_names}
    rows = {name: generations.tokens[found] for name, found in chosen.items() if len(found)}
    if not rows:
        kind = "greedy " if greedy else ""
        raise UserError(f"no {kind}rows in {paths}: make some with python -m experiments.pair.generate")
    return rows, generations.prompt_length


class WindowSampler:
    """Draws windows of consecutive tokens, the class of each by given shares.

    Args:
        tokens: flat token ids by class.
        shares: weight of each class; classes that are not named are left out.
        batch_size: windows a batch.
        length: tokens a window.
        seed: with the step number and the rank it decides every draw.
        rank: of the process; others draw other windows.
        stride: windows start at multiples of it: 1 for anywhere, ``length`` for whole rows laid end to end.

    Raises:
        UserError: a class has no window to draw.
    """

    def __init__(
        self,
        tokens: Mapping[str, np.ndarray],
        shares: Mapping[str, float],
        batch_size: int,
        length: int,
        seed: int,
        *,
        rank: int = 0,
        stride: int = 1,
    ) -> None:
        self.classes = [name for name, share in shares.items() if share > 0]
        too_short = [name for name in self.classes if name not in tokens or len(tokens[name]) < length]
        if too_short:
            raise UserError(f"wanted {length} tokens a class or more, got fewer or none of {', '.join(too_short)}")
        weights = np.array([shares[name] for name in self.classes], dtype=np.float64)
        self.weights = weights / weights.sum()
        self.tokens = tokens
        self.batch_size, self.length, self.seed = batch_size, length, seed
        self.rank, self.stride = rank, stride

    def batch(self, step: int) -> np.ndarray:
        """(batch_size, length) int32, the batch of one step."""
        generator = np.random.default_rng((self.seed, step, self.rank))
        chosen = generator.choice(len(self.classes), size=self.batch_size, p=self.weights)
        windows = []
        for number in chosen:
            source = self.tokens[self.classes[number]]
            start = self.stride * generator.integers(0, (len(source) - self.length) // self.stride + 1)
            windows.append(source[start : start + self.length])
        return np.stack(windows).astype(np.int32)


def sample_anchors(shape: tuple[int, int], length: int, gamma: int, seed: tuple[int, ...], first: int = 1) -> mx.array:
    """Anchor positions, uniform over those that leave room for a whole block.

    Args:
        shape: (B, A), rows and anchors a row. length: tokens a row. gamma: tokens a block drafts after its anchor.
        seed: decides every draw. first: the least position.

    Returns:
        (B, A) int32.
    """
    return mx.array(np.random.default_rng(seed).integers(first, length - gamma, size=shape).astype(np.int32))


@dataclass(frozen=True, kw_only=True)
class BlockSource:
    """Rows of tokens, and where in them blocks may begin.

    Attributes:
        rows: draws them. anchors: blocks a row.
        first_anchor: least position of an anchor, at least 1: a token must precede it.
    """

    rows: WindowSampler
    anchors: int
    first_anchor: int = 1


def first_own_anchor(length: int, prompt_length: int, gamma: int) -> int:
    """The first anchor of a generation whose block is generated text only: it drafts the first generated token.

    Args:
        length: tokens of the generation. prompt_length: those of them that were given.
        gamma: tokens of a block.

    Raises:
        UserError: the generated part has no room for a block, or nothing precedes the anchor.
    """
    if length - prompt_length < gamma or prompt_length < 2:
        raise UserError(
            f"wanted generations with a prompt of 2 tokens or more and room for a block of {gamma} after it, got "
            f"{length} tokens with a prompt of {prompt_length}: make others with python -m experiments.pair.generate"
        )
    return prompt_length - 1


class BlockSampler:
    """The batch of a step for training a drafter: rows of tokens, and anchors of blocks in them.

    Args:
        text: windows of corpus text.
        gamma: tokens a block drafts after its anchor.
        seed: with the step number and the rank it decides every draw, as in the rows' own samplers.
        rank: of the process.
        generated: rows of the target's own generations; None for none.
        generated_share: share of the steps that draw from those; which ones is the same for all processes.
    """

    def __init__(
        self,
        text: BlockSource,
        gamma: int,
        seed: int,
        rank: int = 0,
        generated: BlockSource | None = None,
        generated_share: float = 0.0,
    ) -> None:
        self.text, self.generated = text, generated
        self.gamma, self.seed, self.rank = gamma, seed, rank
        self.generated_share = 0.0 if generated is None else generated_share

    @classmethod
    def from_config(cls, config: DictConfig, gamma: int, rank: int = 0) -> "BlockSampler":
        """The sampler of a program.

        Args:
            config: with ``seed, batch_size, length, anchors, generated_batch_size, generated_anchors`` and ``data``, of
                which ``train, shares, generations, generated_share``.
            gamma: tokens of a block. rank: of the process.

        Raises:
            UserError: the data have no rows for a class with a share, or the generations no room for a block.
        """
        data, seed = config.data, config.seed
        windows = WindowSampler(load_tokens(data.train), data.shares, config.batch_size, config.length, seed, rank=rank)
        text = BlockSource(rows=windows, anchors=config.anchors)
        if data.generations is None:
            return cls(text, gamma, seed, rank)
        rows, prompt_length = own_rows(data.generations)
        length = next(iter(rows.values())).shape[1]
        first = first_own_anchor(length, prompt_length, gamma)
        missing = [name for name, share in data.shares.items() if share > 0 and name not in rows]
        if missing:
            raise UserError(f"wanted generations of every class with a share, got none of {', '.join(missing)}")
        flat = {name: array.reshape(-1) for name, array in rows.items()}
        whole = WindowSampler(flat, data.shares, config.generated_batch_size, length, seed, rank=rank, stride=length)
        generated = BlockSource(rows=whole, anchors=config.generated_anchors, first_anchor=first)
        return cls(text, gamma, seed, rank, generated, data.generated_share)

    def is_generated(self, step: int) -> bool:
        """Whether a step draws from the generations."""
        return self.generated_share > 0 and np.random.default_rng((self.seed, 13, step)).random() < self.generated_share

    def source(self, step: int) -> BlockSource:
        """What a step draws from."""
        return self.generated if self.is_generated(step) else self.text

    def batch(self, step: int) -> tuple[mx.array, mx.array]:
        """Rows (B, S) int32 of a step and the anchors (B, A) int32 in them; B, S and A are the source's."""
        source = self.source(step)
        shape, seed = (source.rows.batch_size, source.anchors), (self.seed, 11, step, self.rank)
        anchors = sample_anchors(shape, source.rows.length, self.gamma, seed, source.first_anchor)
        return mx.array(source.rows.batch(step)), anchors

    def tokens(self, step: int) -> int:
        """Tokens in the batch of a step."""
        rows = self.source(step).rows
        return rows.batch_size * rows.length


def evaluation_windows(
    tokens: np.ndarray, length: int, batch_size: int, limit: int | None = None
) -> Iterator[tuple[np.ndarray, int]]:
    """Half-overlapping windows that score every token but the first once, each with at least half a window of context.

    Args:
        tokens: flat token ids. length: tokens a window, even. batch_size: windows a batch, at most.
        limit: windows in all; None for all that are whole.

    Yields:
        Windows (b, length) int32, and how many tokens at the end of each are to be scored: ``length - 1`` in the
        first batch, which holds the first window alone, then ``length // 2``.
    """
    stride = length // 2
    starts = list(range(0, len(tokens) - length + 1, stride))[:limit]
    if starts:
        yield tokens[None, :length].astype(np.int32), length - 1
    for first in range(1, len(starts), batch_size):
        group = starts[first : first + batch_size]
        yield np.stack([tokens[start : start + length] for start in group]).astype(np.int32), stride
