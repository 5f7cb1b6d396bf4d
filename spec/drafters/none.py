"""The drafter that proposes nothing: plain decoding."""

from collections.abc import Sequence

import mlx.core as mx

from spec.protocols import Admits, Proposal
from spec.sampling import RandomStream


class NoneDrafter:
    """Proposes nothing and remembers nothing."""

    tapped_layers: tuple[int, ...] = ()
    max_gamma: int | None = None

    def reset(self, prompt_length: int, reference: Sequence[int] | None = None) -> None:
        """Has nothing to forget."""

    def observe(self, tokens: Sequence[int], features: mx.array | None) -> None:
        """Remembers nothing."""

    def propose(
        self, anchor: int, position: int, gamma: int, draws: RandomStream, admits: Admits | None = None
    ) -> Proposal:
        """An empty proposal."""
        return Proposal(reason="there is no drafter")

    def snapshot(self) -> None:
        """Has no state."""

    def restore(self, snapshot: None) -> None:
        """Has no state."""
