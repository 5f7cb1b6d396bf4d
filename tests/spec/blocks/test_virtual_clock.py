"""`BreakEvenPolicy` keeps its promise in the real loops: what a table's clock shows, in every loop and commit path."""

import random

import pytest

from spec import (
    BreakEvenPolicy,
    CostTable,
    FixedPolicy,
    FoldedLoop,
    PrefixCommit,
    Request,
    RollbackCommit,
    SeparateLoop,
    Stopwatch,
    collect,
)
from spec.protocols import BlockPolicy
from tests.spec.doubles import PlannedDrafter, make_loop, scripted_target

SCRIPT = tuple(at % 29 for at in range(600))
# The M3 Ultra of the second report, without what the policies have no price for.
M3_ULTRA = CostTable(name="M3 Ultra", passes={1: 27.5, 2: 66.9, 6: 66.9}, propose={0: 5.7, 1: 6.6, 5: 10.1})


def virtual_ms(shape, commit, block: BlockPolicy, wrong: frozenset[int]) -> float:
    """Milliseconds of 500 tokens after the prefill."""
    target, drafter, stopwatch = scripted_target(SCRIPT), PlannedDrafter(SCRIPT, wrong), Stopwatch(M3_ULTRA)
    loop = make_loop(target, drafter, shape=shape, block=block, commit=commit(), stopwatch=stopwatch)
    done = collect(loop.rounds(Request(prompt=SCRIPT[:4], max_tokens=500)))
    assert done.tokens == SCRIPT[4:504]
    return 1000 * sum(item.duration_s for item in done.rounds)


@pytest.mark.parametrize("shape", [FoldedLoop, SeparateLoop])
@pytest.mark.parametrize("commit", [PrefixCommit, RollbackCommit])
@pytest.mark.parametrize("rate", [0.0, 0.5, 0.95])
def test_break_even_keeps_its_bound(shape, commit, rate: float) -> None:
    draw = random.Random(0)
    wrong = frozenset(at for at in range(600) if draw.random() >= rate)
    policy = BreakEvenPolicy(costs=M3_ULTRA)
    plain = virtual_ms(FoldedLoop, PrefixCommit, FixedPolicy(gamma=0), wrong)
    assert plain == pytest.approx(499 * 27.5)
    fixed = virtual_ms(shape, commit, FixedPolicy(gamma=5), wrong)
    ours = virtual_ms(shape, commit, policy, wrong)
    assert ours <= (1 + policy.max_loss) * plain + (policy.patience + 1) * (66.9 + 10.1)
    if fixed > plain:
        assert ours < fixed
    else:
        assert ours < 1.05 * fixed
