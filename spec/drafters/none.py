"""The drafter that proposes nothing: plain decoding."""

from collections.abc import Sequence

import mlx.core as mx

from spec.rounds import Admits, Context, Proposal


class NoneDrafter:
    """Proposes nothing and remembers nothing; the base of drafters that need no state."""

    tapped_layers: tuple[int, ...] = ()
    max_gamma: int | None = None

    def reset(self, prompt_length: int) -> None:
        """There is nothing to forget."""

    def observe(self, tokens: Sequence[int], features: mx.array | None) -> None:
        """Nothing is remembered."""

    def propose(self, context: Context, gamma: int, admits: Admits | None = None) -> Proposal:
        """An empty proposal."""
        return Proposal(reason="there is no drafter")
