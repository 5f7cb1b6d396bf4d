"""Word 13-grams that texts share: they are removed from training text where held-out documents have them.

A gram is 13 consecutive words (runs of letters, digits and underscores) in lower case, marks and white space ignored,
as GPT-3's authors count contamination (Brown et al., 2020, appendix C). Classes are pooled: text held out as prose
may not occur in code either. JSON and Markdown are counted like text, keys and headings included: 13 words there are
three to six fields with their values.
"""

import re
from collections.abc import Iterable

import numpy as np

from experiments.pair.data.documents import Document, clean_text
from experiments.pair.data.shingles import WORDS, Shingles

GRAM_WORDS = 13

_MIN_PART_CHARS = {"prose": 350, "code_gen": 200}
"""Classes whose documents may lose paragraphs, and the least that must be left."""

grams = Shingles(GRAM_WORDS)
"""`grams(text)`: (words - 12,) uint64 hashes of a text's 13-grams, in order."""


class HeldOutText:
    """Clears training documents of every 13-gram of held-out ones.

    Prose and code lose the paragraphs that a shared gram touches; other documents are dropped whole. A conversation is
    also dropped when its question is that of a held-out one: most questions are too short for a gram.
    """

    def __init__(self, documents: Iterable[Document]):
        """Takes the grams of the held-out documents of all classes, and the questions of the conversations."""
        found, self.questions = [np.zeros(0, np.uint64)], set()
        for document in documents:
            found.append(grams(document.text))
            if document.kind == "chat":
                self.questions.add(document.group)
        self.grams = np.unique(np.concatenate(found))

    def shared(self, text: str) -> np.ndarray:
        """(grams of the text,) bool: whether each occurs in a held-out document."""
        return contained(grams(text), self.grams)

    def clear(self, document: Document) -> Document | None:
        """The training document without shared grams; None when too little is left of it."""
        if document.kind == "chat" and document.group in self.questions:
            return None
        text = document.text
        while (shared := self.shared(text)).any():  # again, since joining paragraphs makes new grams
            if document.kind not in _MIN_PART_CHARS:
                return None
            text = _without_paragraphs(text, shared)
            if len(text) < _MIN_PART_CHARS[document.kind]:
                return None
        if text is document.text:
            return document
        return Document(kind=document.kind, text=text, source=document.source, id=document.id)


def contained(hashes: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Which of the hashes are in a sorted table, bool of the same shape."""
    if not len(table):
        return np.zeros(len(hashes), dtype=bool)
    places = np.searchsorted(table, hashes)
    return table[np.minimum(places, len(table) - 1)] == hashes


def count_shared(texts: list[str], training_texts: Iterable[str]) -> list[int]:
    """How many 13-grams of each text occur anywhere in the training texts, which are read once."""
    found = [grams(text) for text in texts]
    table = np.unique(np.concatenate([np.zeros(0, np.uint64), *found]))
    is_shared = np.zeros(len(table), dtype=bool)
    for training_text in training_texts:
        hashes = grams(training_text)
        is_shared[np.searchsorted(table, hashes[contained(hashes, table)])] = True
    return [int(is_shared[np.searchsorted(table, hashes)].sum()) for hashes in found]


def _without_paragraphs(text: str, shared: np.ndarray) -> str:
    """A text without the paragraphs that a shared gram touches."""
    words = [match.span() for match in WORDS.finditer(text)]
    touched = np.zeros(len(text) + 1, dtype=np.int64)
    for first in np.flatnonzero(shared):
        touched[words[first][0]] += 1
        touched[words[first + GRAM_WORDS - 1][1]] -= 1
    inside = np.cumsum(touched) > 0
    kept = [
        paragraph[0]
        for paragraph in re.finditer(r"(?:[^\n]|\n(?!\n))+\n*|\n+", text)
        if not inside[paragraph.start() : paragraph.end()].any()
    ]
    return clean_text("".join(kept)) if kept else ""
