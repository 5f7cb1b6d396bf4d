"""The instrument that separates the loop's cost from the drafter's quality: a known text played back with errors."""

from collections.abc import Sequence

import mlx.core as mx

from spec.errors import UserError
from spec.protocols import Admits, Proposal
from spec.sampling import RandomStream


class OracleDrafter:
    """Proposes the known continuation, each token right with a given probability.

    Whether a position is right depends on (seed, position) alone: a run can be repeated, and a shorter block proposes
    the same tokens.

    Args:
        accept_rate: probability that a proposed token is the known one, 0..1.

    Raises:
        UserError: accept_rate lies outside 0..1.
    """

    tapped_layers: tuple[int, ...] = ()
    max_gamma: int | None = None

    def __init__(self, *, accept_rate: float = 1.0) -> None:
        if not 0 <= accept_rate <= 1:
            raise UserError(f"drafter.accept_rate must lie in 0..1, got {accept_rate}")
        self.accept_rate = accept_rate
        self._known: tuple[int, ...] = ()
        self._start = 0

    def reset(self, prompt_length: int, reference: Sequence[int] | None = None) -> None:
        """Takes the continuation to play back.

        Raises:
            UserError: none is given.
        """
        if reference is None:
            raise UserError(
                "drafter=oracle plays back a known continuation, got none: run it with baseline=true, or pass "
                "reference="
            )
        self._known, self._start = tuple(reference), prompt_length

    def observe(self, tokens: Sequence[int], features: mx.array | None) -> None:
        """Remembers nothing: it knows already."""

    def propose(
        self, anchor: int, position: int, gamma: int, draws: RandomStream, admits: Admits | None = None
    ) -> Proposal:
        """The known tokens after ``position``, some of them replaced."""
        first = position + 1 - self._start
        known = self._known[first : first + gamma]
        if not known:
            return Proposal(reason="the known continuation ends here")
        return Proposal(
            tokens=tuple(
                token if draws.uniform(position + 1 + index, "draft") < self.accept_rate else _other(token)
                for index, token in enumerate(known)
            )
        )

    def snapshot(self) -> None:
        """Nothing changes between resets."""

    def restore(self, snapshot: None) -> None:
        """Nothing changes between resets."""


def _other(token: int) -> int:
    """A different id that every vocabulary containing ``token`` and 0 and 1 has."""
    return token - 1 if token else 1
