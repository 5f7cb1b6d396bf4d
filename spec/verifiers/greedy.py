"""Greedy verification: a draft stands if it is the target's argmax."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import mlx.core as mx

from spec.errors import UserError
from spec.protocols import Proposal, Verdict
from spec.sampling import Draws, Sampling, check_rows


def match_prefix(drafted: tuple[int, ...], wanted: list[int]) -> Verdict:
    """Accepts the longest prefix that equals what the target wanted, and takes the target's token after it.

    Args:
        drafted: G tokens.
        wanted: G + 1 tokens, the target's own choice at each row.
    """
    accepted = 0
    while accepted < len(drafted) and drafted[accepted] == wanted[accepted]:
        accepted += 1
    kind = "bonus" if accepted == len(drafted) else "correction"
    return Verdict(accepted=accepted, next_token=wanted[accepted], kind=kind)


@dataclass(frozen=True, kw_only=True)
class GreedyVerifier:
    """Emits the argmax of every row (lowest id on a tie), as greedy decoding does.

    Attributes:
        sampling: the processed distribution; must be greedy.

    Raises:
        UserError: a temperature above 0 was asked for, which this rule would ignore.
    """

    sampling: Sampling = field(default_factory=Sampling)

    def __post_init__(self) -> None:
        if not self.sampling.is_greedy:
            raise UserError(
                f"verifier=greedy takes the argmax, sampling.temperature is {self.sampling.temperature}: choose "
                "verifier=sample_match, or set sampling.temperature to 0"
            )

    def accept(
        self,
        proposal: Proposal,
        target_logits: mx.array,
        position: int,
        draws: Draws,
        committed: Sequence[int] = (),
    ) -> Verdict:
        """See `spec.protocols.Verifier`; draws are not used. Forces evaluation: the next step depends on the choice.

        Raises:
            ValueError: a row has no finite maximum.
        """
        check_rows(target_logits)
        return match_prefix(proposal.tokens, mx.argmax(target_logits, axis=-1).tolist())
