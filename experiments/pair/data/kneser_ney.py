"""Interpolated modified Kneser-Ney n-gram model over token ids, in numpy.

Chen and Goodman, "An Empirical Study of Smoothing Techniques for Language Modeling" (TR-10-98, 1998), section 3,
equations for the three discounts and the interpolation. The text is one stream: contexts reach over document ends,
which the end of sentence token makes harmless.
"""

from dataclasses import dataclass

import numpy as np

from spec.errors import UserError


@dataclass(frozen=True, kw_only=True)
class NgramTable:
    """Tables of the n-grams of one length n.

    An n-gram is known by `context * V + token`, with the context's number among the known (n-1)-grams; so a key fits 64
    bits at any n.

    Attributes:
        keys: (K,) int64, sorted.
        counts: (K,) int64, in the order of `keys`: occurrences for the highest order, else distinct tokens to the left.
        discounts: (4,) float64: what is taken off a count of 0, 1, 2, and 3 or more.
        totals: (C,) float64, sum of the counts of each context's n-grams.
        backoff: (C,) float64, the probability that each context leaves to the lower order.
    """

    keys: np.ndarray
    counts: np.ndarray
    discounts: np.ndarray
    totals: np.ndarray
    backoff: np.ndarray


class KneserNeyModel:
    """n-gram model of a token stream.

    Attributes:
        vocabulary_size: V.
        orders: tables for n = 1, 2, ...
    """

    def __init__(self, tokens: np.ndarray, vocabulary_size: int, order: int):
        """Counts a stream.

        Args:
            tokens: (T,) ids in [0, vocabulary_size).
            vocabulary_size: V.
            order: longest n.

        Raises:
            UserError: when the stream is shorter than two n-grams or ids are out of range.
        """
        if len(tokens) < 2 * order or tokens.max() >= vocabulary_size:
            raise UserError(f"wanted at least {2 * order} ids below {vocabulary_size}, got {len(tokens)}")
        self.vocabulary_size = vocabulary_size
        tokens = tokens.astype(np.int64)
        contexts = np.zeros(len(tokens) + 1, dtype=np.int32)  # of length n - 1, ending before each position
        keys, counts, firsts, numbers = [], [], [], []
        for length in range(1, order + 1):
            key = contexts[:-1] * np.int64(vocabulary_size) + tokens
            key[: length - 1] = -1  # no full n-gram ends here
            unique, first, inverse, count = np.unique(key, return_index=True, return_inverse=True, return_counts=True)
            skipped = int(unique[0] == -1)
            number = (inverse - skipped).astype(np.int32)
            keys.append(unique[skipped:])
            counts.append(count[skipped:])
            firsts.append(first[skipped:])
            numbers.append(number if length < order else None)
            contexts[1:] = number
        self.orders = []
        for length in range(1, order + 1):
            if length < order:
                # The continuation count of an n-gram: how many distinct (n+1)-grams end in it.
                suffixes = numbers[length - 1][firsts[length]]
                used = np.bincount(suffixes, minlength=len(keys[length - 1]))
            else:
                used = counts[length - 1]
            num_contexts = 1 if length == 1 else len(keys[length - 2])
            self.orders.append(_order(keys[length - 1], used, vocabulary_size, num_contexts))

    def probabilities(self, tokens: np.ndarray) -> np.ndarray:
        """Probability of every token of a stream given those before it.

        Args:
            tokens: (T,) ids.

        Returns:
            (T,) float64 in (0, 1).
        """
        tokens = tokens.astype(np.int64)
        result = np.full(len(tokens), 1.0 / self.vocabulary_size)
        contexts = np.zeros(len(tokens), dtype=np.int64)
        for table in self.orders:
            known = contexts >= 0
            key = np.where(known, contexts, 0) * self.vocabulary_size + tokens
            place = np.minimum(np.searchsorted(table.keys, key), len(table.keys) - 1)
            seen = known & (table.keys[place] == key)
            count = np.where(seen, table.counts[place], 0)
            context = np.where(known, contexts, 0)
            total = table.totals[context]
            usable = known & (total > 0)
            own = (count - table.discounts[np.minimum(count, 3)]) / np.maximum(total, 1)
            result = np.where(usable, own + table.backoff[context] * result, result)
            contexts = np.concatenate([[-1], np.where(seen, place, -1)[:-1]])
        return result


def _order(keys: np.ndarray, counts: np.ndarray, vocabulary_size: int, num_contexts: int) -> NgramTable:
    discounts = modified_discounts(counts)
    contexts = keys // vocabulary_size
    totals = np.bincount(contexts, weights=counts, minlength=num_contexts)
    taken = np.bincount(contexts, weights=discounts[np.minimum(counts, 3)], minlength=num_contexts)
    backoff = taken / np.maximum(totals, 1)
    return NgramTable(keys=keys, counts=counts, discounts=discounts, totals=totals, backoff=backoff)


def modified_discounts(counts: np.ndarray) -> np.ndarray:
    """Discounts for counts 0, 1, 2 and 3 or more (Chen and Goodman 1998, equation 26).

    Where a count of counts is zero, as in toy texts, the formula has no value and half the count is taken instead.
    """
    ones, twos, threes, fours = (max(int(np.sum(counts == value)), 0) for value in (1, 2, 3, 4))
    if min(ones, twos, threes, fours) == 0:
        return np.array([0.0, 0.5, 0.75, 0.75])
    ratio = ones / (ones + 2 * twos)
    exact = np.array([0.0, 1 - 2 * ratio * twos / ones, 2 - 3 * ratio * threes / twos, 3 - 4 * ratio * fours / threes])
    return np.clip(exact, 0.0, [0.0, 1.0, 2.0, 3.0])
