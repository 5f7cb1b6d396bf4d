"""The time of a round by part, measured by a clock or computed from a cost table."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from spec.costs import CostTable, Step

PARTS = ("propose", "target", "snapshot", "verify", "commit", "replay")
"""What the time of a round is split into; the rest has no name."""


class Stopwatch:
    """The time of one round by part. Parts nest: a part's time excludes that of parts inside it.

    Args:
        costs: makes time virtual: it stands still except when a step is paid for, so that a run takes the same time on
            every machine. None measures.
        clock: nanoseconds, read at the start and end of each part when there are no costs.
    """

    def __init__(self, costs: CostTable | None = None, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self._costs = costs
        self._clock = clock if costs is None else self._paid_so_far
        self._paid = 0  # nanoseconds: whole numbers, so that a time does not depend on how much came before it
        self.start()

    def _paid_so_far(self) -> int:
        return self._paid

    def start(self) -> None:
        """Begins a round: all parts are at zero."""
        self._started = self._since = self._clock()
        self._part: str | None = None
        self._nanoseconds = dict.fromkeys(PARTS, 0)

    @contextmanager
    def time(self, part: str) -> Iterator[None]:
        """Books what happens inside to a part of `PARTS`."""
        outer = self._part
        self._switch(part)
        try:
            yield
        finally:
            self._switch(outer)

    def pay(self, step: Step, units: int = 1) -> None:
        """Pays for a step, beside its execution and inside its part; costs nothing when time is measured.

        Args:
            step: what is done.
            units: of how many tokens or rows.
        """
        if self._costs is not None:
            self._paid += round(1e6 * self._costs.step_ms(step, units))

    def _switch(self, part: str | None) -> None:
        now = self._clock()
        if self._part is not None:
            self._nanoseconds[self._part] += now - self._since
        self._since, self._part = now, part

    def stop(self) -> dict[str, float]:
        """The fields ``<part>_s`` and ``duration_s`` of a round, in seconds."""
        ended = self._clock()
        times = {f"{part}_s": value / 1e9 for part, value in self._nanoseconds.items()}
        return times | {"duration_s": (ended - self._started) / 1e9}
