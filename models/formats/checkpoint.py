"""Reading and writing folders of safetensors files: whole or not at all.

The headers say which tensors a checkpoint holds and what shape they have. `census` compares them with what a model
needs before any memory is taken for weights.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from models.errors import ModelError
from models.formats.names import FLOAT32_NAMES, checkpoint_names
from models.layout import lay_out_for_device

READABLE = {"F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4}
"""Types that can be read, in safetensors' spelling, with the bytes of an entry."""


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
        ModelError: there is no such file, one is damaged or cut short, or two hold a tensor of the same name.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ModelError(f"no *.safetensors in {folder}: wanted a checkpoint folder")
    headers: dict[str, TensorHeader] = {}
    for file in files:
        try:
            found = _read_header(file)
        except (OSError, ValueError) as error:
            raise ModelError(f"{file} is no readable safetensors file ({error}): fetch it again") from error
        for name in headers.keys() & found.keys():
            first = headers[name].file.name
            raise ModelError(f"{name} stands both in {first} and in {file.name} of {folder}: keep one checkpoint there")
        headers |= found
    return headers


def _read_header(file: Path) -> dict[str, TensorHeader]:
    """Headers of one file.

    Layout: 8 bytes that hold the length of a JSON object, the object, and the tensors' bytes, to which the object's
    offsets refer.

    Raises:
        OSError: the file cannot be opened.
        ValueError: it is cut short or is no safetensors file.
    """
    size = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if size < 8 or length > size - 8:  # before as many bytes as another kind of file happens to say are read
            raise ValueError(f"its first 8 bytes announce a header of {length} bytes, but it has {size} in all")
        entries = json.loads(stream.read(length))
    if not isinstance(entries, dict):
        raise ValueError("its header is no JSON object")
    entries.pop("__metadata__", None)
    return {name: _parse_entry(file, name, entry, size - 8 - length) for name, entry in entries.items()}


def _parse_entry(file: Path, name: str, entry: Any, data_bytes: int) -> TensorHeader:
    """One entry of a header.

    Raises:
        ValueError: it says no dtype, shape and range of bytes that fit one another and the file's ``data_bytes``.
    """
    try:
        dtype, shape, (start, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        num_bytes = end - start
        is_consistent = start >= 0 and num_bytes == math.prod(shape) * READABLE[dtype] if dtype in READABLE else True
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"the header's entry of {name} has no dtype, shape and data_offsets") from error
    if not is_consistent:
        raise ValueError(f"{name} of shape {list(shape)} and type {dtype} cannot lie at bytes {start} to {end}")
    if end > data_bytes:
        raise ValueError(f"cut short: {name} ends at byte {end} of {data_bytes}")
    return TensorHeader(file=file, dtype=dtype, shape=shape, num_bytes=num_bytes)


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
    lay_out_for_device(model)
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
