"""The separate loop: ds4's cycle of three forwards, where the anchor is decoded before anything is proposed.

A cycle (antirez/ds4): (1) plain decode of the token already chosen, which makes the logits of the next position known;
(2) propose; (3) compare d_1 with the choice from those logits, and on a mismatch stop without a verify pass; (4) verify
pass over d_1 .. d_n, whose row j judges d_{j+2}. The row of the last accepted draft is the next choice. It is emitted
at once, as every loop's next token, but it is no gain: the next cycle decodes it plainly.
"""

from dataclasses import replace
from typing import Any, Literal

import mlx.core as mx
from typing_extensions import override

from spec.loop.base import NO_ROOM, Attempt, SpeculativeLoop, declined, outcome_of
from spec.loop.commit import RollbackCommit
from spec.loop.limits import Emission, Progress, emit
from spec.rounds import Context, Round, TargetPass
from spec.values import checked_arguments


class SeparateLoop(SpeculativeLoop):
    """One plain decode a cycle, and a verify pass over the drafts alone if the first of them is right.

    Args:
        target, drafter, **parts: as `SpeculativeLoop`.
        correction: what becomes of a block that ends in a correction token, which has no row in the verify pass.
            ``decode`` commits the accepted drafts by the commit path and leaves the token to the next cycle's decode.
            ``replay`` is the rule ``commit_has_correction`` of https://github.com/antirez/ds4/pull/502: such a block is
            always restored and replayed.

    Raises:
        UserError: as `SpeculativeLoop`, or for another correction.
    """

    @checked_arguments("loop")
    def __init__(
        self, target: Any, drafter: Any = None, *, correction: Literal["decode", "replay"] = "decode", **parts: Any
    ) -> None:
        super().__init__(target, drafter, **parts)
        self.correction = correction

    @override
    def _round(self, progress: Progress) -> tuple[Emission, Round]:
        context, watch = progress.context, self.stopwatch
        known = self._decode(context)
        with watch.time("propose"):
            attempt = self._attempt(progress, context)
        tokens = attempt.proposal.tokens
        if tokens and tokens[0] in progress.request.eos:
            tokens = tokens[:1]  # nothing can follow; ds4 has counted the others as proposed by now
        # To judge d_1 against the row that is known, and then the others as a proposal of their own, is exact for every
        # verifier: each step is a lawful verification given the tokens before it.
        with watch.time("target"):
            first = self._judge(attempt.proposal[:1], known.logits, context)
        if first.accepted:
            return self._verify_drafts(progress, context, attempt, tokens, known)
        self._observe((context.anchor,), known.features)
        emission = emit(progress, tokens[:1], first)
        return self._finish(progress, attempt, emission, attempt.outcome or "miss_first", decoded=1)

    def _attempt(self, progress: Progress, context: Context) -> Attempt:
        plan, left = self._plan(progress), progress.tokens_left
        if plan.gamma == 0:
            return declined(plan)
        attempt = self._propose(progress, context, min(plan.gamma, max(1, left - 1)))
        # In ds4's order: a drafter that has nothing to say is no_draft, whatever the room.
        return NO_ROOM if left == 1 and attempt.outcome != "no_draft" else attempt

    def _verify_drafts(
        self, progress: Progress, context: Context, attempt: Attempt, tokens: tuple[int, ...], known: TargetPass
    ) -> tuple[Emission, Round]:
        """The cycle from the snapshot on, once d_1 is accepted: the first drafts are verified together.

        Args:
            progress: of the generation.
            context: the text up to the anchor.
            attempt: what was proposed.
            tokens: how much of it is verified.
            known: the anchor's pass.
        """
        replays = self.correction == "replay"
        passed, snapshot = self._verify(tokens, RollbackCommit() if replays else self.commit)
        rest = attempt.proposal[1 : len(tokens)]
        with self.stopwatch.time("verify"):
            verdict = self._judge(rest, passed.logits, context.after(tokens[:1]))
        is_corrected = verdict.accepted < len(rest.tokens)
        emission = emit(progress, tokens, replace(verdict, accepted=1 + verdict.accepted))
        commit = RollbackCommit() if replays and is_corrected else self.commit
        rows, replayed = self._settle(tokens, emission.accepted, passed, snapshot, commit)
        features = None if known.features is None else mx.concatenate([known.features, rows.features])
        self._observe((context.anchor, *tokens[: emission.accepted]), features)
        outcome = outcome_of(len(tokens), emission.accepted)
        return self._finish(
            progress, attempt, emission, outcome, decoded=1, verify_rows=len(tokens), replayed_tokens=replayed
        )
