"""A target without a model: its predictions are written down, so that the real loop runs on a recording."""

import sys
from collections.abc import Callable, Iterator, Sequence

import mlx.core as mx

from spec.rounds import TargetPass

Predict = Callable[[Sequence[int], int], mx.array]
"""The text so far and T -> logits (T, V) after each of its last T tokens."""


class RecordedTarget:
    """Plays predictions back; its state is the text it was fed.

    Args:
        predict: logits after each of the last tokens of a text.
        vocab_size: V.
        features: (S, F) of the recorded positions; None without.
        context_length: tokens that a sequence may hold.
        max_rollback: tokens that can be taken back.
        can_trim: False refuses `trim`, as state that cannot be cut does.

    Attributes:
        text: tokens in the cache.
        widths: rows of every pass with logits since the last reset.
    """

    def __init__(
        self,
        predict: Predict,
        vocab_size: int,
        *,
        features: mx.array | None = None,
        context_length: int = sys.maxsize,
        max_rollback: int = sys.maxsize,
        can_trim: bool = True,
    ) -> None:
        self._predict, self._features = predict, features
        self.vocab_size, self.context_length = vocab_size, context_length
        self.max_rollback, self.can_trim = max_rollback, can_trim
        self.reset()

    @classmethod
    def of_tokens(cls, tokens: Sequence[int], vocab_size: int, **options: object) -> "RecordedTarget":
        """A target that wants ``tokens[p]`` at position p, whatever came before, and 0 after their end.

        Args:
            tokens: the recorded text, prompt included.
            vocab_size: V, above every token.
            **options: as the class takes them.
        """

        def predict(text: Sequence[int], count: int) -> mx.array:
            wanted = [*tokens[len(text) - count + 1 : len(text) + 1]]
            wanted += [0] * (count - len(wanted))
            return (mx.arange(vocab_size) == mx.array(wanted)[:, None]).astype(mx.float32)

        return cls(predict, vocab_size, **options)

    @property
    def offset(self) -> int:
        """Tokens in the cache."""
        return len(self.text)

    def reset(self) -> None:
        """Forgets the text."""
        self.text: list[int] = []
        self.widths: list[int] = []

    def prefill(self, tokens: Sequence[int]) -> Iterator[tuple[Sequence[int], mx.array | None]]:
        """Takes in all tokens at once."""
        self.text += tokens
        yield tokens, self._rows(len(tokens))

    def forward(self, tokens: Sequence[int]) -> TargetPass:
        """What is recorded after each of the tokens.

        Raises:
            ValueError: the context is full.
        """
        self.text += tokens
        if len(self.text) > self.context_length:
            raise ValueError(f"the context holds {self.context_length} tokens, got {len(self.text)}")
        self.widths.append(len(tokens))
        return TargetPass(logits=self._predict(self.text, len(tokens)), features=self._rows(len(tokens)))

    def _rows(self, count: int) -> mx.array | None:
        return None if self._features is None else self._features[len(self.text) - count : len(self.text)]

    def trim(self, count: int) -> None:
        """Takes back the last ``count`` tokens.

        Raises:
            ValueError: it cannot take back so many, or none at all.
        """
        if not self.can_trim or count > self.max_rollback:
            raise ValueError(f"wanted {count} tokens taken back, the target takes back at most {self.max_rollback}")
        del self.text[len(self.text) - count :]

    def snapshot(self) -> list[int]:
        """A copy of the text."""
        return list(self.text)

    def restore(self, snapshot: list[int]) -> None:
        """Returns to a snapshot."""
        self.text = list(snapshot)
