"""Parts that pay for their steps on a virtual clock: the run is real, its times are those of a cost table.

So every decision and every reported saving can be computed again to the digit, on any machine and under any load. A
prompt's passes are free: tables have no price for them, and no account counts them. A verify pass of a single row is
what the table's engine makes of it (`spec.measure.costs.CostTable.verify_ms`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from spec.clock import VirtualClock
from spec.measure.costs import CostTable
from spec.protocols import Admits, CommitPath, Drafter, Proposal, Replay, Replayer, ReplayKind, Target, TargetPass
from spec.sampling import RandomStream


@dataclass(frozen=True, kw_only=True)
class PricedTarget:
    """A target whose passes and snapshots are paid for.

    Attributes:
        target: does the work.
        costs: the prices.
        clock: pays.
    """

    target: Target
    costs: CostTable
    clock: VirtualClock

    @property
    def vocab_size(self) -> int:
        """The target's."""
        return self.target.vocab_size

    @property
    def context(self) -> int:
        """The target's."""
        return self.target.context

    @property
    def max_rollback(self) -> int:
        """The target's."""
        return self.target.max_rollback

    @property
    def offset(self) -> int:
        """The target's."""
        return self.target.offset

    def reset(self) -> None:
        """Free."""
        self.target.reset()

    def prefill(self, tokens: Sequence[int]) -> mx.array | None:
        """Free: no account counts a prompt."""
        return self.target.prefill(tokens)

    def forward(self, tokens: Sequence[int]) -> TargetPass:
        """A pass."""
        self.clock.advance(self.costs.pass_ms(len(tokens)))
        return self.target.forward(tokens)

    def verify(self, tokens: Sequence[int]) -> TargetPass:
        """A verify pass."""
        self.clock.advance(self.costs.verify_ms(len(tokens)))
        return self.target.verify(tokens)

    def trim(self, count: int) -> None:
        """Free: what it takes is part of a commit."""
        self.target.trim(count)

    def rewind(self, offset: int) -> None:
        """Free: only a failed round comes here."""
        self.target.rewind(offset)

    def snapshot(self) -> Any:
        """A snapshot."""
        self.clock.advance(self.costs.snapshot_ms)
        return self.target.snapshot()

    def restore(self, snapshot: Any) -> None:
        """Free: the price of replay includes it."""
        self.target.restore(snapshot)


class PricedDrafter:
    """A drafter whose proposals are paid for; remembering is part of their price.

    Args:
        drafter: does the work.
        costs: the prices.
        clock: pays.
    """

    def __init__(self, *, drafter: Drafter, costs: CostTable, clock: VirtualClock) -> None:
        self.drafter, self.costs, self.clock = drafter, costs, clock
        self.tapped_layers, self.max_gamma = drafter.tapped_layers, drafter.max_gamma

    def reset(self, prompt_length: int, reference: Sequence[int] | None = None) -> None:
        """Free."""
        self.drafter.reset(prompt_length, reference)

    def observe(self, tokens: Sequence[int], features: mx.array | None) -> None:
        """Free."""
        self.drafter.observe(tokens, features)

    def propose(
        self, anchor: int, position: int, gamma: int, draws: RandomStream, admits: Admits | None = None
    ) -> Proposal:
        """A proposal, at the price of the tokens that it came out with."""
        proposal = self.drafter.propose(anchor, position, gamma, draws, admits)
        self.clock.advance(self.costs.propose_ms(len(proposal.tokens)))
        return proposal

    def snapshot(self) -> Any:
        """Free."""
        return self.drafter.snapshot()

    def restore(self, snapshot: Any) -> None:
        """Free."""
        self.drafter.restore(snapshot)


@dataclass(frozen=True, kw_only=True)
class PricedCommit:
    """A commit path whose commits are paid for.

    Attributes:
        commit_path: does the work.
        costs: the prices.
        clock: pays.
    """

    commit_path: CommitPath
    costs: CostTable
    clock: VirtualClock

    @property
    def needs_snapshot(self) -> bool:
        """The path's."""
        return self.commit_path.needs_snapshot

    def commit(
        self,
        target: Target,
        passed: TargetPass,
        inputs: tuple[int, ...],
        keep: int,
        replay: Replayer,
        snapshot: Any = None,
    ) -> TargetPass:
        """A commit; see `spec.protocols.CommitPath`."""
        self.clock.advance(self.costs.commit_ms)
        return self.commit_path.commit(target, passed, inputs, keep, replay, snapshot)


@dataclass(frozen=True, kw_only=True)
class PricedReplay:
    """Replay at the table's price for its kind, in place of that of the passes it makes.

    Attributes:
        replay: does the work.
        costs: the prices.
        clock: pays.
    """

    replay: Replay
    costs: CostTable
    clock: VirtualClock

    @property
    def kind(self) -> ReplayKind:
        """The replay's."""
        return self.replay.kind

    def run(self, target: PricedTarget, tokens: Sequence[int]) -> TargetPass:
        """A replay; see `spec.protocols.Replay`."""
        self.clock.advance(self.costs.replay_ms(len(tokens), self.kind))
        return self.replay.run(target.target, tokens)


def priced(costs: CostTable, clock: VirtualClock, parts: dict[str, Any]) -> dict[str, Any]:
    """The parts of a loop, each with its price, and the clock.

    Args:
        costs: the prices.
        clock: read by the loop and advanced by the parts.
        parts: keyword arguments of a loop, ``target, drafter, commit, replay`` among them.
    """
    pays = {"costs": costs, "clock": clock}
    return parts | {
        "target": PricedTarget(target=parts["target"], **pays),
        "drafter": PricedDrafter(drafter=parts["drafter"], **pays),
        "commit": PricedCommit(commit_path=parts["commit"], **pays),
        "replay": PricedReplay(replay=parts["replay"], **pays),
        "clock": clock,
    }
