"""Rollback is a counter: after ``trim`` the state is bit-equal to never having seen the trimmed tokens.

Bit-equality holds on the plain CPU backend in float32, where a row of a product does not depend on the other rows.
"""

import functools
import itertools

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.models.cache import trim_prompt_cache

from models import Model
from models.deepseek_v4 import LayerCache
from models.deepseek_v4 import cache as cache_module
from models.deepseek_v4.attention import NARROW
from models.deepseek_v4.cache import GrowingRows, RowRing
from tests.models.cache_rows import PlainDecoding, assert_same_rows, reachable_rows, restored, snapshot, trim
from tests.random_models import TINY, random_model, random_tokens, tiny_config

HEADROOM = 9
WIDEST = 17


@functools.cache
def shared_model() -> Model:
    return random_model()


@functools.cache
def plain_decoding(prefill: int, max_rollback: int, length: int = 140) -> PlainDecoding:
    return PlainDecoding(shared_model(), random_tokens(length), prefill, max_rollback)


def assert_bit_equal(found: mx.array, expected: mx.array) -> None:
    assert mx.array_equal(found, expected), f"differ by up to {mx.abs(found - expected).max().item()}"


# Every phase modulo 4 and 16, from an empty cache past the edge of the window (12) and two HCA windows.
@pytest.mark.parametrize("phase", range(TINY["compress_ratios"][2]))
def test_every_trim_at_every_phase_is_exact(phase: int) -> None:
    plain = plain_decoding(prefill=0, max_rollback=HEADROOM)
    for position in range(phase, 36, 16):
        for count in range(HEADROOM + 1):
            cache = plain.cache_at(position)
            plain.verify(cache, HEADROOM, HEADROOM - count, seed=count)
            trim(cache, count)
            plain.assert_goes_on(cache, 5)


# An HCA window of 128 closes inside the pass or just beside it.
@pytest.mark.parametrize("position", [111, 119, 120, 127, 128, 251])
def test_trim_is_exact_at_ratio_128(position: int) -> None:
    plain = ratio128_decoding()
    for count in (1, 4, 8, WIDEST):
        cache = plain.cache_at(position)
        plain.verify(cache, WIDEST, WIDEST - count, seed=count)
        trim(cache, count)
        plain.assert_goes_on(cache, 5)


@functools.cache
def ratio128_decoding() -> PlainDecoding:
    model = random_model(tiny_config(num_hidden_layers=2, compress_ratios=(128, 4)))
    return PlainDecoding(model, random_tokens(274), 100, WIDEST)


@pytest.mark.parametrize(
    "changes",
    [
        {"sliding_window": 32},  # the window needs no padded slots
        {"sliding_window": 5, "index_topk": 33},  # shorter than a pass; from all rows to a choice within a pass
        {"sliding_window": 1, "index_topk": 1},  # a query sees its own row only
        {"compress_ratios": (3, 4, 5), "num_hash_layers": 3},  # ratios that are coprime
        {"compress_ratios": (4, 2, 7), "csa_ratio": 2},
    ],
    ids=str,
)
def test_trim_is_exact_in_other_configurations(changes: dict) -> None:
    plain = PlainDecoding(random_model(tiny_config(**changes)), random_tokens(149), 0, WIDEST)
    for position in (1, 15, 31, 62, 113, 123):
        for count in (3, WIDEST):
            cache = plain.cache_at(position)
            plain.verify(cache, WIDEST, WIDEST - count)
            trim(cache, count)
            plain.assert_goes_on(cache, 9)


@pytest.mark.parametrize("width", [HEADROOM + 1, 20, NARROW])
@pytest.mark.parametrize("count", range(HEADROOM + 1))
def test_a_pass_wider_than_the_headroom_can_be_trimmed_by_the_headroom(width: int, count: int) -> None:
    plain = plain_decoding(prefill=0, max_rollback=HEADROOM)
    cache = plain.cache_at(21)
    plain.verify(cache, width, width - count)
    trim(cache, count)
    plain.assert_goes_on(cache, HEADROOM)


@pytest.mark.parametrize("count", range(HEADROOM + 1))
def test_a_prefill_can_be_trimmed(count: int) -> None:
    model, tokens = shared_model(), random_tokens(70)
    wrong = (tokens[:, 60 - count : 60] + 1) % model.args.vocab_size
    cache, expected = model.make_cache(HEADROOM), model.make_cache(HEADROOM)
    model(mx.concatenate([tokens[:, : 60 - count], wrong], axis=1), cache=cache)
    model(tokens[:, : 60 - count], cache=expected)
    trim(cache, count)
    # Two wide passes of different widths sum in different orders: close, and bit-equal only narrow to narrow.
    expected_rows = reachable_rows(expected, model.args)
    for name, rows in reachable_rows(cache, model.args).items():
        np.testing.assert_allclose(rows, expected_rows[name], atol=1e-5, err_msg=name)
    following = tokens[:, 60 - count : 60 - count + 7]
    np.testing.assert_allclose(model(following, cache=cache), model(following, cache=expected), atol=1e-4)


ROUND = st.tuples(
    st.integers(1, WIDEST),  # width
    st.floats(0, 1),  # accepted share of it
    st.lists(st.integers(0, WIDEST), max_size=3),  # where the trim is cut in several
    st.integers(0, 4),  # committed tokens that are taken back, too
)


@settings(max_examples=40)
@given(prefill=st.sampled_from([0, 7, 45]), rounds=st.lists(ROUND, min_size=1, max_size=8), seed=st.integers(0, 2**16))
def test_random_rounds_leave_the_state_of_plain_decoding(prefill: int, rounds: list, seed: int) -> None:
    plain = plain_decoding(prefill, max_rollback=WIDEST)
    cache = plain.cache_at(prefill)
    for number, (width, share, cuts, back) in enumerate(rounds):
        position = cache[0].offset
        if position + width + 4 > plain.tokens.shape[1]:
            break
        accepted = round(share * width)
        plain.verify(cache, width, accepted, seed + number)
        back = min(back, position + accepted - prefill, WIDEST - (cache[0].written - position - accepted))
        marks = [0, *sorted(min(cut, width - accepted + back) for cut in cuts), width - accepted + back]
        for start, end in itertools.pairwise(marks):
            trim(cache, end - start)
        assert cache[0].offset == position + accepted - back
        assert_same_rows(cache, plain.rows_at(cache[0].offset), plain.model.args)
    plain.assert_goes_on(cache, 4)


def test_a_trim_beyond_the_headroom_is_refused_and_changes_nothing() -> None:
    plain = plain_decoding(prefill=0, max_rollback=HEADROOM)
    cache = plain.cache_at(30)
    before = snapshot(cache)
    with pytest.raises(ValueError, match=rf"cannot trim {HEADROOM + 1} tokens at offset 30.*at least {HEADROOM + 1}"):
        trim_prompt_cache(cache, HEADROOM + 1)
    for (meta_state, state), entry in zip(before, cache, strict=True):
        assert entry.meta_state == meta_state
        assert all(found is held for found, held in zip(entry.state, state, strict=True))
    plain.assert_goes_on(cache, 5)


def test_the_headroom_counts_from_the_newest_row_written() -> None:
    plain = plain_decoding(prefill=0, max_rollback=HEADROOM)
    cache = plain.cache_at(30)
    trim(cache, HEADROOM)
    with pytest.raises(ValueError, match="headroom"):
        cache[0].trim(1)
    plain.verify(cache, 3, 3)
    trim(cache, 3)
    with pytest.raises(ValueError, match="headroom"):
        cache[0].trim(1)
    plain.assert_goes_on(cache, HEADROOM)
    trim(cache, HEADROOM)
    plain.assert_goes_on(cache, 5)


@pytest.mark.parametrize("count", [-1, -HEADROOM])
def test_a_negative_trim_is_refused_and_changes_nothing(count: int) -> None:
    plain = plain_decoding(prefill=0, max_rollback=HEADROOM)
    cache = plain.cache_at(30)
    trim(cache, 3)
    for entry in cache:
        with pytest.raises(ValueError, match=f"cannot trim {count} tokens: wanted 0 or more"):
            entry.trim(count)
    plain.assert_goes_on(cache, 5)


def test_trimming_more_than_there_is_empties_the_cache() -> None:
    plain = plain_decoding(prefill=0, max_rollback=HEADROOM)
    cache = plain.cache_at(4)
    assert [entry.trim(HEADROOM) for entry in cache] == [4] * len(cache)
    plain.assert_goes_on(cache, 8)


def test_without_headroom_nothing_is_trimmable() -> None:
    cache = shared_model().make_cache(max_rollback=0)
    shared_model()(random_tokens(20), cache=cache)
    assert not cache[0].is_trimmable()
    assert cache[0].trim(0) == 0
    with pytest.raises(ValueError, match="headroom"):
        cache[0].trim(1)


def test_decoding_without_headroom_is_plain_decoding() -> None:
    plain = PlainDecoding(shared_model(), random_tokens(60), 0, max_rollback=0)
    with_headroom = plain_decoding(prefill=0, max_rollback=HEADROOM)
    for position, logits in plain.logits.items():
        assert np.array_equal(logits, with_headroom.logits[position])


@pytest.mark.parametrize("width", [1, 5, 17, 41])
def test_a_snapshot_is_not_altered_by_later_passes_and_restores_exactly(width: int) -> None:
    plain = plain_decoding(prefill=0, max_rollback=WIDEST)
    cache = plain.cache_at(37)
    taken = snapshot(cache)
    copies = [[np.array(array) for array in state] for _, state in taken]
    for _ in range(2):
        plain.model(random_tokens(width, seed=5), cache=cache)
        mx.eval([entry.state for entry in cache])
    for (_, state), copy in zip(taken, copies, strict=True):
        assert all(np.array_equal(array, expected) for array, expected in zip(state, copy, strict=True))
    again = restored(plain.model, taken, WIDEST)
    assert [entry.meta_state for entry in again] == [meta_state for meta_state, _ in taken]
    plain.assert_goes_on(again, 6)
    trim(again, WIDEST)
    plain.assert_goes_on(again, 6)


def test_a_snapshot_keeps_how_far_a_trim_may_reach() -> None:
    plain = plain_decoding(prefill=0, max_rollback=HEADROOM)
    cache = plain.cache_at(30)
    trim(cache, 6)
    cache = restored(plain.model, snapshot(cache), HEADROOM)
    with pytest.raises(ValueError, match="headroom"):
        cache[0].trim(HEADROOM - 5)
    trim(cache, HEADROOM - 6)
    plain.assert_goes_on(cache, 5)


def test_a_snapshot_of_an_empty_cache_restores_an_empty_cache() -> None:
    plain = plain_decoding(prefill=0, max_rollback=HEADROOM)
    cache = plain.model.make_cache(HEADROOM)
    taken = snapshot(cache)
    plain.verify(cache, 9, 3)
    for entry, (meta_state, state) in zip(cache, taken, strict=True):
        entry.meta_state, entry.state = meta_state, state
    assert all(entry.empty() and entry.size() == 0 and entry.nbytes == 0 for entry in cache)
    plain.assert_goes_on(cache, 9)


def test_a_batch_of_two_equals_two_batches_of_one() -> None:
    model = shared_model()
    tokens = random_tokens(80, batch=2)

    def decode(rows: mx.array) -> tuple[list[mx.array], list[LayerCache]]:
        cache, logits = model.make_cache(HEADROOM), []
        for width in (40, 1, 9, 1):
            offset = cache[0].offset
            logits.append(model(rows[:, offset : offset + width], cache=cache))
            trim(cache, width // 3 if width < 40 else 0)
        return logits, cache

    both_logits, both_cache = decode(tokens)
    both_rows = reachable_rows(both_cache, model.args)
    for index in range(2):
        logits, cache = decode(tokens[index : index + 1])
        for found, expected in zip(both_logits, logits, strict=True):
            assert_bit_equal(found[index : index + 1], expected)
        for name, expected_rows in reachable_rows(cache, model.args).items():
            assert np.array_equal(both_rows[name][index : index + 1], expected_rows), name


def test_compressed_rows_outgrow_their_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = plain_decoding(prefill=0, max_rollback=WIDEST)
    monkeypatch.setattr(cache_module, "GROWTH", 32)
    cache = expected.model.make_cache(WIDEST)
    for accepted in (2, 16, 0, *[14] * 8):  # 32 rows of ratio 4 are full after 128 tokens
        expected.verify(cache, WIDEST, accepted)
        trim(cache, WIDEST - accepted)
    expected.assert_goes_on(cache, 9)
    assert cache[1].compressor.pooled.rows.shape[1] == 64


@given(
    capacity=st.integers(1, 12),
    passes=st.lists(st.integers(0, 30), min_size=1, max_size=8),
    back=st.integers(0, 11),
)
def test_a_ring_holds_the_last_rows_by_position(capacity: int, passes: list[int], back: int) -> None:
    ring, offset = RowRing(capacity, 1), 0
    for count in passes:
        ring.append(mx.arange(offset, offset + count, dtype=mx.float32).reshape(1, count, 1), offset)
        offset += count
    held = min(capacity, offset)
    back = min(back, held)
    for count in range(held - back + 1):
        if count:
            found = ring.before(offset - back, count).reshape(-1).tolist()
            assert found == list(range(offset - back - count, offset - back))


@given(passes=st.lists(st.integers(0, 400), min_size=1, max_size=4))
@settings(max_examples=20)
def test_growing_rows_hold_every_row_by_number(passes: list[int]) -> None:
    store, first = GrowingRows(1), 0
    assert store.read(0) is None
    for count in passes:
        store.write(mx.arange(first, first + count, dtype=mx.float32).reshape(1, count, 1), first)
        first += count
    if first:
        read = store.read(first)
        assert read.shape[1] % cache_module.ALIGNMENT == 0
        assert read.shape[1] - first < cache_module.ALIGNMENT
        assert mx.array_equal(read[0, :first, 0], mx.arange(first, dtype=mx.float32))
