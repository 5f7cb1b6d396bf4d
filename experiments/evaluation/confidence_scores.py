"""A drafter's confidences at every recorded position, and whether the drafts were accepted."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
from rich.console import Console
from rich.progress import track

from experiments.evaluation.blocks import accepted_drafts, draft_everywhere
from experiments.evaluation.continuations import Continuation, batches
from experiments.evaluation.coupling import RecordedBatch
from experiments.evaluation.drafters import Features
from spec.errors import UserError


@dataclass(frozen=True, kw_only=True)
class ConfidenceScores:
    """Confidences and outcomes over many anchors.

    Attributes:
        logits: (N, G) float32, of the confidences.
        accepted: (N,) accepted drafts.
        chances: (N, G) in 0..1, probability that draft k is accepted where those before it are, elsewhere undefined:
            the outcome 0 or 1 for argmax drafts, sum min(p, q) for sampled ones.
        sequence: (N,) index of the sequence that the anchor is in.
    """

    logits: np.ndarray
    accepted: np.ndarray
    chances: np.ndarray
    sequence: np.ndarray

    @property
    def is_reached(self) -> np.ndarray:
        """(N, G) bool: the drafts before k were accepted."""
        return self.accepted[:, None] >= np.arange(self.logits.shape[1])

    @property
    def survived(self) -> np.ndarray:
        """(N, G) in 0..1: probability that drafts 1..k are accepted, given the outcomes of the drafts before k.

        Its mean over anchors that were selected by the drafts before k, such as a bin of confidences, estimates that of
        the outcome "the first k were accepted" with less noise.
        """
        return np.where(self.is_reached, self.chances, 0.0)

    def of(self, sequences: Sequence[int]) -> "ConfidenceScores":
        """The anchors of some sequences."""
        chosen = np.isin(self.sequence, sequences)
        return ConfidenceScores(
            logits=self.logits[chosen],
            accepted=self.accepted[chosen],
            chances=self.chances[chosen],
            sequence=self.sequence[chosen],
        )


def score(
    network: Any,
    target: Any,
    continuations: Sequence[Continuation],
    console: Console,
    sampled: float | None = None,
    seed: int = 0,
) -> ConfidenceScores:
    """Drafts at every anchor that is followed by a full block of recorded tokens.

    Args:
        network: DSpark's. target: its target. continuations: recordings. console: gets the progress.
        sampled: temperature of drafts that are sampled and verified by rejection sampling (`CoupledChain`), which must
            be that of the recordings; None for argmax drafts, accepted where they equal the recorded tokens.
        seed: of sampled drafts.

    Raises:
        UserError: no recording is long enough.
    """
    parts: list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]] = []
    key = mx.random.key(seed)
    for batch in track(list(batches(continuations)), description="sequences", console=console, transient=True):
        spans = [range(one.start, max(one.start, len(one.tokens) - network.block_size)) for one in batch.continuations]
        if not any(spans):
            continue
        features, recorded = None, None
        if sampled is None:
            features = Features(target, batch.tokens).at(network.tapped_layers)
        else:
            key, ours = mx.random.split(key)
            found = target(batch.tokens, tapped_layers=network.tapped_layers)
            logits, features = found if network.tapped_layers else (found, None)
            recorded = RecordedBatch(logits=logits, temperature=sampled, key=ours)
        drafted = draft_everywhere(network, batch.tokens, features, spans, recorded)
        for number, one, blocks in zip(batch.numbers, batch.continuations, drafted, strict=True):
            if blocks.coupled is None:
                accepted = accepted_drafts(blocks, one.tokens)
                chances = (accepted[:, None] > np.arange(network.block_size)).astype(np.float32)
            else:
                accepted, chances = blocks.coupled
            parts.append((blocks.confidence_logits, accepted, chances, np.full(len(accepted), number)))
    if not parts:
        raise UserError(f"no recording has {network.block_size + 1} tokens of the target's own: make longer ones")
    logits, accepted, chances, sequence = (np.concatenate(part) for part in zip(*parts, strict=True))
    return ConfidenceScores(logits=logits, accepted=accepted, chances=chances, sequence=sequence)
