"""The target's processed logits at each row of a pass, with which every verifier begins."""

import mlx.core as mx

from spec.rounds import Context, Proposal
from spec.sampling import Sampling, check_rows


def processed_rows(sampling: Sampling, proposal: Proposal, logits: mx.array, context: Context) -> mx.array:
    """Logits after bias and penalties, each row with the drafts before it in view. Forces evaluation of their maxima.

    Args:
        sampling: the processed distribution.
        proposal: G tokens.
        logits: (G, V) or (G + 1, V), the target's.
        context: the text before the proposal.

    Returns:
        As ``logits``, float32.

    Raises:
        ValueError: another number of rows, or a row without a finite maximum.
    """
    count = len(proposal.tokens)
    if logits.shape[0] not in (max(count, 1), count + 1):
        raise ValueError(
            f"{count} proposed tokens need {count + 1} rows of target logits, or {count} for no bonus, got "
            f"{logits.shape[0]}"
        )
    rows = sampling.process(logits, context.tokens, proposal.tokens)
    check_rows(rows)
    return rows


def target_rows(sampling: Sampling, proposal: Proposal, logits: mx.array, context: Context) -> mx.array:
    """Log p of the processed distribution, shape as ``logits``, float32. Arguments and errors as `processed_rows`."""
    return sampling.distribution(processed_rows(sampling, proposal, logits, context))
