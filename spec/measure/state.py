"""Compares every cache row with plain decoding's after every round of a run."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import mlx.core as mx

from spec.rounds import Round
from spec.targets.session import TargetSession


@dataclass(frozen=True, kw_only=True)
class StateDifference:
    """The first row that differs.

    Attributes:
        prompt_id: the prompt. round: index of the round after which it was seen. offset: tokens in the cache then.
        rows: layer and store, as `models.deepseek_v4.LayerCache.reachable_rows` names them.
        gap: largest absolute difference in them.
    """

    prompt_id: str
    round: int
    offset: int
    rows: str
    gap: float


class StateCheck:
    """Compares a session with a shadow that decodes the committed tokens plainly, one a pass.

    Args:
        watched: the session that the loop uses.
        shadow: another one of the same model, headroom and chunks, for this alone.

    Attributes:
        rounds: how many were compared.
        worst_gap: largest absolute difference of any reachable row; 0 is equality to the bit.
        first_difference: None where there is none.
    """

    def __init__(self, watched: TargetSession, shadow: TargetSession) -> None:
        self._watched, self._shadow = watched, shadow
        self._prompt_id, self._tokens = "", []
        self.rounds = 0
        self.worst_gap = 0.0
        self.first_difference: StateDifference | None = None

    def begin(self, prompt_id: str, prompt: Sequence[int]) -> None:
        """Prefills the shadow as a loop prefills."""
        self._prompt_id, self._tokens = prompt_id, list(prompt)
        self._shadow.reset()
        for _ in self._shadow.prefill(prompt[:-1]):
            pass

    def after(self, finished: Round) -> None:
        """Compares after a round or the prefill. Forces evaluation of every row."""
        self._tokens += finished.tokens
        for token in self._tokens[self._shadow.offset : self._watched.offset]:
            self._shadow.forward([token])
        expected = self._shadow.rows()
        self.rounds += 1
        for name, rows in self._watched.rows().items():
            gap = mx.abs(rows - expected[name]).max().item() if rows.size else 0.0
            self.worst_gap = max(self.worst_gap, gap)
            if gap > 0 and self.first_difference is None:
                self.first_difference = StateDifference(
                    prompt_id=self._prompt_id,
                    round=finished.index,
                    offset=self._watched.offset,
                    rows=name,
                    gap=gap,
                )

    def to_json(self) -> dict[str, Any]:
        """The record's ``state`` object."""
        difference = self.first_difference
        return {
            "rounds": self.rounds,
            "worst_gap": self.worst_gap,
            "first_difference": None if difference is None else asdict(difference),
        }
