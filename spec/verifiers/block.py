"""Block verification: the proposal is judged as a whole (Sun et al. 2024, arXiv 2403.10444, algorithm 2).

With w_0 = 1 and w_i = min(1, w_{i-1} p(d_i) / q(d_i)), prefix i is the longest accepted one with the excess mass

    R_i = sum_x max(w_i p(x) - q(x), 0)        rows of position i + 1

where the tests h_i = R_i / (R_i + 1 - w_i), and h_G = w_G at the end, are made for every i and the longest prefix whose
test passes is taken. By induction from the end, Pr(at least i accepted | d_1 .. d_i) = w_i: prefix i + 1 is accepted
with sum q(x) w_{i+1}(x) = sum min(w_i p, q) = w_i - R_i, and if not, prefix i with h_i, which adds up to w_i. So prefix
i, next token x comes out with Q(d) R_i max(w_i p(x) - q(x), 0) / R_i, and as a part of a longer one with Q(d)
min(w_i p(x), q(x)): together Q(d) w_i p(x). Where fewer than i are accepted, later rounds draw from p. Hence the law is
p's, and the expected number accepted is the largest that any rule reaches, never below that of `RejectionVerifier`.

Under point masses w_i is the product of p(d), both rules accept alike, and nothing is gained.
"""

from typing import ClassVar

import mlx.core as mx

from spec.rounds import Context, Guarantee, Proposal, Verdict
from spec.sampling import Sampling
from spec.values import checked
from spec.verifiers.rejection import bonus, correction, log_ratios, residual
from spec.verifiers.rows import target_rows


def log_weights(ratios: mx.array) -> mx.array:
    """log w_0 .. log w_G.

    Args:
        ratios: (G,) float32, log p(d) / q(d).

    Returns:
        (G + 1,) float32, at most 0; a later one may be larger again.
    """
    weights = [mx.zeros(())]
    for index in range(ratios.shape[0]):
        weights.append(mx.minimum(weights[-1] + ratios[index], 0))
    return mx.stack(weights)


def block_acceptance(weights: mx.array, excess: mx.array) -> list[float]:
    """h_1 .. h_G: the probability that a prefix passes its own test.

    Args:
        weights: (G + 1,) float32, log w.
        excess: (G, V) float32, log max(w_i p - q, 0) for i = 0 .. G - 1.

    Returns:
        G probabilities; forces evaluation.
    """
    mass = mx.exp(mx.logsumexp(excess, axis=-1))[1:]  # R_1 .. R_{G-1}
    inner = weights[1:-1]
    shortfall = -mx.expm1(inner)  # 1 - w
    # At w = 1 a prefix is accepted with certainty, also where p = q leaves 0 / 0.
    tests = mx.where(inner == 0, 1.0, mass / (mass + shortfall))
    return mx.concatenate([tests, mx.exp(weights[-1:])]).tolist()


@checked("verifier")
class BlockVerifier:
    """Accepts the longest prefix that passes the test of the block, and corrects from the block's own residual.

    Attributes:
        sampling: the processed distribution p.
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
        if count == 0:
            return bonus(0, target, context)
        draft = proposal.draft_logprobs(target.shape[1])
        weights = log_weights(log_ratios(target[:count], draft, proposal.tokens))
        excess = residual(weights[:-1, None] + target[:count], draft)
        tests = block_acceptance(weights, excess)
        # Tests of positions that are rejected decide what is emitted before them, so a later round needs fresh ones.
        random = context.random.in_round(context.position + 1)
        accepted = count
        while accepted and not random.accepts(tests[accepted - 1], context.position + accepted):
            accepted -= 1
        if accepted == count:
            return bonus(count, target, context)
        return correction(accepted, target[accepted], excess[accepted], context)
