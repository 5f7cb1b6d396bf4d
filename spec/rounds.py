"""The data that passes between the parts: what is asked for, the text so far, a proposal, a verdict, a round.

Shapes: G proposed tokens, V vocabulary, T rows of a pass, L tapped layers, H hidden size.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

import mlx.core as mx

from spec.randomness import RandomStream
from spec.sampling import DraftSampler

NextTokenKind = Literal["bonus", "correction", "none"]
Outcome = Literal["prefill", "full", "partial", "miss_first", "no_draft", "no_room", "invalid", "tail_skip"]
Skip = Literal["scheduler", "tail"]
CommitKind = Literal["direct_full", "direct_partial", "replay"]
FinishReason = Literal["eos", "stop_string", "max_tokens", "context"]
Guarantee = Literal["tokens", "law", "none"]
Admits = Callable[[tuple[float, ...]], bool]
"""Given confidences c_1 .. c_k, whether token k may be drawn. Known before the token is, so it cannot bias the draw."""


class StopRule(Protocol):
    """A stop condition on the text, seen by the loop as a count of tokens."""

    def cut(self, emitted: Sequence[int], new: Sequence[int]) -> int | None:
        """How many of the new tokens to emit, the one that completes a stop string included; None if none does."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """One generation, as the user asks for it.

    Attributes:
        prompt: token ids, at least one.
        max_tokens: most tokens to emit, at least one.
        eos: ids that end the text; the one that is met is emitted.
        stop: a condition on the text.
        random: random numbers by position.
        reference: a known continuation of the prompt, for a drafter that plays one back.
    """

    prompt: Sequence[int]
    max_tokens: int = 256
    eos: frozenset[int] = frozenset()
    stop: StopRule | None = None
    random: RandomStream = field(default_factory=RandomStream)
    reference: Sequence[int] | None = None


@dataclass(frozen=True)
class Context:
    """The text so far: a view of the loop's tokens and not a copy, valid until the round ends.

    Attributes:
        tokens: prompt and emitted tokens; the last one is the anchor.
        random: random numbers by position.
        reference: the request's known continuation of the prompt, if it has one.
        prompt_length: how many of the tokens are the prompt's.
    """

    tokens: Sequence[int]
    random: RandomStream = field(default_factory=RandomStream)
    reference: Sequence[int] | None = None
    prompt_length: int = 0

    @property
    def anchor(self) -> int:
        """The last committed token."""
        return self.tokens[-1]

    @property
    def position(self) -> int:
        """Absolute position of the anchor; the first drafted token comes one after it."""
        return len(self.tokens) - 1

    def after(self, tokens: Sequence[int]) -> "Context":
        """The context once more tokens are committed."""
        return replace(self, tokens=(*self.tokens, *tokens)) if tokens else self


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """The drafted tokens of one round, and how they were drawn. ``proposal[start:stop]`` is a part of it.

    Attributes:
        tokens: d_1 .. d_G.
        sampler: what drew the tokens and so knows the distributions q that they came from; see `sampled`. None says
            that each token was chosen without a draw (an argmax, a lookup), so that q is a point mass on it.
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

    def __getitem__(self, index: slice) -> "Proposal":
        """Consecutive tokens as a proposal of their own, drawn as they were; perhaps none."""
        if not self.tokens[index]:
            return Proposal(reason=self.reason or "no draft is left to judge")
        return Proposal(
            tokens=self.tokens[index],
            sampler=None if self.sampler is None else self.sampler[index],
            confidence=None if self.confidence is None else self.confidence[: len(self.tokens)][index],
        )

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
        accepted: length of the accepted prefix of the proposal, 0..G.
        next_token: the token after that prefix: the correction, or the bonus after a fully accepted proposal. None
            where everything was accepted and no row of logits was left for a bonus.
        has_no_residual: the residual had lost its mass to rounding, so that the correction was drawn from p.
    """

    accepted: int
    next_token: int | None
    has_no_residual: bool = False


@dataclass(frozen=True, kw_only=True)
class TargetPass:
    """What one forward pass of the target over T tokens returns, evaluated.

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
class Round:
    """The record of one round. Index 0 is the prefill, whose next token is the first anchor; it counts in no average.

    Attributes:
        index: 0 for the prefill, then 1, 2, ...
        position: absolute position of the anchor (prompt and generated tokens counted from 0); the prefill's is that of
            the prompt's last token.
        gamma: tokens the round was allowed to propose within the budget and the context.
        proposed: the proposed tokens.
        accepted: how many of them were accepted *and* emitted: a stop inside the block cuts the rest.
        tokens: the emitted tokens, the next token included where there is one.
        kind: what the last emitted token is; ``none`` when a limit fell inside the accepted run, so that no next token
            was emitted.
        outcome: the counter that the round raised, see `spec.measure.account`.
        reason: why nothing was proposed; None when something was.
        skip: which kind of skip it was, if the block policy declined to draft for reasons of its own.
        confidence: the proposal's.
        finish_reason: why generation ended here; None when it did not.
        has_no_residual: the verdict's, if its correction was emitted.
        propose_s: seconds in the drafter, `Drafter.observe` included.
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
    kind: NextTokenKind
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
