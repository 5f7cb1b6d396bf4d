"""Custom kernels. Each stands behind plain MLX operations that compute the same, and is compared with them in tests."""
