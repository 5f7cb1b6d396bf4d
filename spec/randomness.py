"""Random numbers keyed by where they are used."""

import hashlib
from dataclasses import dataclass, replace
from typing import Literal

import mlx.core as mx

Purpose = Literal["target", "draft", "accept", "residual", "bonus"]


@dataclass(frozen=True, kw_only=True)
class RandomStream:
    """Random draws keyed by (seed, stream, absolute position, purpose), never by how many were made before.

    So a shorter block, a discarded suffix or another prompt's traffic shifts no draw. In return no key may be used for
    two decisions that meet in one output, and what is drawn for a position may be discarded and drawn again in a later
    round. Where the first draw had a say in what was emitted before that position (every draft and every test of block
    verification; a draft whose successor's confidence was shown to a block policy), the second must be fresh, or the
    law is lost: such draws come from `in_round`.

    Attributes:
        seed: the run's.
        stream: tells requests of one run apart, for example a prompt's id.
        round_start: absolute position that the draws are tied to besides their own; None ties them to none.
    """

    seed: int = 0
    stream: str = ""
    round_start: int | None = None

    def in_round(self, start: int) -> "RandomStream":
        """The same stream, keyed by the round as well.

        Args:
            start: absolute position of the round's first draft. Every round emits a token, so no two rounds share it.
        """
        return replace(self, round_start=start)

    def _bits(self, position: int, purpose: Purpose) -> int:
        text = f"{self.seed}/{self.stream}/{position}/{purpose}"
        if self.round_start is not None:
            text += f"/{self.round_start}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")

    def key(self, position: int, purpose: Purpose) -> mx.array:
        """A key for ``mx.random`` (2,) uint32."""
        return mx.random.key(self._bits(position, purpose))

    def uniform(self, position: int, purpose: Purpose) -> float:
        """A number in [0, 1) made on the host, for decisions that need no array."""
        return (self._bits(position, purpose) >> 11) / 2**53

    def accepts(self, probability: float, position: int) -> bool:
        """Accepts a draft with a given probability: u < probability, so that 0 never and 1 always passes.

        Args:
            probability: that the draft is accepted, 0..1.
            position: the draft's.

        Raises:
            ValueError: it is no probability; NaN above all, which must accept nothing and reject nothing.
        """
        if not 0 <= probability <= 1:
            raise ValueError(f"the draft at {position} is accepted with probability {probability}, wanted one in 0..1")
        return self.uniform(position, "accept") < probability

    def categorical(self, logprobs: mx.array, position: int, purpose: Purpose) -> mx.array:
        """Draws a token; not evaluated.

        Args:
            logprobs: (V,) float32, normalized or not.
            position: the token's.
            purpose: of the draw.

        Returns:
            () uint32.
        """
        return mx.random.categorical(logprobs, key=self.key(position, purpose))
