"""How the programs that run as several processes divide their work."""

from spec.errors import UserError


def parse_shard(text: str) -> tuple[int, int]:
    """Which shard of how many.

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
