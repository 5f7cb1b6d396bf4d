"""What drafters with a network share: where it is loaded from, and what they may be shown."""

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx

from spec.errors import UserError
from spec.rounds import Context


def load_beside(target: Any, load_network: Callable[..., Any], path: str | None, quant: str | None) -> Any:
    """Loads a drafter's network.

    Args:
        target: the model to draft for; its embedding and head are shared.
        load_network: for example ``models.load_dspark``, given by the configuration: ``spec`` needs no model code.
        path: the drafter's checkpoint; None takes the one beside the target.
        quant: format to quantize the network to; None keeps the checkpoint's.

    Raises:
        UserError: no path is given and the target came from none.
    """
    source = path or target.path
    if source is None:
        raise UserError("drafter.path: the target was loaded from no folder, so give the drafter's own")
    return load_network(source, target=target, quant=quant)


def check_features(name: str, tokens: Sequence[int], features: mx.array | None) -> None:
    """Refuses features that are missing or do not match the tokens.

    Raises:
        ValueError: they do not.
    """
    if features is None or features.shape[0] != len(tokens):
        got = None if features is None else features.shape
        raise ValueError(f"{name} needs the target's features of each of {len(tokens)} tokens, got {got}")


def check_anchor(context: Context, length: int, least: int = 0) -> None:
    """Refuses an anchor that does not follow the ``length`` tokens that were observed, ``least`` or more.

    Raises:
        ValueError: it does not.
    """
    if context.position != length or length < least:
        after = "the observed tokens" if least == 0 else f"the observed tokens, at least {least}"
        raise ValueError(f"the anchor must stand at {length}, after {after}, got {context.position}")
