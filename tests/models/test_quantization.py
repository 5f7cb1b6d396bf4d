"""Drafters in every quantized format, on the pair that ships (its sizes are multiples of the group)."""

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx.utils import tree_flatten

from models import Model, ModelError, load_dspark, load_model
from models.quantization import FORMATS, GROUP_SIZE, quantize

PAIR = "models/pretrained/tiny"


@pytest.fixture(scope="module")
def target() -> Model:
    return load_model(PAIR, "float32")


def block_logits(target: Model, quant: str | None) -> mx.array:
    network = load_dspark(target=target, quant=quant)
    tokens = mx.array([[100 + 7 * index % 90 for index in range(40)]])
    _, features = target(tokens, tapped_layers=network.tapped_layers)
    return network.block(mx.array([130]), 40, network.context_rows(features)).logits


@pytest.mark.parametrize("quant", FORMATS)
def test_a_format_changes_the_drafter_and_leaves_the_target(target: Model, quant: str) -> None:
    before = dict(tree_flatten(target.parameters()))
    plain, quantized = block_logits(target, None), block_logits(target, quant)
    assert mx.abs(plain - quantized).max().item() > 0
    assert mx.isfinite(quantized).all().item()
    after = dict(tree_flatten(target.parameters()))
    assert before.keys() == after.keys()
    assert all(mx.array_equal(before[name], after[name]).item() for name in before)


def test_eight_bits_are_close(target: Model) -> None:
    plain, quantized = block_logits(target, None), block_logits(target, "q8")
    assert mx.abs(plain - quantized).mean().item() < 0.05 * mx.std(plain).item()


def test_a_bfloat16_pair_can_be_quantized() -> None:
    target = load_model(PAIR, "bfloat16")
    plain, quantized = block_logits(target, None), block_logits(target, "q8")
    assert mx.abs(plain - quantized).mean().item() < 0.05 * mx.std(plain).item()


def test_fewer_bits_lose_more() -> None:
    layer = nn.Linear(4 * GROUP_SIZE, 16, bias=False)
    x = mx.random.normal((8, 4 * GROUP_SIZE), key=mx.random.key(1))
    errors = []
    for quant in ("q8", "q6", "q4", "q3", "q2"):
        holder = nn.Sequential(nn.Linear(4 * GROUP_SIZE, 16, bias=False))
        holder.layers[0].weight = layer.weight
        quantize(holder, quant)
        errors.append(mx.abs(holder(x) - layer(x)).mean().item())
    assert errors == sorted(errors)


def test_small_tables_and_grouped_matrices_stay_plain(target: Model) -> None:
    network = load_dspark(target=target, quant="q4")
    names = {name for name, array in tree_flatten(network.parameters()) if array.dtype == mx.uint32}
    assert "mtp.0.attn.wq_a.weight" in names
    assert "mtp.2.markov_head.markov_w1.weight" in names
    assert "mtp.1.ffn.experts.down_proj.weight" in names
    assert not any("wo_a" in name or "confidence" in name or "hc_" in name or "gate.weight" in name for name in names)


def test_unknown_format_and_misfit_are_refused(target: Model) -> None:
    with pytest.raises(ModelError, match=r"wanted null .* or one of q8, .*got 'q5'"):
        load_dspark(target=target, quant="q5")
    with pytest.raises(ModelError, match=r"groups of 32, .* has 33 inputs"):
        quantize(nn.Sequential(nn.Linear(33, 4)), "q8")
