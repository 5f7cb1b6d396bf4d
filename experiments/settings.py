"""How the programs read settings that several of them have."""

from typing import Any

from spec.errors import UserError
from spec.measure.environment import backend


def texts(value: Any) -> list[str]:
    """A setting that is one text or a list of them, as a list."""
    return [value] if isinstance(value, str) else [str(item) for item in value]


def default_dtype() -> str:
    """``float32`` on a CPU, ``bfloat16`` elsewhere."""
    return "float32" if backend() == "cpu" else "bfloat16"


def parse_shard(text: str) -> tuple[int, int]:
    """Which shard of how many, of a program that runs as several processes.

    Raises:
        UserError: it is no ``i/n`` with 0 <= i < n.
    """
    try:
        shard, shards = (int(part) for part in str(text).split("/"))
    except ValueError:
        shard, shards = -1, 0
    if not 0 <= shard < shards:
        raise UserError(f"shard: wanted i/n with i from 0 to n - 1, got {text!r}")
    return shard, shards
