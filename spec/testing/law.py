"""The exact law of a program that draws random numbers, by running it once for every outcome of its draws.

The program is the real one, a verifier's ``accept`` or a whole loop; only the `RandomStream` is special: it answers
each draw with an outcome of its choice and keeps the probability of the path. What is enumerated is thus not a second
implementation. That every draw is independent of the others is what keys are for, so a key met twice on one path is an
error: `RandomStream` would give both the same number.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import cache

import mlx.core as mx
import numpy as np
from typing_extensions import override

from spec.drafters.none import NoneDrafter
from spec.protocols import Verifier
from spec.randomness import Purpose, RandomStream
from spec.rounds import Admits, Context, Proposal
from spec.sampling import DraftSampler, Sampling
from spec.targets.recorded import RecordedTarget

Law = dict[Hashable, float]
"""Probability by result."""

Sampler = Callable[[RandomStream, int], DraftSampler | None]
"""Makes what draws a proposal, from a stream and the anchor's position; None takes argmaxes."""


class KeyUsedTwiceError(Exception):
    """Two decisions of one path would have been made by the same random number."""


@dataclass
class DrawPath:
    """The draws of one run: which outcome each had, and the product of their probabilities.

    Attributes:
        script: outcomes to take; grows as draws are made.
        probability: of the path so far.
        branches: outcomes that each draw could have had.
        keys: of the draws that were made.
    """

    script: list[int]
    probability: float = 1.0
    branches: list[list[int]] = field(default_factory=list)
    keys: set[tuple] = field(default_factory=set)

    def choose(self, probs: Sequence[float], key: tuple) -> int:
        """The outcome of one draw.

        Raises:
            KeyUsedTwiceError: a draw with this key was made before.
        """
        if key in self.keys:
            raise KeyUsedTwiceError(f"position, purpose and round {key}")
        self.keys.add(key)
        outcomes = [outcome for outcome, prob in enumerate(probs) if prob > 0]
        if len(self.branches) == len(self.script):
            self.script.append(outcomes[0])
        chosen = self.script[len(self.branches)]
        self.branches.append(outcomes)
        self.probability *= probs[chosen]
        return chosen

    def next_script(self) -> list[int] | None:
        """The script of the path after this one, depth first; None after the last."""
        for depth in range(len(self.script) - 1, -1, -1):
            later = [outcome for outcome in self.branches[depth] if outcome > self.script[depth]]
            if later:
                return [*self.script[:depth], later[0]]
        return None


@dataclass(frozen=True, kw_only=True)
class BranchingStream(RandomStream):
    """A stream that follows a path; `RandomStream.in_round` keeps it."""

    path: DrawPath = field(default_factory=lambda: DrawPath([]), compare=False)

    @override
    def accepts(self, probability: float, position: int) -> bool:
        super().accepts(probability, position)  # its own refusals hold here too
        return bool(self.path.choose([1 - probability, probability], (position, "accept", self.round_start)))

    @override
    def categorical(self, logprobs: mx.array, position: int, purpose: Purpose) -> mx.array:
        probs = np.exp(np.array(logprobs, dtype=np.float64))
        probs /= probs.sum()
        return mx.array(self.path.choose(probs.tolist(), (position, purpose, self.round_start)), dtype=mx.uint32)

    @override
    def uniform(self, position: int, purpose: Purpose) -> float:
        return 0.5  # only `RandomStream.accepts` asks, whose answer is not used

    @override
    def key(self, position: int, purpose: Purpose) -> mx.array:
        raise AssertionError("a draw that cannot be enumerated: use accepts or categorical")


def law_of(program: Callable[[RandomStream], Hashable]) -> Law:
    """The probability of every result of a program that draws from the stream it is given."""
    law: Law = {}
    script: list[int] | None = []
    while script is not None:
        path = DrawPath(script)
        result = program(BranchingStream(path=path))
        law[result] = law.get(result, 0.0) + path.probability
        script = path.next_script()
    return law


def distance(one: Law, other: Law) -> float:
    """The largest difference of a probability."""
    return max(abs(one.get(key, 0.0) - other.get(key, 0.0)) for key in one.keys() | other.keys())


@dataclass(frozen=True)
class Tree:
    """A language model on a small vocabulary: logits that depend on the whole text before them.

    Attributes:
        vocab_size: V.
        name: another one is another model.
        scale: of the logits.
    """

    vocab_size: int
    name: int
    scale: float = 1.5

    def logits(self, prefix: Sequence[int]) -> mx.array:
        """(V,) float32 after one text."""
        return self.rows([prefix])[0]

    def rows(self, prefixes: Sequence[Sequence[int]]) -> mx.array:
        """(T, V) float32 after several."""
        rows = [
            np.random.default_rng([self.name, self.vocab_size, *prefix]).normal(size=self.vocab_size)
            for prefix in prefixes
        ]
        return mx.array(self.scale * np.stack(rows), dtype=mx.float32)

    def judging(self, committed: Sequence[int], tokens: Sequence[int]) -> mx.array:
        """(G + 1, V): the rows of a verify pass."""
        return self.rows([(*committed, *tokens[:count]) for count in range(len(tokens) + 1)])

    def target(self) -> RecordedTarget:
        """The model as a target."""

        def predict(text: Sequence[int], count: int) -> mx.array:
            return self.rows([text[: at + 1] for at in range(len(text) - count, len(text))])

        return RecordedTarget(predict, self.vocab_size)


def target_law(tree: Tree, sampling: Sampling, committed: tuple[int, ...], length: int) -> Law:
    """What plain decoding emits, a token at a time, in float64."""
    law: Law = {(): 1.0}
    for _ in range(length):
        law = {
            (*text, token): mass * prob
            for text, mass in law.items()
            for token, prob in _next_token(tree, sampling, (*committed, *text))
        }
    return law


@cache
def _next_token(tree: Tree, sampling: Sampling, context: tuple[int, ...]) -> list[tuple[int, float]]:
    probs = np.exp(np.array(sampling.logprobs(tree.rows([context]), context)[0], dtype=np.float64))
    return [(int(token), float(probs[token] / probs.sum())) for token in np.flatnonzero(probs)]


def completed(law: Law, tree: Tree, sampling: Sampling, committed: tuple[int, ...], length: int) -> Law:
    """Extends the texts of a law to one length by plain decoding."""
    whole: Law = {}
    rest: dict[tuple, Law] = {}
    for text, mass in law.items():
        rest.setdefault(text, target_law(tree, sampling, (*committed, *text), length - len(text)))
        for tail, share in rest[text].items():
            whole[(*text, *tail)] = whole.get((*text, *tail), 0.0) + mass * share
    return whole


def proposals(tree: Tree, sampler: Sampler, committed: tuple[int, ...], gamma: int) -> list[tuple[Proposal, float]]:
    """Every proposal of a drafter with its probability; without a sampler the one argmax proposal."""
    found: dict[tuple, tuple[Proposal, float]] = {}

    def program(random: RandomStream) -> tuple[int, ...]:
        proposal = propose(tree, sampler(random, len(committed) - 1), committed, gamma)
        found[proposal.tokens] = (proposal, 0.0)
        return proposal.tokens

    for tokens, mass in law_of(program).items():
        found[tokens] = (found[tokens][0], mass)
    return list(found.values())


def propose(tree: Tree, sampler: DraftSampler | None, committed: Sequence[int], gamma: int) -> Proposal:
    """A chain of drafts: sampled, or argmaxes."""
    tokens: list[int] = []
    for _ in range(gamma):
        logits = tree.logits((*committed, *tokens))
        tokens.append(int(mx.argmax(logits) if sampler is None else sampler.draw(logits)))
    return Proposal(tokens=tuple(tokens)) if sampler is None else Proposal.sampled(sampler)


def round_law(
    verifier: Verifier, target: Tree, drafted: Sequence[tuple[Proposal, float]], committed: tuple[int, ...]
) -> Law:
    """What one round emits: the accepted prefix and the next token.

    Args:
        verifier: the real one.
        target: gives the rows.
        drafted: every proposal with its probability, see `proposals`.
        committed: the text before, the anchor included.
    """
    law: Law = {}
    for proposal, mass in drafted:
        logits = target.judging(committed, proposal.tokens)

        def program(random: RandomStream, proposal: Proposal = proposal, logits: mx.array = logits) -> tuple[int, ...]:
            verdict = verifier.accept(proposal, logits, Context(committed, random))
            return (*proposal.tokens[: verdict.accepted], verdict.next_token)

        for text, share in law_of(program).items():
            law[text] = law.get(text, 0.0) + mass * share
    return law


class TreeDrafter(NoneDrafter):
    """Drafts from a tree: sampled with a temperature, argmax without."""

    def __init__(self, tree: Tree, sampling: Sampling | None) -> None:
        self.tree, self.sampling = tree, sampling

    @override
    def propose(self, context: Context, gamma: int, admits: Admits | None = None) -> Proposal:
        sampler = None
        if self.sampling is not None:
            sampler = DraftSampler(context.random, context.position, self.sampling)
        return propose(self.tree, sampler, context.tokens, gamma)
