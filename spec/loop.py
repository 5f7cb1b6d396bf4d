"""What both loop shapes share: from a prompt to rounds, the user's limits, the clock, going back when a step fails.

After a round of either shape exactly one token, the next anchor, is emitted and not in the cache. The shapes differ in
how it gets there: `spec.folded` lets it ride in the next verify pass, `spec.separate` decodes it first. A loop deals in
token ids alone. What is proposed, judged, kept and how often is the business of its parts.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from spec.clock import Clock, Stopwatch, wall_clock
from spec.errors import UserError
from spec.generation import Cut, Progress, cut_off, prefill_chunks
from spec.protocols import (
    BlockPlan,
    BlockPolicy,
    CommitPath,
    Drafter,
    History,
    Outcome,
    Proposal,
    Replay,
    Round,
    Skip,
    StopRule,
    Target,
    TargetPass,
    Verdict,
    Verifier,
)
from spec.sampling import RandomStream


@dataclass(frozen=True, kw_only=True)
class Drafted:
    """What came of asking for a proposal.

    Attributes:
        proposal: perhaps empty, with the reason.
        gamma: tokens that could have been proposed, the budget and the context heeded.
        outcome: settled already where nothing was proposed; None otherwise.
        skip: the block policy's.
    """

    proposal: Proposal
    gamma: int = 0
    outcome: Outcome | None = None
    skip: Skip | None = None


class _Replayer:
    """Replay bound to a target, counted and timed."""

    def __init__(self, replay: Replay, target: Target, watch: Stopwatch) -> None:
        self._replay, self._target, self._watch = replay, target, watch
        self.num_tokens = 0

    def __call__(self, snapshot: Any, tokens: Sequence[int]) -> TargetPass:
        with self._watch.time("replay"):
            self._target.restore(snapshot)
            passed = self._replay.run(self._target, tokens)
        self.num_tokens += len(tokens)
        return passed


class SpeculativeLoop(ABC):
    """Speculative decoding of one sequence. Reusable: each generation starts from a reset.

    Args:
        target: owns the sequence's state, with headroom for the longest block and its anchor.
        drafter: proposes.
        verifier: judges.
        commit: keeps the accepted prefix of a verify pass.
        replay: runs accepted tokens again when the commit path asks.
        block: chooses gamma; ``FixedPolicy(gamma=0)`` is plain decoding through this same code.
        prefill_chunk: prompt tokens a pass.
        clock: seconds; the wall's, or one that parts with a price advance (`spec.priced`).

    Raises:
        UserError: the block policy can ask for more than the drafter can propose or the target can take back.
    """

    def __init__(
        self,
        *,
        target: Target,
        drafter: Drafter,
        verifier: Verifier,
        commit: CommitPath,
        replay: Replay,
        block: BlockPolicy,
        prefill_chunk: int = 512,
        clock: Clock = wall_clock,
    ) -> None:
        if drafter.max_gamma is not None and block.max_gamma > drafter.max_gamma:
            raise UserError(
                f"block.gamma: the drafter proposes at most {drafter.max_gamma} tokens a round, "
                f"got {block.max_gamma}: set block.gamma to {drafter.max_gamma} or less"
            )
        if target.max_rollback < block.max_gamma + 1:
            raise UserError(
                f"the target must be able to take back {block.max_gamma + 1} tokens (gamma and the anchor), its "
                f"max_rollback is {target.max_rollback}: make the session with max_rollback={block.max_gamma + 1}"
            )
        if prefill_chunk < 1:
            raise UserError(f"loop.prefill_chunk must be 1 or more, got {prefill_chunk}")
        self.target, self.drafter, self.verifier = target, drafter, verifier
        self.commit, self.replay, self.block = commit, replay, block
        self.prefill_chunk = prefill_chunk
        self._clock = clock

    def rounds(
        self,
        prompt: Sequence[int],
        *,
        max_tokens: int,
        eos: frozenset[int] = frozenset(),
        stop: StopRule | None = None,
        draws: RandomStream | None = None,
        reference: Sequence[int] | None = None,
    ) -> Iterator[Round]:
        """Generates, a round at a time; the first item is the prefill.

        Args:
            prompt: token ids, at least one.
            max_tokens: most tokens to emit, at least one.
            eos: ids that end the text.
            stop: condition on the text.
            draws: random numbers by position; ``RandomStream()`` by default.
            reference: a known continuation of the prompt, for the drafter that plays one back.

        Raises:
            UserError: the prompt is empty or fills the context, or max_tokens is not positive.
        """
        progress, first = self.start(
            prompt, max_tokens=max_tokens, eos=eos, stop=stop, draws=draws, reference=reference
        )
        yield first
        while progress.finish_reason is None:
            yield self.step(progress)

    def start(
        self,
        prompt: Sequence[int],
        *,
        max_tokens: int,
        eos: frozenset[int] = frozenset(),
        stop: StopRule | None = None,
        draws: RandomStream | None = None,
        reference: Sequence[int] | None = None,
    ) -> tuple[Progress, Round]:
        """Prefills. Arguments and errors as in `rounds`; `step` takes it from here."""
        if len(prompt) == 0:
            raise UserError("the prompt is empty: wanted at least one token")
        if max_tokens < 1:
            raise UserError(f"max_tokens must be 1 or more, got {max_tokens}")
        if len(prompt) >= self.target.context:
            raise UserError(
                f"the prompt has {len(prompt)} tokens, the context holds {self.target.context} with at least one "
                "token of output: shorten the prompt"
            )
        progress = Progress(
            prompt=tuple(prompt), max_tokens=max_tokens, eos=eos, stop=stop, draws=draws or RandomStream()
        )
        watch = Stopwatch(self._clock)
        with watch.time("target"):
            self.target.reset()
            self.drafter.reset(len(prompt), reference)
            self.block.reset()
            passed = self._prefill(prompt, watch)
            verdict = self.verifier.accept(
                Proposal(reason="prefill"), passed.logits, len(prompt), progress.draws, progress.committed
            )
        cut = self._cut(progress, (), verdict)
        finished = Round(
            index=0,
            position=len(prompt) - 1,
            gamma=0,
            proposed=(),
            accepted=0,
            tokens=cut.tokens,
            kind=cut.kind,
            outcome="prefill",
            reason="prefill",
            finish_reason=cut.finish_reason,
            **watch.stop(),
        )
        progress.emitted.extend(cut.tokens)
        progress.finish_reason = cut.finish_reason
        return progress, finished

    def _prefill(self, prompt: Sequence[int], watch: Stopwatch) -> TargetPass:
        """Runs the prompt; returns its last row."""
        for chunk in prefill_chunks(prompt, self.prefill_chunk):
            features = self.target.prefill(chunk)
            with watch.time("propose"):
                self.drafter.observe(chunk, features)
        passed = self.target.forward(prompt[-1:])
        with watch.time("propose"):
            self.drafter.observe(prompt[-1:], passed.features)
        return passed

    def step(self, progress: Progress) -> Round:
        """One round. If anything in it raises, target, drafter, block and progress are as they were before it.

        Args:
            progress: from `start`, not finished.
        """
        offset, drafter, block = self.target.offset, self.drafter.snapshot(), self.block.snapshot()
        try:
            finished = self._round(progress, Stopwatch(self._clock))
            self._check(progress, finished)
            self.block.observe(finished)
        except BaseException:  # an interrupt too: the caller may go on with a consistent state
            self.target.rewind(offset)
            self.drafter.restore(drafter)
            self.block.restore(block)
            raise
        progress.emitted.extend(finished.tokens)
        progress.num_rounds += 1
        progress.last = finished
        progress.finish_reason = finished.finish_reason
        return finished

    @abstractmethod
    def _round(self, progress: Progress, watch: Stopwatch) -> Round:
        """The steps of one round, in the shape's own order. Changes parts, and nothing of the progress."""

    def _check(self, progress: Progress, finished: Round) -> None:
        """The one invariant of state: what is emitted is in the cache, but for a next token.

        Raises:
            ValueError: the commit path left something else.
        """
        wanted = progress.length + len(finished.tokens) - (finished.kind != "none")
        if self.target.offset != wanted:
            raise ValueError(f"the cache must hold {wanted} tokens after the round, it holds {self.target.offset}")

    def _left(self, progress: Progress) -> int:
        """Tokens that may still be emitted."""
        return min(progress.max_tokens - len(progress.emitted), self.target.context - progress.length)

    def _plan(self, progress: Progress) -> BlockPlan:
        return self.block.plan(
            History(
                position=progress.length - 1,
                num_rounds=progress.num_rounds,
                tokens_left=self._left(progress),
                last=progress.last,
            )
        )

    def _draft(self, progress: Progress, gamma: int) -> Drafted:
        """Asks the drafter for 1..gamma tokens, and refuses ids that the target cannot be fed.

        Raises:
            ValueError: the drafter proposed more.
        """
        proposal = self.drafter.propose(
            progress.emitted[-1], progress.length - 1, gamma, progress.draws, self.block.admits
        )
        if not proposal.tokens:
            return Drafted(proposal=proposal, gamma=gamma, outcome="no_draft")
        if len(proposal.tokens) > gamma:
            raise ValueError(f"the drafter proposed {len(proposal.tokens)} tokens, wanted at most {gamma}")
        foreign = [token for token in proposal.tokens if not 0 <= token < self.target.vocab_size]
        if foreign:
            reason = f"drafted ids {foreign} lie outside the target's vocabulary of {self.target.vocab_size}"
            return Drafted(proposal=Proposal(reason=reason), gamma=gamma, outcome="invalid")
        return Drafted(proposal=proposal, gamma=gamma)

    def _cut(self, progress: Progress, drafted: tuple[int, ...], verdict: Verdict) -> Cut:
        return cut_off(progress, drafted, verdict, self.target.context)

    def _snapshot(self, commit: CommitPath, watch: Stopwatch) -> Any:
        """The state before a verify pass, if the commit path returns to it."""
        if not commit.needs_snapshot:
            return None
        with watch.time("snapshot"):
            return self.target.snapshot()

    def _commit(
        self,
        commit: CommitPath,
        passed: TargetPass,
        inputs: tuple[int, ...],
        keep: int,
        snapshot: Any,
        watch: Stopwatch,
    ) -> tuple[TargetPass, int]:
        """Keeps the first inputs of a verify pass; returns their rows, and how many tokens were replayed for it."""
        replayer = _Replayer(self.replay, self.target, watch)
        with watch.time("commit"):
            kept = commit.commit(self.target, passed, inputs, keep, replayer, snapshot)
        return kept, replayer.num_tokens

    def _record(
        self, progress: Progress, drafted: Drafted, cut: Cut, outcome: Outcome, watch: Stopwatch, **counts: int
    ) -> Round:
        """The round, once everything is done; ``counts`` are its fields ``decoded, verify_rows, replayed_tokens``."""
        return Round(
            index=progress.num_rounds + 1,
            position=progress.length - 1,
            gamma=drafted.gamma,
            proposed=drafted.proposal.tokens,
            accepted=cut.accepted,
            tokens=cut.tokens,
            kind=cut.kind,
            outcome=outcome,
            reason=drafted.proposal.reason,
            skip=drafted.skip,
            confidence=drafted.proposal.confidence,
            finish_reason=cut.finish_reason,
            has_no_residual=cut.has_no_residual,
            **counts,
            **watch.stop(),
        )


def undrafted(plan: BlockPlan) -> Drafted:
    """A round that its block policy declined."""
    outcome: Outcome = "tail_skip" if plan.skip == "tail" else "no_draft"
    return Drafted(proposal=Proposal(reason=plan.reason), outcome=outcome, skip=plan.skip)


NO_ROOM = Drafted(proposal=Proposal(reason="one token is left of max_tokens or the context"), outcome="no_room")


def outcome_of(judged: int, accepted: int) -> Outcome:
    """The counter that a verified block raises.

    Args:
        judged: tokens that were up for a decision.
        accepted: how many of them were emitted.
    """
    if accepted == judged:
        return "full"
    return "partial" if accepted else "miss_first"
