"""Pools the tokens of each completed window into one row.

Source: DeepSeek-V4 technical report, compressed attention; the formulas of the reference's decoding step, for any
number of new tokens.
"""

from collections.abc import Callable

import mlx.core as mx
import mlx.nn as nn

from models.deepseek_v4.cache import CompressorState
from models.deepseek_v4.config import DeepseekV4Config
from models.deepseek_v4.rope import Rotary


class Compressor(nn.Module):
    """Weighted mean of the keys of a window's tokens, with a softmax over tokens for each channel.

    Args:
        config: the model's configuration.
        width: d, entries of a pooled row.
        ratio: tokens in a window.
        overlap: whether a window also pools the first halves of its predecessor's keys (CSA).
        rotary: of the layer; pooled rows have the position of their window's first token.
        rounding: simulated quantization of pooled rows, or None.
    """

    def __init__(
        self,
        config: DeepseekV4Config,
        width: int,
        ratio: int,
        overlap: bool,
        rotary: Rotary,
        rounding: Callable[[mx.array], mx.array] | None,
    ) -> None:
        super().__init__()
        halves = 2 if overlap else 1
        self.wkv = nn.Linear(config.hidden_size, halves * width, bias=False)
        self.wgate = nn.Linear(config.hidden_size, halves * width, bias=False)
        self.ape = mx.zeros((ratio, halves * width))
        self.norm = nn.RMSNorm(width, eps=config.rms_norm_eps)
        self.width, self.ratio, self.overlap, self.halves = width, ratio, overlap, halves
        self._rotary, self._rounding = rotary, rounding

    def __call__(self, x: mx.array, offset: int, state: CompressorState | None) -> mx.array | None:
        """Appends tokens and returns the pooled rows of all windows completed so far.

        Args:
            x: (B, T, H) the layer's normalized input at positions ``offset ..``.
            offset: tokens before x.
            state: of earlier calls, updated; None for a whole sequence.

        Returns:
            (B, R, d) in x's dtype, or None if there are none. Rows past the completed windows are to be masked.
        """
        count, ratio = x.shape[1], self.ratio
        wide = x.astype(mx.float32)
        first_phase = offset % ratio
        ape = self.ape.astype(mx.float32)[mx.arange(first_phase, first_phase + count) % ratio]
        keys = wide @ self.wkv.weight.astype(mx.float32).T
        scores = wide @ self.wgate.weight.astype(mx.float32).T + ape
        rows = mx.concatenate([keys, scores], axis=-1)
        first, end = offset // ratio, (offset + count) // ratio
        pooled = None
        if end > first:
            pooled = self._pool(rows, offset, first, end, state).astype(x.dtype)
            pooled = self._rotary(self.norm(pooled), first, stride=ratio)
            if self._rounding is not None:
                pooled = self._rounding(pooled)
        if state is None:
            return pooled
        state.frontier.append(rows, offset)
        if pooled is not None:
            state.pooled.write(pooled, first)
        return state.pooled.read(end)

    def _pool(self, rows: mx.array, offset: int, first: int, end: int, state: CompressorState | None) -> mx.array:
        """(B, end - first, d) float32: windows first .. end - 1, pooled."""
        batch, ratio, width, halves = rows.shape[0], self.ratio, self.width, self.halves
        start = max((first - halves + 1) * ratio, 0)
        if offset > start:
            rows = mx.concatenate([state.frontier.before(offset, offset - start), rows], axis=1)
        rows = rows[:, : end * ratio - start].reshape(batch, -1, ratio, 2 * halves * width)
        keys, scores = rows[..., : halves * width], rows[..., halves * width :]
        if self.overlap:
            keys = _with_previous(keys, width, first == 0, 0.0)
            scores = _with_previous(scores, width, first == 0, -mx.inf)
        return (mx.softmax(scores, axis=2) * keys).sum(axis=2)


def _with_previous(windows: mx.array, width: int, is_start: bool, fill: float) -> mx.array:
    """Puts the first halves of each window's predecessor before the window's own second halves.

    (B, w, r, 2d) -> (B, w', 2r, d). At the start of the sequence w' = w, and window 0 has ``fill`` for a predecessor;
    elsewhere w' = w - 1.
    """
    previous, own = windows[..., :width], windows[..., width:]
    if is_start:
        none = mx.full((windows.shape[0], 1, *previous.shape[2:]), fill, dtype=windows.dtype)
        previous = mx.concatenate([none, previous[:, :-1]], axis=1)
    else:
        previous, own = previous[:, :-1], own[:, 1:]
    return mx.concatenate([previous, own], axis=2)
