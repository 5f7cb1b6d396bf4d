"""What a run was measured on: versions, device, dtype, commit, checkpoint hashes."""

import hashlib
import platform
import subprocess
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlx.core as mx

HASHED = ("config.json", "tokenizer.json", "*.safetensors", "*.gguf")
WHOLE_BYTES = 2**30  # of a larger file only the first part is hashed: reading 160 GB would cost more than the run


def describe(*, seed: int, dtype: str | None, checkpoints: dict[str, str | None]) -> dict[str, Any]:
    """The ``environment`` object of a summary.

    Args:
        seed: the run's.
        dtype: as configured; None is the checkpoint's own.
        checkpoints: folder or file by role; None is left out.
    """
    info = mx.device_info()
    return {
        "mlx": version("mlx"),
        "mlx_lm": version("mlx-lm"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "backend": backend(),
        "device": info.get("device_name", info.get("architecture", "unknown")),
        "dtype": dtype,
        "commit": git_commit(),
        "checkpoints": {role: hash_checkpoint(path) for role, path in checkpoints.items() if path is not None},
        "seed": seed,
    }


def backend() -> str:
    """``cpu``, ``metal`` or ``cuda``: where the default device runs."""
    if mx.default_device() == mx.Device(mx.cpu):
        return "cpu"
    return "metal" if mx.metal.is_available() else "cuda"


def git_commit() -> str | None:
    """The commit of this library's working tree, with ``+changes`` if it differs; None outside a repository."""
    folder = Path(__file__).parent
    try:
        commit = _git(folder, "rev-parse", "HEAD")
        return f"{commit}+changes" if _git(folder, "status", "--porcelain", "--untracked-files=no") else commit
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=folder, capture_output=True, text=True, check=True, timeout=10, encoding="utf-8"
    )
    return done.stdout.strip()


def hash_checkpoint(path: str) -> dict[str, str]:
    """SHA-256 by file name of a checkpoint's weights, configuration and tokenizer.

    Args:
        path: folder or file.

    Returns:
        Hex digests; those of only the first GiB of a larger file end in ``:first-gib``.
    """
    root = Path(path)
    files = [root] if root.is_file() else sorted({file for pattern in HASHED for file in root.glob(pattern)})
    return {file.name: _digest(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files}


@lru_cache(maxsize=1024)  # a sweep of many jobs hashes the same files once
def _digest(path: str, size: int, modified: int) -> str:
    digest, left = hashlib.sha256(), WHOLE_BYTES
    with open(path, "rb") as file:
        while left > 0 and (part := file.read(min(left, 2**20))):
            digest.update(part)
            left -= len(part)
    return digest.hexdigest() + (":first-gib" if size > WHOLE_BYTES else "")
