"""The page that everything else generalizes is right, and the real loop emits its very tokens."""

from collections import Counter
from functools import cache
from random import Random

import mlx.core as mx
import numpy as np
import pytest

from spec import FixedPolicy, FoldedLoop, RandomStream, RejectionVerifier, Request, Sampling, collect
from spec.reference import generate, speculative_round
from spec.testing.law import Tree, TreeDrafter, target_law

SAMPLING = Sampling(temperature=1.0)
PROMPT = (1, 0, 2)


def distribution(tree: Tree):
    return lambda text: np.exp(np.array(SAMPLING.logprobs(tree.logits(text)), dtype=np.float64)).tolist()


def cached(function):
    known = cache(lambda text: function(list(text)))
    return lambda text: known(tuple(text))


P, Q = Tree(4, 1), Tree(4, 2)


def test_its_law_is_the_targets() -> None:
    """Chi-square of the first two tokens of 3,000 runs: 15 degrees of freedom, the 99.9th percentile is 37.70."""
    law = target_law(P, SAMPLING, PROMPT, 2)
    p, q = (cached(distribution(tree)) for tree in (P, Q))
    counts = Counter(tuple(generate(p, q, PROMPT, 2, 1, Random(seed))) for seed in range(3000))
    assert sum((counts[text] - 3000 * mass) ** 2 / (3000 * mass) for text, mass in law.items()) < 37.70


def test_equal_distributions_accept_everything() -> None:
    for seed in range(20):
        assert len(speculative_round(distribution(P), distribution(P), PROMPT, 3, Random(seed))) == 4


class KeyedRandom(Random):
    """Answers the reference's calls, in their order, with the numbers that the parts draw by position."""

    def __init__(self, stream: RandomStream, position: int, gamma: int) -> None:
        super().__init__()
        self.stream, self.position, self.gamma = stream, position, gamma
        self.drafted = self.tested = 0
        self.was_rejected = False

    def choices(self, population, weights):
        with np.errstate(divide="ignore"):
            logs = mx.array(np.log(np.array(weights)), dtype=mx.float32)
        if self.drafted < self.gamma:
            self.drafted += 1
            stream, position, purpose = self.stream.in_round(self.position + 1), self.position + self.drafted, "draft"
        elif self.was_rejected:
            stream, position, purpose = self.stream, self.position + self.tested, "residual"
        else:
            stream, position, purpose = self.stream, self.position + 1 + self.gamma, "bonus"
        return [int(stream.categorical(logs, position, purpose))]

    def random(self) -> float:
        self.tested += 1
        return UniformDraw(self.stream.uniform(self.position + self.tested, "accept"), self)


class UniformDraw(float):
    """A uniform number that tells its generator whether the test it was drawn for failed."""

    def __new__(cls, value: float, owner: KeyedRandom) -> "UniformDraw":
        made = super().__new__(cls, value)
        made.owner = owner
        return made

    def __ge__(self, other: float) -> bool:
        self.owner.was_rejected = float(self) >= other
        return self.owner.was_rejected


@pytest.mark.parametrize("seed", range(12))
def test_the_loop_emits_its_tokens(seed: int) -> None:
    """With the same numbers for the same decisions, round by round: the reference is an oracle for the parts."""
    gamma, stream = 1 + seed % 4, RandomStream(seed=seed)
    loop = FoldedLoop(
        P.target(),
        TreeDrafter(Q, SAMPLING),
        verifier=RejectionVerifier(sampling=SAMPLING),
        block=FixedPolicy(gamma=gamma),
    )
    done = collect(loop.rounds(Request(prompt=PROMPT, max_tokens=60, random=stream)))
    text = [*PROMPT, *done.prefill.tokens]
    accepted = 0
    for item in done.rounds:
        if len(item.proposed) == gamma:  # the budget shortens the last blocks
            random = KeyedRandom(stream, len(text) - 1, gamma)
            assert speculative_round(distribution(P), distribution(Q), text, gamma, random) == list(item.tokens)
            accepted += item.accepted
        text += item.tokens
    assert len(text) == len(PROMPT) + 60
    assert accepted > 5
