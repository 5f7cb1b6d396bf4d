"""One generation: how far it has come, where the user's limits end it, and what came of it."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from spec.protocols import FinishReason, Kind, Round, StopRule, Verdict
from spec.sampling import RandomStream

ENDS: tuple[FinishReason, ...] = ("eos", "stop_string", "max_tokens", "context")


@dataclass(kw_only=True)
class Progress:
    """One generation under way. `SpeculativeLoop.step` changes it last, so a step that fails leaves it as it was.

    Attributes:
        prompt: token ids.
        max_tokens: tokens that may be emitted.
        eos: ids that end the text; the one met is emitted.
        stop: condition on the text, or None.
        draws: random numbers by position.
        emitted: tokens so far.
        num_rounds: rounds so far, the prefill excluded.
        last: the round before; None right after the prefill.
        finish_reason: None while there is more to come.
    """

    prompt: tuple[int, ...]
    max_tokens: int
    eos: frozenset[int]
    stop: StopRule | None
    draws: RandomStream
    emitted: list[int] = field(default_factory=list)
    num_rounds: int = 0
    last: Round | None = None
    finish_reason: FinishReason | None = None

    @property
    def length(self) -> int:
        """Prompt and emitted tokens; the anchor, their last, stands at ``length - 1``."""
        return len(self.prompt) + len(self.emitted)

    @property
    def committed(self) -> tuple[int, ...]:
        """Prompt and emitted tokens."""
        return (*self.prompt, *self.emitted)


@dataclass(frozen=True, kw_only=True)
class Cut:
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
    kind: Kind
    finish_reason: FinishReason | None
    has_no_residual: bool = False


def prefill_chunks(prompt: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    """All of a prompt but its last token, ``size`` tokens at a time.

    The last token goes alone, as every anchor will, so that only its logits are ever computed (as in mlx-lm).
    """
    for start in range(0, len(prompt) - 1, size):
        yield prompt[start : min(start + size, len(prompt) - 1)]


def cut_off(progress: Progress, drafted: tuple[int, ...], verdict: Verdict, context: int) -> Cut:
    """Ends the emission at the first limit that is met; the token that meets it is still emitted.

    Args:
        progress: of the generation.
        drafted: the proposal's tokens.
        verdict: how many of them stand, and the next token.
        context: tokens that the sequence may hold.
    """
    new = (*drafted[: verdict.accepted], verdict.next_token)
    ends: list[tuple[int, FinishReason]] = [
        (progress.max_tokens - len(progress.emitted), "max_tokens"),
        (context - progress.length, "context"),
    ]
    is_end = [token in progress.eos for token in new]
    if any(is_end):
        ends.append((is_end.index(True) + 1, "eos"))
    if progress.stop is not None:
        stopped = progress.stop.cut(progress.emitted, new)
        if stopped is not None:
            ends.append((stopped, "stop_string"))
    # Where several ends fall on one token, what the text itself says goes before the budget.
    count, reason = min(ends, key=lambda end: (end[0], ENDS.index(end[1])))
    if count > len(new):
        reason, count = None, len(new)
    is_whole = count == len(new)
    return Cut(
        tokens=new[:count],
        accepted=min(verdict.accepted, count),
        kind=verdict.kind if is_whole else "none",
        finish_reason=reason,
        has_no_residual=is_whole and verdict.has_no_residual,
    )


@dataclass(frozen=True, kw_only=True)
class Generation:
    """One prompt's output: what `collect` makes of the rounds.

    Attributes:
        tokens: every emitted token, an end-of-sequence token included.
        finish_reason: why it ended.
        prefill: the round of index 0.
        rounds: the others.
    """

    tokens: tuple[int, ...]
    finish_reason: FinishReason
    prefill: Round
    rounds: tuple[Round, ...]

    @property
    def decode_s(self) -> float:
        """Seconds from the first token to the last, the prefill excluded."""
        return sum(item.duration_s for item in self.rounds)

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens a second after the first one, which the prefill pays for; None when there is no other."""
        count = len(self.tokens) - len(self.prefill.tokens)
        return count / self.decode_s if count and self.decode_s > 0 else None


def collect(rounds: Iterable[Round]) -> Generation:
    """Runs a generation to its end.

    Args:
        rounds: what a loop's ``rounds`` returns.
    """
    prefill, *others = rounds
    last = others[-1] if others else prefill
    if last.finish_reason is None:
        raise ValueError("the rounds end before the generation does")
    return Generation(
        tokens=tuple(token for item in (prefill, *others) for token in item.tokens),
        finish_reason=last.finish_reason,
        prefill=prefill,
        rounds=tuple(others),
    )
