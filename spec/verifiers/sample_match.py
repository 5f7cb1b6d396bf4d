"""Sample and match: draw the target's token first, go on while the draft happens to equal it."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import mlx.core as mx

from spec.protocols import Proposal, Verdict
from spec.sampling import RandomStream, Sampling
from spec.verifiers.rows import target_rows


@dataclass(frozen=True, kw_only=True)
class SampleMatchVerifier:
    """Emits y ~ p at every position and continues if y is the draft (``dspark.md`` d, "sample-and-match").

    A draft that does not look at y cannot change its law, so this is exact for every drafter. With draws keyed by
    position the tokens are the very ones that plain sampling under the same seed emits; at temperature 0 it is greedy
    verification.

    Attributes:
        sampling: the processed distribution p.
    """

    sampling: Sampling = field(default_factory=Sampling)

    def accept(
        self,
        proposal: Proposal,
        target_logits: mx.array,
        position: int,
        draws: RandomStream,
        committed: Sequence[int] = (),
    ) -> Verdict:
        """See `spec.protocols.Verifier`. Forces evaluation a row at a time: no token is drawn that is not emitted.

        Raises:
            ValueError: a row has no finite maximum.
        """
        logprobs = target_rows(self.sampling, proposal, target_logits, committed)
        for accepted, drafted in enumerate(proposal.tokens):
            token = int(draws.categorical(logprobs[accepted], position + accepted, "target"))
            if token != drafted:
                # y itself is emitted: a second draw after the mismatch would count p(x) twice.
                return Verdict(accepted=accepted, next_token=token, kind="correction")
        count = len(proposal.tokens)
        token = int(draws.categorical(logprobs[count], position + count, "target"))
        return Verdict(accepted=count, next_token=token, kind="bonus")
