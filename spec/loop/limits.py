"""One generation under way, and where the user's limits end it."""

from dataclasses import dataclass, field
from typing import Any

from spec.rounds import Context, FinishReason, NextTokenKind, Request, Verdict

ENDS: tuple[FinishReason, ...] = ("eos", "stop_string", "max_tokens", "context")


@dataclass(kw_only=True)
class Progress:
    """One generation under way; `SpeculativeLoop.step` advances it.

    Attributes:
        request: what was asked for.
        context_length: tokens that the sequence may hold.
        state: the block policy's.
        tokens: prompt and emitted tokens, of which every `Context` is a view.
        emitted: the emitted ones.
        num_rounds: rounds so far, the prefill excluded.
        finish_reason: None while there is more to come.
    """

    request: Request
    context_length: int
    state: Any
    tokens: list[int]
    emitted: list[int] = field(default_factory=list)
    num_rounds: int = 0
    finish_reason: FinishReason | None = None

    @property
    def context(self) -> Context:
        """The text so far."""
        return Context(self.tokens, self.request.random, self.request.reference, len(self.request.prompt))

    @property
    def tokens_left(self) -> int:
        """Tokens that may still be emitted."""
        return min(self.request.max_tokens - len(self.emitted), self.context_length - len(self.tokens))

    def extend(self, emission: "Emission") -> None:
        """Takes in what a round emitted."""
        self.tokens.extend(emission.tokens)
        self.emitted.extend(emission.tokens)
        self.finish_reason = emission.finish_reason


@dataclass(frozen=True, kw_only=True)
class Emission:
    """What of a verdict is emitted once the limits are heeded.

    Attributes:
        tokens: the emitted tokens.
        accepted: how many of them are drafts.
        kind: what the last one is; ``none`` where a limit fell inside the accepted run.
        finish_reason: the limit; None if none was met.
        has_no_residual: the emitted correction was drawn from p, its residual having lost its mass to rounding.
    """

    tokens: tuple[int, ...]
    accepted: int
    kind: NextTokenKind
    finish_reason: FinishReason | None
    has_no_residual: bool = False


def emit(progress: Progress, drafted: tuple[int, ...], verdict: Verdict) -> Emission:
    """Ends the emission at the first limit that is met; the token that meets it is still emitted.

    Args:
        progress: of the generation.
        drafted: the proposal's tokens.
        verdict: how many of them are accepted, and the next token.
    """
    new = (*drafted[: verdict.accepted], verdict.next_token)
    request = progress.request
    ends: list[tuple[int, FinishReason]] = [
        (request.max_tokens - len(progress.emitted), "max_tokens"),
        (progress.context_length - len(progress.tokens), "context"),
    ]
    is_end = [token in request.eos for token in new]
    if any(is_end):
        ends.append((is_end.index(True) + 1, "eos"))
    if request.stop is not None:
        stopped = request.stop.cut(progress.emitted, new)
        if stopped is not None:
            ends.append((stopped, "stop_string"))
    # Where several ends fall on one token, what the text itself says goes before the budget.
    count, reason = min(ends, key=lambda end: (end[0], ENDS.index(end[1])))
    if count > len(new):
        reason, count = None, len(new)
    is_whole = count == len(new)
    kind: NextTokenKind = "bonus" if verdict.accepted == len(drafted) else "correction"
    return Emission(
        tokens=new[:count],
        accepted=min(verdict.accepted, count),
        kind=kind if is_whole else "none",
        finish_reason=reason,
        has_no_residual=is_whole and verdict.has_no_residual,
    )
