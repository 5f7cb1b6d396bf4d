"""What the parts of speculative decoding are, and what passes between them. Read this first.

One round of the folded loop, with the parts that own each step:

    plan    = block.plan(history)                                   BlockPolicy   gamma: how many tokens to propose
    proposal = drafter.propose(anchor, position, gamma, draws, block.admits)  Drafter   d_1 .. d_gamma
    passed  = target.forward([anchor, *proposal.tokens])            Target        gamma + 1 rows, row j judges d_{j+1}
    verdict = verifier.accept(proposal, passed.logits, ...)         Verifier      the prefix that stands, next token
    kept    = commit.commit(target, passed, inputs, keep, replay)   CommitPath    state ends at what was emitted
    drafter.observe(inputs[:keep], kept.features)                   Drafter       remembers every committed token

Parts know nothing of each other: the verifier sees logits and random draws, the drafter tokens and features, the commit
path the target's state. A `Loop` owns the order, the user's limits, and the clock. Shapes: G proposed tokens, V
vocabulary, T rows of a pass, L tapped layers, H hidden size.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import mlx.core as mx

from spec.sampling import Draws

Kind = Literal["bonus", "correction", "none"]
Outcome = Literal["prefill", "full", "partial", "miss_first", "no_draft", "no_room", "invalid", "tail_skip"]
Skip = Literal["scheduler", "tail"]
Admits = Callable[[tuple[float, ...]], bool]
"""Given the confidences c_1 .. c_k, whether token k may be drawn: known before it is, so it cannot bias the draw."""
FinishReason = Literal["eos", "stop_string", "max_tokens", "context"]


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """The drafted tokens of one round, and how they were drawn.

    Attributes:
        tokens: d_1 .. d_G.
        draft_probs: (G, V) float32, rows sum to 1: the very distributions q that the tokens were sampled from. None
            says that each token was chosen without a draw (an argmax, a lookup), so that q is a point mass on it.
        confidence: G probabilities that a token is accepted given that those before it were; None if the drafter has
            none.
        reason: why nothing was proposed; None exactly when something was.

    Raises:
        ValueError: the lengths differ, or an empty proposal has no reason.
    """

    tokens: tuple[int, ...] = ()
    draft_probs: mx.array | None = None
    confidence: tuple[float, ...] | None = None
    reason: str | None = None

    def __post_init__(self) -> None:
        count = len(self.tokens)
        if (count == 0) != (self.reason is not None):
            raise ValueError(f"a proposal has tokens or a reason for having none, got {count} and {self.reason!r}")
        if self.draft_probs is not None and self.draft_probs.shape[0] != count:
            raise ValueError(f"draft_probs needs one row for each of {count} tokens, got {self.draft_probs.shape}")
        if self.confidence is not None and len(self.confidence) != count:
            raise ValueError(f"confidence needs one value for each of {count} tokens, got {len(self.confidence)}")


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a verifier decided.

    Attributes:
        accepted: length of the prefix of the proposal that stands, 0..G.
        next_token: the token after that prefix.
        kind: ``bonus`` when the whole proposal stands, ``correction`` when a token of it was rejected.
    """

    accepted: int
    next_token: int
    kind: Literal["bonus", "correction"]


@dataclass(frozen=True, kw_only=True)
class TargetPass:
    """What one forward pass of the target over T tokens left behind, evaluated.

    Attributes:
        logits: (T, V); row j is about the token after input j.
        features: (T, L*H) hidden states at the tapped layers, side by side; None without taps.
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
        propose_s: seconds in the drafter, remembering included.
        verify_s: seconds in a pass over anchor and proposal, and in the verifier.
        target_s: the same where nothing was proposed (a plain decode, or the prefill).
        commit_s: seconds in the commit path, replay excluded.
        replay_s: seconds in replay.
        duration_s: seconds of the whole round.
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
    propose_s: float = 0.0
    verify_s: float = 0.0
    target_s: float = 0.0
    commit_s: float = 0.0
    replay_s: float = 0.0
    duration_s: float = 0.0
    replayed_tokens: int = 0


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

    def absorb(self, tokens: Sequence[int]) -> mx.array | None:
        """Runs tokens whose logits nobody reads; returns their features (T, L*H), or None without taps."""

    def forward(self, tokens: Sequence[int]) -> TargetPass:
        """Runs tokens at positions ``offset ..``; their rows stay in the cache until trimmed."""

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

    taps: tuple[int, ...]  # target layers whose output it wants with every committed token
    max_gamma: int | None  # the longest block it can propose; None is unlimited

    def reset(self, prompt_length: int, reference: Sequence[int] | None = None) -> None:
        """Forgets the sequence before a new one.

        Args:
            prompt_length: tokens of the prompt to come.
            reference: a known continuation of it, for the drafter that plays one back.
        """

    def observe(self, tokens: Sequence[int], features: mx.array | None) -> None:
        """Remembers committed tokens and their features (len(tokens), L*H), in order, each exactly once."""

    def propose(self, anchor: int, position: int, gamma: int, draws: Draws, admits: Admits | None = None) -> Proposal:
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
        draws: Draws,
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


Replayer = Callable[[Sequence[int]], TargetPass]


class Replay(Protocol):
    """How accepted tokens are run again when a commit path asks for it."""

    def run(self, target: Target, tokens: Sequence[int]) -> TargetPass:
        """Runs tokens at the target's offset and returns their rows as one pass."""


class CommitPath(Protocol):
    """Makes the state end at what was emitted."""

    def commit(
        self, target: Target, passed: TargetPass, inputs: tuple[int, ...], keep: int, replay: Replayer
    ) -> TargetPass:
        """Keeps the first ``keep`` inputs of the verify pass, and returns the rows that now stand in the cache.

        Args:
            target: its cache holds all inputs.
            passed: the verify pass over them.
            inputs: the anchor and the proposal.
            keep: 1..len(inputs).
            replay: runs tokens again; the loop counts and times what it does.
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
        draws: Draws | None = None,
        reference: Sequence[int] | None = None,
    ) -> Iterator[Round]:
        """Generates; the first item is the prefill. The consumer may stop iterating at any time."""
