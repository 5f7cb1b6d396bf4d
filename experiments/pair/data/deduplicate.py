"""Removal of exact and near duplicates by sampled word shingles."""

from collections.abc import Iterable, Iterator

import numpy as np

from experiments.pair.data.documents import Document
from experiments.pair.data.shingles import WORDS_AND_MARKS, Shingles


class NearDuplicateFilter:
    """Lets a document pass when few of its sampled shingles were seen in documents that passed before.

    A shingle is `width` consecutive words or marks. Only shingles whose hash is 0 modulo `sample` are kept, which picks
    the same shingles wherever a passage occurs ("mod p" sampling of Broder's resemblance, 1997; Manku et al., 2007,
    discuss the family). The share of seen shingles estimates the share of the text that was seen.

    Attributes:
        threshold: a document is dropped when more than this share of its samples was seen, in (0, 1].
        width: words in a shingle.
        sample: one of so many shingles is looked at.
    """

    def __init__(self, threshold: float = 0.5, width: int = 8, sample: int = 8):
        self.threshold, self.width, self.sample = threshold, width, sample
        self._seen: set[int] = set()
        self._hashes = Shingles(width, WORDS_AND_MARKS)

    def shingles(self, text: str) -> set[int]:
        """Sampled 64-bit shingle hashes of a text; all of them when the text is too short to sample."""
        mixed = self._hashes(text)
        if not len(mixed):
            return {hash(tuple(self._hashes.word_hashes(text).tolist()))}
        sampled = mixed[mixed % np.uint64(self.sample) == 0]
        return set((sampled if len(sampled) >= 4 else mixed).tolist())

    def admit(self, text: str) -> bool:
        """Whether the text is new enough; remembers it when it is."""
        shingles = self.shingles(text)
        if len(shingles & self._seen) > self.threshold * len(shingles):
            return False
        self._seen |= shingles
        return True


SHINGLE_WIDTH = {"prose": 8, "code_gen": 16, "json_repetitive": 32, "md_table": 32, "chat": 8}
"""Words in a shingle by class: keys and quotes repeat by nature, so a shingle of records must span several values."""


def without_duplicates(documents: Iterable[Document], threshold: float = 0.5) -> Iterator[Document]:
    """Documents without exact or near duplicates among those of the same class; the first one met stays."""
    filters = {kind: NearDuplicateFilter(threshold, width) for kind, width in SHINGLE_WIDTH.items()}
    for document in documents:
        if filters[document.kind].admit(document.text):
            yield document
