"""The pieces of a layer, each against its formula."""

import math
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.deepseek_v4.cache import CompressorState
from models.deepseek_v4.compressor import Compressor
from models.deepseek_v4.config import YarnScaling
from models.deepseek_v4.hyper_connection import HyperConnection, HyperHead, sinkhorn
from models.deepseek_v4.moe import COPIED, ClampedSwiGLU, Gate, MixtureOfExperts, can_gather, evaluate_every_expert
from models.deepseek_v4.probe import observing
from models.deepseek_v4.quantization import round_index_rows, round_kv_rows
from models.deepseek_v4.rope import Rotary, inverse_frequencies
from tests.random_models import random_model, random_tokens, tiny_config

FLASH_YARN = YarnScaling(factor=16.0, original_max_position_embeddings=65536)
PIECES = Path(__file__).parent.parent / "fixtures" / "target" / "rotary_and_sinkhorn.npz"


@pytest.fixture(scope="module")
def pieces() -> dict[str, np.ndarray]:
    """Rotary frequencies and one hyper-connection call, from transformers."""
    with np.load(PIECES) as arrays:
        return dict(arrays)


def normal(*shape: int, seed: int = 0) -> mx.array:
    return mx.random.normal(shape, key=mx.random.key(seed))


def assert_close(found: mx.array, expected: mx.array | np.ndarray, atol: float = 1e-5) -> None:
    np.testing.assert_allclose(np.array(found), np.array(expected), rtol=0, atol=atol)


# --- rotary ---


def test_frequencies_are_those_of_flash(pieces: dict) -> None:
    np.testing.assert_allclose(inverse_frequencies(64, 10000.0), pieces["plain_inverse_frequencies"], rtol=1e-6)
    scaled = inverse_frequencies(64, 160000.0, FLASH_YARN)
    np.testing.assert_allclose(scaled, pieces["yarn_inverse_frequencies"], rtol=1e-6)


def test_yarn_keeps_fast_pairs_and_stretches_slow_ones() -> None:
    plain, scaled = inverse_frequencies(64, 160000.0), inverse_frequencies(64, 160000.0, FLASH_YARN)
    ratio = np.array(plain / scaled)
    assert ratio[0] == pytest.approx(1.0)
    assert ratio[-1] == pytest.approx(16.0)
    assert (np.diff(ratio) >= -1e-6).all()


def test_yarn_of_a_short_context_has_a_ramp_of_no_width() -> None:
    yarn = YarnScaling(factor=4.0, original_max_position_embeddings=4)
    assert mx.isfinite(inverse_frequencies(8, 10000.0, yarn)).all()


@pytest.mark.parametrize(("label", "theta", "yarn"), [("plain", 10000.0, None), ("yarn", 160000.0, FLASH_YARN)])
def test_rotation_is_that_of_flash(pieces: dict, label: str, theta: float, yarn: YarnScaling | None) -> None:
    rotary = Rotary(64, theta, yarn)
    for row, position in enumerate(pieces["rotary_positions"].tolist()):
        found = rotary(mx.array(pieces["rotary_input"][row])[None, None], position)
        # At position 5000 an angle is known to some 5000 * 2^-24.
        assert_close(found[0, 0], pieces[f"{label}_rotated"][row], atol=2e-5 if position < 1000 else 2e-3)


def test_rotation_turns_interleaved_pairs_at_the_end() -> None:
    rotary = Rotary(4, 100.0)
    row = mx.array([5.0, 6.0, 1.0, 0.0, 0.0, 1.0])
    cosine, sine = math.cos, math.sin
    expected = [5.0, 6.0, cosine(3), sine(3), -sine(0.3), cosine(0.3)]
    assert_close(rotary(row[None, None], 3)[0, 0], np.array(expected))


@given(offset=st.integers(0, 5000), stride=st.sampled_from([1, 4, 128]))
def test_inverse_rotation_undoes_rotation(offset: int, stride: int) -> None:
    rotary, rows = Rotary(8, 160000.0, FLASH_YARN), normal(2, 3, 5, 12)
    rotated = rotary(rows, offset, stride=stride)
    assert mx.array_equal(rotated[..., :4], rows[..., :4])
    assert_close(rotary(rotated, offset, stride=stride, inverse=True), rows)


def test_a_stride_counts_positions_from_row_to_row() -> None:
    rotary, rows = Rotary(8, 10000.0), normal(1, 3, 12)
    strided = rotary(rows, 5, stride=4)
    for index in range(3):
        assert_close(strided[:, index : index + 1], rotary(rows[:, index : index + 1], (5 + index) * 4))


def test_each_sequence_may_have_its_own_offset() -> None:
    rotary, rows = Rotary(8, 10000.0), normal(2, 3, 5, 12)
    found = rotary(rows, mx.array([7, 300]))
    for index, offset in enumerate((7, 300)):
        assert_close(found[index : index + 1], rotary(rows[index : index + 1], offset))


def test_rotation_keeps_the_dtype() -> None:
    assert Rotary(8, 10000.0)(normal(1, 3, 12).astype(mx.bfloat16), 7).dtype == mx.bfloat16


# --- hyper-connection ---


def make_hyper_connection(pieces: dict) -> HyperConnection:
    connection = HyperConnection(tiny_config(hc_mult=4, hidden_size=16, hc_sinkhorn_iters=20))
    for name in ("fn", "base", "scale"):
        setattr(connection, name, mx.array(pieces[f"hyper_connection_{name}"]))
    return connection


def test_hyper_connection_is_that_of_the_reference(pieces: dict) -> None:
    connection = make_hyper_connection(pieces)
    streams = mx.array(pieces["hyper_connection_streams"])
    collapsed, post, comb = connection.collapse(streams)
    assert_close(collapsed, pieces["hyper_connection_collapsed"])
    assert_close(post, pieces["hyper_connection_post"])
    assert_close(comb, pieces["hyper_connection_comb"])
    output = mx.array(pieces["hyper_connection_sublayer_output"])
    assert_close(connection.expand(output, streams, post, comb), pieces["hyper_connection_output_streams"])


def test_the_mixing_goes_from_first_index_to_second(pieces: dict) -> None:
    """The stored mixing is far from symmetric, so the transposed sum is far from the stored streams."""
    connection = make_hyper_connection(pieces)
    streams = mx.array(pieces["hyper_connection_streams"])
    output = mx.array(pieces["hyper_connection_sublayer_output"])
    _, post, comb = connection.collapse(streams)
    transposed = connection.expand(output, streams, post, comb.swapaxes(-1, -2))
    assert np.abs(np.array(transposed) - pieces["hyper_connection_output_streams"]).max() > 0.1
    only_first = mx.zeros((1, 1, 4, 4))
    only_first[..., 0, 3] = 1.0
    moved = connection.expand(mx.zeros((1, 1, 16)), streams[:1, :1], mx.zeros((1, 1, 4)), only_first)
    assert mx.array_equal(moved[0, 0, 3], streams[0, 0, 0])
    assert not moved[0, 0, :3].any()


def test_sinkhorn_ends_with_a_column_step() -> None:
    logits = 2 * normal(5, 4, 4)
    for iterations in (1, 3, 20):
        assert_close(sinkhorn(logits, iterations, 1e-6).sum(axis=-2), np.ones((5, 4)))
    one_step = sinkhorn(logits, 1, 1e-6)
    assert mx.abs(one_step.sum(axis=-1) - 1).max() > 0.05
    assert_close(sinkhorn(logits, 50, 1e-6).sum(axis=-1), np.ones((5, 4)), atol=1e-3)
    softmax = mx.softmax(logits, axis=-1) + 1e-6
    assert_close(one_step, softmax / (softmax.sum(axis=-2, keepdims=True) + 1e-6))


def test_streams_keep_their_dtype(pieces: dict) -> None:
    connection = make_hyper_connection(pieces)
    streams = mx.array(pieces["hyper_connection_streams"]).astype(mx.bfloat16)
    collapsed, post, comb = connection.collapse(streams)
    assert (collapsed.dtype, post.dtype, comb.dtype) == (mx.bfloat16, mx.float32, mx.float32)
    assert connection.expand(collapsed, streams, post, comb).dtype == mx.bfloat16


def test_head_gates_each_stream_by_a_sigmoid() -> None:
    head = HyperHead(tiny_config(hc_mult=2, hidden_size=3))
    head.fn, head.base, head.scale = normal(2, 6), normal(2, seed=1), mx.array([0.7])
    streams = normal(1, 1, 2, 3, seed=2)
    flat = np.array(streams).reshape(6).astype(np.float64)
    flat /= np.sqrt((flat**2).mean() + 1e-6)
    gates = 1 / (1 + np.exp(-(np.array(head.fn) @ flat * 0.7 + np.array(head.base)))) + 1e-6
    assert_close(head(streams)[0, 0], gates @ np.array(streams)[0, 0])


# --- compressor ---

WIDTH = 4


def make_compressor(ratio: int, overlap: bool) -> Compressor:
    compressor = Compressor(tiny_config(hidden_size=6), WIDTH, ratio, overlap, Rotary(2, 100.0), None)
    halves = 2 if overlap else 1
    compressor.wkv.weight = normal(halves * WIDTH, 6)
    compressor.wgate.weight = normal(halves * WIDTH, 6, seed=1)
    compressor.ape = normal(ratio, halves * WIDTH, seed=2)
    compressor.norm.weight = 1 + 0.1 * normal(WIDTH, seed=3)
    return compressor


def pooled_by_formula(compressor: Compressor, x: mx.array, window: int) -> np.ndarray:
    """One pooled row, unrotated, from the formula: softmax over slots, a channel at a time."""
    keys = np.array(x @ compressor.wkv.weight.T, np.float64)
    scores = np.array(x @ compressor.wgate.weight.T, np.float64)
    ratio = compressor.ratio
    scores += np.array(compressor.ape)[np.arange(len(keys)) % ratio]
    own = range(window * ratio, (window + 1) * ratio)
    slots = [(position, WIDTH if compressor.overlap else 0) for position in own]
    if compressor.overlap and window > 0:
        slots = [(position - ratio, 0) for position in own] + slots
    key = np.stack([keys[position, start : start + WIDTH] for position, start in slots])
    score = np.exp(np.stack([scores[position, start : start + WIDTH] for position, start in slots]))
    pooled = (score / score.sum(axis=0) * key).sum(axis=0)
    return pooled / np.sqrt((pooled**2).mean() + 1e-6) * np.array(compressor.norm.weight)


@pytest.mark.parametrize(("ratio", "overlap"), [(4, True), (4, False), (16, False), (3, True)])
def test_compressor_pools_each_window_by_the_formula(ratio: int, overlap: bool) -> None:
    compressor, x = make_compressor(ratio, overlap), normal(1, 3 * ratio + 1, 6, seed=4)
    rows = compressor(x, 0, None)
    assert rows.shape == (1, 3, WIDTH)
    for window in range(3):  # window 0 of an overlapping compressor has no predecessor
        expected = mx.array(pooled_by_formula(compressor, x[0], window), mx.float32)
        expected = Rotary(2, 100.0)(expected[None, None], window * ratio)
        assert_close(rows[:, window : window + 1], expected)


def test_window_0_does_not_depend_on_what_stands_in_unused_slots() -> None:
    compressor, x = make_compressor(4, True), normal(1, 4, 6, seed=4)
    state = CompressorState(4, True, WIDTH, 3)
    state.frontier.rows = mx.full((1, state.frontier.capacity, 4 * WIDTH), mx.nan)
    assert compressor(x[:, :3], 0, state) is None
    assert_close(compressor(x[:, 3:], 3, state)[:, :1], compressor(x, 0, None))


def test_no_window_closed_is_no_row() -> None:
    assert make_compressor(4, True)(normal(1, 3, 6), 0, None) is None


# --- attention ---


@pytest.mark.parametrize("window", [1, 5, 12, 32, 100])
@pytest.mark.parametrize("offset", [0, 3, 12, 50])
def test_wide_passes_attend_as_narrow_ones(window: int, offset: int) -> None:
    model, tokens = random_model(tiny_config(sliding_window=window)), random_tokens(offset + 41)
    cache, expected = model.make_cache(), []
    for start in range(0, offset + 41, 9):
        expected.append(model(tokens[:, start : start + 9], cache=cache))
    expected = mx.concatenate(expected, axis=1)
    cache = model.make_cache()
    if offset:
        assert_close(model(tokens[:, :offset], cache=cache), expected[:, :offset], atol=1e-4)
    assert_close(model(tokens[:, offset:], cache=cache), expected[:, offset:], atol=1e-4)


def test_the_choice_among_equal_scores_is_the_earlier_rows() -> None:
    indexer = random_model().layers[1].attn.indexer
    scores = mx.array([[[0.0, 2.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0]]])
    assert indexer.choose(scores).tolist() == [[[0, 1, 2, 4]]]
    for masked in (1, 24, 56, 300):  # rows that later tokens of the pass will close
        wider = mx.concatenate([scores, mx.full((1, 1, masked), -mx.inf)], axis=-1)
        assert indexer.choose(wider).tolist() == [[[0, 1, 2, 4]]]
    assert indexer.choose(mx.zeros((1, 2, 1000))).tolist() == [[[0, 1, 2, 3]] * 2]


# --- mixture of experts ---


def test_gate_chooses_by_score_and_bias_and_weighs_by_score_alone() -> None:
    gate = Gate(tiny_config(routed_scaling_factor=2.5), is_hash_routed=False)
    gate.weight = normal(6, 32) / 6
    gate.bias = mx.array([0.0, 0.0, 9.0, 0.0, 0.0, -9.0])
    x = normal(2, 30, 32, seed=1)
    experts, weights = gate(x, random_tokens(30, batch=2))
    scores = np.sqrt(np.log1p(np.exp(np.array(x @ gate.weight.T, np.float64))))
    chosen = np.sort(np.argsort(-(scores + np.array(gate.bias)), axis=-1)[..., :2], axis=-1)
    assert np.array_equal(np.sort(np.array(experts), axis=-1), chosen)
    assert (np.array(experts) == 2).any(axis=-1).all()
    assert not (np.array(experts) == 5).any()
    expected = np.take_along_axis(scores, np.array(experts), axis=-1)
    assert_close(weights, 2.5 * expected / expected.sum(axis=-1, keepdims=True))
    assert_close(weights.sum(axis=-1), np.full((2, 30), 2.5))


def test_hash_layer_looks_experts_up_and_still_weighs_by_score() -> None:
    gate = Gate(tiny_config(routed_scaling_factor=1.5), is_hash_routed=True)
    gate.weight = normal(6, 32) / 6
    gate.tid2eid = mx.stack([mx.arange(48) % 6, (mx.arange(48) + 2) % 6], axis=-1).astype(mx.int64)
    tokens, x = random_tokens(30), normal(1, 30, 32, seed=1)
    experts, weights = gate(x, tokens)
    assert np.array_equal(np.array(experts), np.array(gate.tid2eid)[np.array(tokens)])
    scores = np.sqrt(np.log1p(np.exp(np.array(x @ gate.weight.T, np.float64))))
    expected = np.take_along_axis(scores, np.array(experts), axis=-1)
    assert_close(weights, 1.5 * expected / expected.sum(axis=-1, keepdims=True))


def test_gate_scores_stay_finite_far_from_zero() -> None:
    gate = Gate(tiny_config(), is_hash_routed=False)
    gate.weight = mx.full((6, 32), 10.0)
    for sign in (1.0, -1.0):
        _, weights = gate(mx.full((1, 1, 32), sign), mx.zeros((1, 1), mx.int32))
        assert mx.isfinite(weights).all()


def test_the_clamp_bounds_the_gate_above_only() -> None:
    activation = ClampedSwiGLU(10.0)

    def silu(x: float) -> float:
        return x / (1 + math.exp(-x))

    def found(up: float, gate: float) -> float:
        return activation(mx.array(up), mx.array(gate)).item()

    assert found(1.0, 40.0) == pytest.approx(silu(10.0))
    assert found(1.0, 9.0) == pytest.approx(silu(9.0))
    assert found(1.0, -12.0) == pytest.approx(silu(-12.0), rel=1e-4)
    assert found(1.0, -12.0) != pytest.approx(silu(-10.0), rel=1e-2)
    assert found(25.0, 1.0) == pytest.approx(10.0 * silu(1.0))
    assert found(-25.0, 1.0) == pytest.approx(-10.0 * silu(1.0))


@pytest.mark.parametrize("layer", [0, 1])
def test_every_expert_evaluated_gives_the_gathered_sum(layer: int) -> None:
    model = random_model()
    moe, x, tokens = model.layers[layer].ffn, 3 * normal(2, 7, 32), random_tokens(7, batch=2)
    gathered = moe(x, tokens)
    assert_close(evaluate_every_expert(moe)(x, tokens), gathered)


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("count", [1, 7, COPIED, COPIED + 1])
def test_copied_experts_give_the_gathered_products(layer: int, count: int) -> None:
    moe = random_model().layers[layer].ffn
    x, tokens = 3 * normal(2, count, 32), random_tokens(count, batch=2)
    experts, _ = moe.gate(x, tokens)
    gathered = moe.experts(x, experts)
    copied = moe._copied_experts(x, experts)
    assert (copied.shape, copied.dtype) == (gathered.shape, gathered.dtype)
    assert_close(copied, gathered)


def test_float32_takes_the_gathered_way_and_bfloat16_on_the_cpu_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    assert can_gather(mx.float32)
    assert not can_gather(mx.bfloat16)
    assert not can_gather(mx.float16)
    moe, x, tokens = random_model().layers[1].ffn, normal(1, 7, 32), random_tokens(7)
    exact = moe(x, tokens)
    for dtype, tolerance in ((mx.bfloat16, 0.05), (mx.float16, 0.01)):
        moe.set_dtype(dtype)
        rounded = moe(x.astype(dtype), tokens)
        assert rounded.dtype == dtype
        assert_close(rounded.astype(mx.float32), exact, atol=tolerance * mx.abs(exact).max().item())
    moe.set_dtype(mx.float32)
    monkeypatch.setattr(MixtureOfExperts, "_copied_experts", lambda *_: pytest.fail("float32 was not gathered"))
    moe(x, tokens)


def test_every_expert_evaluated_gives_the_same_logits_and_can_be_switched_back() -> None:
    model, tokens = random_model(), random_tokens(40)
    gathered = model(tokens)
    every = evaluate_every_expert(model)(tokens)
    assert_close(every, gathered, atol=1e-4)
    assert not mx.array_equal(every, gathered)
    assert mx.array_equal(evaluate_every_expert(model, False)(tokens), gathered)


def test_training_mode_changes_no_arithmetic() -> None:
    model, tokens = random_model(), random_tokens(40)
    assert mx.array_equal(model.train()(tokens), model.eval()(tokens))


def test_a_probe_sees_each_layer_and_leaves_the_logits_alone() -> None:
    model, tokens = random_model(), random_tokens(60, batch=2)
    with observing(model) as probe:
        observed = model(tokens)
    assert_close(model(tokens), observed, atol=1e-5)
    assert sorted(probe.load) == [1, 2]
    assert all(load.sum().item() == 2 * 60 * model.args.num_experts_per_tok for load in probe.load.values())
    assert len(probe.alignment) == 1
    assert probe.alignment[0].item() > 0


def test_a_probe_sees_nothing_after_its_context_even_one_left_by_an_error() -> None:
    model, tokens = random_model(), random_tokens(60)
    plain = model(tokens)
    with pytest.raises(ValueError, match="left"), observing(model, is_dense=True) as probe:
        raise ValueError("left")
    assert mx.array_equal(model(tokens), plain)
    assert not probe.load
    assert not probe.alignment


# --- quantization simulation ---

E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
EXPONENTS = st.integers(-30, 30)


def rounded_in_fp4(first: list[float], second: list[float] = ()) -> list[float]:
    """Rounds two blocks of 32 in the space of the Hadamard transform, which is exact at width 64."""
    blocks = [*first, *[0.0] * (32 - len(first)), *second, *[0.0] * (32 - len(second))]
    rows = mx.hadamard_transform(mx.array(blocks), scale=1 / 8)
    found = round_index_rows(rows).tolist()
    return found[: len(first)] + found[32 : 32 + len(second)]


def rounded_in_fp8(first: list[float], second: list[float] = (), rotated: tuple[float, ...] = (0.1, 500.3)) -> list:
    """Rounds two blocks of 64, with rotated entries behind them."""
    rows = mx.array([*first, *[0.0] * (64 - len(first)), *second, *[0.0] * (64 - len(second)), *rotated])
    found = round_kv_rows(rows, len(rotated))
    assert mx.array_equal(found[128:], rows[128:])
    return found[: len(first)].tolist() + found[64 : 64 + len(second)].tolist()


@given(exponent=EXPONENTS)
def test_fp4_keeps_its_eight_magnitudes_under_a_power_of_two_scale(exponent: int) -> None:
    codes = [sign * value * 2.0**exponent for value in E2M1 for sign in (1, -1)]
    assert rounded_in_fp4(codes) == codes


def test_fp4_takes_the_nearest_and_ties_to_the_even_code() -> None:
    ties = {0.25: 0.0, 0.75: 1.0, 1.25: 1.0, 1.75: 2.0, 2.5: 2.0, 3.5: 4.0, 5.0: 4.0}
    nearest = {0.125: 0.0, 0.375: 0.5, 1.125: 1.0, 1.875: 2.0, 2.25: 2.0, 2.75: 3.0, 3.75: 4.0, 4.5: 4.0, 5.5: 6.0}
    for value, code in (ties | nearest).items():
        assert rounded_in_fp4([6.0, value, -value]) == [6.0, code, -code], value


def test_fp4_scale_is_the_least_power_of_two_that_saturates_nothing() -> None:
    assert rounded_in_fp4([6.25, 0.5]) == [6.0, 0.0]  # scale 2: 3.125 -> 3, and 0.25 is a tie
    assert rounded_in_fp4([3.0, 0.25]) == [3.0, 0.25]  # scale 1/2
    assert rounded_in_fp4([6.0, 0.5], [6000.0]) == [6.0, 0.5, 6144.0]  # each block has its own


def test_fp4_of_zeros_is_zero() -> None:
    assert rounded_in_fp4([0.0, 0.0]) == [0.0, 0.0]


@given(seed=st.integers(0, 999))
def test_fp4_rounding_is_idempotent_and_near(seed: int) -> None:
    rows = normal(3, 64, seed=seed)
    spread = mx.hadamard_transform(rows, scale=1 / 8)
    rounded = round_index_rows(rows)
    assert mx.array_equal(round_index_rows(mx.hadamard_transform(rounded, scale=1 / 8)), rounded)
    amax = mx.abs(spread).reshape(3, 2, 32).max(axis=-1, keepdims=True)
    assert (mx.abs(rounded - spread).reshape(3, 2, 32) <= amax / 3 + 1e-6).all()


@given(exponent=st.integers(-20, 30))
def test_fp8_keeps_e4m3_codes_under_a_power_of_two_scale(exponent: int) -> None:
    codes = [448.0, 240.0, -26.0, 1.125, -0.01171875, 2.0**-6, 2.0**-9, -3 * 2.0**-9]
    codes = [code * 2.0**exponent for code in codes]
    assert rounded_in_fp8(codes) == codes


def test_fp8_takes_the_nearest_and_ties_to_the_even_code() -> None:
    ties = {17.0: 16.0, 19.0: 20.0, 1.0625: 1.0, 1.1875: 1.25, 2.0**-10: 0.0, 3 * 2.0**-10: 2.0**-8}
    nearest = {16.5: 16.0, 17.5: 18.0, 431.0: 416.0, 433.0: 448.0}
    for value, code in (ties | nearest).items():
        assert rounded_in_fp8([448.0, value, -value]) == [448.0, code, -code], value


def test_fp8_scale_is_a_block_s_own() -> None:
    assert rounded_in_fp8([449.0, 2.0**-9]) == [448.0, 0.0]  # scale 2
    assert rounded_in_fp8([224.0, 2.0**-10], [70000.0]) == [224.0, 2.0**-10, 73728.0]  # scale 256: 273.4 -> 288
    assert rounded_in_fp8([0.0], [1.0]) == [0.0, 1.0]


@given(seed=st.integers(0, 999))
def test_fp8_rounding_is_idempotent_and_near(seed: int) -> None:
    rows = normal(2, 3, 72, seed=seed) * 2.0 ** (seed % 13 - 6)
    rounded = round_kv_rows(rows, 8)
    assert mx.array_equal(round_kv_rows(rounded, 8), rounded)
    amax = mx.abs(rows[..., :64]).max(axis=-1, keepdims=True)
    bound = mx.maximum(mx.abs(rows) / 16, mx.maximum(amax, 1e-4) * 2 / 448 * 2.0**-10)
    assert (mx.abs(rounded - rows) <= bound * (1 + 1e-6)).all()


def test_fp8_needs_whole_blocks() -> None:
    with pytest.raises(ValueError, match=r"multiples of 64, got 60.*simulate_quantization to false"):
        round_kv_rows(normal(1, 68), 8)


QUANTIZABLE = {"head_dim": 72, "qk_rope_head_dim": 8}


def test_simulated_quantization_is_off_by_default_and_changes_little() -> None:
    assert not tiny_config().simulate_quantization
    tokens = random_tokens(70)
    exact = random_model(tiny_config(**QUANTIZABLE))(tokens)
    rounded = random_model(tiny_config(**QUANTIZABLE, simulate_quantization=True))(tokens)
    change = mx.abs(exact - rounded)
    assert (change.max(axis=-1) > 1e-4).all()
    assert change.mean().item() < 0.1


def test_simulated_quantization_does_not_depend_on_the_chunks() -> None:
    model, tokens = random_model(tiny_config(**QUANTIZABLE, simulate_quantization=True)), random_tokens(70)
    one_pass = model(tokens)
    for widths in ([1] * 70, [1, 3, 17, 17, 1, 31], [40, 1, 1, 8, 20]):
        cache, pieces = model.make_cache(17), []
        for width in widths:
            offset = cache[0].offset
            pieces.append(model(tokens[:, offset : offset + width], cache=cache))
        # A difference in the last bit may carry a value over a rounding edge, but not at many positions.
        difference = mx.abs(mx.concatenate(pieces, axis=1) - one_pass).max(axis=-1)
        assert (difference > 1e-4).sum().item() <= 3
        assert difference.max().item() < 0.5
