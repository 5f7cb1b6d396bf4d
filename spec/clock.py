"""What time is: the wall's, or a sum of priced steps that is the same on every machine and every day."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Clock = Callable[[], float]
"""Seconds since some moment."""

wall_clock: Clock = time.perf_counter

PARTS = ("propose", "target", "snapshot", "verify", "commit", "replay")
"""What the time of a round is split into; the rest has no name."""


class VirtualClock:
    """Stands still except when a step is paid for."""

    def __init__(self) -> None:
        self._nanoseconds = 0  # whole numbers, so that a time does not depend on how much came before it

    def __call__(self) -> float:
        """Seconds paid for so far."""
        return self._nanoseconds / 1e9

    def advance(self, ms: float) -> None:
        """Pays for a step, in milliseconds."""
        self._nanoseconds += round(1e6 * ms)


class Stopwatch:
    """The seconds of one round by part, on a clock. Parts nest: a part's time excludes that of parts inside it.

    Args:
        clock: read at the start and end of each part.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._started = self._since = clock()
        self._part: str | None = None
        self._seconds = dict.fromkeys(PARTS, 0.0)

    @contextmanager
    def time(self, part: str) -> Iterator[None]:
        """Books what happens inside to a part of `PARTS`."""
        outer = self._part
        self._switch(part)
        try:
            yield
        finally:
            self._switch(outer)

    def _switch(self, part: str | None) -> None:
        now = self._clock()
        if self._part is not None:
            self._seconds[self._part] += now - self._since
        self._since, self._part = now, part

    def stop(self) -> dict[str, float]:
        """The fields ``<part>_s`` and ``duration_s`` of a round."""
        ended = self._clock()
        return {f"{part}_s": value for part, value in self._seconds.items()} | {"duration_s": ended - self._started}
