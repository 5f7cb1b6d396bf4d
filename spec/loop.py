"""The folded loop: the anchor rides in front of the proposal, so a round costs one target pass.

After a round exactly one token, the next anchor, is known and not in the cache (``dspark.md`` c.1; DeepSpec's and
mlx-lm's loops have the same shape). The loop owns the order of the steps, the user's limits and the clock, and deals in
token ids alone. What is proposed, judged, kept and how often is the business of its parts.
"""

import time
from collections.abc import Callable, Iterator, Sequence

from spec.errors import UserError
from spec.generation import Progress, cut_off
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
    StopRule,
    Target,
    TargetPass,
    Verifier,
)
from spec.sampling import Draws


class _TimedReplay:
    """Replay bound to a target, counted and timed on the loop's clock."""

    def __init__(self, replay: Replay, target: Target, clock: Callable[[], float]) -> None:
        self._replay, self._target, self._clock = replay, target, clock
        self.num_tokens = 0
        self.seconds = 0.0

    def __call__(self, tokens: Sequence[int]) -> TargetPass:
        started = self._clock()
        passed = self._replay.run(self._target, tokens)
        self.seconds += self._clock() - started
        self.num_tokens += len(tokens)
        return passed


class FoldedLoop:
    """Speculative decoding, one target pass a round. Reusable: each generation starts from a reset.

    Args:
        target: owns the sequence's state, with headroom for the longest block and its anchor.
        drafter: proposes.
        verifier: judges.
        commit: keeps the accepted prefix.
        replay: runs accepted tokens again when the commit path asks.
        block: chooses gamma; ``FixedBlock(gamma=0)`` is plain decoding through this same code.
        prefill_chunk: prompt tokens a pass.
        clock: seconds; replaced in tests.

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
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if drafter.max_gamma is not None and block.max_gamma > drafter.max_gamma:
            raise UserError(
                f"block.gamma: the drafter proposes at most {drafter.max_gamma} tokens a round (its checkpoint's "
                f"block size), got {block.max_gamma}: set block.gamma to {drafter.max_gamma} or less"
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
        draws: Draws | None = None,
        reference: Sequence[int] | None = None,
    ) -> Iterator[Round]:
        """Generates, a round at a time; the first item is the prefill.

        Args:
            prompt: token ids, at least one.
            max_tokens: most tokens to emit, at least one.
            eos: ids that end the text.
            stop: condition on the text.
            draws: random numbers by position; ``Draws()`` by default.
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
        draws: Draws | None = None,
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
        progress = Progress(prompt=tuple(prompt), max_tokens=max_tokens, eos=eos, stop=stop, draws=draws or Draws())
        started = self._clock()
        self.target.reset()
        self.drafter.reset(len(prompt), reference)
        self.block.reset()
        passed, propose_s = self._prefill(prompt)
        verdict = self.verifier.accept(
            Proposal(reason="prefill"), passed.logits, len(prompt), progress.draws, progress.committed
        )
        cut = cut_off(progress, (), verdict, self.target.context)
        duration_s = self._clock() - started
        progress.emitted.extend(cut.tokens)
        progress.finish_reason = cut.finish_reason
        return progress, Round(
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
            propose_s=propose_s,
            target_s=duration_s - propose_s,
            duration_s=duration_s,
        )

    def _prefill(self, prompt: Sequence[int]) -> tuple[TargetPass, float]:
        """Runs the prompt; returns its last row and the seconds that the drafter took."""
        propose_s = 0.0
        # The last token goes alone, as every anchor will, so that only its logits are ever computed (as in mlx-lm).
        for start in range(0, len(prompt) - 1, self.prefill_chunk):
            chunk = prompt[start : min(start + self.prefill_chunk, len(prompt) - 1)]
            features = self.target.absorb(chunk)
            before = self._clock()
            self.drafter.observe(chunk, features)
            propose_s += self._clock() - before
        passed = self.target.forward(prompt[-1:])
        before = self._clock()
        self.drafter.observe(prompt[-1:], passed.features)
        return passed, propose_s + self._clock() - before

    def step(self, progress: Progress) -> Round:
        """One round. If anything in it raises, target, drafter, block and progress are as they were before it.

        Args:
            progress: from `start`, not finished.
        """
        offset, drafter, block = self.target.offset, self.drafter.snapshot(), self.block.snapshot()
        try:
            finished = self._round(progress)
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

    def _round(self, progress: Progress) -> Round:
        started = self._clock()
        anchor, position = progress.emitted[-1], progress.length - 1
        plan, proposal, outcome = self._propose(progress, anchor, position)
        proposed_at = self._clock()

        inputs = (anchor, *proposal.tokens)
        passed = self.target.forward(inputs)
        verdict = self.verifier.accept(proposal, passed.logits, position + 1, progress.draws, progress.committed)
        verified_at = self._clock()

        cut = cut_off(progress, proposal.tokens, verdict, self.target.context)
        # A next token was not an input, so it has no row: it stays pending as the next anchor.
        keep = 1 + cut.accepted
        replay = _TimedReplay(self.replay, self.target, self._clock)
        before_commit = self._clock()
        kept = self.commit.commit(self.target, passed, inputs, keep, replay)
        committed_at = self._clock()

        self.drafter.observe(inputs[:keep], kept.features)
        ended = self._clock()
        pass_s = verified_at - proposed_at
        return Round(
            index=progress.num_rounds + 1,
            position=position,
            gamma=plan.gamma,
            proposed=proposal.tokens,
            accepted=cut.accepted,
            tokens=cut.tokens,
            kind=cut.kind,
            outcome=outcome or _outcome(len(proposal.tokens), cut.accepted),
            reason=proposal.reason,
            skip=plan.skip,
            confidence=proposal.confidence,
            finish_reason=cut.finish_reason,
            propose_s=(proposed_at - started) + (ended - committed_at),
            verify_s=pass_s if proposal.tokens else 0.0,
            target_s=0.0 if proposal.tokens else pass_s,
            commit_s=committed_at - before_commit - replay.seconds,
            replay_s=replay.seconds,
            duration_s=ended - started,
            replayed_tokens=replay.num_tokens,
        )

    def _propose(self, progress: Progress, anchor: int, position: int) -> tuple[BlockPlan, Proposal, Outcome | None]:
        """The plan within the limits, the proposal, and the outcome if that is settled already."""
        # Both limits leave one token for the next token: a draft that could only be cut off is not worth its row.
        left = min(progress.max_tokens - len(progress.emitted), self.target.context - progress.length)
        plan = self.block.plan(
            History(position=position, num_rounds=progress.num_rounds, tokens_left=left, last=progress.last)
        )
        if plan.gamma == 0:
            return plan, Proposal(reason=plan.reason), "tail_skip" if plan.skip == "tail" else "no_draft"
        if left == 1:
            plan = BlockPlan(gamma=0, reason="one token is left of max_tokens or the context")
            return plan, Proposal(reason=plan.reason), "no_room"
        plan = BlockPlan(gamma=min(plan.gamma, left - 1))
        proposal = self.drafter.propose(anchor, position, plan.gamma, progress.draws, self.block.admits)
        if not proposal.tokens:
            return plan, proposal, "no_draft"
        if len(proposal.tokens) > plan.gamma:
            raise ValueError(f"the drafter proposed {len(proposal.tokens)} tokens, wanted at most {plan.gamma}")
        foreign = [token for token in proposal.tokens if not 0 <= token < self.target.vocab_size]
        if foreign:
            reason = f"drafted ids {foreign} lie outside the target's vocabulary of {self.target.vocab_size}"
            return plan, Proposal(reason=reason), "invalid"
        return plan, proposal, None


def _outcome(proposed: int, accepted: int) -> Outcome:
    if accepted == proposed:
        return "full"
    return "partial" if accepted else "miss_first"
