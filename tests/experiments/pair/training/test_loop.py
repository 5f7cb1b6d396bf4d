"""The optimization loop: parameters as vectors, decay and dtypes, the learning rate, clipping."""

import math
from functools import partial
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten, tree_map

from experiments.pair import train_target
from experiments.pair.training.flat import ALIGNMENT, FlatLayout
from experiments.pair.training.loop import Trainer, group_of, is_decayed, is_kept_float32
from tests.experiments.pair.training.toys import toy_model, toy_network, toy_plan, toy_sampler


@pytest.fixture
def parameters() -> dict:
    """Shapes that are and are not multiples of the alignment."""
    keys = iter(mx.random.split(mx.random.key(0), 9))
    return {
        "embed": {"weight": mx.random.normal((5, 13), key=next(keys))},
        "layers": [{"wq": {"weight": mx.random.normal((8, 16), key=next(keys))}, "norm": {"weight": mx.ones(7)}}] * 2,
        "attn_sink": mx.random.normal((3,), key=next(keys)),
        "scalar": mx.random.normal((1,), key=next(keys)),
    }


def test_a_tree_comes_back_from_its_vectors(parameters: dict) -> None:
    layout = FlatLayout(parameters, group_of)
    vectors = layout.pack(parameters)
    assert len(vectors) == len(layout.members) == 3
    leaves = dict(tree_flatten(parameters))
    assert sorted(name for members in layout.members.values() for name, _ in members) == sorted(leaves)
    for vector in vectors.values():
        assert vector.ndim == 1
        assert vector.size % ALIGNMENT == 0
    back = dict(tree_flatten(layout.unpack(vectors)))
    assert back.keys() == leaves.keys()
    for name, array in leaves.items():
        assert mx.array_equal(back[name], array), name


def test_every_parameter_starts_at_a_multiple_of_the_alignment(parameters: dict) -> None:
    layout = FlatLayout(parameters, lambda name, array: "all")
    numbered = tree_map(lambda array: mx.zeros(array.shape), parameters)
    vector = layout.pack(tree_map(lambda array: array + 1, numbered))["all"]
    start = 0
    for _, shape in layout.members["all"]:
        size = math.prod(shape)
        assert vector[start : start + size].all()
        padded = -(-size // ALIGNMENT) * ALIGNMENT
        assert not vector[start + size : start + padded].any()
        start += padded
    assert start == vector.size


def test_decay_and_dtype_go_by_what_a_parameter_is() -> None:
    model = toy_model()
    network = toy_network(model)
    leaves = dict(tree_flatten(model.parameters())) | dict(tree_flatten(network.parameters()))
    decayed = {name for name, array in leaves.items() if is_decayed(name, array)}
    assert decayed >= {"head.weight", "layers.1.attn.wq_a.weight", "layers.1.ffn.experts.up_proj.weight"}
    assert decayed >= {"mtp.0.main_proj.weight", "mtp.1.markov_head.markov_w2.weight"}
    assert not decayed & {"embed.weight", "mtp.1.markov_head.markov_w1.weight", "layers.0.attn_norm.weight"}
    assert not any(name.endswith((".fn", ".base", ".scale", "ape", "attn_sink", "bias")) for name in decayed)
    kept = {name for name in leaves if is_kept_float32(name)}
    assert kept >= {"layers.0.hc_attn.fn", "layers.1.attn.compressor.wkv.weight", "layers.1.ffn.gate.weight"}
    assert not kept & {"layers.1.attn.wkv.weight", "embed.weight", "layers.1.ffn.experts.gate_proj.weight"}


def test_the_arithmetic_may_be_in_bfloat16(tmp_path: Path) -> None:
    model, sampler = toy_model(), toy_sampler()
    loss = partial(train_target.loss_function, model)
    biases = {"1": mx.zeros(4), "2": mx.zeros(4)}
    trainer = Trainer(model.trainable_parameters(), loss, toy_plan(steps=2, dtype="bfloat16"), tmp_path)
    cast = dict(tree_flatten(trainer.arithmetic_parameters()))
    assert cast["embed.weight"].dtype == mx.bfloat16
    assert cast["layers.0.hc_attn.fn"].dtype == mx.float32
    trainer.run(
        lambda step: (mx.array(sampler.batch(step)), biases),
        phase=lambda step: False,
        after_step=lambda auxiliary: auxiliary.pop("load"),
    )
    for name, array in tree_flatten(trainer.parameters):
        assert array.dtype == mx.float32, name
        assert mx.isfinite(array).all(), name


def test_the_learning_rate_rises_and_falls() -> None:
    schedule = toy_plan(steps=100, learning_rate=1.0, warmup_steps=10, final_fraction=0.1).schedule()
    rates = [float(schedule(mx.array(step))) for step in range(101)]
    assert rates[0] == pytest.approx(0.1)
    assert np.argmax(rates) == 10
    assert rates[10] == pytest.approx(1.0)
    assert rates[55] == pytest.approx(0.55, abs=0.01)
    assert rates[100] == pytest.approx(0.1, abs=1e-3)
    assert (np.diff(rates[:11]) > 0).all()
    assert (np.diff(rates[10:]) < 0).all()


def test_large_gradients_are_clipped(tmp_path: Path) -> None:
    weights = {"a": {"weight": mx.zeros((2, 2))}}

    def loss(parameters: dict, phase: None, size: mx.array) -> tuple[mx.array, dict]:
        return (parameters["a"]["weight"] * size).sum(), {}

    trainer = Trainer(weights, loss, toy_plan(clip_norm=1.0), tmp_path)
    _, auxiliary = trainer._step(None, mx.array(50.0))
    assert auxiliary["gradient_norm"].item() == pytest.approx(100.0)
    moments = {name: array for name, array in tree_flatten(trainer.optimizer.state) if name.endswith(".m")}
    assert mx.abs(next(iter(moments.values()))).max().item() == pytest.approx(0.1 * 0.5, rel=1e-3)
