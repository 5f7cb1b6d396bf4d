"""A recorded run through another loop, commit path, replay and machine, without a model.

The loop, the commit path and the replay are the real ones. Only target, drafter and policy play the recording back, and
time is paid by a cost table, so what comes out is the account of a run that never ran.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from spec.costs import CostTable
from spec.loop import Stopwatch
from spec.measure.account import Account, account_for
from spec.measure.generation import Generation, collect
from spec.protocols import CommitPath, Loop, Replay
from spec.rounds import Request
from spec.sampling import Sampling
from spec.simulation.playback import RIGHT, VOCABULARY, RecordedDrafter, RecordedPolicy, StopAt
from spec.simulation.recording import Cycle, Recording, num_tokens
from spec.targets import RecordedTarget
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
    parts = {"commit": commit, "replay": replay, "stopwatch": Stopwatch(costs)}
    done = [
        _generation(cycles, has_next, loop, parts)
        for cycles, has_next in zip(recording.generations, recording.has_next, strict=True)
    ]
    count = sum(generation.num_decoded for generation in done)
    return Simulation(
        account=account_for(done, [costs.pass_ms(1)] * len(done)),
        num_tokens=count,
        seconds=sum(generation.decode_s for generation in done),
        plain_seconds=count * costs.pass_ms(1) / 1000,
    )


def _generation(
    cycles: tuple[Cycle, ...], has_next: bool, loop: Callable[..., Loop], parts: dict[str, Any]
) -> Generation:
    by_position, position = {}, len(PROMPT)
    for cycle in cycles:
        by_position[position] = cycle
        position += cycle.accepted + 1
    total, longest = num_tokens(cycles, has_next), max([1, *(cycle.proposed for cycle in cycles)])
    text = [RIGHT] * (len(PROMPT) + total + longest + 1)
    made = loop(
        target=RecordedTarget.of_tokens(text, VOCABULARY),
        drafter=RecordedDrafter(by_position),
        block=RecordedPolicy(by_position, len(PROMPT), longest),
        verifier=GreedyVerifier(sampling=Sampling()),
        **parts,
    )
    # A recorded run that met its budget was clamped by it and is again; any other ends where it ended, unclamped.
    if cycles[-1].kind == "no_room":
        return collect(made.rounds(Request(prompt=PROMPT, max_tokens=total)))
    return collect(made.rounds(Request(prompt=PROMPT, max_tokens=total + longest + 1, stop=StopAt(total))))
