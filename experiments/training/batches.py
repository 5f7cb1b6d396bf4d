"""Batches of token windows, drawn so that step n is the same batch in a resumed run as in an unbroken one."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from spec.errors import UserError


def load_tokens(path: str | Path) -> dict[str, np.ndarray]:
    """Token ids by prompt class.

    Args:
        path: an ``.npz`` of flat uint16 arrays, one a class, as `experiments.tokens` writes it.

    Raises:
        FileNotFoundError: there is none; the message says which program makes it.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"{path} does not exist: make it with python -m experiments.tokens")
    with np.load(path) as arrays:
        present = {name: arrays[name] for name in arrays.files}
    return {name: array for name, array in present.items() if array.ndim == 1 and array.dtype == np.uint16}


class WindowSampler:
    """Draws windows of consecutive tokens, the class of each by given shares.

    Args:
        tokens: flat token ids by class.
        shares: weight of each class; classes that are not named are left out.
        batch_size: windows a batch.
        length: tokens a window.
        seed: with the step number it decides every draw.
    """

    def __init__(
        self,
        tokens: Mapping[str, np.ndarray],
        shares: Mapping[str, float],
        batch_size: int,
        length: int,
        seed: int,
    ) -> None:
        self.classes = [name for name, share in shares.items() if share > 0]
        too_short = [name for name in self.classes if name not in tokens or len(tokens[name]) <= length]
        if too_short:
            raise UserError(f"wanted more than {length} tokens a class, got fewer or none of {', '.join(too_short)}")
        weights = np.array([shares[name] for name in self.classes], dtype=np.float64)
        self.weights = weights / weights.sum()
        self.tokens = tokens
        self.batch_size, self.length, self.seed = batch_size, length, seed

    def batch(self, step: int) -> np.ndarray:
        """(batch_size, length) int32, the batch of one step."""
        generator = np.random.default_rng((self.seed, step))
        chosen = generator.choice(len(self.classes), size=self.batch_size, p=self.weights)
        windows = []
        for number in chosen:
            source = self.tokens[self.classes[number]]
            start = generator.integers(0, len(source) - self.length + 1)
            windows.append(source[start : start + self.length])
        return np.stack(windows).astype(np.int32)


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
