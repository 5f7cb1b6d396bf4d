"""DSpark's heads: the logit bias of the previous token, and the confidence in each drafted token."""

import mlx.core as mx
import mlx.nn as nn


class MarkovHead(nn.Module):
    """A logit bias that depends on the previous token, ``W2 W1[previous]`` of rank R (DSpark paper, section 3.1)."""

    def __init__(self, vocab_size: int, rank: int) -> None:
        super().__init__()
        self.markov_w1 = nn.Embedding(vocab_size, rank)
        self.markov_w2 = nn.Linear(rank, vocab_size, bias=False)

    def embed(self, previous: mx.array) -> mx.array:
        """Token ids (...) -> (..., R)."""
        return self.markov_w1(previous)

    def bias(self, embedded: mx.array) -> mx.array:
        """(..., R) -> logit bias (..., V) float32."""
        return self.markov_w2(embedded).astype(mx.float32)


class NoMarkovHead(nn.Module):
    """In place of a `MarkovHead` in drafters without one."""

    def embed(self, previous: mx.array) -> None:
        """No embedding."""
        return None

    def bias(self, embedded: None) -> float:
        """No bias."""
        return 0.0


class ConfidenceHead(nn.Module):
    """Logit of the probability that a token is accepted, given that those before it in the block are."""

    def __init__(self, hidden_size: int, rank: int) -> None:
        super().__init__()
        self.proj = nn.Linear(hidden_size + rank, 1, bias=False)

    def __call__(self, hidden: mx.array, embedded: mx.array | None) -> mx.array:
        """Hidden (..., H) and the previous token's Markov embedding (..., R) or None -> (...) float32."""
        joined = hidden.astype(mx.float32)
        if embedded is not None:
            joined = mx.concatenate([joined, embedded.astype(mx.float32)], axis=-1)
        return (joined @ self.proj.weight.astype(mx.float32).T)[..., 0]
