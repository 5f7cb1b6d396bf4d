"""From logits to probabilities: the target's processed distribution p, and the q that drafts are drawn from."""

import dataclasses
import math
from collections.abc import Sequence
from copy import copy
from typing import Annotated, Any

import mlx.core as mx
from pydantic import Field

from spec.errors import UserError
from spec.randomness import RandomStream
from spec.values import checked

GREEDY_BELOW = 1e-5  # temperatures that DeepSpec, too, takes for 0: their reciprocal would overflow


@checked("sampling")
class Sampling:
    """The processed distribution. Order and conventions are mlx-lm's.

    First what ``make_logits_processors`` does to the logits: bias, then repetition, presence and frequency penalty.
    Then what ``make_sampler`` does: the filters act on the unscaled distribution, one after another (top-p, min-p,
    top-k), and the temperature scales what is left.

    Attributes:
        temperature: 0 (and anything below 1e-5) is the argmax, lowest id on a tie, whatever the filters say.
        top_p: smallest mass to keep, the most likely tokens first; 0 or 1 keeps all.
        min_p: least probability kept, as a share of the largest; 0 keeps all.
        top_k: tokens kept; 0, or the vocabulary and more, keeps all.
        repetition_penalty: divides a positive logit, multiplies a negative one, of a token seen; 0 or 1 is off.
        presence_penalty: subtracted from the logit of a token seen.
        frequency_penalty: subtracted for every time it was seen.
        penalty_context: how many of the last tokens, prompt included, the penalties see; 0 is all.
        logit_bias: added to logits, by token id; -inf forbids a token.

    Raises:
        UserError: a value outside its range.
    """

    temperature: Annotated[float, Field(ge=0)] = 0.0
    top_p: Annotated[float, Field(ge=0, le=1)] = 1.0
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    top_k: Annotated[int, Field(ge=0)] = 0
    repetition_penalty: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    presence_penalty: Annotated[float, Field(allow_inf_nan=False)] = 0.0
    frequency_penalty: Annotated[float, Field(allow_inf_nan=False)] = 0.0
    penalty_context: Annotated[int, Field(ge=0)] = 20
    logit_bias: dict[int, float] = dataclasses.field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        for token, bias in self.logit_bias.items():
            if token < 0 or not bias < math.inf:
                raise UserError(f"sampling.logit_bias must map token ids to numbers, got {token!r}: {bias!r}")

    def to_json(self) -> dict[str, Any]:
        """The fields, in JSON's types: a bias of -inf becomes a text."""
        bias = {str(token): value if math.isfinite(value) else str(value) for token, value in self.logit_bias.items()}
        return dataclasses.asdict(self) | {"logit_bias": bias}

    @property
    def is_greedy(self) -> bool:
        """Whether the distribution is a point mass on the argmax of the processed logits."""
        return self.temperature < GREEDY_BELOW

    @property
    def has_penalties(self) -> bool:
        """Whether the distribution depends on the preceding tokens beyond the logits."""
        return self.repetition_penalty not in (0, 1) or self.presence_penalty != 0 or self.frequency_penalty != 0

    @property
    def changes_logits(self) -> bool:
        """Whether the processed logits can have another argmax than the target's."""
        return self.has_penalties or bool(self.logit_bias)

    def logprobs(self, logits: mx.array, committed: Sequence[int] = (), drafted: Sequence[int] = ()) -> mx.array:
        """Log-probabilities of the processed distribution: `process`, then `distribution`."""
        return self.distribution(self.process(logits, committed, drafted))

    def process(self, logits: mx.array, committed: Sequence[int] = (), drafted: Sequence[int] = ()) -> mx.array:
        """Logits after bias and penalties.

        Args:
            logits: (T, V), any float dtype; also (V,) or (..., V) where there are no penalties.
            committed: the tokens before the row 0.
            drafted: at least T - 1 tokens; row j also sees the first j of them, as it would if they were committed.

        Returns:
            As ``logits``, float32: ratios of bfloat16 probabilities would not be those of the target.

        Raises:
            ValueError: rows without the tokens before them.
            UserError: a biased id lies outside the vocabulary.
        """
        logits = logits.astype(mx.float32)
        if self.logit_bias:
            vocab_size = logits.shape[-1]
            if max(self.logit_bias) >= vocab_size:
                raise UserError(f"sampling.logit_bias: wanted ids below {vocab_size}, got {max(self.logit_bias)}")
            ids, values = mx.array(list(self.logit_bias)), mx.array(list(self.logit_bias.values()), dtype=mx.float32)
            logits = logits.at[..., ids].add(values)
        if not self.has_penalties:
            return logits
        counts = self._seen(logits.shape, committed, drafted)
        is_seen = counts > 0
        if self.repetition_penalty not in (0, 1):
            scaled = mx.where(logits < 0, logits * self.repetition_penalty, logits / self.repetition_penalty)
            logits = mx.where(is_seen, scaled, logits)
        return logits - self.presence_penalty * is_seen - self.frequency_penalty * counts

    def _seen(self, shape: tuple[int, ...], committed: Sequence[int], drafted: Sequence[int]) -> mx.array:
        """(T, V) float32: how often each id occurs in the last ``penalty_context`` tokens before each row."""
        if len(shape) != 2 or len(drafted) < shape[0] - 1:
            raise ValueError(f"penalties need (T, V) logits and T - 1 drafted tokens, got {shape} and {len(drafted)}")
        recent = committed[-self.penalty_context :]  # all of them where it is 0
        rows, ids = [], []
        for row in range(shape[0]):
            window = [*recent, *drafted[:row]][-self.penalty_context :]
            rows += [row] * len(window)
            ids += window
        counts = mx.zeros(shape, dtype=mx.float32)
        return counts.at[mx.array(rows), mx.array(ids)].add(1.0) if ids else counts

    def distribution(self, logits: mx.array) -> mx.array:
        """Log-probabilities from what `process` returned.

        Args:
            logits: (..., V) float32.

        Returns:
            (..., V) float32, normalized; -inf for what a filter removed.
        """
        if self.is_greedy:
            top = mx.argmax(logits, axis=-1, keepdims=True)
            is_top = mx.arange(logits.shape[-1]) == top
            return mx.where(is_top, 0.0, -mx.inf)
        # Imported here: mlx-lm brings transformers along, which takes seconds.
        from mlx_lm.sample_utils import apply_min_p, apply_top_k, apply_top_p

        logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        if 0 < self.top_p < 1:
            logprobs = apply_top_p(logprobs, self.top_p)
        if self.min_p > 0:
            logprobs = apply_min_p(logprobs, self.min_p)
        if 0 < self.top_k < logits.shape[-1]:
            logprobs = apply_top_k(logprobs, self.top_k)
        # The largest becomes 0 first: scaled up by a low temperature it would leave too few bits to normalize with.
        scaled = (logprobs - mx.max(logprobs, axis=-1, keepdims=True)) * (1.0 / self.temperature)
        return scaled - mx.logsumexp(scaled, axis=-1, keepdims=True)


def check_rows(logits: mx.array) -> None:
    """Refuses rows that no token can be drawn from. Forces evaluation, so that no verdict rests on NaN.

    Args:
        logits: (T, V).

    Raises:
        ValueError: a row holds NaN or +inf, or nothing but -inf.
    """
    tops = mx.max(logits, axis=-1)  # NaN wins a max, and a row of -inf has no other
    bad = [row for row, is_finite in enumerate(mx.isfinite(tops).tolist()) if not is_finite]
    if bad:
        raise ValueError(
            f"target logits of rows {bad} (of {logits.shape[0]}) have the largest value "
            f"{[tops[row].item() for row in bad]}, wanted a finite one: the target's weights, the dtype it runs in or "
            "sampling.logit_bias are at fault"
        )


class DraftSampler:
    """Draws the tokens of one proposal and keeps the distributions they came from: the only source of a softmax q.

    A proposal has draft probabilities only by handing over the sampler that drew its tokens, so an argmax draft cannot
    be judged with a softmax q it was not drawn from, which is biased (https://github.com/antirez/ds4/pull/482).

    Args:
        random: the generation's; `RandomStream.in_round` is applied here.
        position: absolute position of the anchor.
        sampling: the drafter's own processed distribution. Any is exact; the one nearest to the target's accepts most.

    Raises:
        UserError: the sampling is greedy (that is an argmax proposal) or has penalties (drafters keep no history).
    """

    def __init__(self, random: RandomStream, position: int, sampling: Sampling) -> None:
        if sampling.is_greedy:
            raise UserError(
                f"sampled drafts need a temperature above 0, got {sampling.temperature}: draft by argmax instead"
            )
        if sampling.has_penalties:
            raise UserError("sampled drafts do not know penalties: leave them to the target's sampling")
        self._random, self._position, self._sampling = random.in_round(position + 1), position, sampling
        self._tokens: list[mx.array] = []
        self._logprobs: list[mx.array] = []

    def draw(self, logits: mx.array) -> mx.array:
        """Draws the next token; not evaluated, so that a chain of draws is one evaluation.

        Args:
            logits: (V,), any float dtype, given the tokens drawn before.

        Returns:
            () int32.
        """
        logprobs = self._sampling.logprobs(logits)
        position = self._position + 1 + len(self._tokens)
        token = self._random.categorical(logprobs, position, "draft").astype(mx.int32)
        self._tokens.append(token)
        self._logprobs.append(logprobs)
        return token

    def __getitem__(self, index: slice) -> "DraftSampler":
        """Consecutive tokens with the rows they came from, as a proposal of their own.

        Whether token k is kept may depend on the tokens before it, not on itself or later ones (DSpark paper,
        Appendix A): a block is cut at the first refusal from the left.
        """
        part = copy(self)
        part._tokens, part._logprobs = self._tokens[index], self._logprobs[index]
        part._position = self._position + index.indices(len(self._tokens))[0]
        return part

    @property
    def tokens(self) -> tuple[int, ...]:
        """d_1 .. d_G. Forces evaluation: they are inputs of the verify pass."""
        return tuple(mx.stack(self._tokens).tolist()) if self._tokens else ()

    @property
    def logprobs(self) -> mx.array:
        """(G, V) float32: the very rows, log q, that were drawn from."""
        return mx.stack(self._logprobs)
