"""Token ids to text, outside the loop: streaming, stop strings, and where both meet.

Both classes use mlx-lm's streaming detokenizer, so that the text on which a stop is decided is the text that is shown.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from spec.errors import UserError
from spec.rounds import Round


class StopStrings:
    """Stops a generation when its text contains one of some strings.

    Args:
        tokenizer: mlx-lm's wrapper.
        strings: the stop strings.

    Raises:
        UserError: a stop string is empty.
    """

    def __init__(self, tokenizer: Any, strings: Sequence[str]) -> None:
        if any(not string for string in strings):
            raise UserError("stop: a stop string must not be empty")
        self._tokenizer = tokenizer
        self._strings = tuple(strings)
        self._longest = max((len(string) for string in strings), default=0)
        self._read: list[int] = []
        self._detokenizer = tokenizer.detokenizer

    def cut(self, emitted: Sequence[int], new: Sequence[int]) -> int | None:
        """How many of the new tokens to emit, the one that completes a stop string included; None if none does.

        The answer depends on the arguments alone. What was read before is only a shortcut: if it is no longer a prefix
        (a round was undone, another generation began), the text is read again.
        """
        if self._read != list(emitted):
            self._detokenizer = self._tokenizer.detokenizer
            self._read = []
            for token in emitted:
                self._add(token)
        for count, token in enumerate(new, start=1):
            seen = len(self._detokenizer.text)
            self._add(token)
            tail = self._detokenizer.text[max(0, seen - self._longest + 1) :]
            if any(string in tail for string in self._strings):
                return count
        return None

    def _add(self, token: int) -> None:
        self._detokenizer.add_token(token)
        self._read.append(token)


class TextStream:
    """Text, streamed round by round. What may yet become a stop string is withheld; stop strings are never shown.

    Args:
        tokenizer: mlx-lm's wrapper.
        stop: stop strings.

    Attributes:
        text: everything released so far.
    """

    def __init__(self, tokenizer: Any, stop: Sequence[str] = ()) -> None:
        self._detokenizer = tokenizer.detokenizer
        self._hidden = frozenset(tokenizer.eos_token_ids)
        self._stop = tuple(stop)
        self._is_stopped = False
        self.text = ""

    def push(self, tokens: Iterable[int]) -> str:
        """Adds tokens; returns the text that they release. An end-of-sequence token has no text."""
        for token in tokens:
            if token not in self._hidden:
                self._detokenizer.add_token(token)
        return self._release(self._detokenizer.text, is_final=False)

    def finish(self) -> str:
        """Releases what was withheld, at the end of the generation."""
        self._detokenizer.finalize()
        return self._release(self._detokenizer.text, is_final=True)

    def _release(self, text: str, is_final: bool) -> str:
        if self._is_stopped:
            return ""
        found = [at for string in self._stop if (at := text.find(string)) >= 0]
        if found:
            self._is_stopped = True
            end = min(found)
        else:
            end = len(text) if is_final else len(text) - self._withheld(text)
        released = text[len(self.text) : end]
        self.text += released
        return released

    def _withheld(self, text: str) -> int:
        """Length of the longest ending of the text that begins a stop string."""
        beginnings = [string[:length] for string in self._stop for length in range(1, len(string))]
        return max((len(beginning) for beginning in beginnings if text.endswith(beginning)), default=0)


def stream_text(rounds: Iterable[Round], tokenizer: Any, stop: Sequence[str] = ()) -> Iterator[str]:
    """The text of a generation in pieces, one a round and one at its end.

    Args:
        rounds: from a loop that was given ``StopStrings`` of the same strings.
        tokenizer: mlx-lm's wrapper.
        stop: stop strings.
    """
    stream = TextStream(tokenizer, stop)
    for item in rounds:
        yield stream.push(item.tokens)
    yield stream.finish()


def decode(tokens: Iterable[int], tokenizer: Any, stop: Sequence[str] = ()) -> str:
    """The whole text of a finished generation, as streaming it would have shown."""
    stream = TextStream(tokenizer, stop)
    stream.push(tokens)
    stream.finish()
    return stream.text
