"""The DSpark drafter: a network's context rows for the committed tokens, and its blocks.

The network is in ``models``; what it must remember between rounds is here (``dspark.md`` a.3): per stage one key-value
row a committed token, made from the target's hidden states there, of which the last ``window`` are seen. Rows of the
block itself are the network's own and never come here.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

import mlx.core as mx
from pydantic import Field

from spec.drafters.networks import check_anchor, check_features, load_beside
from spec.errors import UserError
from spec.rounds import Admits, Context, Proposal
from spec.sampling import DraftSampler, Sampling
from spec.values import checked_arguments


class DSparkDrafter:
    """Drafts a block with the network's chain of tokens and their confidences.

    Args:
        network: with ``block_size``, ``window``, ``tapped_layers``, ``confidence_temperatures``,
            ``context_rows(features, offset)`` and ``draft(...)``, as ``models.load_dspark`` returns it.
        proposal: ``argmax``, or ``sampled`` from the softmax of the chain's rows.
        temperature: of that softmax, and by default of the target's sampling.
        calibration: which of the checkpoint's fitted temperatures divide the confidence logits: ``greedy`` for argmax
            drafts at temperature 0, ``matched`` for those above it, which stand with the target's probability of them
            (sample matching, and rejection sampling of a point mass), ``sampled`` for sampled drafts under rejection
            sampling; None leaves them raw. ``auto`` takes the one that fits ``proposal`` and ``temperature``, raw where
            the checkpoint has none.

    Raises:
        UserError: another proposal or calibration, a calibration that the checkpoint lacks, or sampled drafts without a
            temperature above 0.
    """

    @checked_arguments("drafter")
    def __init__(
        self,
        network: Any,
        *,
        proposal: Literal["argmax", "sampled"] = "argmax",
        temperature: Annotated[float, Field(ge=0)] = 0.0,
        calibration: Literal["auto", "greedy", "matched", "sampled"] | None = "auto",
    ) -> None:
        sampling = Sampling(temperature=temperature)
        self.sampling = sampling if proposal == "sampled" else None
        if proposal == "sampled" and sampling.is_greedy:
            raise UserError(
                f"drafter.proposal=sampled needs drafter.temperature above 0, got {temperature}: set it (by default it "
                "is sampling.temperature), or choose drafter.proposal=argmax"
            )
        self.network = network
        if calibration == "auto":
            argmax = "greedy" if sampling.is_greedy else "matched"
            divisors = network.confidence_temperatures.get("sampled" if proposal == "sampled" else argmax)
        else:
            divisors = _fitted(network.confidence_temperatures, calibration)
        self._divisors = None if divisors is None else mx.array(divisors)
        self.tapped_layers: tuple[int, ...] = tuple(network.tapped_layers)
        self.max_gamma: int | None = network.block_size
        self._rows: tuple[mx.array, ...] = ()
        self._length = 0

    @classmethod
    def load(
        cls,
        target: Any,
        load_network: Callable[..., Any],
        path: str | None = None,
        quant: str | None = None,
        **options: Any,
    ) -> "DSparkDrafter":
        """Loads the network of a checkpoint; ``options`` are the drafter's own, the others as `load_beside`."""
        return cls(load_beside(target, load_network, path, quant), **options)

    def reset(self, prompt_length: int) -> None:
        """Forgets all rows."""
        self._rows, self._length = (), 0

    def observe(self, tokens: Sequence[int], features: mx.array | None) -> None:
        """Makes the context rows of committed tokens.

        Args:
            tokens: S ids, at the positions that follow those observed before.
            features: (S, L*H); not looked at where the network reads no layer.

        Raises:
            ValueError: the features are missing or do not match the tokens.
        """
        if not self.tapped_layers:  # a network without context has nothing to remember but its length
            self._length += len(tokens)
            return
        check_features("DSpark", tokens, features)
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

    def propose(self, context: Context, gamma: int, admits: Admits | None = None) -> Proposal:
        """The first ``gamma`` tokens of a block. Forces evaluation: they are inputs of the verify pass.

        Raises:
            ValueError: the anchor does not follow the tokens observed so far.
        """
        check_anchor(context, self._length)
        sampler = None if self.sampling is None else DraftSampler(context.random, context.position, self.sampling)
        choose = None if sampler is None else lambda logits: sampler.draw(logits[0])[None]
        anchor = mx.array([context.anchor], dtype=mx.int32)
        drafted = self.network.draft(anchor, context.position, list(self._rows), gamma, choose)
        logits = drafted.confidence_logits
        sure = mx.sigmoid(logits if self._divisors is None else logits / self._divisors[:gamma])
        mx.eval(drafted.tokens, sure)
        # Every c_k is a function of the tokens before k, so asking now decides as asking before each draw would, and
        # costs one evaluation a block.
        count, confidence = _admitted(tuple(sure[0].tolist()), admits)
        if count == 0:
            reason = f"the block policy refused the first token at confidence {confidence[0]:.3f}"
            return Proposal(confidence=confidence, reason=reason)
        if sampler is not None:
            return Proposal.sampled(sampler[:count], confidence)
        return Proposal(tokens=tuple(drafted.tokens[0, :count].tolist()), confidence=confidence)

    @property
    def context_rows(self) -> tuple[mx.array, ...]:
        """Rows (1, C, d) a stage of the last C = min(window, tokens observed) committed tokens."""
        return self._rows


def _fitted(fitted: Mapping[str, tuple[float, ...]], calibration: str | None) -> tuple[float, ...] | None:
    """The temperatures of a named calibration; None for None.

    Raises:
        UserError: the checkpoint lacks it.
    """
    if calibration is None:
        return None
    if calibration not in fitted:
        raise UserError(
            f"drafter.calibration={calibration}: the checkpoint has no such dspark_confidence_temperatures: fit them "
            "with python -m experiments.calibrate, or choose drafter.calibration=null"
        )
    return fitted[calibration]


def _admitted(confidence: tuple[float, ...], admits: Admits | None) -> tuple[int, tuple[float, ...]]:
    """How many tokens are admitted before the first refusal, and the confidences that were asked about."""
    for count in range(len(confidence)):
        asked = confidence[: count + 1]
        if admits is not None and not admits(asked):
            return count, asked
    return len(confidence), confidence
