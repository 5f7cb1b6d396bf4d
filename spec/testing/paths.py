"""The ways from a proposal to committed state: each loop with each commit path, and both replays among them."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from spec.blocks.fixed import FixedPolicy
from spec.loop import (
    BatchReplay,
    FoldedLoop,
    FullOnlyCommit,
    PrefixCommit,
    RollbackCommit,
    SeparateLoop,
    SpeculativeLoop,
    TokenReplay,
)
from spec.protocols import CommitPath, Drafter, Replay, Target


@dataclass(frozen=True)
class LoopPath:
    """A loop, a commit path and a replay: one way from a proposal to committed state."""

    shape: Callable[..., SpeculativeLoop]
    commit: CommitPath
    replay: Replay

    def loop(self, target: Target, drafter: Drafter, gamma: int) -> SpeculativeLoop:
        """The loop, with blocks of gamma."""
        block = FixedPolicy(gamma=gamma)
        return self.shape(target, drafter, commit=self.commit, replay=self.replay, block=block)

    def __str__(self) -> str:
        shape = self.shape.func if isinstance(self.shape, partial) else self.shape
        return ", ".join([shape.__name__, *(type(part).__name__ for part in (self.commit, self.replay))])


PATHS = (
    LoopPath(FoldedLoop, PrefixCommit(), TokenReplay()),
    LoopPath(FoldedLoop, FullOnlyCommit(), TokenReplay()),
    LoopPath(FoldedLoop, RollbackCommit(), BatchReplay()),
    LoopPath(SeparateLoop, PrefixCommit(), TokenReplay()),
    LoopPath(SeparateLoop, FullOnlyCommit(), BatchReplay()),
    LoopPath(SeparateLoop, RollbackCommit(), TokenReplay()),
    LoopPath(partial(SeparateLoop, correction="replay"), PrefixCommit(), TokenReplay()),
)
