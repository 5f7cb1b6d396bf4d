"""A target model together with the state of the one sequence that it is generating."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from spec.errors import UserError
from spec.protocols import TargetPass


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A session's state: one (meta_state, arrays) pair a layer, in layer order."""

    layers: tuple[tuple[Any, tuple[mx.array, ...]], ...]


class TargetSession:
    """A model in mlx-lm's convention, its cache, and the layers that are tapped.

    Args:
        model: callable as ``model(tokens (B, T), cache=..., tapped_layers=...)``, with
            ``make_cache(max_rollback=...)`` and ``args``.
        tapped_layers: layers whose output every pass returns.
        max_rollback: tokens that `trim` must be able to take back after any pass; gamma + 1 for a block of gamma.
        context: most tokens of a sequence, prompt included; None takes the model's ``max_position_embeddings``.

    Raises:
        UserError: the context asked for is longer than the model's, or not positive.
    """

    def __init__(
        self, model: Any, *, tapped_layers: Sequence[int] = (), max_rollback: int = 0, context: int | None = None
    ) -> None:
        longest = model.args.max_position_embeddings
        if context is not None and not 0 < context <= longest:
            raise UserError(f"context must lie in 1..{longest}, what the target was made for, got {context}")
        self.model = model
        self.tapped_layers = tuple(tapped_layers)
        self.max_rollback = max_rollback
        self.context = longest if context is None else context
        self.vocab_size: int = model.args.vocab_size
        self.reset()

    def reset(self) -> None:
        """Forgets the sequence: a new cache."""
        self.cache = self.model.make_cache(max_rollback=self.max_rollback)

    @property
    def offset(self) -> int:
        """Tokens in the cache."""
        return self.cache[0].offset

    def _run(self, tokens: Sequence[int]) -> tuple[mx.array, mx.array | None]:
        if self.offset + len(tokens) > self.context:
            raise UserError(
                f"the context holds {self.context} tokens, wanted {len(tokens)} more after {self.offset}: shorten the "
                "prompt or max_tokens"
            )
        inputs = mx.array([list(tokens)], dtype=mx.int32)
        if not self.tapped_layers:
            return self.model(inputs, cache=self.cache), None
        return self.model(inputs, cache=self.cache, tapped_layers=self.tapped_layers)

    def prefill(self, tokens: Sequence[int]) -> mx.array | None:
        """Runs tokens whose logits nobody reads, as a prompt's; the head is not computed.

        Args:
            tokens: T token ids, T >= 1.

        Returns:
            (T, L*H) features, or None without tapped layers.

        Raises:
            UserError: the tokens do not fit into the context.
        """
        _, features = self._run(tokens)
        # Evaluated here, or the whole prompt's graph would be held, and paid for by the first round.
        mx.eval([layer.state for layer in self.cache], [] if features is None else features)
        return None if features is None else features[0]

    def forward(self, tokens: Sequence[int]) -> TargetPass:
        """Runs tokens at positions ``offset ..``.

        Args:
            tokens: T token ids, T >= 1.

        Raises:
            UserError: the tokens do not fit into the context.
        """
        logits, features = self._run(tokens)
        # Evaluated here so that a pass's time is its own. The state is included: rows that only a later window reads
        # would otherwise pile up unevaluated and land in another round's time.
        mx.eval(logits, [layer.state for layer in self.cache], [] if features is None else features)
        return TargetPass(logits=logits[0], features=None if features is None else features[0])

    def verify(self, tokens: Sequence[int]) -> TargetPass:
        """Runs drafted tokens: here a pass like any other. Arguments and errors as in `forward`."""
        return self.forward(tokens)

    def trim(self, count: int) -> None:
        """Takes back the last ``count`` tokens.

        Raises:
            ValueError: the cache cannot take back so many.
        """
        if count == 0:
            return
        for layer in self.cache:
            trimmed = layer.trim(count)
            if trimmed != count:
                raise ValueError(f"wanted {count} tokens taken back, a layer's cache took {trimmed}")

    def rewind(self, offset: int) -> None:
        """Returns every layer to ``offset``, also when a failed pass has advanced only some of them."""
        for layer in self.cache:
            if layer.offset > offset:
                layer.trim(layer.offset - offset)

    def rows(self) -> dict[str, mx.array]:
        """Every cache row that a later pass can read, by layer and store."""
        return {
            f"layer {number} {name}": rows
            for number, layer in enumerate(self.cache)
            for name, rows in layer.reachable_rows().items()
        }

    def snapshot(self) -> Snapshot:
        """The state by reference: nothing is copied, but while a snapshot lives the memory it names is not reused."""
        # Safe because the cache replaces its arrays and never assigns into them.
        return Snapshot(layers=tuple((layer.meta_state, tuple(layer.state)) for layer in self.cache))

    def restore(self, snapshot: Snapshot) -> None:
        """Returns to a snapshot of this session, which stays usable."""
        for layer, (meta_state, arrays) in zip(self.cache, snapshot.layers, strict=True):
            layer.meta_state = meta_state
            layer.state = list(arrays)
