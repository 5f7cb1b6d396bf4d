"""Hashes of runs of consecutive words, by which texts are compared."""

import re
from zlib import crc32

import numpy as np

WORDS = re.compile(r"\w+")
WORDS_AND_MARKS = re.compile(r"\w+|[^\w\s]")

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


class Shingles:
    """Makes the 64-bit hashes of all runs of `width` words of a text.

    Attributes:
        width: words in a run.
        pattern: what a word is; texts are compared in lower case.
    """

    def __init__(self, width: int, pattern: re.Pattern[str] = WORDS):
        self.width, self.pattern = width, pattern
        self._word_hashes: dict[str, int] = {}

    def __call__(self, text: str) -> np.ndarray:
        """(words - width + 1,) uint64: the hash of the run that starts at each word; empty for a shorter text."""
        values = self.word_hashes(text)
        mixed = np.zeros(max(len(values) - self.width + 1, 0), dtype=np.uint64)
        for offset in range(self.width):
            mixed = (mixed ^ values[offset : offset + len(mixed)]) * _MULTIPLIER
            mixed ^= mixed >> np.uint64(29)
        return mixed

    def word_hashes(self, text: str) -> np.ndarray:
        """(words,) uint64: a hash of 32 bits of each word."""
        table, hashes = self._word_hashes, []
        for word in self.pattern.findall(text):
            if word not in table:
                if len(table) > 2_000_000:
                    table.clear()  # a memo only: numbers in tables would otherwise fill the memory
                table[word] = crc32(word.lower().encode("utf-8"))
            hashes.append(table[word])
        return np.array(hashes, dtype=np.uint64)
