"""``python -m spec.simulate``: a recorded run through another loop, commit path, replay and machine; no model."""

import json
import sys
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from spec.errors import UserError
from spec.programs.frame import CONFIGS, complain, run
from spec.programs.parts import build, build_with, check_complete
from spec.simulation import Simulation, simulate


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


def simulate_job(config: DictConfig) -> Simulation:
    """What a configuration asks for.

    Raises:
        UserError: a value is missing or impossible.
    """
    check_complete(config)
    if config.costs is None:
        raise UserError("a simulation needs a cost table: choose one, for example costs=m3_ultra")
    return simulate(
        build("recording", config.recording),
        loop=lambda **parts: build_with("loop", config.loop, **parts),
        commit=build("commit", config.commit),
        replay=build("replay", config.replay),
        costs=build("costs", config.costs),
    )


def main() -> int:
    """Runs the jobs of the command line. Returns the exit code: 2 for an error that the user can fix."""
    failed: list[UserError] = []

    @hydra.main(version_base="1.3", config_path=CONFIGS, config_name="simulate")
    def job(config: DictConfig) -> float | None:
        try:
            result = simulate_job(config)
        except UserError as error:  # the other jobs of a sweep go on
            failed.append(error)
            complain(error)
            return None
        path = Path(HydraConfig.get().runtime.output_dir) / "simulation.json"
        path.write_text(json.dumps(result.to_json(), indent=2) + "\n", encoding="utf-8")
        print(describe(result, config))
        return result.num_tokens / result.seconds

    return run(job) or (2 if failed else 0)


if __name__ == "__main__":
    sys.exit(main())
