"""The MTP drafter: the original one-stage block, run once a token and chained on its own output.

What it must remember : a key-value row a slot, where slot i joins the target's last streams
after token i with token i + 1; and the streams of the last committed token, whose slot waits for the anchor. So n
committed tokens make n - 1 rows. Rows that drafting adds are made of the block's own streams and are not remembered.
"""

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx

from spec.drafters.networks import check_anchor, check_features, load_beside
from spec.rounds import Admits, Context, Proposal


class MTPDrafter:
    """Drafts by argmax, one pass of the block a token: the first from the target's streams, the others from its own.

    Args:
        network: with ``tapped_layers``, ``make_cache(max_rollback)``, ``fill(tokens, streams, cache)`` and
            ``network(tokens, streams, cache) -> (logits, streams)``, as ``models.load_mtp`` returns it.

    Attributes:
        last_streams: (1, 1, N * H) of the last committed token, whose slot waits for the anchor; None before any.
    """

    max_gamma: int | None = None

    def __init__(self, network: Any) -> None:
        self.network = network
        self.tapped_layers: tuple[int, ...] = tuple(network.tapped_layers)
        self.reset(0)

    @classmethod
    def load(
        cls, target: Any, load_network: Callable[..., Any], path: str | None = None, quant: str | None = None
    ) -> "MTPDrafter":
        """Loads the block of a checkpoint; arguments as `load_beside`."""
        return cls(load_beside(target, load_network, path, quant))

    def reset(self, prompt_length: int) -> None:
        """Forgets all rows."""
        # No headroom: `propose` returns to the arrays from before it, which the cache never writes in place.
        self._cache = self.network.make_cache(max_rollback=0)
        self.last_streams: mx.array | None = None
        self._length = 0

    def observe(self, tokens: Sequence[int], features: mx.array | None) -> None:
        """Adds the rows of the slots that the committed tokens complete.

        Args:
            tokens: S ids, at the positions that follow those observed before.
            features: (S, N * H) the target's last streams there.

        Raises:
            ValueError: the features are missing or do not match the tokens.
        """
        check_features("MTP", tokens, features)
        streams, following = features[None, :-1], list(tokens[1:])
        if self.last_streams is not None:
            streams, following = mx.concatenate([self.last_streams, streams], axis=1), list(tokens)
        self.network.fill(mx.array([following], dtype=mx.int32), streams, self._cache)
        last = features[None, -1:]
        # Evaluated here so that the time is the drafter's, and so that the pass over all features can be freed.
        mx.eval(self._cache.state, last)
        self.last_streams, self._length = last, self._length + len(tokens)

    def propose(self, context: Context, gamma: int, admits: Admits | None = None) -> Proposal:
        """A chain of ``gamma`` tokens. Forces evaluation: they are inputs of the verify pass.

        Raises:
            ValueError: the anchor does not follow the tokens observed so far, or none was.
        """
        check_anchor(context, self._length, least=1)
        before, rows = self._cache.meta_state, list(self._cache.state)
        token, streams, drafted = mx.array([[context.anchor]], dtype=mx.int32), self.last_streams, []
        for _ in range(gamma):
            logits, streams = self.network(token, streams, self._cache)
            token = mx.argmax(logits, axis=-1)
            drafted.append(token)
        tokens = mx.concatenate(drafted, axis=1)[0].tolist()
        # What drafting has added is not remembered; the cache never writes its arrays in place.
        self._cache.meta_state, self._cache.state = before, rows
        return Proposal(tokens=tuple(tokens))

    @property
    def cache(self) -> Any:
        """The block's cache; its offset is one less than the tokens observed, or 0."""
        return self._cache
