"""From logits to the target's processed distribution, and random numbers keyed by where they are used."""

import hashlib
from dataclasses import dataclass
from typing import Literal

import mlx.core as mx
from mlx_lm.sample_utils import apply_min_p, apply_top_k, apply_top_p

from spec.errors import UserError

Purpose = Literal["target", "draft"]


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """The processed distribution. Order and conventions are those of mlx-lm's ``make_sampler``.

    The filters act on the unscaled distribution, one after another: top-p, min-p, top-k; then the temperature scales
    what is left.

    Attributes:
        temperature: 0 is the argmax (lowest id on a tie), whatever the filters say.
        top_p: smallest mass to keep, the most likely tokens first; 0 or 1 keeps all.
        min_p: least probability kept, as a share of the largest; 0 keeps all.
        top_k: tokens kept; 0, or the vocabulary and more, keeps all.

    Raises:
        UserError: a value outside its range.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    min_p: float = 0.0
    top_k: int = 0

    def __post_init__(self) -> None:
        if not self.temperature >= 0:
            raise UserError(f"sampling.temperature must be 0 (greedy) or more, got {self.temperature}")
        for name, value in (("top_p", self.top_p), ("min_p", self.min_p)):
            if not 0 <= value <= 1:
                raise UserError(f"sampling.{name} must lie in 0..1, got {value}")
        if not isinstance(self.top_k, int) or self.top_k < 0:
            raise UserError(f"sampling.top_k must be a whole number, 0 to keep all, got {self.top_k}")

    @property
    def is_greedy(self) -> bool:
        """Whether the distribution is a point mass on the argmax."""
        return self.temperature == 0

    def logprobs(self, logits: mx.array) -> mx.array:
        """Log-probabilities of the processed distribution.

        Args:
            logits: (..., V), any float dtype.

        Returns:
            (..., V) float32, normalised; -inf for what a filter removed.
        """
        logits = logits.astype(mx.float32)  # ratios of bfloat16 probabilities would not be those of the target
        if self.is_greedy:
            top = mx.argmax(logits, axis=-1, keepdims=True)
            is_top = mx.arange(logits.shape[-1]) == top
            return mx.where(is_top, 0.0, -mx.inf)
        logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        if 0 < self.top_p < 1:
            logprobs = apply_top_p(logprobs, self.top_p)
        if self.min_p > 0:
            logprobs = apply_min_p(logprobs, self.min_p)
        if 0 < self.top_k < logits.shape[-1]:
            logprobs = apply_top_k(logprobs, self.top_k)
        scaled = logprobs * (1.0 / self.temperature)
        return scaled - mx.logsumexp(scaled, axis=-1, keepdims=True)


def check_rows(logits: mx.array) -> None:
    """Refuses rows that no token can be drawn from. Forces evaluation: a verdict on NaN must not be given.

    Args:
        logits: (T, V).

    Raises:
        ValueError: a row holds NaN or +inf, or nothing but -inf.
    """
    tops = mx.max(logits, axis=-1)  # NaN wins a max, and a row of -inf has no other
    bad = [row for row, is_finite in enumerate(mx.isfinite(tops).tolist()) if not is_finite]
    if bad:
        raise ValueError(
            f"target logits of rows {bad} (of {logits.shape[0]}) have the largest value "
            f"{[tops[row].item() for row in bad]}, wanted a finite one: the target's weights or the dtype it runs in "
            "are at fault"
        )


@dataclass(frozen=True, kw_only=True)
class Draws:
    """Random draws keyed by (seed, stream, absolute position, purpose), never by how many were made before.

    So a shorter block, a discarded suffix or another prompt's traffic shifts no draw.

    Attributes:
        seed: the run's.
        stream: tells requests of one run apart, for example a prompt's id.
    """

    seed: int = 0
    stream: str = ""

    def _bits(self, position: int, purpose: Purpose) -> int:
        text = f"{self.seed}/{self.stream}/{position}/{purpose}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")

    def key(self, position: int, purpose: Purpose) -> mx.array:
        """A key for ``mx.random`` (2,) uint32."""
        return mx.random.key(self._bits(position, purpose))

    def uniform(self, position: int, purpose: Purpose) -> float:
        """A number in [0, 1) made on the host, for decisions that need no array."""
        return (self._bits(position, purpose) >> 11) / 2**53
