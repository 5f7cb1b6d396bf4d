"""DSpark's blocks at every position of recorded sequences, many at once."""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from experiments.evaluation.coupling import CoupledChain, Recorded
from models.dspark import DSparkNetwork
from spec.protocols import Admits, Proposal
from spec.sampling import RandomStream

BLOCKS = 512  # drafted together: their logits are 60 MB with a block of 5 and 6,144 tokens


@dataclass(frozen=True, kw_only=True)
class Blocks:
    """What a drafter proposes after each of A consecutive anchors, the true tokens up to the anchor given.

    Attributes:
        first: position of the first anchor.
        drafts: (A, G) int32, the argmax chain or a sampled one.
        confidence_logits: (A, G) float32, not calibrated.
        coupled: of a chain sampled against the recorded tokens, what `CoupledChain` says of it: drafts that stand (A,)
            int32 and chances (A, G) float32.
    """

    first: int
    drafts: np.ndarray
    confidence_logits: np.ndarray
    coupled: tuple[np.ndarray, np.ndarray] | None = None


def draft_everywhere(
    network: DSparkNetwork,
    tokens: mx.array,
    features: mx.array | None,
    anchors: Sequence[range],
    recorded: Recorded | None = None,
) -> list[Blocks]:
    """Drafts as `spec.DSparkDrafter` would at every anchor, had the loop come by there.

    Args:
        network: the drafter.
        tokens: (B, S) int32.
        features: (B, S, L*H) of the target at the network's tapped_layers; None where it has none.
        anchors: for each sequence the positions of its anchors.
        recorded: samples the drafts, coupled with the recorded tokens, of which a whole block must follow each anchor;
            None takes the argmax.

    Returns:
        One a sequence.
    """
    length = tokens.shape[1]
    flat_tokens = tokens.reshape(-1)
    flat_rows = [rows.reshape(-1, rows.shape[-1]) for rows in network.context_rows(features)]
    mx.eval(flat_rows)
    sequence = np.concatenate([np.full(len(span), row, dtype=np.int32) for row, span in enumerate(anchors)])
    position = np.concatenate([np.array(span, dtype=np.int32) for span in anchors])
    drafts, logits, coupled = [], [], []
    if recorded is not None:
        flat_logits, key = recorded.logits.reshape(-1, recorded.logits.shape[-1]), recorded.key
        ahead = mx.arange(network.block_size)
    for start in range(0, len(position), BLOCKS):
        at = position[start : start + BLOCKS]
        begin = sequence[start : start + BLOCKS] * length  # of each anchor's sequence in the flattened batch
        width = min(network.window, int(at.max()))
        behind = at[:, None] - width + np.arange(width, dtype=np.int32)
        index = mx.array(begin[:, None] + np.maximum(behind, 0))
        context = [rows[index] for rows in flat_rows]
        is_context = None if (behind >= 0).all() else mx.array(behind >= 0)
        anchor, chain = mx.array(begin + at), None
        if recorded is not None:
            key, ours = mx.random.split(key)
            block = anchor[:, None] + ahead
            chain = CoupledChain(flat_tokens[block + 1], flat_logits[block], recorded.temperature, ours)
        choose = None if chain is None else chain.choose
        drafted = network.draft(flat_tokens[anchor], mx.array(at), context, choose=choose, is_context=is_context)
        outcome = () if chain is None else (chain.accepted, chain.chances)
        mx.eval(drafted.tokens, drafted.confidence_logits, *outcome)  # a part at a time: bounds memory
        drafts.append(np.array(drafted.tokens))
        logits.append(np.array(drafted.confidence_logits))
        coupled.append([np.array(part) for part in outcome])
    ends = np.cumsum([len(span) for span in anchors])[:-1]
    columns = [np.split(np.concatenate(part), ends) for part in (drafts, logits, *zip(*coupled, strict=True))]
    return [
        Blocks(first=span.start, drafts=ours, confidence_logits=sure, coupled=tuple(outcome) or None)
        for span, ours, sure, *outcome in zip(anchors, *columns, strict=True)
    ]


def accepted_drafts(blocks: Blocks, tokens: np.ndarray, count: int | None = None) -> np.ndarray:
    """How many drafts stand at each anchor that the recorded sequence holds a whole block after.

    Args:
        blocks: of the sequence. tokens: (S,) the sequence.
        count: only the first so many anchors; None for all that have a whole block.

    Returns:
        (A,) int64 in 0..G.
    """
    gamma = blocks.drafts.shape[1]
    whole = len(tokens) - gamma - blocks.first
    count = max(0, min(whole, len(blocks.drafts)) if count is None else count)
    truth = np.lib.stride_tricks.sliding_window_view(tokens[blocks.first + 1 :], gamma)[:count] if count else tokens[:0]
    return np.cumprod(blocks.drafts[:count] == truth.reshape(-1, gamma), axis=1).sum(axis=1)


class BlocksDrafter:
    """Plays blocks back as a drafter of `spec.protocols`, so that they walk as any other drafter does."""

    tapped_layers: tuple[int, ...] = ()

    def __init__(self, blocks: Blocks) -> None:
        self.blocks = blocks
        self.max_gamma: int | None = blocks.drafts.shape[1]

    def reset(self, prompt_length: int, reference: Sequence[int] | None = None) -> None:
        """Has nothing to forget."""

    def observe(self, tokens: Sequence[int], features: mx.array | None) -> None:
        """Has drafted already."""

    def propose(
        self, anchor: int, position: int, gamma: int, draws: RandomStream, admits: Admits | None = None
    ) -> Proposal:
        """The beginning of the block at a position."""
        return Proposal(tokens=tuple(self.blocks.drafts[position - self.blocks.first, :gamma].tolist()))

    def snapshot(self) -> None:
        """Nothing changes."""

    def restore(self, snapshot: None) -> None:
        """Nothing changes."""
