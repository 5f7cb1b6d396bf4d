"""The frame of every program: errors that the user can fix become one line and exit code 2, bugs a traceback."""

import importlib.machinery
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from spec.errors import UserError, one_line

ROOT = Path(__file__).parents[2]
CONFIGS = str(ROOT / "configs")
"""Found from this file's place: a folder named configs where the user stands is none of ours."""


def run(main: Callable[[], int | None], *mendable: type[Exception]) -> int:
    """Runs a program.

    Args:
        main: the program, a Hydra entry point or a plain function; None counts as exit code 0.
        *mendable: errors that the user can fix, beside this library's, Hydra's and the system's.

    Returns:
        The exit code: the program's own, 2 after an error that the user can fix, 130 after an interrupt.
    """
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # Hydra then raises its errors instead of printing and exiting
    try:
        claim_models()
        return main() or 0
    except (UserError, HydraException, OmegaConfBaseException, OSError, *mendable) as error:
        complain(error)
        return 2
    except KeyboardInterrupt:  # finished records, files and checkpoints are on disk
        print("interrupted", file=sys.stderr)
        return 130


class _ModelsFinder:
    """Finds this library's ``models`` before Python looks into the working folder."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.PathFinder.find_spec(name, [str(ROOT)]) if name == "models" else None


def claim_models() -> None:
    """Makes ``models`` in configurations mean this library's, whatever folder of that name the user has.

    Raises:
        UserError: another package of that name is imported already.
    """
    found = sys.modules.get("models")
    where = getattr(found, "__file__", None)
    if found is not None and (where is None or Path(where).parents[1] != ROOT):
        raise UserError(
            f"a package named models was imported from {where} before this library's own: rename it, or start the "
            "program without it"
        )
    if _ModelsFinder not in sys.meta_path:
        sys.meta_path.insert(0, _ModelsFinder)


def complain(error: BaseException) -> None:
    """Prints an error as one line on standard error."""
    print(f"error: {one_line(error)}", file=sys.stderr)
