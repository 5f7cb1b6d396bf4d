"""The separate loop: ds4's cycle of three forwards, where the anchor is decoded before anything is proposed.

A cycle (``dspark.md`` c.1, c.4; antirez/ds4): (1) plain decode of the token already chosen, which makes the logits of
the next position known; (2) propose; (3) compare d_1 with the choice from those logits, and on a mismatch stop without
a verify pass; (4) verify pass over d_1 .. d_n, whose row j judges d_{j+2}. The row of the last accepted draft is the
next choice. It is emitted at once, as every loop's next token, but it is no gain: the next cycle decodes it plainly.
"""

from dataclasses import replace
from typing import Any, Literal

import mlx.core as mx

from spec.clock import Stopwatch
from spec.commit import RollbackCommit
from spec.errors import UserError
from spec.generation import Progress
from spec.loop import NO_ROOM, Drafted, SpeculativeLoop, outcome_of, undrafted
from spec.protocols import CommitPath, Proposal, Round, TargetPass, Verdict


class SeparateLoop(SpeculativeLoop):
    """One plain decode a cycle, and a verify pass over the drafts alone if the first of them is right.

    Args:
        correction: what becomes of a block that ends in a correction token, which has no row in the verify pass.
            ``decode`` commits the accepted drafts by the commit path and leaves the token to the next cycle's decode.
            ``replay`` is ds4 pull 502's rule ``commit_has_correction``: such a block is always restored and replayed.
        **parts: as `SpeculativeLoop`.

    Raises:
        UserError: as `SpeculativeLoop`, or for another correction.
    """

    def __init__(self, *, correction: Literal["decode", "replay"] = "decode", **parts: Any) -> None:
        super().__init__(**parts)
        if correction not in ("decode", "replay"):
            raise UserError(f"loop.correction must be decode or replay, got {correction!r}")
        self.correction = correction

    def _round(self, progress: Progress, watch: Stopwatch) -> Round:
        anchor = progress.emitted[-1]
        with watch.time("target"):
            known = self.target.forward((anchor,))
        with watch.time("propose"):
            drafted = self._propose(progress)
        tokens = drafted.proposal.tokens
        if tokens and tokens[0] in progress.eos:
            tokens = tokens[:1]  # nothing can follow; ds4 has counted the others as proposed by now
        with watch.time("target"):
            verdict = self._judge_first(progress, part(drafted.proposal, 0, 1), known)
        if verdict.accepted:
            return self._verify(progress, drafted, tokens, known, watch)
        cut = self._cut(progress, (), verdict)
        with watch.time("propose"):
            self.drafter.observe((anchor,), known.features)
        return self._record(progress, drafted, cut, drafted.outcome or "miss_first", watch, decoded=1)

    def _propose(self, progress: Progress) -> Drafted:
        plan, left = self._plan(progress), self._left(progress)
        if plan.gamma == 0:
            return undrafted(plan)
        drafted = self._draft(progress, min(plan.gamma, max(1, left - 1)))
        # In ds4's order: a drafter that has nothing to say is no_draft, whatever the room.
        return NO_ROOM if left == 1 and drafted.outcome != "no_draft" else drafted

    def _judge_first(self, progress: Progress, first: Proposal, known: TargetPass) -> Verdict:
        """The early miss: d_1 alone against the row that is known; without a draft, the choice from that row.

        To judge d_1 and then the others as a proposal of their own is exact for every verifier: each step is a lawful
        verification given the tokens before it.
        """
        # Where d_1 stands, a verifier goes on to a bonus from the row after it. There is none yet, and any row will do:
        # that token is dropped, and draws are keyed by position.
        rows = mx.concatenate([known.logits] * (1 + len(first.tokens)))
        return self.verifier.accept(first, rows, progress.length, progress.draws, progress.committed)

    def _verify(
        self, progress: Progress, drafted: Drafted, tokens: tuple[int, ...], known: TargetPass, watch: Stopwatch
    ) -> Round:
        """The cycle from the snapshot on: d_1 stands.

        Args:
            progress: of the generation.
            drafted: what was proposed.
            tokens: how much of it is verified.
            known: the anchor's pass.
            watch: the round's.
        """
        replays = self.correction == "replay"
        snapshot = self._snapshot(RollbackCommit() if replays else self.commit, watch)
        with watch.time("verify"):
            passed = self.target.verify(tokens)
            rest = self.verifier.accept(
                part(drafted.proposal, 1, len(tokens)),
                passed.logits,
                progress.length + 1,
                progress.draws,
                (*progress.committed, tokens[0]),
            )
        cut = self._cut(progress, tokens, replace(rest, accepted=1 + rest.accepted))
        path: CommitPath = RollbackCommit() if replays and rest.kind == "correction" else self.commit
        kept, replayed = self._commit(path, passed, tokens, cut.accepted, snapshot, watch)
        features = None if known.features is None else mx.concatenate([known.features, kept.features])
        with watch.time("propose"):
            self.drafter.observe((progress.emitted[-1], *tokens[: cut.accepted]), features)
        return self._record(
            progress,
            drafted,
            cut,
            outcome_of(len(tokens), cut.accepted),
            watch,
            decoded=1,
            verify_rows=len(tokens),
            replayed_tokens=replayed,
        )


def part(proposal: Proposal, start: int, stop: int) -> Proposal:
    """The tokens ``start .. stop - 1`` of a proposal as one of their own, drawn as they were; perhaps none."""
    if not proposal.tokens[start:stop]:
        return Proposal(reason=proposal.reason or "no draft is left to judge")
    sampler = proposal.sampler
    return Proposal(
        tokens=proposal.tokens[start:stop],
        sampler=None if sampler is None else sampler.part(start, stop),
        confidence=None if proposal.confidence is None else proposal.confidence[start:stop],
    )
