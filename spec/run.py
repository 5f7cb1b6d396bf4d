"""``python -m spec.run +experiment=prose_b5``: the main program. Options are those of the files in ``configs/``."""

import os
import sys
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console

from spec.errors import UserError, one_line
from spec.experiment import finished_summary, run_experiment
from spec.report import make_console, print_summary


def main() -> int:
    """Runs the jobs of the command line. Returns the exit code: 2 if one of them had an error of the user's to mend."""
    failed: list[UserError] = []

    @hydra.main(version_base="1.3", config_path="pkg://configs", config_name="config")
    def job(config: DictConfig) -> float | None:
        output = Path(HydraConfig.get().runtime.output_dir)
        try:
            # A sweep that is started again in its own folder goes on where it was interrupted.
            is_sweep = HydraConfig.get().mode == RunMode.MULTIRUN
            if is_sweep and (done := finished_summary(config, output)) is not None:
                print(f"{output}: finished before with this configuration, skipped")
                return done["tokens_per_s"]
            summary = run_experiment(config, output, Console(stderr=True))
        except UserError as error:  # the other jobs of a sweep go on
            failed.append(error)
            _complain(error)
            return None
        print_summary(summary, make_console())
        return summary["tokens_per_s"]

    os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # Hydra then raises its errors instead of printing and exiting
    try:
        job()
    except (HydraException, OmegaConfBaseException, OSError) as error:
        _complain(error)
        return 2
    except KeyboardInterrupt:  # what was measured so far is on disk
        print("interrupted", file=sys.stderr)
        return 130
    return 2 if failed else 0


def _complain(error: Exception) -> None:
    print(f"error: {one_line(error)}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
