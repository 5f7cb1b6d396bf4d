"""How every program ends: one line and exit code 2 for what the user can mend, a traceback for a fault of ours."""

import os
import sys
from collections.abc import Callable

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from spec.errors import UserError, one_line


def run(main: Callable[[], int | None], *mendable: type[Exception]) -> int:
    """Runs a program.

    Args:
        main: the program, a Hydra entry point or a plain function; None counts as exit code 0.
        *mendable: errors that the user can mend, beside this library's, Hydra's and the system's.

    Returns:
        The exit code: the program's own, 2 after an error that the user can mend, 130 after an interrupt.
    """
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # Hydra then raises its errors instead of printing and exiting
    try:
        return main() or 0
    except (UserError, HydraException, OmegaConfBaseException, OSError, *mendable) as error:
        complain(error)
        return 2
    except KeyboardInterrupt:  # finished records, files and checkpoints are on disk
        print("interrupted", file=sys.stderr)
        return 130


def complain(error: BaseException) -> None:
    """Prints an error as one line on standard error."""
    print(f"error: {one_line(error)}", file=sys.stderr)
