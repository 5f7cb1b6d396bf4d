"""What fp8 storage does to weights."""

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_flatten

from experiments.pair.training.storage import ROUNDED, round_as_fp8_checkpoint, round_fp8
from tests.random_models import random_model


def test_values_that_fp8_holds_stay():
    held = mx.array([[448.0, -0.5, 1.125, 0.0], [2.0, 3.25, -240.0, 0.015625]])
    assert mx.array_equal(round_fp8(held), held)


def test_error_is_at_most_half_a_step_of_each_block_by_itself():
    weight = np.random.default_rng(0).normal(size=(200, 300)).astype(np.float32)
    weight[:128, :128] *= 1e-4  # a block with a scale of its own
    rounded = np.array(round_fp8(mx.array(weight)))
    assert rounded.shape == weight.shape
    for rows in (slice(0, 128), slice(128, 200)):
        for columns in (slice(0, 128), slice(128, 256), slice(256, 300)):
            block, got = weight[rows, columns], rounded[rows, columns]
            smallest = np.abs(block).max() * 2.0**-16  # below the normal range of a block, steps no longer shrink
            assert np.all(np.abs(got - block) <= np.maximum(np.abs(block) * 2.0**-4, smallest))
            assert np.any(got != block)


def test_a_stack_is_rounded_expert_by_expert():
    stack = mx.random.normal((3, 40, 150), key=mx.random.key(1))
    assert mx.array_equal(round_fp8(stack)[1], round_fp8(stack[1]))


def test_projections_and_experts_are_rounded_and_the_rest_stays():
    model = random_model()
    before = dict(tree_flatten(model.parameters()))
    plain, rounded = round_as_fp8_checkpoint(model)
    after = dict(tree_flatten(model.parameters()))
    changed = {name for name in before if not mx.array_equal(before[name], after[name])}
    assert changed == {name for name in before if ROUNDED.search(name)}
    assert any("experts" in name for name in changed)
    assert plain / 2 < rounded < plain


def test_a_model_without_such_weights_is_refused():
    with pytest.raises(ValueError, match="no projection"):
        round_as_fp8_checkpoint(nn.Linear(3, 3))
