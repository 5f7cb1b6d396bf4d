"""Sample and match: draw the target's token first, go on while the draft happens to equal it."""

from typing import ClassVar

import mlx.core as mx

from spec.rounds import Context, Guarantee, Proposal, Verdict
from spec.sampling import Sampling
from spec.values import checked
from spec.verifiers.rows import target_rows


@checked("verifier")
class SampleMatchVerifier:
    """Emits y ~ p at every position and continues if y is the draft.

    A draft that does not look at y cannot change its law, so this is exact for every drafter. With draws keyed by
    position the tokens are the very ones that plain sampling under the same seed emits; at temperature 0 it is greedy
    verification.

    Attributes:
        sampling: the processed distribution p.
    """

    sampling: Sampling

    guarantee: ClassVar[Guarantee] = "tokens"

    def accept(self, proposal: Proposal, logits: mx.array, context: Context) -> Verdict:
        """See `spec.protocols.Verifier`. Forces evaluation a row at a time: no token is drawn that is not emitted.

        Raises:
            ValueError: a row has no finite maximum.
        """
        logprobs = target_rows(self.sampling, proposal, logits, context)
        for at in range(logprobs.shape[0]):
            token = int(context.random.categorical(logprobs[at], context.position + 1 + at, "target"))
            if at == len(proposal.tokens) or token != proposal.tokens[at]:
                # y itself is emitted: a second draw after the mismatch would count p(x) twice.
                return Verdict(accepted=at, next_token=token)
        return Verdict(accepted=len(proposal.tokens), next_token=None)
