"""Kernels against the plain operations that they stand for, where there is a device that runs them."""

from collections.abc import Iterator

import mlx.core as mx
import numpy as np
import pytest

from models.deepseek_v4.hyper_connection import plain_sinkhorn, sinkhorn
from models.kernels.sinkhorn import SIZE, THREADS, fused_sinkhorn, is_available


@pytest.fixture
def cuda() -> Iterator[None]:
    """CUDA as the default device; tests run on the CPU otherwise."""
    if not mx.cuda.is_available():
        pytest.skip("this MLX has no CUDA backend or finds no device")
    before = mx.default_device()
    mx.set_default_device(mx.gpu)
    yield
    mx.set_default_device(before)


def random_logits(*shape: int, scale: float = 2.0) -> mx.array:
    return scale * mx.random.normal((*shape, SIZE, SIZE), key=mx.random.key(0))


def test_the_kernel_is_not_for_the_cpu() -> None:
    assert not is_available()


@pytest.mark.usefixtures("cuda")
@pytest.mark.parametrize("shape", [(1,), (3, 5), (THREADS,), (2, THREADS + 1)])
@pytest.mark.parametrize(("iterations", "eps"), [(1, 1e-6), (3, 1e-6), (20, 1e-6), (20, 1e-2)])
def test_fused_sinkhorn_and_its_gradient_are_the_plain_ones(shape: tuple, iterations: int, eps: float) -> None:
    logits, cotangent = random_logits(*shape), mx.random.normal((*shape, SIZE, SIZE), key=mx.random.key(1))
    fused, plain = (
        mx.vjp(function, [logits], [cotangent])
        for function in (fused_sinkhorn(iterations, eps), lambda values: plain_sinkhorn(values, iterations, eps))
    )
    np.testing.assert_allclose(np.array(fused[0][0]), np.array(plain[0][0]), rtol=0, atol=1e-6)
    np.testing.assert_allclose(np.array(fused[1][0]), np.array(plain[1][0]), rtol=0, atol=5e-6)


@pytest.mark.usefixtures("cuda")
def test_hyper_connections_of_four_streams_take_the_kernel_and_others_do_not() -> None:
    assert is_available()
    logits = random_logits(7)
    assert mx.array_equal(sinkhorn(logits, 20, 1e-6), fused_sinkhorn(20, 1e-6)(logits))
    np.testing.assert_allclose(np.array(sinkhorn(logits[:, :3, :3], 20, 1e-6).sum(axis=-2)), np.ones((7, 3)), atol=1e-5)


@pytest.mark.usefixtures("cuda")
def test_fused_sinkhorn_stays_finite_far_from_zero() -> None:
    logits = random_logits(64, scale=60.0)
    (matrix,), (gradient,) = mx.vjp(fused_sinkhorn(20, 1e-6), [logits], [mx.ones(logits.shape)])
    assert mx.isfinite(matrix).all()
    assert mx.isfinite(gradient).all()
    np.testing.assert_allclose(np.array(matrix), np.array(plain_sinkhorn(logits, 20, 1e-6)), rtol=0, atol=1e-5)
