"""From logits to the target's processed distribution, and random numbers keyed by where they are used."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Literal

import mlx.core as mx
from mlx_lm.sample_utils import apply_min_p, apply_top_k, apply_top_p

from spec.errors import UserError

Purpose = Literal["target", "draft", "accept", "residual", "bonus"]

GREEDY_BELOW = 1e-5  # temperatures that DeepSpec, too, takes for 0: their reciprocal would overflow


@dataclass(frozen=True, kw_only=True)
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

    temperature: float = 0.0
    top_p: float = 1.0
    min_p: float = 0.0
    top_k: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    penalty_context: int = 20
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if not self.temperature >= 0:
            raise UserError(f"sampling.temperature must be 0 (greedy) or more, got {self.temperature}")
        for name, value in (("top_p", self.top_p), ("min_p", self.min_p)):
            if not 0 <= value <= 1:
                raise UserError(f"sampling.{name} must lie in 0..1, got {value}")
        for name, value in (("top_k", self.top_k), ("penalty_context", self.penalty_context)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise UserError(f"sampling.{name} must be a whole number, 0 to keep all, got {value!r}")
        if not 0 <= self.repetition_penalty < math.inf:
            raise UserError(f"sampling.repetition_penalty must be 0 (off) or more, got {self.repetition_penalty}")
        for name, value in (
            ("presence_penalty", self.presence_penalty),
            ("frequency_penalty", self.frequency_penalty),
        ):
            if not math.isfinite(value):
                raise UserError(f"sampling.{name} must be a finite number, got {value}")
        for token, bias in self.logit_bias.items():
            if isinstance(token, bool) or not isinstance(token, int) or token < 0 or not bias < math.inf:
                raise UserError(f"sampling.logit_bias must map token ids to numbers, got {token!r}: {bias!r}")

    @property
    def is_greedy(self) -> bool:
        """Whether the distribution is a point mass on the argmax of the processed logits."""
        return self.temperature < GREEDY_BELOW

    @property
    def has_penalties(self) -> bool:
        """Whether the distribution depends on the tokens before it through more than the logits."""
        return self.repetition_penalty not in (0, 1) or self.presence_penalty != 0 or self.frequency_penalty != 0

    @property
    def changes_logits(self) -> bool:
        """Whether the argmax of the processed logits can be another than the target's own."""
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
        """(T, V) float32: how often each row's last ``penalty_context`` tokens hold each id."""
        if len(shape) != 2 or len(drafted) < shape[0] - 1:
            raise ValueError(f"penalties need (T, V) logits and T - 1 drafted tokens, got {shape} and {len(drafted)}")
        rows, ids = [], []
        for row in range(shape[0]):
            window = [*committed, *drafted[:row]][-self.penalty_context :]
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
    """Refuses rows that no token can be drawn from. Forces evaluation: a verdict on NaN must not be given.

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


@dataclass(frozen=True, kw_only=True)
class RandomStream:
    """Random draws keyed by (seed, stream, absolute position, purpose), never by how many were made before.

    So a shorter block, a discarded suffix or another prompt's traffic shifts no draw. In return no key may be used for
    two decisions that meet in one output, and what is drawn for a position may be discarded and drawn again in a later
    round. Where the first draw had a say in what was emitted before that position (every draft and every test of block
    verification; a draft whose successor's confidence was shown to a block policy), the second must be fresh, or the
    law is lost: such draws come from `in_round`.

    Attributes:
        seed: the run's.
        stream: tells requests of one run apart, for example a prompt's id.
        round_start: absolute position that the draws are tied to besides their own; None ties them to none.
    """

    seed: int = 0
    stream: str = ""
    round_start: int | None = None

    def in_round(self, start: int) -> "RandomStream":
        """A stream that are also keyed by the round.

        Args:
            start: absolute position of the round's first draft. Every round emits a token, so no two rounds share it.
        """
        return replace(self, round_start=start)

    def _bits(self, position: int, purpose: Purpose) -> int:
        text = f"{self.seed}/{self.stream}/{position}/{purpose}"
        if self.round_start is not None:
            text += f"/{self.round_start}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")

    def key(self, position: int, purpose: Purpose) -> mx.array:
        """A key for ``mx.random`` (2,) uint32."""
        return mx.random.key(self._bits(position, purpose))

    def uniform(self, position: int, purpose: Purpose) -> float:
        """A number in [0, 1) made on the host, for decisions that need no array."""
        return (self._bits(position, purpose) >> 11) / 2**53

    def accepts(self, probability: float, position: int) -> bool:
        """The test of a draft: u < probability, so that 0 never and 1 always passes.

        Args:
            probability: that the draft stands, 0..1.
            position: the draft's.

        Raises:
            ValueError: it is no probability; NaN above all, which must accept nothing and reject nothing.
        """
        if not 0 <= probability <= 1:
            raise ValueError(f"the draft at {position} stands with probability {probability}, wanted one in 0..1")
        return self.uniform(position, "accept") < probability

    def categorical(self, logprobs: mx.array, position: int, purpose: Purpose) -> mx.array:
        """Draws a token; not evaluated.

        Args:
            logprobs: (V,) float32, normalized or not.
            position: the token's.
            purpose: of the draw.

        Returns:
            () uint32.
        """
        return mx.random.categorical(logprobs, key=self.key(position, purpose))


class DraftSampler:
    """Draws the tokens of one proposal and keeps the distributions they came from: the only source of a softmax q.

    A proposal has draft probabilities only by handing over the sampler that drew its tokens, so that an argmax draft
    cannot be judged with a softmax q it was not drawn from (which is biased: ``dspark.md`` c.8).

    Args:
        draws: the generation's; `in_round` is applied here.
        position: absolute position of the anchor.
        sampling: the drafter's own processed distribution. Any is exact; that nearest to the target's accepts most.

    Raises:
        UserError: the sampling is greedy (that is an argmax proposal) or has penalties (drafters keep no history).
    """

    def __init__(self, draws: RandomStream, position: int, sampling: Sampling) -> None:
        if sampling.is_greedy:
            raise UserError(
                f"sampled drafts need a temperature above 0, got {sampling.temperature}: draft by argmax instead"
            )
        if sampling.has_penalties:
            raise UserError("sampled drafts do not know penalties: leave them to the target's sampling")
        self._draws, self._position, self._sampling = draws.in_round(position + 1), position, sampling
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
        token = self._draws.categorical(logprobs, position, "draft").astype(mx.int32)
        self._tokens.append(token)
        self._logprobs.append(logprobs)
        return token

    def part(self, start: int, stop: int) -> "DraftSampler":
        """Some consecutive tokens with the rows they came from, as a proposal of their own.

        Whether token k belongs to a part may depend on the tokens before it, not on itself or later ones (``dspark.md``
        d.1): a block is cut at the first refusal from the left.

        Args:
            start: index of the first token.
            stop: index after the last.
        """
        cut = copy(self)
        cut._tokens, cut._logprobs = self._tokens[start:stop], self._logprobs[start:stop]
        cut._position = self._position + start
        return cut

    @property
    def tokens(self) -> tuple[int, ...]:
        """d_1 .. d_G. Forces evaluation: they are inputs of the verify pass."""
        return tuple(mx.stack(self._tokens).tolist()) if self._tokens else ()

    @property
    def logprobs(self) -> mx.array:
        """(G, V) float32: the very rows, log q, that were drawn from."""
        return mx.stack(self._logprobs)
