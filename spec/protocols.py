"""What the parts of speculative decoding are, and what passes between them. Read this first.

One round of the folded loop, with the parts that own each step:

    plan    = block.plan(history)                                   BlockPolicy   gamma: how many tokens to propose
    proposal = drafter.propose(anchor, position, gamma, draws, block.admits)  Drafter   d_1 .. d_gamma
    passed  = target.verify([anchor, *proposal.tokens])             Target        gamma + 1 rows, row j judges d_{j+1}
    verdict = verifier.accept(proposal, passed.logits, ...)         Verifier      the prefix that stands, next token
    kept    = commit.commit(target, passed, inputs, keep, ...)      CommitPath    state ends at what was emitted
    drafter.observe(inputs[:keep], kept.features)                   Drafter       remembers every committed token

Parts know nothing of each other: the verifier sees logits and random draws, the drafter tokens and features, the commit
path the target's state. A `Loop` owns the order, the user's limits, and the clock. Shapes: G proposed tokens, V
vocabulary, T rows of a pass, L tapped layers, H hidden size.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import mlx.core as mx

from spec.sampling import DraftSampler, RandomStream

Kind = Literal["bonus", "correction", "none"]
Outcome = Literal["prefill", "full", "partial", "miss_first", "no_draft", "no_room", "invalid", "tail_skip"]
Skip = Literal["scheduler", "tail"]
CommitKind = Literal["direct_full", "direct_partial", "replay"]
ReplayKind = Literal["token", "batch"]
Admits = Callable[[tuple[float, ...]], bool]
"""Given the confidences c_1 .. c_k, whether token k may be drawn: known before it is, so it cannot bias the draw."""
FinishReason = Literal["eos", "stop_string", "max_tokens", "context"]


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """The drafted tokens of one round, and how they were drawn.

    Attributes:
        tokens: d_1 .. d_G.
        sampler: what drew the tokens, and so knows the very distributions q that they came from; see `sampled`. None
            says that each token was chosen without a draw (an argmax, a lookup), so that q is a point mass on it.
        confidence: c_1 .. c_G, the probability that a token is accepted given that those before it were, and c_{G+1} if
            the block policy was asked about one more token and refused it; None if the drafter has none.
        reason: why nothing was proposed; None exactly when something was.

    Raises:
        ValueError: the lengths differ, an empty proposal has no reason, or the sampler drew other tokens.
    """

    tokens: tuple[int, ...] = ()
    sampler: DraftSampler | None = None
    confidence: tuple[float, ...] | None = None
    reason: str | None = None

    def __post_init__(self) -> None:
        count = len(self.tokens)
        if (count == 0) != (self.reason is not None):
            raise ValueError(f"a proposal has tokens or a reason for having none, got {count} and {self.reason!r}")
        if self.sampler is not None and self.sampler.tokens != self.tokens:
            raise ValueError(f"the sampler drew {self.sampler.tokens}, the proposal has {self.tokens}")
        if self.confidence is not None and len(self.confidence) not in (count, count + 1):
            raise ValueError(
                f"confidence needs one value for each of {count} tokens and at most one for a refused token, got "
                f"{len(self.confidence)}"
            )

    @classmethod
    def sampled(cls, sampler: DraftSampler, confidence: tuple[float, ...] | None = None) -> "Proposal":
        """A proposal of the tokens that a sampler drew, at least one. Forces their evaluation."""
        return cls(tokens=sampler.tokens, sampler=sampler, confidence=confidence)

    @property
    def draft_probs(self) -> mx.array | None:
        """(G, V) float32, rows sum to 1: what the tokens were drawn from; None for point masses."""
        return None if self.sampler is None else mx.exp(self.sampler.logprobs)

    def draft_logprobs(self, vocab_size: int) -> mx.array:
        """Log q of a proposal that is not empty, point masses included: (G, vocab_size) float32.

        Args:
            vocab_size: the target's; ids that only the target has get no mass.

        Raises:
            ValueError: q is over more ids than the target has.
        """
        if self.sampler is None:
            return mx.where(mx.arange(vocab_size) == mx.array(self.tokens)[:, None], 0.0, -mx.inf)
        logprobs = self.sampler.logprobs
        missing = vocab_size - logprobs.shape[1]
        if missing < 0:
            raise ValueError(f"q must be over the target's {vocab_size} ids, got {logprobs.shape[1]}: cut the logits")
        return mx.pad(logprobs, ((0, 0), (0, missing)), constant_values=-mx.inf) if missing else logprobs


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a verifier decided.

    Attributes:
        accepted: length of the prefix of the proposal that stands, 0..G.
        next_token: the token after that prefix.
        kind: ``bonus`` when the whole proposal stands, ``correction`` when a token of it was rejected.
        has_no_residual: the residual had lost its mass to rounding, so that the correction was drawn from p.
    """

    accepted: int
    next_token: int
    kind: Literal["bonus", "correction"]
    has_no_residual: bool = False


@dataclass(frozen=True, kw_only=True)
class TargetPass:
    """What one forward pass of the target over T tokens left behind, evaluated.

    Attributes:
        logits: (T, V); row j is about the token after input j.
        features: (T, L*H) hidden states at the tapped layers, side by side; None without tapped layers.
    """

    logits: mx.array
    features: mx.array | None

    def first(self, count: int) -> "TargetPass":
        """The pass restricted to its first ``count`` rows."""
        return TargetPass(logits=self.logits[:count], features=None if self.features is None else self.features[:count])


@dataclass(frozen=True, kw_only=True)
class Round:
    """The record of one round. Index 0 is the prefill, whose next token is the first anchor; it counts in no average.

    Attributes:
        index: 0 for the prefill, then 1, 2, ...
        position: absolute position of the anchor (prompt and generated tokens counted from 0); the prefill's is that of
            the prompt's last token.
        gamma: tokens the round was allowed to propose, after the budget and the context were heeded.
        proposed: the proposed tokens.
        accepted: how many of them stand *and* were emitted: a stop inside the block cuts the rest.
        tokens: the emitted tokens, the next token included where there is one.
        kind: what the last emitted token is; ``none`` when a limit fell inside the accepted run, so that no next token
            was emitted.
        outcome: the counter that the round raised, see `spec.measure.account`.
        reason: why nothing was proposed; None when something was.
        skip: which kind of skip it was, if the block policy declined to draft for reasons of its own.
        confidence: the proposal's.
        finish_reason: why generation ended here; None when it did not.
        has_no_residual: the verdict's, if its correction was emitted.
        propose_s: seconds in the drafter, remembering included.
        target_s: seconds in a plain decode of the anchor and in the choice from its row (or in the prefill).
        snapshot_s: seconds in saving the target's state, for commit paths that return to it.
        verify_s: seconds in the verify pass and in the verifier.
        commit_s: seconds in the commit path, replay excluded.
        replay_s: seconds in replay, the return to the snapshot included.
        duration_s: seconds of the whole round.
        decoded: 1 if the anchor had a plain decode of its own, 0 if it rode in the verify pass.
        verify_rows: rows of the verify pass; 0 if there was none.
        replayed_tokens: tokens that were run again.
    """

    index: int
    position: int
    gamma: int
    proposed: tuple[int, ...]
    accepted: int
    tokens: tuple[int, ...]
    kind: Kind
    outcome: Outcome
    reason: str | None = None
    skip: Skip | None = None
    confidence: tuple[float, ...] | None = None
    finish_reason: FinishReason | None = None
    has_no_residual: bool = False
    propose_s: float = 0.0
    verify_s: float = 0.0
    target_s: float = 0.0
    snapshot_s: float = 0.0
    commit_s: float = 0.0
    replay_s: float = 0.0
    duration_s: float = 0.0
    decoded: int = 0
    verify_rows: int = 0
    replayed_tokens: int = 0

    @property
    def commit_kind(self) -> CommitKind | None:
        """How the verify pass's rows were committed: all or some adopted, or run again; None without such a pass."""
        if self.verify_rows == 0:
            return None
        if self.replayed_tokens:
            return "replay"
        return "direct_full" if self.accepted + 1 - self.decoded == self.verify_rows else "direct_partial"


@dataclass(frozen=True, kw_only=True)
class BlockPlan:
    """What a block policy asks for in the coming round.

    Attributes:
        gamma: tokens to propose; 0 asks for plain decoding.
        reason: why none; None exactly when gamma is positive.
        skip: ``scheduler`` when the policy judges that drafting does not pay, ``tail`` when too little of the budget is
            left (ds4 counts the two apart); None otherwise.
    """

    gamma: int
    reason: str | None = None
    skip: Skip | None = None

    def __post_init__(self) -> None:
        if (self.gamma == 0) != (self.reason is not None):
            raise ValueError(f"a plan has a block or a reason for none, got gamma {self.gamma} and {self.reason!r}")


@dataclass(frozen=True, kw_only=True)
class History:
    """What a block policy may know when it decides: nothing of the tokens that are not drawn yet.

    Attributes:
        position: absolute position of the anchor.
        num_rounds: rounds so far, the prefill excluded.
        tokens_left: tokens that may still be emitted.
        last: the round before; None right after the prefill.
    """

    position: int
    num_rounds: int
    tokens_left: int
    last: Round | None


class Target(Protocol):
    """A model with the state of one sequence; `spec.session.TargetSession` is the implementation."""

    vocab_size: int
    context: int  # tokens that a sequence may hold, prompt included
    max_rollback: int  # tokens that can be taken back after any pass

    @property
    def offset(self) -> int:
        """Tokens in the cache."""

    def reset(self) -> None:
        """Forgets the sequence."""

    def prefill(self, tokens: Sequence[int]) -> mx.array | None:
        """Runs tokens whose logits nobody reads; returns their features (T, L*H), or None without tapped layers."""

    def forward(self, tokens: Sequence[int]) -> TargetPass:
        """Runs tokens at positions ``offset ..``; their rows stay in the cache until trimmed."""

    def verify(self, tokens: Sequence[int]) -> TargetPass:
        """The same over drafted tokens: an engine may have other kernels for it, a cost table another price."""

    def trim(self, count: int) -> None:
        """Takes back the last ``count`` tokens exactly."""

    def rewind(self, offset: int) -> None:
        """Returns to an earlier offset after a pass that may have failed half way."""

    def snapshot(self) -> Any:
        """The whole state by reference."""

    def restore(self, snapshot: Any) -> None:
        """Returns to a snapshot."""


class Drafter(Protocol):
    """Whatever proposes tokens. Between rounds it remembers every committed token and nothing else."""

    tapped_layers: tuple[int, ...]  # target layers whose output it wants with every committed token
    max_gamma: int | None  # the longest block it can propose; None is unlimited

    def reset(self, prompt_length: int, reference: Sequence[int] | None = None) -> None:
        """Forgets the sequence before a new one.

        Args:
            prompt_length: tokens of the prompt to come.
            reference: a known continuation of it, for the drafter that plays one back.
        """

    def observe(self, tokens: Sequence[int], features: mx.array | None) -> None:
        """Remembers committed tokens and their features (len(tokens), L*H), in order, each exactly once."""

    def propose(
        self, anchor: int, position: int, gamma: int, draws: RandomStream, admits: Admits | None = None
    ) -> Proposal:
        """At most ``gamma`` successors of the anchor, which stands at ``position``. Changes nothing remembered.

        A drafter that has confidences asks ``admits`` before each token and stops at the first refusal; one that has
        none never asks. None admits everything.
        """

    def snapshot(self) -> Any:
        """What is remembered, cheaply."""

    def restore(self, snapshot: Any) -> None:
        """Returns to a snapshot taken since the last reset."""


class Verifier(Protocol):
    """The rule that decides which prefix of a proposal stands. It sees arrays and draws, no model and no cache."""

    def accept(
        self,
        proposal: Proposal,
        target_logits: mx.array,
        position: int,
        draws: RandomStream,
        committed: Sequence[int] = (),
    ) -> Verdict:
        """Judges a proposal.

        Args:
            proposal: G tokens, none included.
            target_logits: (G + 1, V); row j judges d_{j+1}, the last row yields the bonus token.
            position: absolute position of d_1.
            draws: random numbers by position.
            committed: prompt and output so far, the anchor included: what penalties look back on.
        """


Replayer = Callable[[Any, Sequence[int]], TargetPass]
"""Returns the target to a snapshot and runs tokens from there; the loop counts and times what it does."""


class Replay(Protocol):
    """How accepted tokens are run again when a commit path asks for it."""

    kind: ReplayKind  # what a cost table charges for it

    def run(self, target: Target, tokens: Sequence[int]) -> TargetPass:
        """Runs tokens at the target's offset and returns their rows as one pass."""


class CommitPath(Protocol):
    """Makes the state end at what was emitted. Called after verify passes only: a plain decode leaves nothing to undo.

    It can keep inputs of the pass and nothing else: a next token was never an input, so it has no row to adopt.
    """

    needs_snapshot: bool  # whether the loop is to save the target's state before the verify pass

    def commit(
        self,
        target: Target,
        passed: TargetPass,
        inputs: tuple[int, ...],
        keep: int,
        replay: Replayer,
        snapshot: Any = None,
    ) -> TargetPass:
        """Keeps the first ``keep`` inputs of the verify pass, and returns the rows that now stand in the cache.

        Args:
            target: its cache holds all inputs.
            passed: the verify pass over them.
            inputs: what the pass ran: the proposal, the anchor before it in the folded loop.
            keep: 1..len(inputs).
            replay: returns to a snapshot and runs tokens again.
            snapshot: the state before the pass, if the path needs one.
        """


class BlockPolicy(Protocol):
    """How many tokens to propose. Decides from history, confidences and supplied costs: it never reads a clock."""

    max_gamma: int  # the most it can ever ask for

    def reset(self) -> None:
        """Forgets the sequence before a new one."""

    def plan(self, history: History) -> BlockPlan:
        """What to propose in the coming round, gamma in 0..max_gamma. Changes nothing."""

    def admits(self, confidences: tuple[float, ...]) -> bool:
        """Whether token k may be drawn, from c_1 .. c_k. Changes nothing."""

    def observe(self, finished: Round) -> None:
        """Learns from a round."""

    def snapshot(self) -> Any:
        """What it has learnt."""

    def restore(self, snapshot: Any) -> None:
        """Returns to a snapshot."""


class StopRule(Protocol):
    """A stop condition on the text, seen by the loop as a count of tokens."""

    def cut(self, emitted: Sequence[int], new: Sequence[int]) -> int | None:
        """How many of the new tokens to emit, the one that completes a stop string included; None if none does."""


class Loop(Protocol):
    """The order of the steps: from a prompt to rounds."""

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
        """Generates; the first item is the prefill. The consumer may stop iterating at any time."""
