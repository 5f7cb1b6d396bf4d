"""Programs end in one line and exit code 2 where the user can mend it, and in a traceback where nobody but us can."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hydra.errors import ConfigCompositionException

import experiments
from models import ModelError
from spec import UserError
from spec.programs.frame import run

FOLDER = Path(experiments.__file__).parent
PROGRAMS = [
    file for file in sorted((*FOLDER.glob("*.py"), *FOLDER.glob("pair/*.py"))) if "__main__" in file.read_text("utf-8")
]


def raising(error: BaseException) -> Callable[[], None]:
    def main() -> None:
        raise error

    return main


@pytest.mark.parametrize(
    "error",
    [
        UserError("wanted more than 10 tokens\na class"),
        ModelError("no checkpoint here"),
        FileNotFoundError("data/tokens/train.npz does not exist: make it with python -m experiments.pair.tokens"),
        ConfigCompositionException("Could not override 'plan.foo'."),
    ],
)
def test_errors_of_the_user_s_are_one_line(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(raising(error), ModelError) == 2
    told = capsys.readouterr().err
    assert told.startswith("error: ")
    assert told.count("\n") == 1


def test_a_fault_of_ours_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError):
        run(raising(ZeroDivisionError()), ModelError)


def test_an_interrupt_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(raising(KeyboardInterrupt()), ModelError) == 130
    assert capsys.readouterr().err == "interrupted\n"


@pytest.mark.parametrize("file", PROGRAMS, ids=lambda file: file.stem)
def test_every_program_ends_so(file: Path) -> None:
    assert file.read_text("utf-8").endswith('if __name__ == "__main__":\n    sys.exit(run(main, ModelError))\n')
