"""Running accepted tokens again, for commit paths that do not keep the verify pass's rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import mlx.core as mx

from spec.protocols import Target
from spec.rounds import TargetPass


@dataclass(frozen=True)
class TokenReplay:
    """One plain decode a token: the arithmetic of plain decoding, at its price."""

    kind: ClassVar[Literal["token", "batch"]] = "token"

    def run(self, target: Target, tokens: Sequence[int]) -> TargetPass:
        """Runs at least one token; rows come back in order."""
        passes = [target.forward([token]) for token in tokens]
        features = [passed.features for passed in passes if passed.features is not None]
        return TargetPass(
            logits=mx.concatenate([passed.logits for passed in passes]),
            features=mx.concatenate(features) if features else None,
        )


@dataclass(frozen=True)
class BatchReplay:
    """One pass over all tokens: cheaper, with the arithmetic of a wide pass."""

    kind: ClassVar[Literal["token", "batch"]] = "batch"

    def run(self, target: Target, tokens: Sequence[int]) -> TargetPass:
        """Runs at least one token; rows come back in order."""
        return target.forward(tokens)
