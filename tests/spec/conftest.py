"""Prompts on disk, and the main program in this process."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from spec import run

PROMPTS = [
    {"id": "one", "prompt": "a b a b a b a b"},
    {"id": "two", "prompt": "the cat and the cat and the"},
    {"id": "three", "prompt": "once upon a time once upon"},
]


@pytest.fixture(scope="session")
def prompt_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A JSONL file of three prompts."""
    path = tmp_path_factory.mktemp("prompts") / "three.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in PROMPTS), encoding="utf-8")
    return path


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
