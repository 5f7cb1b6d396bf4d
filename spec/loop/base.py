"""What both loop shapes share: prefill, the steps of a round, the target's state, the clock.

After a round of either shape exactly one token, the next anchor, is emitted and not in the cache. The shapes differ in
how it gets there: `FoldedLoop` lets it ride in the next verify pass, `SeparateLoop` decodes it first. A loop deals in
token ids alone; text is made outside it.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from spec import protocols
from spec.blocks.fixed import FixedPolicy
from spec.drafters.none import NoneDrafter
from spec.errors import UserError
from spec.loop.border import check_part, check_plan, check_proposal, check_request, check_verdict, foreign
from spec.loop.commit import FullOnlyCommit, PrefixCommit
from spec.loop.limits import Emission, Progress, emit
from spec.loop.replay import TokenReplay
from spec.loop.stopwatch import Stopwatch
from spec.rounds import Context, Outcome, Proposal, Request, Round, Skip, TargetPass, Verdict
from spec.sampling import Sampling
from spec.targets.session import TargetSession
from spec.verifiers.greedy import GreedyVerifier

DEFAULT_GAMMA = 5  # of a drafter without a longest block


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """The outcome of asking the drafter for a proposal.

    Attributes:
        proposal: perhaps empty, with the reason.
        gamma: tokens that could have been proposed within the budget and the context.
        outcome: settled already where nothing was proposed; None otherwise.
        skip: the block policy's.
    """

    proposal: Proposal
    gamma: int = 0
    outcome: Outcome | None = None
    skip: Skip | None = None


NO_ROOM = Attempt(proposal=Proposal(reason="one token is left of max_tokens or the context"), outcome="no_room")


class SpeculativeLoop(ABC):
    """Speculative decoding of one sequence. Reusable: each generation starts from a reset.

    With every part named::

        FoldedLoop(
            TargetSession(model, tapped_layers=drafter.tapped_layers, max_rollback=6),
            drafter,
            verifier=GreedyVerifier(sampling=Sampling()),
            commit=PrefixCommit(),
            replay=TokenReplay(),
            block=FixedPolicy(gamma=5),
            stopwatch=Stopwatch(),
        )

    Args:
        target: a target with room for taking back the longest block and its anchor, or a model, which gets a session
            with that room and the drafter's tapped layers.
        drafter: proposes; None decodes plainly.
        verifier: judges; greedy by default.
        commit: whether to adopt a verify pass's rows; by default as many as the target can.
        replay: runs accepted tokens again where rows are not adopted; a token at a time by default.
        block: chooses gamma; by default the drafter's longest block, or 5. ``FixedPolicy(gamma=0)`` is plain decoding
            through this same code.
        stopwatch: time, measured by default; ``Stopwatch(costs)`` makes it that of a cost table.

    Raises:
        PartError: a part lacks something that its protocol has.
        UserError: the parts do not fit: the policy can ask for more than the drafter can propose or the target can take
            back, or the target cannot be trimmed as the commit path wants.
    """

    def __init__(
        self,
        target: protocols.Target | nn.Module,
        drafter: protocols.Drafter | None = None,
        *,
        verifier: protocols.Verifier | None = None,
        commit: protocols.CommitPath | None = None,
        replay: protocols.Replay | None = None,
        block: protocols.BlockPolicy | None = None,
        stopwatch: Stopwatch | None = None,
    ) -> None:
        drafter = NoneDrafter() if drafter is None else drafter
        check_part("drafter", drafter, protocols.Drafter)
        block = FixedPolicy(gamma=drafter.max_gamma or DEFAULT_GAMMA) if block is None else block
        check_part("block", block, protocols.BlockPolicy)
        if isinstance(target, nn.Module):
            target = TargetSession(target, tapped_layers=drafter.tapped_layers, max_rollback=block.max_gamma + 1)
        check_part("target", target, protocols.Target)
        self.target, self.drafter, self.block = target, drafter, block
        self.verifier = GreedyVerifier(sampling=Sampling()) if verifier is None else verifier
        self.commit = (PrefixCommit() if target.can_trim else FullOnlyCommit()) if commit is None else commit
        self.replay = TokenReplay() if replay is None else replay
        self.stopwatch = Stopwatch() if stopwatch is None else stopwatch
        check_part("verifier", self.verifier, protocols.Verifier)
        check_part("commit", self.commit, protocols.CommitPath)
        check_part("replay", self.replay, protocols.Replay)
        self._check_fit()
        self._current: Progress | None = None

    def _check_fit(self) -> None:
        longest, target = self.block.max_gamma, self.target
        if self.drafter.max_gamma is not None and longest > self.drafter.max_gamma:
            raise UserError(
                f"block.gamma: the drafter proposes at most {self.drafter.max_gamma} tokens a round, got {longest}: "
                f"set block.gamma to {self.drafter.max_gamma} or less"
            )
        if target.can_trim and target.max_rollback < longest + 1:
            raise UserError(
                f"the target must be able to take back {longest + 1} tokens (gamma and the anchor), its max_rollback "
                f"is {target.max_rollback}: make the session with max_rollback={longest + 1}"
            )
        trims = any(self.commit.adopts(kept, count) for count in range(2, longest + 2) for kept in range(1, count))
        if trims and not target.can_trim:
            raise UserError(
                f"commit: {type(self.commit).__name__} adopts a part of a verify pass, which needs a target that can "
                f"be trimmed, got {type(target).__name__}: choose commit=full_only or commit=rollback"
            )

    def rounds(self, request: Request) -> Iterator[Round]:
        """Generates, a round at a time; the first item is the prefill.

        Raises:
            UserError: the prompt is empty, fills the context or holds foreign ids, or max_tokens is not positive.
            PartError: a part returned something that its contract does not allow.
        """
        progress, first = self.start(request)
        yield first
        while progress.finish_reason is None:
            yield self.step(progress)

    def start(self, request: Request) -> tuple[Progress, Round]:
        """Prefills; `step` takes it from here. Errors as in `rounds`."""
        check_request(request, self.target.vocab_size, self.target.context_length)
        self._current = None
        prompt, watch = list(request.prompt), self.stopwatch
        progress = Progress(
            request=request, context_length=self.target.context_length, state=self.block.init(), tokens=prompt
        )
        watch.start()
        with watch.time("target"):
            self.target.reset()
            self.drafter.reset(len(prompt))
            for tokens, features in self.target.prefill(prompt[:-1]) if len(prompt) > 1 else ():
                self._observe(tokens, features)
            # The last token goes alone, as every anchor will, so that only its logits are computed (as in mlx-lm).
            passed = self.target.forward(prompt[-1:])
            self._observe(prompt[-1:], passed.features)
            nothing = Proposal(reason="prefill")
            emission = emit(progress, (), self._judge(nothing, passed.logits, progress.context))
        first = Round(
            index=0,
            position=len(prompt) - 1,
            gamma=0,
            proposed=(),
            accepted=0,
            tokens=emission.tokens,
            kind=emission.kind,
            outcome="prefill",
            reason="prefill",
            finish_reason=emission.finish_reason,
            **watch.stop(),
        )
        progress.extend(emission)
        self._current = progress
        return progress, first

    def step(self, progress: Progress) -> Round:
        """One round. If it raises, the sequence is over: target and drafter may have come only half way.

        Args:
            progress: of the generation that was started last, not finished.

        Raises:
            UserError: the generation cannot go on: a round of it raised, or another one was started.
        """
        if progress is not self._current:
            raise UserError(
                "this generation cannot go on: a round of it raised an error or another one was started in the same "
                "loop: start it again, which resets target and drafter"
            )
        self._current = None
        self.stopwatch.start()
        emission, finished = self._round(progress)
        wanted = len(progress.tokens) + len(emission.tokens) - (emission.kind != "none")
        if self.target.offset != wanted:
            raise ValueError(f"the cache must hold {wanted} tokens after the round, it holds {self.target.offset}")
        progress.extend(emission)
        progress.num_rounds += 1
        progress.state = self.block.after(progress.state, finished)
        self._current = progress
        return finished

    @abstractmethod
    def _round(self, progress: Progress) -> tuple[Emission, Round]:
        """The steps of one round in the shape's own order; changes nothing of the progress."""

    def _plan(self, progress: Progress) -> protocols.BlockPlan:
        return check_plan(self.block.plan(progress.state, progress.tokens_left), self.block)

    def _propose(self, progress: Progress, context: Context, gamma: int) -> Attempt:
        """Asks the drafter for 1..gamma tokens, and refuses ids that the target cannot be fed."""
        proposal = self.drafter.propose(context, gamma, lambda asked: self.block.admits(progress.state, asked))
        check_proposal(proposal, gamma, self.drafter)
        self.stopwatch.pay("propose", len(proposal.tokens))
        outcome: Outcome | None = None if proposal.tokens else "no_draft"
        if wrong := foreign(proposal.tokens, self.target.vocab_size):
            reason = f"drafted ids {wrong} lie outside the target's vocabulary of {self.target.vocab_size}"
            proposal, outcome = Proposal(reason=reason), "invalid"
        return Attempt(proposal=proposal, gamma=gamma, outcome=outcome)

    def _decode(self, context: Context) -> TargetPass:
        """A plain decode of the anchor."""
        with self.stopwatch.time("target"):
            self.stopwatch.pay("decode")
            return self.target.forward((context.anchor,))

    def _verify(self, inputs: tuple[int, ...], commit: protocols.CommitPath) -> tuple[TargetPass, Any]:
        """The verify pass, and the state before it if the commit path may ask to return there."""
        snapshot = None
        if not all(commit.adopts(kept, len(inputs)) for kept in range(len(inputs) + 1)):
            with self.stopwatch.time("snapshot"):
                self.stopwatch.pay("snapshot")
                snapshot = self.target.snapshot()
        with self.stopwatch.time("verify"):
            self.stopwatch.pay("verify", len(inputs))
            return self.target.forward(inputs), snapshot

    def _judge(self, proposal: Proposal, logits: mx.array, context: Context) -> Verdict:
        verdict = self.verifier.accept(proposal, logits, context)
        return check_verdict(verdict, proposal, logits.shape[0], self.target.vocab_size, self.verifier)

    def _settle(
        self, inputs: tuple[int, ...], kept: int, passed: TargetPass, snapshot: Any, commit: protocols.CommitPath
    ) -> tuple[TargetPass, int]:
        """Makes the state end after the first ``kept`` inputs of a verify pass.

        Returns:
            Their rows, and how many tokens were run again for it.
        """
        with self.stopwatch.time("commit"):
            self.stopwatch.pay("commit")
            if commit.adopts(kept, len(inputs)):
                if kept < len(inputs):
                    self.target.trim(len(inputs) - kept)
                return passed.first(kept), 0
        with self.stopwatch.time("replay"):
            self.stopwatch.pay("replay_batch" if self.replay.kind == "batch" else "replay_token", kept)
            self.target.restore(snapshot)
            return self.replay.run(self.target, inputs[:kept]), kept

    def _observe(self, tokens: tuple[int, ...], features: mx.array | None) -> None:
        with self.stopwatch.time("propose"):
            self.drafter.observe(tokens, features)

    def _finish(
        self, progress: Progress, attempt: Attempt, emission: Emission, outcome: Outcome, **counts: int
    ) -> tuple[Emission, Round]:
        """The round's record; ``counts`` are its fields ``decoded, verify_rows, replayed_tokens``."""
        return emission, Round(
            index=progress.num_rounds + 1,
            position=len(progress.tokens) - 1,
            gamma=attempt.gamma,
            proposed=attempt.proposal.tokens,
            accepted=emission.accepted,
            tokens=emission.tokens,
            kind=emission.kind,
            outcome=outcome,
            reason=attempt.proposal.reason,
            skip=attempt.skip,
            confidence=attempt.proposal.confidence,
            finish_reason=emission.finish_reason,
            has_no_residual=emission.has_no_residual,
            **counts,
            **self.stopwatch.stop(),
        )


def declined(plan: protocols.BlockPlan) -> Attempt:
    """The attempt of a round for which the block policy planned no proposal."""
    outcome: Outcome = "tail_skip" if plan.skip == "tail" else "no_draft"
    return Attempt(proposal=Proposal(reason=plan.reason), outcome=outcome, skip=plan.skip)


def outcome_of(judged: int, accepted: int) -> Outcome:
    """The counter that a verified block raises.

    Args:
        judged: tokens that were up for a decision.
        accepted: how many of them were emitted.
    """
    if accepted == judged:
        return "full"
    return "partial" if accepted else "miss_first"
