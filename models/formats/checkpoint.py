"""Folders of safetensors files. Their headers are read and compared with what a model needs before any weight is."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx
from safetensors import SafetensorError, safe_open

from models.errors import ModelError

READABLE = {"F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4}
"""Supported dtypes, in the spelling of safetensors, and their size in bytes."""


@dataclass(frozen=True, kw_only=True)
class TensorHeader:
    """Which file holds a tensor, its dtype as safetensors spells it, and its shape."""

    file: Path
    dtype: str
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Size of the data; the dtype must be in `READABLE`."""
        return math.prod(self.shape) * READABLE[self.dtype]


def read_headers(folder: Path) -> dict[str, TensorHeader]:
    """Headers of all tensors in a folder's ``*.safetensors`` files, by name.

    Raises:
        ModelError: there is no such file, one is damaged or truncated, or two files hold a tensor of the same name.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ModelError(f"no *.safetensors in {folder}: wanted a checkpoint folder")
    headers: dict[str, TensorHeader] = {}
    for file in files:
        found = {}
        try:
            with safe_open(file, framework="numpy") as tensors:
                for name in tensors.keys():  # noqa: SIM118 (safe_open is no mapping)
                    entry = tensors.get_slice(name)
                    found[name] = TensorHeader(file=file, dtype=entry.get_dtype(), shape=tuple(entry.get_shape()))
        except (OSError, SafetensorError) as error:
            raise ModelError(f"{file} is no readable safetensors file ({error}): fetch it again") from error
        for name in sorted(headers.keys() & found.keys()):
            first = headers[name].file.name
            raise ModelError(f"{name} stands both in {first} and in {file.name} of {folder}: keep one checkpoint there")
        headers |= found
    return headers


def census(
    expected: Mapping[str, tuple[int, ...]], headers: Mapping[str, TensorHeader], folder: Path, owner: str
) -> None:
    """Checks that the checkpoint of a model (``owner``, for the message) holds the tensors of the expected shapes.

    Raises:
        ModelError: tensors are missing, unexpected, misshapen or of an unsupported dtype. The message counts all of
            them and names up to eight of each kind.
    """
    present = [(name, tuple(shape), headers[name]) for name, shape in expected.items() if name in headers]
    faults = {
        "missing": sorted(expected.keys() - headers.keys()),
        "unexpected": sorted(headers.keys() - expected.keys()),
        "misshapen": [
            f"{name} (wanted {list(shape)}, got {list(header.shape)})"
            for name, shape, header in present
            if header.shape != shape
        ],
        "of a type that cannot be read": [
            f"{name} ({header.dtype})" for name, _, header in present if header.dtype not in READABLE
        ],
    }
    parts = []
    for kind, names in faults.items():
        if names:
            more = f" and {len(names) - 8} more" if len(names) > 8 else ""
            parts.append(f"{len(names)} {kind}: {', '.join(names[:8])}{more}")
    if parts:
        raise ModelError(
            f"the checkpoint in {folder} does not fit the {owner} that its config.json describes; {'; '.join(parts)}"
        )


def read_tensors(headers: Mapping[str, TensorHeader]) -> dict[str, mx.array]:
    """The tensors themselves, by name. MLX reads the data of each when it is first evaluated."""
    files = {header.file for header in headers.values()}
    return {name: array for file in files for name, array in mx.load(str(file)).items() if name in headers}
