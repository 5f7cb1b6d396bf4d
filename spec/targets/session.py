"""A target model and the state of the sequence that it is generating."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import mlx.core as mx
from pydantic import Field

from spec.errors import UserError
from spec.rounds import TargetPass
from spec.values import checked_arguments


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
        context_length: most tokens of a sequence, prompt included; None takes the model's ``max_position_embeddings``.
        prefill_chunk: prompt tokens a pass.

    Raises:
        UserError: the context asked for is longer than the model's, or a number is not positive.
    """

    can_trim = True

    @checked_arguments("")
    def __init__(
        self,
        model: Any,
        *,
        tapped_layers: Sequence[int] = (),
        max_rollback: Annotated[int, Field(ge=0)] = 0,
        context_length: int | None = None,
        prefill_chunk: Annotated[int, Field(ge=1)] = 512,
    ) -> None:
        longest = model.args.max_position_embeddings
        if context_length is not None and not 0 < context_length <= longest:
            raise UserError(f"context must lie in 1..{longest}, what the target was made for, got {context_length}")
        self.model = model
        self.tapped_layers = tuple(tapped_layers)
        self.max_rollback = max_rollback
        self.context_length = longest if context_length is None else context_length
        self.prefill_chunk = prefill_chunk
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
        if self.offset + len(tokens) > self.context_length:
            raise UserError(
                f"the context holds {self.context_length} tokens, wanted {len(tokens)} more after {self.offset}: "
                "shorten the prompt or max_tokens"
            )
        inputs = mx.array([list(tokens)], dtype=mx.int32)
        if not self.tapped_layers:
            return self.model(inputs, cache=self.cache), None
        return self.model(inputs, cache=self.cache, tapped_layers=self.tapped_layers)

    def prefill(self, tokens: Sequence[int]) -> Iterator[tuple[Sequence[int], mx.array | None]]:
        """Runs tokens whose logits nobody reads, ``prefill_chunk`` at a time; the head is not computed.

        Args:
            tokens: any number of token ids.

        Yields:
            A chunk's tokens and their (T, L*H) features, None without tapped layers.

        Raises:
            UserError: the tokens do not fit into the context.
        """
        for start in range(0, len(tokens), self.prefill_chunk):
            chunk = tokens[start : start + self.prefill_chunk]
            _, features = self._run(chunk)
            # Evaluated here, or the whole prompt's graph would be held, and paid for by the first round.
            mx.eval([layer.state for layer in self.cache], [] if features is None else features)
            yield chunk, None if features is None else features[0]

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

    def trim(self, count: int) -> None:
        """Takes back the last ``count`` tokens.

        Raises:
            ValueError: the cache cannot take back so many.
        """
        for layer in self.cache if count else ():
            trimmed = layer.trim(count)
            if trimmed != count:
                raise ValueError(f"wanted {count} tokens taken back, a layer's cache took {trimmed}")

    def rows(self) -> dict[str, mx.array]:
        """The cache rows that later passes can read, by layer and store."""
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
