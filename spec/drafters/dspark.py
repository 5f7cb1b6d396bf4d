"""The DSpark drafter: a network's context rows for the committed tokens, and its blocks.

The network is in ``models``; what it must remember between rounds is here (``dspark.md`` a.3): per stage one key-value
row a committed token, made from the target's hidden states there, of which the last ``window`` are seen. Rows of the
block itself are the network's own and never come here.
"""

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx

from spec.errors import UserError
from spec.protocols import Admits, Proposal
from spec.sampling import Draws


class DSparkDrafter:
    """Drafts a block by the network's argmax chain, with a confidence a token.

    Args:
        network: with ``block_size``, ``window``, ``taps``, ``context_rows(features, offset)`` and ``draft(...)``, as
            ``models.load_dspark`` returns it.
    """

    def __init__(self, network: Any) -> None:
        self.network = network
        self.taps: tuple[int, ...] = tuple(network.taps)
        self.max_gamma: int | None = network.block_size
        self._rows: tuple[mx.array, ...] = ()
        self._length = 0

    @classmethod
    def load(
        cls, target: Any, load_network: Callable[..., Any], path: str | None = None, quant: str | None = None
    ) -> "DSparkDrafter":
        """Loads the network of a checkpoint.

        Args:
            target: the model to draft for; its embedding and head are shared.
            load_network: ``models.load_dspark``, given by the configuration so that ``spec`` needs no model code.
            path: the drafter's checkpoint; None takes the one beside the target.
            quant: format to quantise the network to; None keeps the checkpoint's.

        Raises:
            UserError: no path is given and the target came from none.
        """
        source = path or target.path
        if source is None:
            raise UserError("drafter.path: the target was loaded from no folder, so give the drafter's own")
        return cls(load_network(source, target=target, quant=quant))

    def reset(self, prompt_length: int, reference: Sequence[int] | None = None) -> None:
        """Forgets all rows."""
        self._rows, self._length = (), 0

    def observe(self, tokens: Sequence[int], features: mx.array | None) -> None:
        """Makes the context rows of committed tokens.

        Args:
            tokens: S ids, at the positions that follow those observed before.
            features: (S, L*H).

        Raises:
            ValueError: the features are missing or do not match the tokens.
        """
        if features is None or features.shape[0] != len(tokens):
            got = None if features is None else features.shape
            raise ValueError(f"DSpark needs the target's features of each of {len(tokens)} tokens, got {got}")
        window = self.network.window
        newest = features[None, -window:]  # rows that would leave the window at once are not made
        first = self._length + len(tokens) - newest.shape[1]
        rows = tuple(self.network.context_rows(newest, first))
        if self._rows and newest.shape[1] < window:
            rows = tuple(
                mx.concatenate([old, new], axis=1)[:, -window:] for old, new in zip(self._rows, rows, strict=True)
            )
        # Evaluated here so that the time is the drafter's, and so that the pass over all features can be freed.
        mx.eval(rows)
        self._rows, self._length = rows, self._length + len(tokens)

    def propose(self, anchor: int, position: int, gamma: int, draws: Draws, admits: Admits | None = None) -> Proposal:
        """The first ``gamma`` tokens of a block. Forces evaluation: they are inputs of the verify pass.

        Raises:
            ValueError: the anchor does not follow the tokens observed so far.
        """
        if position != self._length:
            raise ValueError(f"the anchor must stand at {self._length}, after the observed tokens, got {position}")
        drafted = self.network.draft(mx.array([anchor], dtype=mx.int32), position, list(self._rows), gamma)
        mx.eval(drafted.tokens, drafted.confidence)
        return Proposal(tokens=tuple(drafted.tokens[0].tolist()), confidence=tuple(drafted.confidence[0].tolist()))

    @property
    def context(self) -> tuple[mx.array, ...]:
        """Rows (1, C, d) a stage of the last C = min(window, tokens observed) committed tokens."""
        return self._rows

    def snapshot(self) -> tuple[tuple[mx.array, ...], int]:
        """Rows by reference (they are never written in place) and the length."""
        return self._rows, self._length

    def restore(self, snapshot: tuple[tuple[mx.array, ...], int]) -> None:
        """Returns to a snapshot."""
        self._rows, self._length = snapshot
