"""Sampled drafts at recorded positions, drawn so that they and the recorded tokens are maximally coupled.

A recorded token is a draw x ~ p of the target. Keep it as the draft with probability min(1, q(x) / p(x)), and draw from
norm(max(q - p, 0)) otherwise. Then the draft y has probability p(y) min(1, q/p) + (1 - sum min(p, q)) residual(y) =
min(p, q)(y) + max(q - p, 0)(y) = q(y), and given y the token was kept with probability min(p, q)(y) / q(y) =
min(1, p/q), which is the test of rejection sampling (`spec.RejectionVerifier`). A kept draft is the recorded token, so
the target's recorded logits are also those after it. Drafts and accepted counts are therefore distributed as in the
loop at that anchor, without a target pass over any draft.

The mean of prod_i min(1, q(x_i) / p(x_i)) along recorded tokens is the same survival, the sum over blocks of prod
min(p, q). It is not used: its confidences would be those after tokens of p, where the loop's are after drafts of q.
"""

from dataclasses import dataclass

import mlx.core as mx

from spec.sampling import Sampling
from spec.verifiers.rejection import residual


@dataclass(frozen=True, kw_only=True)
class RecordedBatch:
    """The recorded draws of the target that drafts are coupled with.

    Attributes:
        logits: (B, S, V) float32, the target's after each recorded token.
        temperature: of the recorded draws and of the drafts, above 0; nothing else was filtered.
        key: of the draws.
    """

    logits: mx.array
    temperature: float
    key: mx.array


class CoupledChain:
    """Chooses the drafts of A blocks, row after row: the ``choose`` of `models.dspark.DSparkNetwork.draft`.

    Args:
        truth: (A, G) int32, the recorded tokens after the anchors.
        logits: (A, G, V) float32, the target's for them.
        temperature: of both distributions. key: of the draws.
    """

    def __init__(self, truth: mx.array, logits: mx.array, temperature: float, key: mx.array) -> None:
        self._truth, self._logits = truth, logits
        self._sampling = Sampling(temperature=temperature)
        self._keys = mx.random.split(key, 2 * truth.shape[1])
        self._is_standing = mx.ones(len(truth), dtype=mx.bool_)
        self._accepted = mx.zeros(len(truth), dtype=mx.int32)
        self._chances: list[mx.array] = []

    def choose(self, logits: mx.array) -> mx.array:
        """Draws the next draft of each block; not evaluated.

        Args:
            logits: (A, V) float32, the drafter's given the drafts chosen before.

        Returns:
            (A,) int32.
        """
        row = len(self._chances)
        q, p = self._sampling.logprobs(logits), self._sampling.logprobs(self._logits[:, row])
        token = self._truth[:, row]
        ratio = mx.take_along_axis(q - p, token[:, None], axis=1)[:, 0]
        self._chances.append(mx.exp(mx.minimum(p, q)).sum(axis=-1))
        uniform = mx.random.uniform(shape=ratio.shape, key=self._keys[2 * row])
        is_kept = self._is_standing & (mx.log(uniform) < ratio)
        # After the first rejection the drafter goes on by itself; rounding may leave nothing of a residual.
        excess = residual(q, p)
        has_excess = mx.max(excess, axis=-1) > -mx.inf
        rest = mx.where((self._is_standing & has_excess)[:, None], excess, q)
        drawn = mx.random.categorical(rest, key=self._keys[2 * row + 1])
        self._is_standing = is_kept
        self._accepted = self._accepted + is_kept
        return mx.where(is_kept, token, drawn.astype(token.dtype))

    @property
    def accepted(self) -> mx.array:
        """(A,) int32, accepted drafts among those chosen so far."""
        return self._accepted

    @property
    def chances(self) -> mx.array:
        """(A, G) float32, sum min(p, q): acceptance probability of each draft where those before it are accepted."""
        return mx.stack(self._chances, axis=1)
