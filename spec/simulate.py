"""``python -m spec.simulate``: a recorded run through another loop, commit path, replay and machine, without a model.

The loop, the commit path and the replay are the real ones. Only the target and the drafter are stand-ins that know the
recording, and the clock is paid by a cost table, so what comes out is the account of a run that never ran.
"""

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hydra
import mlx.core as mx
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from spec.clock import VirtualClock
from spec.drafters import NoneDrafter
from spec.errors import UserError, one_line
from spec.generation import Generation, collect
from spec.measure.account import Account, account_for
from spec.measure.costs import CostTable
from spec.parts import build, check_complete
from spec.priced import priced
from spec.protocols import BlockPlan, CommitPath, History, Loop, Proposal, Replay, Round, TargetPass
from spec.recording import Cycle, Recording, num_tokens
from spec.verifiers import GreedyVerifier

WRONG, RIGHT, VOCABULARY, FOREIGN = 0, 1, 2, 2
PROMPT = (RIGHT,)


class StandInTarget:
    """Wants the same token everywhere, so that a draft is right or wrong as the recording has it.

    Args:
        max_rollback: tokens that can be taken back.
    """

    vocab_size = VOCABULARY
    context = sys.maxsize

    def __init__(self, max_rollback: int) -> None:
        self.max_rollback = max_rollback
        self.offset = 0

    def reset(self) -> None:
        """Forgets the sequence."""
        self.offset = 0

    def absorb(self, tokens: Sequence[int]) -> None:
        """Counts tokens."""
        self.offset += len(tokens)

    def forward(self, tokens: Sequence[int]) -> TargetPass:
        """Counts tokens, and wants `RIGHT` after each."""
        self.offset += len(tokens)
        row = mx.array([[0.0, 1.0]])
        return TargetPass(logits=mx.repeat(row, len(tokens), axis=0), features=None)

    def verify(self, tokens: Sequence[int]) -> TargetPass:
        """As `forward`."""
        return self.forward(tokens)

    def trim(self, count: int) -> None:
        """Takes tokens back."""
        self.offset -= count

    def rewind(self, offset: int) -> None:
        """Returns to an earlier offset."""
        self.offset = offset

    def snapshot(self) -> int:
        """The offset is all there is."""
        return self.offset

    def restore(self, snapshot: int) -> None:
        """Returns to a snapshot."""
        self.offset = snapshot


class StandInDrafter(NoneDrafter):
    """Proposes what the recorded drafter did at the same place.

    Args:
        cycles: by the position of their anchor.
    """

    def __init__(self, cycles: dict[int, Cycle]) -> None:
        self.cycles = cycles

    def propose(self, anchor: int, position: int, gamma: int, draws: Any, admits: Any = None) -> Proposal:
        """As many tokens as were proposed, of which as many are right as were accepted."""
        cycle = self.cycles[position]
        if cycle.kind == "empty":
            return Proposal(reason="the recorded drafter had nothing")
        if cycle.kind == "invalid":
            return Proposal(tokens=(FOREIGN,))
        tokens = (RIGHT,) * cycle.accepted + (WRONG,) * (cycle.proposed - cycle.accepted)
        return Proposal(tokens=tokens[:gamma] or (RIGHT,))


@dataclass(frozen=True, kw_only=True)
class StandInBlock:
    """Declines where the recorded policy did, and leaves the rest to the drafter.

    Attributes:
        cycles: by the position of their anchor.
        max_gamma: the longest recorded block.
    """

    cycles: dict[int, Cycle]
    max_gamma: int

    def reset(self) -> None:
        """Learns nothing."""

    def plan(self, history: History) -> BlockPlan:
        """What was planned at the same place."""
        kind = self.cycles[history.position].kind
        if kind in ("skip", "tail"):
            return BlockPlan(gamma=0, reason="as recorded", skip="scheduler" if kind == "skip" else "tail")
        if kind == "plain":
            return BlockPlan(gamma=0, reason="as recorded")
        return BlockPlan(gamma=self.max_gamma)

    def admits(self, confidences: tuple[float, ...]) -> bool:
        """Everything."""
        return True

    def observe(self, finished: Round) -> None:
        """Learns nothing."""

    def snapshot(self) -> None:
        """Has no state."""

    def restore(self, snapshot: None) -> None:
        """Has no state."""


@dataclass(frozen=True, kw_only=True)
class StopAt:
    """Ends the text after a number of tokens, in mid-block if it falls there.

    Attributes:
        count: tokens to emit.
    """

    count: int

    def cut(self, emitted: Sequence[int], new: Sequence[int]) -> int | None:
        """See `spec.protocols.StopRule`."""
        left = self.count - len(emitted)
        return left if left <= len(new) else None


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """What a recording costs.

    Attributes:
        account: of all generations.
        num_tokens: emitted after the prefills' tokens.
        seconds: of the rounds, prefills excluded.
        plain_seconds: of plain decoding the same tokens.
    """

    account: Account
    num_tokens: int
    seconds: float
    plain_seconds: float

    def to_json(self) -> dict[str, Any]:
        """The record."""
        return {
            "num_tokens": self.num_tokens,
            "seconds": self.seconds,
            "tokens_per_s": self.num_tokens / self.seconds,
            "baseline_tokens_per_s": self.num_tokens / self.plain_seconds,
            "speedup": self.plain_seconds / self.seconds,
            "account": self.account.to_json(),
        }


def simulate(
    recording: Recording, *, loop: Callable[..., Loop], commit: CommitPath, replay: Replay, costs: CostTable
) -> Simulation:
    """Runs a recording again.

    Args:
        recording: the cycles.
        loop: makes a loop of its parts.
        commit: the commit path.
        replay: the replay.
        costs: what each step takes.
    """
    done = [
        _generation(cycles, has_next, loop, {"commit": commit, "replay": replay}, costs)
        for cycles, has_next in zip(recording.generations, recording.has_next, strict=True)
    ]
    count = sum(len(generation.tokens) - len(generation.prefill.tokens) for generation in done)
    return Simulation(
        account=account_for(done, [costs.pass_ms(1)] * len(done)),
        num_tokens=count,
        seconds=sum(generation.decode_s for generation in done),
        plain_seconds=count * costs.pass_ms(1) / 1000,
    )


def _generation(
    cycles: tuple[Cycle, ...], has_next: bool, loop: Callable[..., Loop], parts: dict[str, Any], costs: CostTable
) -> Generation:
    by_position, position = {}, len(PROMPT)
    for cycle in cycles:
        by_position[position] = cycle
        position += cycle.accepted + 1
    total, longest = num_tokens(cycles, has_next), max([1, *(cycle.proposed for cycle in cycles)])
    parts = parts | {
        "target": StandInTarget(longest + 1),
        "drafter": StandInDrafter(by_position),
        "block": StandInBlock(cycles=by_position, max_gamma=longest),
        "verifier": GreedyVerifier(),
    }
    # A recorded run that met its budget was clamped by it and is again; any other ends where it ended, unclamped.
    is_clamped = cycles[-1].kind == "no_room"
    return collect(
        loop(**priced(costs, VirtualClock(), parts)).rounds(
            PROMPT,
            max_tokens=total if is_clamped else total + longest + 1,
            stop=None if is_clamped else StopAt(count=total),
        )
    )


def describe(result: Simulation, config: DictConfig) -> str:
    """Two lines for the terminal."""
    times = result.account.time_ms
    parts = ", ".join(
        f"{name} {times[name]:.1f}" for name in ("target", "propose", "snapshot", "verify", "replay", "commit")
    )
    record = result.to_json()
    return (
        f"{config.name}: {result.num_tokens} tokens in {result.seconds:.3f} s, {record['tokens_per_s']:.2f} tokens/s; "
        f"plain {record['baseline_tokens_per_s']:.2f}, {record['speedup']:.3f}x\n"
        f"  ms: {parts}; saved {times['saved']:.1f}, net_saved {times['net_saved']:.1f}, "
        f"wall_saved {times['wall_saved']:.1f}"
    )


def main() -> int:
    """Runs the jobs of the command line. Returns the exit code: 2 for an error of the user's to mend."""
    failed: list[Exception] = []

    @hydra.main(version_base="1.3", config_path="pkg://configs", config_name="simulate")
    def job(config: DictConfig) -> float | None:
        try:
            check_complete(config)
            if config.costs is None:
                raise UserError("a simulation needs a cost table: choose one, for example costs=m3_ultra")
            result = simulate(
                build("recording", config.recording),
                loop=lambda **parts: build("loop", config.loop, **parts),
                commit=build("commit", config.commit),
                replay=build("replay", config.replay),
                costs=build("costs", config.costs),
            )
        except UserError as error:
            failed.append(error)
            print(f"error: {one_line(error)}", file=sys.stderr)
            return None
        path = Path(HydraConfig.get().runtime.output_dir) / "simulation.json"
        path.write_text(json.dumps(result.to_json(), indent=2) + "\n", encoding="utf-8")
        print(describe(result, config))
        return result.num_tokens / result.seconds

    os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # Hydra then raises its errors instead of printing and exiting
    try:
        job()
    except (HydraException, OmegaConfBaseException, OSError) as error:
        print(f"error: {one_line(error)}", file=sys.stderr)
        return 2
    return 2 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
