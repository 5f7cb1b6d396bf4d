"""Speculative decoding in plain Python: the whole idea, without parts, models or caches.

Two functions give the distribution of the next token after a text: p the target's, q the drafter's. One round drafts
tokens from q, accepts them from the left with probability min(1, p/q), and ends with a token from the residual of the
first rejected one, or from p if none was. What comes out has the law of sampling from p alone, whatever q is
(Leviathan et al. 2023, arXiv 2211.17192, algorithm 1; Chen et al. 2023, arXiv 2302.01318).

Everything else in this library generalizes this page: p and q come from networks with caches, drafts need not be drawn,
their number adapts, other rules accept more, and every step has a price.
"""

from collections.abc import Callable, Sequence
from random import Random

Distribution = Callable[[Sequence[int]], Sequence[float]]
"""The probability of each token of the vocabulary after a text."""


def speculative_round(p: Distribution, q: Distribution, text: Sequence[int], gamma: int, random: Random) -> list[int]:
    """One round.

    Args:
        p: the target. q: the drafter.
        text: tokens so far; the last is the anchor.
        gamma: tokens to draft.
        random: all draws come from it.

    Returns:
        The accepted drafts and the next token: 1 to gamma + 1 tokens.
    """
    drafts: list[int] = []
    for _ in range(gamma):
        drafts.append(draw(q([*text, *drafts]), random))
    # A network gives all these rows in one pass over the anchor and the drafts: that is what makes it fast.
    wanted = [p([*text, *drafts[:count]]) for count in range(gamma + 1)]
    for count, draft in enumerate(drafts):
        offered = q([*text, *drafts[:count]])
        if random.random() >= wanted[count][draft] / offered[draft]:
            excess = [max(a - b, 0.0) for a, b in zip(wanted[count], offered, strict=True)]
            return [*drafts[:count], draw(excess, random)]
    return [*drafts, draw(wanted[gamma], random)]


def generate(
    p: Distribution, q: Distribution, prompt: Sequence[int], max_tokens: int, gamma: int, random: Random
) -> list[int]:
    """Up to ``max_tokens`` tokens after a prompt; arguments as `speculative_round`."""
    text = list(prompt)
    while len(text) < len(prompt) + max_tokens:
        text += speculative_round(p, q, text, gamma, random)
    return text[len(prompt) : len(prompt) + max_tokens]


def draw(weights: Sequence[float], random: Random) -> int:
    """A token with probability proportional to its weight."""
    return random.choices(range(len(weights)), weights)[0]
