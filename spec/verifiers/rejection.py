"""B2: rejection sampling, one draft after another (Leviathan et al. 2023, arXiv 2211.17192; Chen et al., 2302.01318).

A draft x ~ q is accepted with probability min(1, p(x) / q(x)). The first that does not is replaced by a draw from the
residual, norm(max(p - q, 0)), so that q(x) min(1, p/q) + (1 - sum min(p, q)) residual(x) = p(x). An argmax draft is the
case of a point mass q: it is accepted with p(x), and the residual is p without x. All in log space, where no ratio
underflows.
"""

from typing import ClassVar

import mlx.core as mx

from spec.rounds import Context, Guarantee, Proposal, Verdict
from spec.sampling import Sampling
from spec.values import checked
from spec.verifiers.rows import target_rows


def log_ratios(target: mx.array, draft: mx.array, tokens: tuple[int, ...]) -> mx.array:
    """log p(d) / q(d) of each draft.

    Args:
        target: (G, V) float32, log p.
        draft: (G, V) float32, log q.
        tokens: G drafts.

    Returns:
        (G,) float32; -inf where a filter removed the draft from p.

    Raises:
        ValueError: q gives a draft no probability, so that it cannot have been drawn from it. Forces evaluation.
    """
    ids = mx.array(tokens)[:, None]
    p, q = mx.take_along_axis(target, ids, axis=1)[:, 0], mx.take_along_axis(draft, ids, axis=1)[:, 0]
    impossible = [token for token, value in zip(tokens, mx.isfinite(q).tolist(), strict=True) if not value]
    if impossible:
        raise ValueError(f"drafts {impossible} have no probability under q: they were not drawn from it")
    return p - q


def acceptance(target: mx.array, draft: mx.array, tokens: tuple[int, ...]) -> list[float]:
    """min(1, p(d) / q(d)) of each draft. Arguments and errors as `log_ratios`; forces evaluation."""
    return mx.exp(mx.minimum(log_ratios(target, draft, tokens), 0)).tolist()


def residual(target: mx.array, draft: mx.array) -> mx.array:
    """Log of max(p - q, 0), not normalized.

    Args:
        target: (..., V) float32, log p.
        draft: (..., V) float32, log q.

    Returns:
        (..., V) float32, all -inf where p has nothing that q has not.
    """
    # log(p - q) = log p + log(1 - q / p), without a difference of nearly equal numbers
    return mx.where(target > draft, target + mx.log(-mx.expm1(mx.minimum(draft - target, 0))), -mx.inf)


def correction(accepted: int, target: mx.array, excess: mx.array, context: Context) -> Verdict:
    """Draws the correction token. Forces evaluation.

    Args:
        accepted: length of the accepted prefix.
        target: (V,) float32, log p after it.
        excess: (V,) float32, log of the residual, not normalized.
        context: the text before the proposal.
    """
    # A rejection says that the residual has mass; rounding can still have eaten it when p and q are nearly equal.
    is_empty = mx.max(excess) == -mx.inf
    position = context.position + 1 + accepted
    token = int(context.random.categorical(mx.where(is_empty, target, excess), position, "residual"))
    return Verdict(accepted=accepted, next_token=token, has_no_residual=bool(is_empty.item()))


def bonus(accepted: int, target: mx.array, context: Context) -> Verdict:
    """Draws the token after a proposal that was accepted whole, if a row is left for it.

    Args:
        accepted: G.
        target: (G, V) or (G + 1, V) float32, log p.
        context: the text before the proposal.
    """
    if target.shape[0] == accepted:
        return Verdict(accepted=accepted, next_token=None)
    token = int(context.random.categorical(target[accepted], context.position + 1 + accepted, "bonus"))
    return Verdict(accepted=accepted, next_token=token)


@checked("verifier")
class RejectionVerifier:
    """Accepts drafts one by one with probability min(1, p/q) and corrects the first rejected from the residual.

    Attributes:
        sampling: the processed distribution p. The same p enters the ratio and the residual.
    """

    sampling: Sampling

    guarantee: ClassVar[Guarantee] = "law"

    def accept(self, proposal: Proposal, logits: mx.array, context: Context) -> Verdict:
        """See `spec.protocols.Verifier`. Forces evaluation: the next step depends on the draws.

        Raises:
            ValueError: a row has no finite maximum, or a draft cannot have been drawn from its q.
        """
        target = target_rows(self.sampling, proposal, logits, context)
        count = len(proposal.tokens)
        if count:
            draft = proposal.draft_logprobs(target.shape[1])
            for accepted, probability in enumerate(acceptance(target[:count], draft, proposal.tokens)):
                if not context.random.accepts(probability, context.position + 1 + accepted):
                    return correction(accepted, target[accepted], residual(target[accepted], draft[accepted]), context)
        return bonus(count, target, context)
