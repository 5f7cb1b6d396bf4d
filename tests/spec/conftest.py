"""The main program in this process."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from spec import run


@pytest.fixture
def program(checkpoint: Path, prompt_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """``python -m spec.run`` with the random checkpoint and short runs; returns the exit code.

    The records are in ``tmp_path / "out"``.
    """

    def call(*arguments: str) -> int:
        defaults = [
            f"target.path={checkpoint}",
            f"prompts.paths=[{prompt_file}]",
            "prompts.limit=1",
            "max_tokens=8",
            "repeats=1",
            "warmup_tokens=0",
            f"hydra.run.dir={tmp_path / 'out'}",
            f"hydra.sweep.dir={tmp_path / 'sweep'}",
        ]
        given = {argument.split("=")[0] for argument in arguments}
        kept = [default for default in defaults if default.split("=")[0] not in given]
        flags = [argument for argument in arguments if argument.startswith("-")]
        overrides = [*kept, *(argument for argument in arguments if argument not in flags)]
        monkeypatch.setattr(sys, "argv", ["spec.run", *flags, *overrides])
        return run.main()

    return call
