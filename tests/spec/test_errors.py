"""Messages on one line."""

import pytest

from spec.errors import one_line


@pytest.mark.parametrize(
    ("message", "wanted"),
    [
        ("wanted 3, got 4", "wanted 3, got 4"),
        ("", "ValueError"),
        ("First.\n\nSecond", "First. Second"),
        ("one thing\nanother", "one thing; another"),
        ("No 'x'\n\nOptions:\n\ta\n\tb\n\nConfig search path:\n\tprovider=main", "No 'x'; Options: a, b"),
        ("Bad value\n    full_key: block.gamma\n    object_type=dict", "Bad value"),
    ],
)
def test_messages_on_one_line(message: str, wanted: str) -> None:
    assert one_line(ValueError(message)) == wanted
