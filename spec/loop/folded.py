"""The folded loop: the anchor rides in front of the proposal, so that a round costs one target pass.

The loops of DeepSpec, mlx-lm, vLLM and llama.cpp have this shape.
"""

from typing_extensions import override

from spec.loop.base import NO_ROOM, Attempt, SpeculativeLoop, declined, outcome_of
from spec.loop.limits import Emission, Progress, emit
from spec.rounds import Context, Round


class FoldedLoop(SpeculativeLoop):
    """One pass over [anchor, d_1 .. d_n]: row j judges d_{j+1}, the last accepted one's row yields the next token."""

    @override
    def _round(self, progress: Progress) -> tuple[Emission, Round]:
        context, watch = progress.context, self.stopwatch
        with watch.time("propose"):
            attempt = self._attempt(progress, context)
        proposal = attempt.proposal
        if not proposal.tokens:
            passed = self._decode(context)
            with watch.time("target"):
                verdict = self._judge(proposal, passed.logits, context)
            self._observe((context.anchor,), passed.features)
            return self._finish(progress, attempt, emit(progress, (), verdict), attempt.outcome, decoded=1)

        inputs = (context.anchor, *proposal.tokens)
        passed, snapshot = self._verify(inputs, self.commit)
        with watch.time("verify"):
            verdict = self._judge(proposal, passed.logits, context)
        emission = emit(progress, proposal.tokens, verdict)
        # A next token was not an input, so it has no row: it stays pending as the next anchor.
        kept = 1 + emission.accepted
        rows, replayed = self._settle(inputs, kept, passed, snapshot, self.commit)
        self._observe(inputs[:kept], rows.features)
        outcome = outcome_of(len(proposal.tokens), emission.accepted)
        return self._finish(progress, attempt, emission, outcome, verify_rows=len(inputs), replayed_tokens=replayed)

    def _attempt(self, progress: Progress, context: Context) -> Attempt:
        plan, left = self._plan(progress), progress.tokens_left
        if plan.gamma == 0:
            return declined(plan)
        if left == 1:
            return NO_ROOM
        # One token is left for the next token: a draft that could only be cut off is not worth its row.
        return self._propose(progress, context, min(plan.gamma, left - 1))
