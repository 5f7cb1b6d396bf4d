"""The n-gram model against its definition on toy texts."""

import numpy as np
import pytest

from experiments.ngram_baseline import bits_per_byte
from experiments.pair.data.kneser_ney import KneserNeyModel, modified_discounts


@pytest.fixture(scope="module")
def stream():
    """2,000 ids below 7 that follow each other with some regularity."""
    draw = np.random.default_rng(0)
    ids = [0, 1]
    for _ in range(1998):
        ids.append(int((ids[-1] + ids[-2] + 1) % 6 if draw.random() < 0.7 else draw.integers(0, 6)))
    return np.array(ids, dtype=np.uint16)


@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_probabilities_sum_to_one_after_any_context(stream, order):
    model = KneserNeyModel(stream, 7, order)
    for context in ([0, 1, 2, 3], [5, 5, 5, 5], [6, 1, 6, 2], [6, 6, 6, 6], [1, 1]):  # 6 never occurs
        last = [model.probabilities(np.array([*context, token]))[-1] for token in range(7)]
        assert sum(last) == pytest.approx(1.0, abs=1e-12)
        assert min(last) > 0


def test_bigrams_are_as_the_formula_says(stream):
    model = KneserNeyModel(stream, 7, 2)
    pairs = list(zip(stream[:-1].tolist(), stream[1:].tolist(), strict=True))
    counts = {pair: pairs.count(pair) for pair in set(pairs)}
    left = np.array([len({a for a, b in counts if b == token}) for token in range(7)])  # continuation counts

    def interpolated(count, discounts, total, kinds, lower):
        taken = sum(discounts[min(c, 3)] for c in kinds)
        return max(count - discounts[min(count, 3)], 0) / total + taken / total * lower

    low, high = modified_discounts(left[left > 0]), modified_discounts(np.array(sorted(counts.values())))
    for first, second in [(0, 1), (3, 3), (5, 0)]:
        unigram = interpolated(left[second], low, left.sum(), left[left > 0], 1 / 7)
        kinds = [count for (a, _), count in counts.items() if a == first]
        wanted = interpolated(counts.get((first, second), 0), high, sum(kinds), kinds, unigram)
        assert model.probabilities(np.array([first, second]))[1] == pytest.approx(wanted, rel=1e-12)


def test_longer_contexts_help_on_regular_text(stream):
    train, valid = stream[:1600], stream[1600:]
    bits = [
        bits_per_byte(KneserNeyModel(train, 7, order), valid, 400, begin=0)["bits_per_token"] for order in (1, 2, 3)
    ]
    assert bits[2] < bits[1] <= bits[0] * 1.01
    assert bits[2] < 0.8 * bits[0]


def test_begin_of_sentence_is_not_judged(stream):
    model = KneserNeyModel(stream, 7, 3)
    row = bits_per_byte(model, stream, 1000, begin=0)
    assert row["tokens"] == int(np.sum(stream != 0))
    assert row["bits_per_byte"] == pytest.approx(row["bits"] / 1000)


def test_short_streams_are_refused():
    with pytest.raises(ValueError, match="wanted at least"):
        KneserNeyModel(np.array([1, 2, 3]), 7, 5)
