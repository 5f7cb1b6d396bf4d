"""The DSpark network: V4 blocks over injected context rows, a Markov head and a confidence head.

Source: DSpark paper (arXiv 2607.05147) section 3, and the ``mtp.*`` tensors of the DeepSeek-V4-Flash checkpoints.
Parameters are grouped as there: ``main_proj`` and ``main_norm`` in the first stage, norm and heads in the last.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import mlx.core as mx
import mlx.nn as nn

from models.deepseek_v4.block import Block
from models.deepseek_v4.hyper_connection import HyperHead
from models.deepseek_v4.model import Model
from models.dspark.attention import DSparkAttention
from models.dspark.config import DSparkConfig
from models.dspark.heads import ConfidenceHead, MarkovHead, NoMarkovHead


@dataclass(frozen=True, kw_only=True)
class BlockOutput:
    """Output of the backbone for a block, before the Markov head."""

    hidden: mx.array  # (B, G, H) collapsed streams, before the final norm
    normed: mx.array  # (B, G, H) after it
    logits: mx.array  # (B, G, V) float32, from the target's head


@dataclass(frozen=True, kw_only=True)
class DraftOutput:
    """A drafted block."""

    tokens: mx.array  # (B, G) int32
    confidence_logits: mx.array  # (B, G) float32, not calibrated
    logits: mx.array  # (B, G, V) float32, with the Markov bias

    @property
    def confidence(self) -> mx.array:
        """(B, G) float32 in (0, 1): each token's acceptance probability given that those before it are accepted."""
        return mx.sigmoid(self.confidence_logits)


class DSparkNetwork(nn.Module):
    """DSpark for a DeepSeek-V4 target, whose embedding and head it shares.

    Attributes:
        block_size: gamma, tokens of a block.
        window: context rows that a block sees.
        tapped_layers: layers of the target whose outputs are its features; empty for none.
    """

    def __init__(self, config: DSparkConfig, target: Model) -> None:
        super().__init__()
        block, rank = config.block, config.markov_rank
        self.config = config
        self.block_size = config.block_size
        self.window = block.sliding_window
        self.tapped_layers = config.target_layer_ids
        self.num_stages = config.stages
        # The checkpoints' name for drafters of any kind.
        self.mtp = [Block(block, DSparkAttention(block)) for _ in range(config.stages)]
        first, last = self.mtp[0], self.mtp[-1]
        if self.tapped_layers:
            first.main_proj = nn.Linear(len(self.tapped_layers) * block.hidden_size, block.hidden_size, bias=False)
            first.main_norm = nn.RMSNorm(block.hidden_size, eps=block.rms_norm_eps)
        last.norm = nn.RMSNorm(block.hidden_size, eps=block.rms_norm_eps)
        last.hc_head = HyperHead(block)
        last.markov_head = MarkovHead(block.vocab_size, rank) if rank > 0 else NoMarkovHead()
        last.confidence_head = ConfidenceHead(block.hidden_size, rank)
        # As functions, so that the target's modules are not this network's: freezing, quantizing or counting the
        # parameters of one does not touch the other.
        self._embed = lambda tokens: target.embed(tokens)
        self._head = lambda normed: target.head(normed)

    @property
    def markov_head(self) -> MarkovHead | NoMarkovHead:
        """The Markov head."""
        return self.mtp[-1].markov_head

    @property
    def confidence_temperatures(self) -> Mapping[str, tuple[float, ...]]:
        """See `DSparkConfig`."""
        return self.config.confidence_temperatures

    def context_rows(self, features: mx.array | None, offset: int = 0) -> list[mx.array]:
        """The KV rows (B, S, d) of committed tokens for each stage; an empty list without tapped layers.

        Args:
            features: (B, S, L * H) from the target; None without tapped layers.
            offset: position of the first.
        """
        if not self.tapped_layers:
            return []
        first = self.mtp[0]
        fused = first.main_norm(first.main_proj(features.astype(first.main_norm.weight.dtype)))
        return [stage.attn.rows(fused, offset) for stage in self.mtp]

    def block(
        self,
        anchor: mx.array,
        position: int | mx.array,
        context: list[mx.array],
        is_context: mx.array | None = None,
    ) -> BlockOutput:
        """Runs the backbone on the anchor and noise tokens after it; row k predicts the token k + 1 after the anchor.

        Args:
            anchor: (B,) int token ids.
            position: of the anchor; (B,) int32 for one per block.
            context: for each stage, rows (B, C, d) of the positions before the anchor; empty for none.
            is_context: (B, C) bool, false for padding; None if there is none.
        """
        batch = anchor.shape[0]
        noise = mx.full((batch, self.block_size - 1), self.config.noise_token_id, dtype=mx.int32)
        tokens = mx.concatenate([anchor[:, None].astype(mx.int32), noise], axis=1)
        x = self._embed(tokens)
        streams = mx.broadcast_to(x[:, :, None], (*x.shape[:2], self.config.block.hc_mult, x.shape[-1]))
        if not context:
            context, is_context = [None] * self.num_stages, None
        for stage, rows in zip(self.mtp, context, strict=True):
            streams = stage(streams, tokens, position, rows, is_context)
        last = self.mtp[-1]
        hidden = last.hc_head(streams)
        normed = last.norm(hidden)
        return BlockOutput(hidden=hidden, normed=normed, logits=self._head(normed).astype(mx.float32))

    def confidence_logits(self, output: BlockOutput, embedded: mx.array | None) -> mx.array:
        """(B, G) float32, from Markov embeddings (B, G, R) of the token before each row (None without that head)."""
        hidden = output.hidden if self.config.confidence_input == "pre_norm" else output.normed
        return self.mtp[-1].confidence_head(hidden, embedded)

    def draft(
        self,
        anchor: mx.array,
        position: int | mx.array,
        context: list[mx.array],
        gamma: int | None = None,
        choose: Callable[[mx.array], mx.array] | None = None,
        is_context: mx.array | None = None,
    ) -> DraftOutput:
        """Drafts tokens in order: each from its row's logits plus the Markov bias of the token before it.

        Args:
            anchor: as ``position``, ``context`` and ``is_context``, see `block`.
            gamma: tokens wanted, at most ``block_size``; None for all. The backbone runs its whole block in any case,
                as it was trained to.
            choose: from a row's logits (B, V) float32 to its token (B,); None for the argmax.
        """
        gamma = self.block_size if gamma is None else gamma
        output = self.block(anchor, position, context, is_context)
        chain, logits = [anchor.astype(mx.int32)], []
        for row in range(gamma):
            bias = self.markov_head.bias(self.markov_head.embed(chain[-1]))
            logits.append(output.logits[:, row] + bias)
            chosen = mx.argmax(logits[-1], axis=-1) if choose is None else choose(logits[-1])
            chain.append(chosen.astype(mx.int32))
        tokens = mx.stack(chain, axis=1)
        cut = BlockOutput(**{name: array[:, :gamma] for name, array in vars(output).items()})
        return DraftOutput(
            tokens=tokens[:, 1:],
            confidence_logits=self.confidence_logits(cut, self.markov_head.embed(tokens[:, :-1])),
            logits=mx.stack(logits, axis=1),
        )
