"""What all programs here share: how they end, and how they divide work between processes.

Errors that are the user's to mend are one line and exit code 2, as in `spec.run`.
"""

import os
import sys
from collections.abc import Callable

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from models import ModelError
from spec.errors import UserError, one_line


def run(main: Callable[[], None]) -> None:
    """Runs a program's Hydra entry point; a fault of the program itself keeps its traceback."""
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # Hydra then raises its errors instead of printing and exiting
    try:
        main()
    except (HydraException, OmegaConfBaseException, ModelError, UserError, OSError) as error:
        print(f"error: {one_line(error)}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:  # checkpoints and finished files are on disk
        print("interrupted", file=sys.stderr)
        sys.exit(130)


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
