"""Checks an output against plain decoding of the same model."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import mlx.core as mx

from spec.measure.generation import Generation
from spec.protocols import Target
from spec.rounds import Guarantee


@dataclass(frozen=True, kw_only=True)
class Divergence:
    """The first token at which a speculative output differs from the baseline's.

    Attributes:
        prompt_id: the prompt.
        position: absolute position of the first different token.
        round: index of the round that emitted it; 0 is the prefill.
        logit_margin: by how much plain decoding of the common prefix prefers the baseline's token; None if the output
            merely ended there. Near 0 is a tie.
    """

    prompt_id: str
    position: int
    round: int
    logit_margin: float | None


@dataclass(frozen=True, kw_only=True)
class Exactness:
    """How an output compares with plain decoding.

    Attributes:
        nspec: tokens emitted speculatively and checked.
        max_chunk: most tokens that one round emitted.
        worst_argmax_gap: largest logit that plain decoding gives at any step, minus that of the emitted token; the
            worst over all steps. None under sampling, where tokens are not argmaxes, and where it was not measured.
        at: index of the token with the worst gap within its output; -1 if no gap is above 0; None as above.
        identical_to_baseline: None without a baseline.
        first_divergence: None where there is none; not looked for under a promise of the law.
        guarantee: what the verifier promises; a difference is a fault only under ``tokens``.
    """

    nspec: int
    max_chunk: int
    worst_argmax_gap: float | None
    at: int | None
    identical_to_baseline: bool | None
    first_divergence: Divergence | None
    guarantee: Guarantee = "tokens"

    @property
    def verdict(self) -> str:
        """In words, as in the table."""
        if self.guarantee == "law":
            return "exact in law"
        said = []
        split = self.first_divergence
        if split is not None:
            margin = "" if split.logit_margin is None else f", which prefers its own token by {split.logit_margin:.3g}"
            said.append(f"{split.prompt_id} leaves the baseline at position {split.position}{margin}")
        if self.worst_argmax_gap:
            said.append(f"token {self.at} of an output lies {self.worst_argmax_gap:.3g} below the argmax")
        if self.guarantee == "none":
            return "; ".join(["lossy", *said])
        if said:
            return "; ".join(said)
        return (
            "as baseline" if self.identical_to_baseline else "not checked" if self.at is None else "argmax throughout"
        )

    def to_json(self) -> dict[str, Any]:
        """The record's ``exactness`` object."""
        return asdict(self) | {"verdict": self.verdict}


def teacher_force(target: Target, prompt: Sequence[int], tokens: Sequence[int]) -> list[mx.array]:
    """Logits that plain decoding sees before each of some tokens: one pass a token, in a fresh cache.

    Args:
        target: reset, used and left at the end of the tokens.
        prompt: token ids.
        tokens: the output to follow, whether plain decoding would have chosen it or not.

    Returns:
        len(tokens) rows (V,) float32, row i about tokens[i].
    """
    target.reset()
    for _ in target.prefill(prompt[:-1]):
        pass
    rows = []
    for token in (prompt[-1], *tokens[:-1]):
        rows.append(target.forward([token]).logits[0].astype(mx.float32))
    return rows[: len(tokens)]


def check(
    *,
    prompt_id: str,
    prompt: Sequence[int],
    generation: Generation,
    baseline: Sequence[int] | None,
    target: Target | None,
    is_greedy: bool,
    guarantee: Guarantee = "tokens",
) -> Exactness:
    """Checks one output.

    Args:
        prompt_id: names the prompt in a divergence.
        prompt: its tokens.
        generation: the speculative output.
        baseline: plain decoding's tokens, or None.
        target: for teacher forcing; None leaves out the gap and the margin.
        is_greedy: whether tokens should be argmaxes.
        guarantee: what the output should keep.
    """
    tokens = generation.tokens
    split = None if baseline is None else _first_difference(baseline, tokens)
    # A sampled output that equals the baseline's leaves nothing for teacher forcing to tell.
    is_forced = target is not None and guarantee != "law" and (is_greedy or split is not None)
    rows = teacher_force(target, prompt, tokens) if is_forced else None
    gap, at = None, None
    if rows is not None and is_greedy:
        gaps = [(mx.max(row) - row[token]).item() for row, token in zip(rows, tokens, strict=True)]
        gap = max(gaps)
        at = gaps.index(gap) if gap > 0 else -1
    divergence = None
    if split is not None and guarantee != "law":
        margin = None
        if rows is not None and split < min(len(tokens), len(baseline)):
            margin = (rows[split][baseline[split]] - rows[split][tokens[split]]).item()
        divergence = Divergence(
            prompt_id=prompt_id,
            position=len(prompt) + split,
            round=_round_of(generation, split),
            logit_margin=margin,
        )
    return Exactness(
        guarantee=guarantee,
        nspec=len(tokens),
        max_chunk=max((len(item.tokens) for item in generation.rounds), default=0),
        worst_argmax_gap=gap,
        at=at,
        identical_to_baseline=None if baseline is None else split is None,
        first_divergence=divergence,
    )


def merge(checks: Sequence[Exactness]) -> Exactness:
    """Combines the figures of several outputs: the worst gap with its index, and the first divergence."""
    gaps = [item for item in checks if item.worst_argmax_gap is not None]
    worst = max(gaps, key=lambda item: item.worst_argmax_gap) if gaps else None
    compared = [item.identical_to_baseline for item in checks if item.identical_to_baseline is not None]
    return Exactness(
        guarantee=checks[0].guarantee if checks else "tokens",
        nspec=sum(item.nspec for item in checks),
        max_chunk=max((item.max_chunk for item in checks), default=0),
        worst_argmax_gap=None if worst is None else worst.worst_argmax_gap,
        at=None if worst is None else worst.at,
        identical_to_baseline=all(compared) if compared else None,
        first_divergence=next((item.first_divergence for item in checks if item.first_divergence), None),
    )


def _first_difference(left: Sequence[int], right: Sequence[int]) -> int | None:
    for index, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return index
    return None if len(left) == len(right) else min(len(left), len(right))


def _round_of(generation: Generation, index: int) -> int:
    """The round that emitted the token of an index; the last one for an index past the end."""
    seen = 0
    for item in (generation.prefill, *generation.rounds):
        seen += len(item.tokens)
        if index < seen:
            return item.index
    return (generation.prefill, *generation.rounds)[-1].index
