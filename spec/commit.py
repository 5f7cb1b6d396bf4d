"""How the target's state is made to end at what was emitted: adopt the verify pass's rows, or run tokens again.

Adopting is free where state is rows; engines whose rolling state cannot be cut at a prefix restore a snapshot and pay
for the accepted tokens a second time. All three paths leave the same state, at different prices.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from spec.protocols import Replayer, Target, TargetPass


@dataclass(frozen=True, kw_only=True)
class PrefixCommit:
    """Adopts the rows of the accepted prefix as the verify pass wrote them: the rest is trimmed, nothing runs again."""

    needs_snapshot: ClassVar[bool] = False

    def commit(
        self,
        target: Target,
        passed: TargetPass,
        inputs: tuple[int, ...],
        keep: int,
        replay: Replayer,
        snapshot: Any = None,
    ) -> TargetPass:
        """See `spec.protocols.CommitPath`; neither replay nor a snapshot is used."""
        target.trim(len(inputs) - keep)
        return passed.first(keep)


@dataclass(frozen=True, kw_only=True)
class FullOnlyCommit:
    """Adopts the pass if all of it stands; otherwise restores, and replays what stands (ds4 pull 746's fast path)."""

    needs_snapshot: ClassVar[bool] = True

    def commit(
        self,
        target: Target,
        passed: TargetPass,
        inputs: tuple[int, ...],
        keep: int,
        replay: Replayer,
        snapshot: Any = None,
    ) -> TargetPass:
        """See `spec.protocols.CommitPath`."""
        return passed if keep == len(inputs) else replay(snapshot, inputs[:keep])


@dataclass(frozen=True, kw_only=True)
class RollbackCommit:
    """Always restores the state before the verify pass and replays what stands (ds4 since commit 7fb2830).

    Committed state then comes from plain decodes alone, at the price of those that acceptance had saved.
    """

    needs_snapshot: ClassVar[bool] = True

    def commit(
        self,
        target: Target,
        passed: TargetPass,
        inputs: tuple[int, ...],
        keep: int,
        replay: Replayer,
        snapshot: Any = None,
    ) -> TargetPass:
        """See `spec.protocols.CommitPath`."""
        return replay(snapshot, inputs[:keep])
