"""How much an output repeats itself. Repetitive text is easy for any drafter, so acceptance is read beside this."""

from collections.abc import Sequence


def repeated_ngram_share(tokens: Sequence[int], n: int = 4) -> float:
    """Share of the n-grams that occurred before in the same output, 0..1; 0 for an output shorter than n."""
    grams = [tuple(tokens[start : start + n]) for start in range(len(tokens) - n + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0
