"""Commit paths: how the target's state is made to end at what was emitted.

Adopting is free where state is rows; engines whose rolling state cannot be cut at a prefix restore a snapshot and pay
for the accepted tokens a second time. All three leave the same state at different costs.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class PrefixCommit:
    """Adopts the rows of the accepted prefix as the verify pass wrote them: the rest is trimmed, nothing runs again."""

    def adopts(self, kept: int, count: int) -> bool:
        """Always."""
        return True


@dataclass(frozen=True)
class FullOnlyCommit:
    """Adopts a pass that was accepted whole; otherwise restores and replays (https://github.com/antirez/ds4/pull/746)."""

    def adopts(self, kept: int, count: int) -> bool:
        """If nothing was rejected."""
        return kept == count


@dataclass(frozen=True)
class RollbackCommit:
    """Always restores the state before the verify pass and replays what was accepted (ds4 since commit 7fb2830).

    Committed state then comes from plain decodes alone, at the price of those that acceptance had saved.
    """

    def adopts(self, kept: int, count: int) -> bool:
        """Never."""
        return False
