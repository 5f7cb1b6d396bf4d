"""Reading and writing folders of safetensors files: whole or not at all.

The headers say which tensors a checkpoint holds and what shape they have. `census` compares them with what a model
needs before any memory is taken for weights.
"""

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from models.errors import ModelError
from models.formats.names import FLOAT32_NAMES, checkpoint_names

READABLE = {"F32", "F16", "BF16", "I64", "I32"}


@dataclass(frozen=True, kw_only=True)
class TensorHeader:
    """Where a tensor stands and what it is; ``dtype`` in safetensors' spelling."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    num_bytes: int


def read_headers(folder: Path) -> dict[str, TensorHeader]:
    """Headers of every tensor in a folder's ``*.safetensors``, by name.

    Raises:
        ModelError: there is no such file, or one is damaged.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ModelError(f"no *.safetensors in {folder}: wanted a checkpoint folder")
    headers: dict[str, TensorHeader] = {}
    for file in files:
        try:
            with file.open("rb") as stream:
                (length,) = struct.unpack("<Q", stream.read(8))
                entries = json.loads(stream.read(length))
        except (struct.error, ValueError) as error:
            raise ModelError(f"{file} is no readable safetensors file ({error}): fetch it again") from error
        entries.pop("__metadata__", None)
        for name, entry in entries.items():
            headers[name] = TensorHeader(
                file=file,
                dtype=entry["dtype"],
                shape=tuple(entry["shape"]),
                num_bytes=entry["data_offsets"][1] - entry["data_offsets"][0],
            )
    return headers


def expected_tensors(model: nn.Module, prefix: str = "") -> dict[str, tuple[int, ...]]:
    """Checkpoint names and shapes of everything a model needs; ``prefix`` goes before each name."""
    expected: dict[str, tuple[int, ...]] = {}
    for parameter, array in tree_flatten(model.parameters()):
        for name, shape in checkpoint_names(prefix + parameter, array.shape):
            expected[name] = tuple(shape)
    return expected


def census(
    expected: Mapping[str, tuple[int, ...]], headers: Mapping[str, TensorHeader], place: Path, owner: str
) -> None:
    """Refuses a checkpoint that does not hold exactly what is expected.

    Raises:
        ModelError: tensors are missing, unexpected, misshapen or of a type that cannot be read; all are counted and
            the first of each kind named.
    """
    faults = {
        "missing": sorted(set(expected) - set(headers)),
        "unexpected": sorted(set(headers) - set(expected)),
        "misshapen": [
            f"{name} (wanted {list(shape)}, got {list(headers[name].shape)})"
            for name, shape in expected.items()
            if name in headers and headers[name].shape != shape
        ],
        "of a type that cannot be read": [
            f"{name} ({headers[name].dtype})"
            for name in expected
            if name in headers and headers[name].dtype not in READABLE
        ],
    }
    parts = []
    for kind, names in faults.items():
        if names:
            more = f" and {len(names) - 8} more" if len(names) > 8 else ""
            parts.append(f"{len(names)} {kind}: {', '.join(names[:8])}{more}")
    if parts:
        raise ModelError(
            f"the checkpoint in {place} does not fit the {owner} that its config.json describes; {'; '.join(parts)}"
        )


def load_weights(
    model: nn.Module, headers: Mapping[str, TensorHeader], dtype: mx.Dtype | None, prefix: str = ""
) -> None:
    """Fills a model from tensors that `census` has passed.

    Args:
        model: filled in place.
        headers: where the tensors stand.
        dtype: floating-point tensors become this; None keeps the checkpoint's. Tensors that V4 computes in float32
            become float32 in either case.
        prefix: as in `expected_tensors`.
    """
    opened: dict[Path, dict[str, mx.array]] = {}

    def read(name: str) -> mx.array:
        file = headers[name].file
        if file not in opened:
            opened[file] = mx.load(str(file))
        array = opened[file][name]
        if not mx.issubdtype(array.dtype, mx.floating):
            return array
        if FLOAT32_NAMES.search(name):
            return array.astype(mx.float32)
        return array if dtype is None else array.astype(dtype)

    weights = []
    for parameter, array in tree_flatten(model.parameters()):
        parts = [read(name) for name, _ in checkpoint_names(prefix + parameter, array.shape)]
        weights.append((parameter, parts[0] if len(parts) == 1 else mx.stack(parts)))
    model.load_weights(weights, strict=True)
    mx.eval(model.parameters())


def checkpoint_tensors(model: nn.Module, dtype: mx.Dtype | None = None, prefix: str = "") -> dict[str, mx.array]:
    """A model's weights under checkpoint names; stored types are the checkpoint's: ``dtype`` or float32."""
    tensors: dict[str, mx.array] = {}
    for parameter, array in tree_flatten(model.parameters()):
        names = checkpoint_names(prefix + parameter, array.shape)
        parts = [array] if len(names) == 1 else list(array)
        for (name, _), part in zip(names, parts, strict=True):
            if dtype is not None and mx.issubdtype(part.dtype, mx.floating):
                part = part.astype(stored_dtype(name, dtype))
            tensors[name] = part
    return tensors


def stored_dtype(name: str, dtype: mx.Dtype) -> mx.Dtype:
    """Type a tensor is stored in. The real checkpoints store router and compressor matrices in bfloat16, too."""
    is_small = FLOAT32_NAMES.search(name) and not name.endswith(".weight")
    return mx.float32 if is_small else dtype
