"""Errors that the user can fix: programs print them as a single line and exit with code 2."""

from itertools import pairwise


class UserError(ValueError):
    """An error that the user can fix. The message says what was wanted, what came instead, and the remedy."""


class PartError(UserError):
    """A part that breaks its contract in `spec.protocols`: the message names it, what was wanted and what came."""


def one_line(error: BaseException) -> str:
    """The message of an error on one line.

    Args:
        error: any exception; one without a message is named by its class.
    """
    lines = [line for line in str(error).splitlines() if line.strip()]
    # What Hydra and OmegaConf say from these words on is about their own insides.
    ends = [
        number for number, line in enumerate(lines) if line.strip().startswith(("Config search path:", "full_key:"))
    ]
    lines = lines[: min(ends, default=len(lines))]
    if not lines:
        return type(error).__name__
    text = lines[0].strip()
    for before, line in pairwise(lines):
        # Hydra lists choices as indented lines below one that ends with a colon.
        glue = " " if before.rstrip().endswith((":", ".")) else ", " if line[0].isspace() else "; "
        text += glue + line.strip()
    return text
