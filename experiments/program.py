"""How the programs here end: errors that are the user's to mend are one line and exit code 2, as in `spec.run`."""

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
