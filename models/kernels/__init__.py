"""Custom kernels, each an alternative to plain MLX operations that tests compare it with."""
