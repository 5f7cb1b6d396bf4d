"""Greedy verification: a draft stands if it is the target's argmax."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import mlx.core as mx

from spec.errors import UserError
from spec.protocols import Proposal, Verdict
from spec.sampling import RandomStream, Sampling
from spec.verifiers.rows import processed_rows


@dataclass(frozen=True, kw_only=True)
class GreedyVerifier:
    """Emits the argmax of every row's processed logits (lowest id on a tie), as greedy decoding does.

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
                "verifier=sample_match, b2 or block, or set sampling.temperature to 0"
            )

    def accept(
        self,
        proposal: Proposal,
        target_logits: mx.array,
        position: int,
        draws: RandomStream,
        committed: Sequence[int] = (),
    ) -> Verdict:
        """See `spec.protocols.Verifier`; draws are not used. Forces evaluation: the next step depends on the choice.

        Raises:
            ValueError: a row has no finite maximum.
        """
        logits = processed_rows(self.sampling, proposal, target_logits, committed)
        wanted = mx.argmax(logits, axis=-1).tolist()
        accepted = 0
        while accepted < len(proposal.tokens) and proposal.tokens[accepted] == wanted[accepted]:
            accepted += 1
        kind = "bonus" if accepted == len(proposal.tokens) else "correction"
        return Verdict(accepted=accepted, next_token=wanted[accepted], kind=kind)
