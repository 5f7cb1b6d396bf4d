"""Sinkhorn normalization of 4 x 4 matrices in one CUDA launch, forward and backward.

As separate operations, 20 iterations take 120 launches of almost no work, and their gradient 300 more, twice per layer.
Here a thread holds a matrix in registers. The backward pass keeps only the denominators of each half-step: its input is
its output times its denominator.
"""

from collections.abc import Callable
from functools import cache

import mlx.core as mx

SIZE = 4
THREADS = 128

_FORWARD = """
    unsigned index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= count[0]) return;
    float matrix[16];
    sinkhorn_start(logits + index * 16, eps, matrix);
    for (int step = 0; step < 2 * iterations - 1; ++step) {
        float denominators[4];
        sinkhorn_step(matrix, step % 2 == 0, eps, denominators);
    }
    for (int entry = 0; entry < 16; ++entry) result[index * 16 + entry] = matrix[entry];
"""

_BACKWARD = """
    unsigned index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= count[0]) return;
    float matrix[16], gradient[16];
    float denominators[(2 * iterations - 1) * 4];
    sinkhorn_start(logits + index * 16, eps, matrix);
    for (int step = 0; step < 2 * iterations - 1; ++step)
        sinkhorn_step(matrix, step % 2 == 0, eps, denominators + step * 4);
    for (int entry = 0; entry < 16; ++entry) gradient[entry] = cotangent[index * 16 + entry];
    for (int step = 2 * iterations - 2; step >= 0; --step) {
        bool is_column = step % 2 == 0;
        for (int line = 0; line < 4; ++line) {
            float denominator = denominators[step * 4 + line], inner = 0.0f;
            for (int k = 0; k < 4; ++k) {
                int entry = is_column ? k * 4 + line : line * 4 + k;
                inner += gradient[entry] * matrix[entry];
            }
            for (int k = 0; k < 4; ++k) {
                int entry = is_column ? k * 4 + line : line * 4 + k;
                gradient[entry] = (gradient[entry] - inner) / denominator;
                matrix[entry] *= denominator;
            }
        }
    }
    for (int row = 0; row < 4; ++row) {
        float inner = 0.0f;
        for (int k = 0; k < 4; ++k) inner += gradient[row * 4 + k] * (matrix[row * 4 + k] - eps);
        for (int k = 0; k < 4; ++k)
            result[index * 16 + row * 4 + k] = (matrix[row * 4 + k] - eps) * (gradient[row * 4 + k] - inner);
    }
"""

_HEADER = """
__device__ inline void sinkhorn_start(const float* logits, float eps, float* matrix) {
    for (int row = 0; row < 4; ++row) {
        float largest = logits[row * 4], sum = 0.0f;
        for (int k = 1; k < 4; ++k) largest = fmaxf(largest, logits[row * 4 + k]);
        for (int k = 0; k < 4; ++k) sum += (matrix[row * 4 + k] = expf(logits[row * 4 + k] - largest));
        for (int k = 0; k < 4; ++k) matrix[row * 4 + k] = matrix[row * 4 + k] / sum + eps;
    }
}
__device__ inline void sinkhorn_step(float* matrix, bool is_column, float eps, float* denominators) {
    for (int line = 0; line < 4; ++line) {
        float sum = eps;
        for (int k = 0; k < 4; ++k) sum += matrix[is_column ? k * 4 + line : line * 4 + k];
        denominators[line] = sum;
        for (int k = 0; k < 4; ++k) matrix[is_column ? k * 4 + line : line * 4 + k] /= sum;
    }
}
"""


def is_available() -> bool:
    """Whether the default device is a CUDA GPU."""
    return mx.cuda.is_available() and mx.default_device().type == mx.DeviceType.gpu


@cache
def _kernel(is_backward: bool, iterations: int, eps: float) -> Callable:
    constants = f"constexpr int iterations = {iterations}; constexpr float eps = {eps!r}f;"
    suffix = f"{iterations}_{eps!r}".replace("-", "m").replace(".", "p")
    return mx.fast.cuda_kernel(
        name=f"sinkhorn_{'backward' if is_backward else 'forward'}_{suffix}",
        input_names=["logits", "cotangent", "count"] if is_backward else ["logits", "count"],
        output_names=["result"],
        header=_HEADER,
        source=constants + (_BACKWARD if is_backward else _FORWARD),
    )


@cache
def fused_sinkhorn(iterations: int, eps: float) -> Callable[[mx.array], mx.array]:
    """The function ``sinkhorn(logits, iterations, eps)`` of logits (..., 4, 4) float32, differentiable once."""

    def launch(is_backward: bool, *arrays: mx.array) -> mx.array:
        count = arrays[0].size // (SIZE * SIZE)
        return _kernel(is_backward, iterations, eps)(
            inputs=[*arrays, mx.array([count], dtype=mx.uint32)],
            output_shapes=[arrays[0].shape],
            output_dtypes=[mx.float32],
            grid=(-(-count // THREADS) * THREADS, 1, 1),
            threadgroup=(THREADS, 1, 1),
        )[0]

    @mx.custom_function
    def normalize(logits: mx.array) -> mx.array:
        return launch(False, logits)

    @normalize.vjp
    def gradient(logits: mx.array, cotangent: mx.array, _: mx.array) -> mx.array:
        return launch(True, logits, cotangent)

    return normalize
