"""The result of one generation."""

from collections.abc import Iterable
from dataclasses import dataclass

from spec.rounds import FinishReason, Round


@dataclass(frozen=True, kw_only=True)
class Generation:
    """One prompt's output, collected from its rounds.

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
    def num_decoded(self) -> int:
        """Tokens after the first one, which the prefill pays for."""
        return len(self.tokens) - len(self.prefill.tokens)

    @property
    def tokens_per_s(self) -> float | None:
        """Decoded tokens a second; None when there are none."""
        return self.num_decoded / self.decode_s if self.num_decoded and self.decode_s > 0 else None


def collect(rounds: Iterable[Round]) -> Generation:
    """Runs a generation to its end.

    Args:
        rounds: what a loop's ``rounds`` returns.

    Raises:
        ValueError: the rounds end before the generation does.
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
