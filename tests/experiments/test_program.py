"""Programs end in one line and exit code 2 where the user can mend it, and in a traceback where nobody but us can."""

from collections.abc import Callable

import pytest
from hydra.errors import ConfigCompositionException

from experiments.program import run
from models import ModelError
from spec import UserError


def raising(error: BaseException) -> Callable[[], None]:
    def main() -> None:
        raise error

    return main


@pytest.mark.parametrize(
    "error",
    [
        UserError("wanted more than 10 tokens\na class"),
        ModelError("no checkpoint here"),
        FileNotFoundError("data/tokens/train.npz does not exist: make it with python -m experiments.tokens"),
        ConfigCompositionException("Could not override 'plan.foo'."),
    ],
)
def test_errors_of_the_user_s_are_one_line(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        run(raising(error))
    assert stopped.value.code == 2
    told = capsys.readouterr().err
    assert told.startswith("error: ")
    assert told.count("\n") == 1


def test_a_fault_of_ours_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError):
        run(raising(ZeroDivisionError()))


def test_an_interrupt_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        run(raising(KeyboardInterrupt()))
    assert stopped.value.code == 130
    assert capsys.readouterr().err == "interrupted\n"
