"""The loop: the order of the steps, the user's limits, what becomes of the target's state, and where the time goes."""

from spec.loop.base import SpeculativeLoop
from spec.loop.commit import FullOnlyCommit, PrefixCommit, RollbackCommit
from spec.loop.folded import FoldedLoop
from spec.loop.replay import BatchReplay, TokenReplay
from spec.loop.separate import SeparateLoop
from spec.loop.stopwatch import Stopwatch
