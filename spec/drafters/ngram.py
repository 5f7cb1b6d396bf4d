"""Prompt lookup: finds an earlier occurrence of the text's last tokens and proposes what followed it.

Saxena 2023, "Prompt lookup decoding"; no network, no confidence.
"""

from array import array
from collections.abc import Sequence
from typing import Annotated

import mlx.core as mx
from pydantic import Field
from typing_extensions import override

from spec.drafters.none import NoneDrafter
from spec.errors import UserError
from spec.rounds import Admits, Context, Proposal
from spec.values import checked_arguments


class NgramDrafter(NoneDrafter):
    """Proposes what followed the most recent earlier occurrence of the longest matching suffix.

    Args:
        n_max: longest suffix looked up, the anchor included.
        n_min: shortest.

    Raises:
        UserError: not 1 <= n_min <= n_max.
    """

    @checked_arguments("drafter")
    def __init__(self, *, n_max: Annotated[int, Field(ge=1)] = 4, n_min: Annotated[int, Field(ge=1)] = 2) -> None:
        if n_min > n_max:
            raise UserError(f"drafter.n_min and n_max must satisfy 1 <= n_min <= n_max, got {n_min} and {n_max}")
        self.n_max, self.n_min = n_max, n_min
        self._tokens = array("l")

    @override
    def reset(self, prompt_length: int) -> None:
        self._tokens = array("l")

    @override
    def observe(self, tokens: Sequence[int], features: mx.array | None) -> None:
        self._tokens.extend(tokens)

    @override
    def propose(self, context: Context, gamma: int, admits: Admits | None = None) -> Proposal:
        """The tokens after the earlier occurrence; fewer than gamma if the text ends there."""
        text = self._tokens + array("l", [context.anchor])
        width = text.itemsize
        searched = text.tobytes()
        for n in range(min(self.n_max, len(text) - 1), self.n_min - 1, -1):
            found = _find_last(searched, text[-n:].tobytes(), width)
            if found is not None:
                start = found + n
                return Proposal(tokens=tuple(text[start : start + gamma]))
        return Proposal(reason=f"no earlier occurrence of the last {self.n_min} to {self.n_max} tokens")


def _find_last(searched: bytes, pattern: bytes, width: int) -> int | None:
    """Index, in items of ``width`` bytes, of the last occurrence that at least one item follows."""
    end = len(searched) - width  # one item must follow, which also excludes the ending itself
    while (found := searched.rfind(pattern, 0, end)) >= 0:
        if found % width == 0:
            return found // width
        end = found + len(pattern) - 1  # a match across item borders: look further left
    return None
