"""Sample and match: draw the target's token first, go on while the draft happens to equal it."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import mlx.core as mx

from spec.protocols import Proposal, Verdict
from spec.sampling import Draws, Sampling, check_rows
from spec.verifiers.greedy import match_prefix


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
        draws: Draws,
        committed: Sequence[int] = (),
    ) -> Verdict:
        """See `spec.protocols.Verifier`. Forces evaluation: the next step depends on the draws.

        Raises:
            ValueError: a row has no finite maximum.
        """
        check_rows(target_logits)
        logprobs = self.sampling.logprobs(target_logits)
        # One key a row: a shared key would tie a draw to the block that it fell into.
        drawn = [
            mx.random.categorical(logprobs[row], key=draws.key(position + row, "target"))
            for row in range(logprobs.shape[0])
        ]
        return match_prefix(proposal.tokens, mx.stack(drawn).tolist())
