"""``python -m spec.simulate``: a recorded run through another loop, commit path, replay and machine, without a model.

The loop, the commit path and the replay are the real ones. Only the target and the drafter are stand-ins that know the
recording, and the clock is paid by a cost table, so what comes out is the account of a run that never ran.
"""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from spec.clock import VirtualClock
from spec.errors import UserError, one_line
from spec.generation import Generation, collect
from spec.measure.account import Account, account_for
from spec.measure.costs import CostTable
from spec.parts import build, check_complete
from spec.priced import priced
from spec.protocols import CommitPath, Loop, Replay
from spec.recording import Cycle, Recording, num_tokens
from spec.stand_ins import RIGHT, StandInDrafter, StandInPolicy, StandInTarget, StopAt
from spec.verifiers import GreedyVerifier

PROMPT = (RIGHT,)


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
        "block": StandInPolicy(cycles=by_position, max_gamma=longest),
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
