"""Sampled drafts coupled with recorded tokens: the law of a round of rejection sampling, by enumeration."""

from itertools import product

import mlx.core as mx
import numpy as np
import pytest

from experiments.evaluation.coupling import CoupledChain
from spec.verifiers.rejection import acceptance

VOCABULARY, GAMMA, COUNT = 3, 3, 100_000


def random_tree(seed: int) -> np.ndarray:
    """Logits (V, V, V) of the next token after the two before it (0 where there are fewer)."""
    return np.random.default_rng(seed).normal(0, 1.2, (VOCABULARY,) * 3).astype(np.float32)


def log_softmax(logits: np.ndarray, temperature: float) -> np.ndarray:
    scaled = logits / temperature
    return scaled - np.log(np.exp(scaled).sum(axis=-1, keepdims=True))


def rows(tree: np.ndarray, tokens: tuple[int, ...]) -> np.ndarray:
    """(G, V) of each of the tokens."""
    padded = (0, 0, *tokens)
    return np.stack([tree[padded[k], padded[k + 1]] for k in range(len(tokens))])


def law(target: np.ndarray, draft: np.ndarray) -> dict[tuple[tuple[int, ...], int], float]:
    """Probability of each block and number of drafts that stand under the verifier's own ratios."""
    found = {}
    for block in product(range(VOCABULARY), repeat=GAMMA):
        p, q = rows(target, block), rows(draft, block)
        stands = acceptance(mx.array(p), mx.array(q), block)
        probability = float(np.exp(sum(q[k, token] for k, token in enumerate(block))))
        for accepted in range(GAMMA + 1):
            falls = 1 - stands[accepted] if accepted < GAMMA else 1.0
            found[block, accepted] = probability * float(np.prod(stands[:accepted])) * falls
    return found


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_drafts_and_what_stands_have_the_law_of_rejection_sampling(temperature: float) -> None:
    trees = [random_tree(seed) for seed in (1, 2)]
    target, draft = (log_softmax(tree, temperature) for tree in trees)
    generator = np.random.default_rng(0)
    recorded, at = np.zeros((COUNT, GAMMA + 2), dtype=np.int32), np.zeros((COUNT, GAMMA, VOCABULARY), dtype=np.float32)
    for k in range(GAMMA):
        before = recorded[:, k], recorded[:, k + 1]
        at[:, k] = trees[0][before]
        noise = generator.gumbel(size=(COUNT, VOCABULARY))
        recorded[:, k + 2] = np.argmax(target[before] + noise, axis=1)
    truth = recorded[:, 2:]
    chain = CoupledChain(mx.array(truth), mx.array(at), temperature, mx.random.key(0))
    tree = mx.array(trees[1])
    chosen = [mx.zeros(COUNT, dtype=mx.int32)] * 2
    for _ in range(GAMMA):
        chosen.append(chain.choose(tree[chosen[-2], chosen[-1]]))
    drafts, accepted = np.array(mx.stack(chosen[2:], axis=1)), np.array(chain.accepted)
    chances = np.array(chain.chances)

    wanted = law(target, draft)
    assert sum(wanted.values()) == pytest.approx(1, abs=1e-5)
    for (block, count), probability in wanted.items():
        share = ((drafts == block).all(axis=1) & (accepted == count)).mean()
        assert abs(share - probability) < 4.5 * np.sqrt(probability / COUNT) + 1e-5, (block, count)
    assert (drafts == truth)[np.arange(GAMMA) < accepted[:, None]].all()
    p, q = (np.stack([rows(tree, tuple(row)) for row in drafts[:500]]) for tree in (target, draft))
    is_reached = accepted[:500, None] >= np.arange(GAMMA)
    assert chances[:500][is_reached] == pytest.approx(np.minimum(np.exp(p), np.exp(q)).sum(-1)[is_reached], abs=1e-5)

    # The mean survival, three ways: the outcome, its chance, and the overlaps along the recorded tokens.
    p, q = (np.stack([rows(tree, block) for block in product(range(VOCABULARY), repeat=GAMMA)]) for tree in trees)
    p, q = log_softmax(p, temperature), log_softmax(q, temperature)
    index = np.array(list(product(range(VOCABULARY), repeat=GAMMA)))[..., None]
    overlap = np.minimum(0, np.take_along_axis(q - p, index, axis=2)[..., 0])
    weights = np.exp(np.take_along_axis(p, index, axis=2)[..., 0].sum(axis=1))
    for k in range(GAMMA):
        survival = sum(value for (_, count), value in wanted.items() if count > k)
        outcome, chance = accepted > k, np.where(accepted >= k, chances[:, k], 0)
        assert outcome.mean() == pytest.approx(survival, abs=0.007)
        assert chance.mean() == pytest.approx(survival, abs=0.007)
        assert chance.std() < outcome.std()
        assert (weights * np.exp(overlap[:, : k + 1].sum(axis=1))).sum() == pytest.approx(survival, abs=1e-5)


def test_a_drafter_that_is_the_target_always_stands() -> None:
    logits = mx.random.normal((50, 2, 7), key=mx.random.key(1))
    truth = mx.random.categorical(logits, key=mx.random.key(2)).astype(mx.int32)
    chain = CoupledChain(truth, logits, 1.0, mx.random.key(3))
    drafts = mx.stack([chain.choose(logits[:, k]) for k in range(2)], axis=1)
    assert mx.array_equal(drafts, truth)
    assert (chain.accepted == 2).all()
    assert mx.allclose(chain.chances, mx.ones((50, 2)), atol=1e-5)
