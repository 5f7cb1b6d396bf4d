"""The folded loop: the anchor rides in front of the proposal, so that a round costs one target pass.

DeepSpec's, mlx-lm's, vLLM's and llama.cpp's loops have this shape (``dspark.md`` c.1).
"""

from spec.clock import Stopwatch
from spec.generation import Progress
from spec.loop import NO_ROOM, Drafted, SpeculativeLoop, outcome_of, undrafted
from spec.protocols import Round


class FoldedLoop(SpeculativeLoop):
    """One pass over [anchor, d_1 .. d_n]: row j judges d_{j+1}, the last accepted one's row yields the next token."""

    def _round(self, progress: Progress, watch: Stopwatch) -> Round:
        with watch.time("propose"):
            drafted = self._propose(progress)
        proposal = drafted.proposal
        inputs = (progress.emitted[-1], *proposal.tokens)
        snapshot = self._snapshot(self.commit, watch) if proposal.tokens else None
        with watch.time("verify" if proposal.tokens else "target"):
            passed = self.target.verify(inputs) if proposal.tokens else self.target.forward(inputs)
            verdict = self.verifier.accept(proposal, passed.logits, progress.length, progress.draws, progress.committed)
        cut = self._cut(progress, proposal.tokens, verdict)

        replayed = 0
        if proposal.tokens:
            # A next token was not an input, so it has no row: it stays pending as the next anchor.
            passed, replayed = self._commit(self.commit, passed, inputs, 1 + cut.accepted, snapshot, watch)
        with watch.time("propose"):
            self.drafter.observe(inputs[: 1 + cut.accepted], passed.features)
        return self._record(
            progress,
            drafted,
            cut,
            drafted.outcome or outcome_of(len(proposal.tokens), cut.accepted),
            watch,
            decoded=0 if proposal.tokens else 1,
            verify_rows=len(inputs) if proposal.tokens else 0,
            replayed_tokens=replayed,
        )

    def _propose(self, progress: Progress) -> Drafted:
        plan, left = self._plan(progress), self._left(progress)
        if plan.gamma == 0:
            return undrafted(plan)
        if left == 1:
            return NO_ROOM
        # One token is left for the next token: a draft that could only be cut off is not worth its row.
        return self._draft(progress, min(plan.gamma, left - 1))
