"""The exact law of a program that draws: run it once for every way in which its draws can fall.

The program is the real one, a verifier's ``accept`` or a whole loop; only the `RandomStream` is special: it answers
each draw with an outcome of its choice and keeps the probability of the path. What is enumerated is thus not a second
implementation. That every draw is independent of the others is what keys are for, so a key met twice on one path
is an error: `RandomStream` would give both the same number.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import cache

import mlx.core as mx
import numpy as np

from spec import BlockPlan, NoneDrafter, Proposal, RandomStream, Sampling, TargetPass
from spec.sampling import DraftSampler

Law = dict[Hashable, float]


class KeyUsedTwiceError(Exception):
    """Two decisions of one path would have been made by the same random number."""


@dataclass
class Path:
    """The draws of one run: which outcome each had, and the product of their probabilities."""

    script: list[int]
    probability: float = 1.0
    dropped: frozenset[str] = frozenset()  # purposes whose draws may be dropped and made again
    branches: list[list[int]] = field(default_factory=list)  # outcomes that each draw could have had
    keys: set[tuple] = field(default_factory=set)

    def choose(self, probs: Sequence[float], key: tuple) -> int:
        if key in self.keys and key[1] not in self.dropped:
            raise KeyUsedTwiceError(f"position, purpose and round {key}")
        self.keys.add(key)
        outcomes = [outcome for outcome, prob in enumerate(probs) if prob > 0]
        if len(self.branches) == len(self.script):
            self.script.append(outcomes[0])
        chosen = self.script[len(self.branches)]
        self.branches.append(outcomes)
        self.probability *= probs[chosen]
        return chosen


@dataclass(frozen=True, kw_only=True)
class BranchingStream(RandomStream):
    """A stream that follow a path; `RandomStream.in_round` keeps it."""

    path: Path = field(default_factory=lambda: Path([]), compare=False)

    def accepts(self, probability: float, position: int) -> bool:
        super().accepts(probability, position)  # its own refusals hold here too
        return bool(self.path.choose([1 - probability, probability], (position, "accept", self.round_start)))

    def categorical(self, logprobs: mx.array, position: int, purpose) -> mx.array:
        probs = np.exp(np.array(logprobs, dtype=np.float64))
        probs /= probs.sum()
        return mx.array(self.path.choose(probs.tolist(), (position, purpose, self.round_start)), dtype=mx.uint32)

    def uniform(self, position: int, purpose) -> float:
        return 0.5  # only `RandomStream.accepts` asks, whose answer is not used

    def key(self, position: int, purpose) -> mx.array:
        raise AssertionError("a draw that cannot be enumerated")


def law_of(program: Callable[[RandomStream], Hashable], dropped: frozenset[str] = frozenset()) -> Law:
    """The probability of every result."""
    law: Law = {}
    script: list[int] | None = []
    while script is not None:
        path = Path(script, dropped=dropped)
        result = program(BranchingStream(path=path))
        law[result] = law.get(result, 0.0) + path.probability
        script = _next(path)
    return law


def _next(path: Path) -> list[int] | None:
    """The script of the path after this one, depth first."""
    for depth in range(len(path.script) - 1, -1, -1):
        later = [outcome for outcome in path.branches[depth] if outcome > path.script[depth]]
        if later:
            return [*path.script[:depth], later[0]]
    return None


def distance(one: Law, other: Law) -> float:
    """The largest difference of a probability."""
    return max(abs(one.get(key, 0.0) - other.get(key, 0.0)) for key in one.keys() | other.keys())


@dataclass(frozen=True)
class Tree:
    """Logits that depend on the whole text before them: a number from every prefix."""

    vocab_size: int
    name: int
    scale: float = 1.5

    def logits(self, prefix: Sequence[int]) -> mx.array:
        """(V,) float32."""
        return self.rows([prefix])[0]

    def rows(self, prefixes: Sequence[Sequence[int]]) -> mx.array:
        """(T, V) float32."""
        rows = [
            np.random.default_rng([self.name, self.vocab_size, *prefix]).normal(size=self.vocab_size)
            for prefix in prefixes
        ]
        return mx.array(self.scale * np.stack(rows), dtype=mx.float32)

    def judging(self, committed: Sequence[int], tokens: Sequence[int]) -> mx.array:
        """(G + 1, V): the rows of a verify pass."""
        return self.rows([(*committed, *tokens[:count]) for count in range(len(tokens) + 1)])


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
    """The law of texts of one length, where what a round left open is filled in by plain decoding."""
    whole: Law = {}
    rest: dict[tuple, Law] = {}
    for text, mass in law.items():
        rest.setdefault(text, target_law(tree, sampling, (*committed, *text), length - len(text)))
        for tail, share in rest[text].items():
            whole[(*text, *tail)] = whole.get((*text, *tail), 0.0) + mass * share
    return whole


def proposals(
    tree: Tree, sampler: Callable[[RandomStream, int], DraftSampler | None], committed: tuple[int, ...], gamma: int
) -> list[tuple[Proposal, float]]:
    """Every proposal of a drafter with its probability; without a sampler the one argmax proposal."""
    found: dict[tuple, tuple[Proposal, float]] = {}

    def program(draws: RandomStream) -> tuple[int, ...]:
        proposal = propose(tree, sampler(draws, len(committed) - 1), committed, gamma)
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
    verifier,
    target: Tree,
    drafted: list[tuple[Proposal, float]],
    committed: tuple[int, ...],
) -> Law:
    """What one round emits: the prefix that stands and the next token."""
    law: Law = {}
    for proposal, mass in drafted:
        logits = target.judging(committed, proposal.tokens)

        def program(draws: RandomStream, proposal=proposal, logits=logits) -> tuple[int, ...]:
            verdict = verifier.accept(proposal, logits, len(committed), draws, committed)
            return (*proposal.tokens[: verdict.accepted], verdict.next_token)

        for text, share in law_of(program).items():
            law[text] = law.get(text, 0.0) + mass * share
    return law


class TreeTarget:
    """A `Target` whose logits are a tree's; its cache is the text it was fed."""

    context, max_rollback = 10_000, 16

    def __init__(self, tree: Tree) -> None:
        self.tree, self.vocab_size = tree, tree.vocab_size
        self.text: list[int] = []

    @property
    def offset(self) -> int:
        return len(self.text)

    def reset(self) -> None:
        self.text = []

    def prefill(self, tokens: Sequence[int]) -> None:
        self.text += tokens

    def forward(self, tokens: Sequence[int]) -> TargetPass:
        first = len(self.text)
        self.text += tokens
        rows = self.tree.rows([self.text[: at + 1] for at in range(first, len(self.text))])
        return TargetPass(logits=rows, features=None)

    def verify(self, tokens: Sequence[int]) -> TargetPass:
        return self.forward(tokens)

    def trim(self, count: int) -> None:
        del self.text[len(self.text) - count :]

    def rewind(self, offset: int) -> None:
        del self.text[offset:]


class TreeDrafter(NoneDrafter):
    """Drafts from a tree: sampled with a temperature, argmax without."""

    def __init__(self, tree: Tree, sampling: Sampling | None) -> None:
        self.tree, self.sampling = tree, sampling
        self.text: list[int] = []

    def reset(self, prompt_length: int, reference: Sequence[int] | None = None) -> None:
        self.text = []

    def observe(self, tokens: Sequence[int], features: mx.array | None) -> None:
        self.text += tokens

    def propose(self, anchor: int, position: int, gamma: int, draws: RandomStream, admits=None) -> Proposal:
        sampler = None if self.sampling is None else DraftSampler(draws, position, self.sampling)
        return propose(self.tree, sampler, (*self.text, anchor), gamma)

    def snapshot(self) -> int:
        return len(self.text)

    def restore(self, snapshot: int) -> None:
        del self.text[snapshot:]


class NosyPolicy:
    """A block policy that looks at all it may: the next gamma depends on what was proposed and accepted before."""

    max_gamma = 2

    def __init__(self) -> None:
        self.last = 0

    def reset(self) -> None:
        self.last = 0

    def plan(self, history) -> BlockPlan:
        return BlockPlan(gamma=1 + self.last % 2)

    def admits(self, confidences: tuple[float, ...]) -> bool:
        return True

    def observe(self, finished) -> None:
        self.last = sum(finished.proposed) + finished.accepted

    def snapshot(self) -> int:
        return self.last

    def restore(self, snapshot: int) -> None:
        self.last = snapshot
