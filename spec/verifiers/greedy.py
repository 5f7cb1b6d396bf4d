"""Greedy verification: a draft is accepted if it is the target's argmax."""

from typing import ClassVar

import mlx.core as mx

from spec.errors import UserError
from spec.rounds import Context, Guarantee, Proposal, Verdict
from spec.sampling import Sampling
from spec.values import checked
from spec.verifiers.rows import processed_rows


@checked("verifier")
class GreedyVerifier:
    """Emits the argmax of every row's processed logits (lowest id on a tie), as greedy decoding does.

    Attributes:
        sampling: the processed distribution; must be greedy.

    Raises:
        UserError: a temperature above 0 was asked for, which this rule would ignore.
    """

    sampling: Sampling

    guarantee: ClassVar[Guarantee] = "tokens"

    def __post_init__(self) -> None:
        if not self.sampling.is_greedy:
            raise UserError(
                f"verifier=greedy takes the argmax, sampling.temperature is {self.sampling.temperature}: choose "
                "verifier=sample_match, b2 or block, or set sampling.temperature to 0"
            )

    def accept(self, proposal: Proposal, logits: mx.array, context: Context) -> Verdict:
        """See `spec.protocols.Verifier`; no random number is used. Forces evaluation: the next step depends on it.

        Raises:
            ValueError: a row has no finite maximum.
        """
        wanted = mx.argmax(processed_rows(self.sampling, proposal, logits, context), axis=-1).tolist()
        misses = [at for at, token in enumerate(proposal.tokens) if token != wanted[at]]
        accepted = misses[0] if misses else len(proposal.tokens)
        return Verdict(accepted=accepted, next_token=wanted[accepted] if accepted < len(wanted) else None)
