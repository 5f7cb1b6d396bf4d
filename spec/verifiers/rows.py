"""What every verifier begins with: the target's processed distribution at each row of a pass."""

from collections.abc import Sequence

import mlx.core as mx

from spec.protocols import Proposal
from spec.sampling import Sampling, check_rows


def processed_rows(
    sampling: Sampling, proposal: Proposal, target_logits: mx.array, committed: Sequence[int]
) -> mx.array:
    """Logits after bias and penalties, each row with the drafts before it in view. Forces evaluation of their maxima.

    Args:
        sampling: the processed distribution.
        proposal: G tokens.
        target_logits: (G + 1, V).
        committed: prompt and output so far.

    Returns:
        (G + 1, V) float32.

    Raises:
        ValueError: another number of rows, or a row without a finite maximum.
    """
    if target_logits.shape[0] != len(proposal.tokens) + 1:
        raise ValueError(
            f"{len(proposal.tokens)} proposed tokens need {len(proposal.tokens) + 1} rows of target logits, got "
            f"{target_logits.shape[0]}"
        )
    logits = sampling.process(target_logits, committed, proposal.tokens)
    check_rows(logits)
    return logits


def target_rows(sampling: Sampling, proposal: Proposal, target_logits: mx.array, committed: Sequence[int]) -> mx.array:
    """Log p, (G + 1, V) float32, of the processed distribution. Arguments and errors as `processed_rows`."""
    return sampling.distribution(processed_rows(sampling, proposal, target_logits, committed))
