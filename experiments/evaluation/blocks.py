"""DSpark's blocks at every position of recorded sequences, many at once."""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
from typing_extensions import override

from experiments.evaluation.coupling import CoupledChain, RecordedBatch
from models.dspark import DSparkNetwork
from spec.drafters import NoneDrafter
from spec.rounds import Admits, Context, Proposal

BLOCKS = 512  # drafted together: their logits are 60 MB with a block of 5 and 6,144 tokens


@dataclass(frozen=True, kw_only=True)
class DraftedBlocks:
    """A drafter's blocks at A consecutive anchors of one sequence, each drafted after the true tokens up to it.

    Attributes:
        first: position of the first anchor.
        drafts: (A, G) int32, the argmax chain or a sampled one.
        confidence_logits: (A, G) float32, not calibrated.
        coupled: of a chain sampled against the recorded tokens, what `CoupledChain` computes: accepted drafts (A,)
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
    recorded: RecordedBatch | None = None,
) -> list[DraftedBlocks]:
    """Drafts at every anchor as `spec.DSparkDrafter` would there.

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
        DraftedBlocks(first=span.start, drafts=ours, confidence_logits=sure, coupled=tuple(outcome) or None)
        for span, ours, sure, *outcome in zip(anchors, *columns, strict=True)
    ]


def accepted_drafts(blocks: DraftedBlocks, tokens: np.ndarray, count: int | None = None) -> np.ndarray:
    """Accepted drafts at each anchor that is followed by a full block of recorded tokens.

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


class BlocksDrafter(NoneDrafter):
    """Plays blocks back, so that they go through the loop as any other drafter's."""

    def __init__(self, blocks: DraftedBlocks) -> None:
        self.blocks = blocks
        self.max_gamma: int | None = blocks.drafts.shape[1]

    @override
    def propose(self, context: Context, gamma: int, admits: Admits | None = None) -> Proposal:
        return Proposal(tokens=tuple(self.blocks.drafts[context.position - self.blocks.first, :gamma].tolist()))
