"""The DSpark network: three V4 blocks over injected context rows, a Markov head and a confidence head.

Source: DSpark paper (arXiv 2607.05147) section 3; DeepSeek-V4-Flash's checkpoint layout (`mtp.*` tensors). Parameters
are grouped as the checkpoint stores them: ``main_proj``/``main_norm`` in the first stage, norm and heads in the last.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import mlx.core as mx
import mlx.nn as nn

from models.deepseek_v4.hyper_connection import HyperHead
from models.deepseek_v4.model import Model
from models.deepseek_v4.probe import Probe
from models.dspark.config import DSparkConfig
from models.dspark.heads import ConfidenceHead, MarkovHead, NoMarkovHead
from models.dspark.stage import DSparkStage


@dataclass(frozen=True, kw_only=True)
class BlockOutput:
    """What a block's backbone gives, before the Markov term.

    Attributes:
        hidden: (B, G, H) collapsed streams before the last norm.
        normed: (B, G, H) after it.
        logits: (B, G, V) float32 through the target's head.
    """

    hidden: mx.array
    normed: mx.array
    logits: mx.array


@dataclass(frozen=True, kw_only=True)
class DraftOutput:
    """A drafted block.

    Attributes:
        tokens: (B, G) int32.
        confidence_logits: (B, G) float32, of the confidences before any calibration.
        logits: (B, G, V) float32 with the Markov term.
    """

    tokens: mx.array
    confidence_logits: mx.array
    logits: mx.array

    @property
    def confidence(self) -> mx.array:
        """(B, G) float32 in (0, 1), each given that the earlier tokens stand; not calibrated."""
        return mx.sigmoid(self.confidence_logits)


class FirstStage(DSparkStage):
    """The stage that also fuses the tapped features."""

    def __init__(self, config: DSparkConfig, number: int) -> None:
        super().__init__(config.block, number)
        hidden = config.block.hidden_size
        self.main_proj = nn.Linear(len(config.target_layer_ids) * hidden, hidden, bias=False)
        self.main_norm = nn.RMSNorm(hidden, eps=config.block.rms_norm_eps)


class DSparkNetwork(nn.Module):
    """DSpark for a DeepSeek-V4 target, whose embedding and head it shares.

    Attributes:
        config: sizes.
        block_size: gamma. window: context rows a block sees. tapped_layers: layers of the target it reads, () for none.
    """

    def __init__(self, config: DSparkConfig, target: Model) -> None:
        super().__init__()
        block = config.block
        self.config = config
        self.block_size = config.block_size
        self.window = block.sliding_window
        self.tapped_layers = config.target_layer_ids
        self.num_stages = config.stages
        self.mtp = [  # the name under which checkpoints keep a drafter
            FirstStage(config, number) if number == 0 and self.tapped_layers else DSparkStage(block, number)
            for number in range(config.stages)
        ]
        last = self.mtp[-1]
        last.norm = nn.RMSNorm(block.hidden_size, eps=block.rms_norm_eps)
        last.hc_head = HyperHead(block.hc_mult, block.hidden_size, block.hc_eps, block.rms_norm_eps)
        has_markov = config.markov_rank > 0
        last.markov_head = MarkovHead(block.vocab_size, config.markov_rank) if has_markov else NoMarkovHead()
        last.confidence_head = ConfidenceHead(block.hidden_size, config.markov_rank)
        # Behind functions: what is shared with the target is no child of this network, so that freezing, quantizing or
        # counting the one does not reach the other.
        self._embed = lambda tokens: target.embed(tokens)
        self._head = lambda normed: target.head(normed)

    @property
    def markov_head(self) -> MarkovHead | NoMarkovHead:
        """The last stage's Markov head."""
        return self.mtp[-1].markov_head

    @property
    def confidence_temperatures(self) -> Mapping[str, tuple[float, ...]]:
        """Fitted divisors of the confidence logits by what they were fitted for; empty if they never were."""
        return self.config.confidence_temperatures

    def context_rows(self, features: mx.array | None, offset: int = 0) -> list[mx.array]:
        """KV rows that each stage attends to for committed tokens.

        Args:
            features: (B, S, L * H) the target's tapped outputs at positions ``offset ..``; None without tapped layers.
            offset: position of the first.

        Returns:
            One (B, S, d) array a stage, normed and roped; an empty list without tapped layers.
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
        probe: Probe | None = None,
    ) -> BlockOutput:
        """Runs the backbone over one block: the anchor, then noise tokens; row k predicts the token k + 1 after it.

        Args:
            anchor: (B,) int token ids. position: of the anchor, or (B,) int32.
            context: rows (B, C, d) a stage of the positions before it; empty for none.
            is_context: (B, C) bool, None if all exist.
        """
        batch = anchor.shape[0]
        noise = mx.full((batch, self.block_size - 1), self.config.noise_token_id, dtype=mx.int32)
        tokens = mx.concatenate([anchor[:, None].astype(mx.int32), noise], axis=1)
        x = self._embed(tokens)
        streams = mx.broadcast_to(x[:, :, None], (*x.shape[:2], self.config.block.hc_mult, x.shape[-1]))
        if not context:
            context, is_context = [None] * self.num_stages, None
        for stage, rows in zip(self.mtp, context, strict=True):
            streams = stage(streams, tokens, position, rows, is_context, probe)
        last = self.mtp[-1]
        hidden = last.hc_head(streams)
        normed = last.norm(hidden)
        return BlockOutput(hidden=hidden, normed=normed, logits=self._head(normed).astype(mx.float32))

    def confidence_logits(self, output: BlockOutput, embedded: mx.array | None) -> mx.array:
        """(B, G) float32, from a block and the Markov embeddings (B, G, R), if any, of the tokens before each row."""
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
        """Proposes a chain of tokens: each row's logits plus the Markov bias of the token before it.

        The backbone always runs its whole block, which is what it was trained on; ``gamma`` cuts the result.

        Args:
            anchor: (B,) int. position: of the anchor, or (B,) int32.
            context: (B, C, d) a stage, of the positions before it; empty for none. is_context: (B, C) bool, None if all
                exist.
            gamma: tokens wanted, at most ``block_size``; None for all.
            choose: from a row's logits (B, V) float32 to its token (B,), which the next row then follows; called in
                order. None takes the argmax.
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
        cut = BlockOutput(
            hidden=output.hidden[:, :gamma], normed=output.normed[:, :gamma], logits=output.logits[:, :gamma]
        )
        return DraftOutput(
            tokens=tokens[:, 1:],
            confidence_logits=self.confidence_logits(cut, self.markov_head.embed(tokens[:, :-1])),
            logits=mx.stack(logits, axis=1),
        )
