"""``python -m spec.run +experiment=prose_b5``: the main program. Options are those of the files in ``configs/``."""

import shlex
import sys
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig
from rich.console import Console

from spec.errors import UserError
from spec.programs.frame import CONFIGS, complain, run
from spec.programs.job import Job
from spec.programs.rotation import Outcome, run_jobs
from spec.report import make_console, print_notes, print_table


def main() -> int:
    """Runs the jobs of the command line. Returns the exit code: 2 if one had an error that the user can fix."""
    swept: list[Job] = []
    failed: list[UserError] = []

    @hydra.main(version_base="1.3", config_path=CONFIGS, config_name="config")
    def job(config: DictConfig) -> float | None:
        settings = HydraConfig.get()
        one = Job(
            config=config,
            output=Path(settings.runtime.output_dir),
            place=Path(settings.sweep.dir if settings.mode == RunMode.MULTIRUN else settings.runtime.output_dir),
            overrides=tuple(settings.overrides.task),
            choices={group: str(choice) for group, choice in settings.runtime.choices.items()},
        )
        if _is_whole_sweep(settings):
            swept.append(one)  # run together below, so that their speeds compare
            return None
        (outcome,) = _run([one], resumes=False)
        if isinstance(outcome, UserError):
            failed.append(outcome)
            return None
        return outcome["tokens_per_s"]

    def program() -> int:
        job()
        if swept:
            try:
                failed.extend(outcome for outcome in _run(swept, resumes=True) if isinstance(outcome, UserError))
            except KeyboardInterrupt:
                arguments = [text for text in sys.argv[1:] if not text.startswith("hydra.sweep.dir=")]
                again = shlex.join([*arguments, f"hydra.sweep.dir={swept[0].place}"])
                print(f"to go on: python -m spec.run {again}", file=sys.stderr)
                raise
        return 2 if failed else 0

    return run(program)


def _is_whole_sweep(settings: Any) -> bool:
    """Whether Hydra runs the jobs of this sweep in this process and in order, without looking at their results."""
    in_order = (settings.runtime.choices.get("hydra/sweeper"), settings.runtime.choices.get("hydra/launcher"))
    return settings.mode == RunMode.MULTIRUN and in_order == ("basic", "basic")


def _run(jobs: list[Job], *, resumes: bool) -> list[Outcome]:
    """Runs the jobs, skipping finished ones when resuming, and prints one table. Returns the outcome of each."""
    outcomes: dict[Path, Outcome] = {}
    for job in jobs if resumes else ():
        if (done := job.finished_summary()) is not None:
            outcomes[job.output] = done
            print(f"{job.output}: finished before with this configuration, skipped")

    def on_done(job: Job, outcome: Outcome) -> None:
        outcomes[job.output] = outcome
        if isinstance(outcome, UserError):
            complain(outcome)

    run_jobs([job for job in jobs if job.output not in outcomes], Console(stderr=True), on_done)
    summaries = [outcome for job in jobs if not isinstance(outcome := outcomes[job.output], UserError)]
    if summaries:
        console = make_console()
        print_table(summaries, console)
        print_notes(summaries, console)
        console.print(f"records: {jobs[0].place}", style="dim", highlight=False, markup=False, soft_wrap=True)
    return [outcomes[job.output] for job in jobs]


if __name__ == "__main__":
    sys.exit(main())
