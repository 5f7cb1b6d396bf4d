"""Rounds without models: acceptance by a written-down sequence, time by a table. Nothing here is random or timed."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from spec import BlockPolicy, Round
from tests.spec.doubles import PolicyTrial


@dataclass(frozen=True)
class Table:
    """A cost table by rows (from 1) and a flat price of a proposal, in milliseconds."""

    passes: tuple[float, ...]
    propose: float = 5.0

    def pass_ms(self, rows: int) -> float:
        return self.passes[rows - 1]

    def propose_ms(self, gamma: int) -> float:
        return self.propose


# antirez/ds4 issue 468: 28 ms a decode, 43.6 / 59.7 / 65.8 / 74.5 for 2 to 5 rows, and on by as much for the sixth.
M5_MAX = Table((28.0, 43.6, 59.7, 65.8, 74.5, 83.2))


def make_round(
    outcome: str = "partial",
    *,
    gamma: int = 5,
    proposed: int = 0,
    accepted: int = 0,
    confidence: tuple[float, ...] | None = None,
    skip: str | None = None,
    replayed: int = 0,
    is_separate: bool = False,
) -> Round:
    """A round of either loop with these counts."""
    rows = 0 if is_separate and outcome == "miss_first" else proposed
    return Round(
        index=1,
        position=1,
        gamma=gamma,
        proposed=(0,) * proposed,
        accepted=accepted,
        tokens=(0,) * (accepted + 1),
        kind="bonus" if accepted == proposed else "correction",
        outcome=outcome,
        reason=None if proposed else "for this test",
        skip=skip,
        confidence=confidence,
        decoded=int(is_separate),
        verify_rows=rows + 1 if rows and not is_separate else rows,
        replayed_tokens=replayed,
    )


def judged(proposed: int, accepted: int, **fields) -> Round:
    """A round in which a proposal met the target."""
    outcome = "full" if accepted == proposed else "partial" if accepted else "miss_first"
    return make_round(outcome, gamma=proposed, proposed=proposed, accepted=accepted, **fields)


def full(gamma: int) -> Round:
    return judged(gamma, gamma)


UNJUDGED = (
    make_round("no_draft", gamma=5),
    make_round("no_draft", gamma=0, skip="scheduler"),
    make_round("tail_skip", gamma=0, skip="tail"),
    make_round("no_room", gamma=0),
    make_round("invalid", gamma=5),
)


@dataclass
class Run:
    """What a policy did with a sequence."""

    virtual_ms: float = 0.0
    plain_ms: float = 0.0
    rounds: list[Round] = field(default_factory=list)

    @property
    def speedup(self) -> float:
        return self.plain_ms / self.virtual_ms


def simulate(
    policy: BlockPolicy, right: Sequence[bool], table: Table = M5_MAX, confidence: Sequence[float] | None = None
) -> Run:
    """Runs the folded loop's arithmetic over a text whose position t is drafted right where ``right[t]``.

    Args:
        policy: begins anew.
        right: whether a draft of that position would stand.
        table: of costs.
        confidence: what the drafter thinks of each position; None if it does not say.
    """
    trial = PolicyTrial(policy)
    run, at = Run(), 0
    while at < len(right):
        left = len(right) - at
        plan = trial.plan(left)
        gamma = min(plan.gamma, left - 1)
        drafted, said = [], []
        if gamma:
            for position in range(at, at + gamma):
                said += [confidence[position]] if confidence else []
                if confidence and not trial.admits(tuple(said)):
                    break
                drafted.append(right[position])
        accepted = drafted.index(False) if False in drafted else len(drafted)
        if drafted:
            item = judged(len(drafted), accepted, confidence=tuple(said) or None)
            item = make_round(
                item.outcome, gamma=gamma, proposed=len(drafted), accepted=accepted, confidence=item.confidence
            )
        else:
            outcome = "tail_skip" if plan.skip == "tail" else "no_room" if plan.gamma and not gamma else "no_draft"
            item = make_round(outcome, gamma=gamma, confidence=tuple(said) or None, skip=plan.skip)
        trial.observe(item)
        run.rounds.append(item)
        run.virtual_ms += table.pass_ms(1 + len(drafted)) + (table.propose_ms(len(drafted)) if gamma else 0.0)
        run.plain_ms += table.pass_ms(1) * (accepted + 1)
        at += accepted + 1
    return run


def text(count: int, rate: float, seed: int = 0) -> list[bool]:
    """Positions that a drafter of this acceptance rate gets right."""
    draw = random.Random(seed)
    return [draw.random() < rate for _ in range(count)]


def calibrated(count: int, low: float, high: float, seed: int = 0) -> tuple[list[bool], list[float]]:
    """Positions with confidences that are true: each drawn from low..high, and right with that probability."""
    draw = random.Random(seed)
    confidence = [low + (high - low) * draw.random() for _ in range(count)]
    return [draw.random() < value for value in confidence], confidence
