"""Writes trained weights as a checkpoint folder in the layout of the real ones."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx

from models.formats.checkpoint import read_headers

SHARD_BYTES = 12 * 1024 * 1024


def write_shards(folder: Path, tensors: dict[str, mx.array], stem: str = "model") -> None:
    """Writes ``<stem>-0000i-of-0000n.safetensors`` of at most `SHARD_BYTES` (a larger tensor has its own).

    Older files of the same stem are removed, so that a folder never holds two checkpoints at once.
    """
    folder.mkdir(parents=True, exist_ok=True)
    shards: list[dict[str, mx.array]] = [{}]
    size = 0
    for name, tensor in tensors.items():
        if shards[-1] and size + tensor.nbytes > SHARD_BYTES:
            shards.append({})
            size = 0
        shards[-1][name] = tensor
        size += tensor.nbytes
    for old in folder.glob(f"{stem}-*.safetensors"):
        old.unlink()
    for number, shard in enumerate(shards, start=1):
        file = folder / f"{stem}-{number:05d}-of-{len(shards):05d}.safetensors"
        mx.save_safetensors(str(file), shard, {"format": "pt"})
    _write_index(folder)


def _write_index(folder: Path) -> None:
    """Writes ``model.safetensors.index.json``, by which other programs find each tensor's file."""
    headers = read_headers(folder)
    index = {
        "metadata": {"total_size": sum(header.num_bytes for header in headers.values())},
        "weight_map": {name: header.file.name for name, header in sorted(headers.items())},
    }
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=0) + "\n", encoding="utf-8")


def update_config(folder: Path, values: dict[str, Any], replaced: str | None = None) -> None:
    """Adds keys to the folder's ``config.json``, creating it if needed.

    Args:
        values: by key.
        replaced: keys that begin so and are not among ``values`` are removed; None keeps all.
    """
    file = folder / "config.json"
    present = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    present = {key: value for key, value in present.items() if replaced is None or not key.startswith(replaced)}
    file.write_text(json.dumps(present | values, indent=2) + "\n", encoding="utf-8")
