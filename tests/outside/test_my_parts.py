"""Parts from outside: they keep the contracts, and the main program runs them from wherever the user stands.

pytest puts this folder on the path, as it has no ``__init__.py``: `my_parts` is nobody's package.
"""

import inspect
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from my_parts import AlternatingPolicy, EchoDrafter, LenientVerifier

from spec.testing import BlockPolicyContract, DrafterContract, VerifierContract

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PARTS = ("drafter=echo", "verifier=lenient", "block=alternating")


class TestEchoDrafter(DrafterContract):
    def make(self, target):
        return EchoDrafter()


class TestLenientVerifier(VerifierContract):
    def make(self, sampling):
        return LenientVerifier(sampling)


class TestAlternatingPolicy(BlockPolicyContract):
    def make(self):
        return AlternatingPolicy()


@pytest.fixture
def program(checkpoint: Path, prompt_file: Path, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess]:
    """``python -m spec.run`` from a folder that has a ``models`` and a ``configs`` of its own."""
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "__init__.py").write_text("raise ImportError('the models of the user')\n", encoding="utf-8")
    (tmp_path / "configs" / "drafter").mkdir(parents=True)
    (tmp_path / "configs" / "config.yaml").write_text("this: is another program's\n", encoding="utf-8")

    def call(*arguments: str) -> subprocess.CompletedProcess:
        defaults = [
            f"target.path={checkpoint}",
            f"prompts.paths=[{prompt_file}]",
            "prompts.limit=1",
            "max_tokens=8",
            "repeats=1",
            "warmup_tokens=0",
            "hydra.run.dir=out",
        ]
        return subprocess.run(
            [sys.executable, "-m", "spec.run", *arguments, *defaults],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(HERE)])},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return call


@pytest.mark.parametrize(
    "where", [("--config-dir", str(HERE / "my_configs")), (f"hydra.searchpath=[file://{HERE / 'my_configs'}]",)]
)
def test_the_main_program_runs_them(program, tmp_path: Path, where: tuple[str, ...]) -> None:
    done = program(*where, *PARTS)
    assert done.returncode == 0, done.stderr
    assert "lossy" in done.stdout
    summary = json.loads((tmp_path / "out" / "summary.json").read_text(encoding="utf-8"))
    assert summary["num_tokens"] == 8
    rounds = [json.loads(line) for line in (tmp_path / "out" / "rounds.jsonl").read_text(encoding="utf-8").splitlines()]
    assert {line["proposed"] > 0 for line in rounds} == {True, False}  # every second round drafts
    runs = [json.loads(line) for line in (tmp_path / "out" / "runs.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [line["mode"] for line in runs] == ["baseline", "speculative"]


def test_a_part_that_is_not_found_is_one_line(program) -> None:
    done = program("drafter=echo")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "Could not find 'drafter/echo'" in line


def test_the_readme_shows_the_drafter_as_it_is() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"```python\nfrom spec import Proposal\n\n\n{inspect.getsource(EchoDrafter)}```" in readme
