"""Time by part, measured or paid by a cost table."""

import mlx.core as mx
import pytest

from models import Model
from spec import (
    BatchReplay,
    CostTable,
    FoldedLoop,
    FullOnlyCommit,
    NoneDrafter,
    OracleDrafter,
    PrefixCommit,
    Request,
    RollbackCommit,
    SeparateLoop,
    TokenReplay,
    collect,
)
from spec.loop.stopwatch import Stopwatch
from tests.random_models import random_tokens
from tests.spec.doubles import FixedPolicy, PlannedDrafter, Ticking, scripted_target, session

COSTS = CostTable(
    name="x",
    passes={1: 10.0, 2: 16.0, 6: 32.0},
    propose={0: 1.0, 1: 2.0},
    snapshot=0.5,
    commit=0.25,
    replay_token=11.0,
    one_row_verify=15.0,
)
SCRIPT = tuple(random_tokens(120, vocab_size=32, seed=4)[0].tolist())


def test_parts_nest_and_every_moment_is_booked_once() -> None:
    watch = Stopwatch(clock=Ticking())
    with watch.time("commit"):
        with watch.time("replay"):
            pass
        with watch.time("replay"):
            pass
    with pytest.raises(KeyError), watch.time("verify"):
        raise KeyError
    times = watch.stop()
    assert (times["commit_s"], times["replay_s"], times["verify_s"], times["target_s"]) == (3, 2, 1, 0)
    assert times["duration_s"] == 9  # nine readings after the first


def test_virtual_time_is_exact_whatever_came_before() -> None:
    watch = Stopwatch(CostTable(name="x", passes={1: 27.492}, propose={0: 0.000001}))
    durations = []
    for _ in range(1000):
        watch.start()
        with watch.time("target"):
            watch.pay("decode")
        times = watch.stop()
        durations.append((times["target_s"], times["duration_s"]))
    assert set(durations) == {(0.027492, 0.027492)}
    watch.pay("propose", 0)
    assert watch.stop()["duration_s"] == 0.027492001  # to the nanosecond


def rounds(shape, commit, replay, drafter=None, target=None, reference=None, count: int = 14):
    loop = shape(
        target or scripted_target(SCRIPT),
        drafter or PlannedDrafter(SCRIPT, frozenset({9})),
        commit=commit,
        replay=replay,
        block=FixedPolicy(gamma=3),
        stopwatch=Stopwatch(COSTS),
    )
    return collect(loop.rounds(Request(prompt=SCRIPT[:5], max_tokens=count, reference=reference)))


@pytest.mark.parametrize("replay", [TokenReplay(), BatchReplay()])
@pytest.mark.parametrize("commit", [PrefixCommit(), FullOnlyCommit(), RollbackCommit()])
@pytest.mark.parametrize("shape", [FoldedLoop, SeparateLoop])
def test_every_step_has_its_price(shape, commit, replay) -> None:
    for item in rounds(shape, commit, replay).rounds:
        count, is_verified = len(item.proposed), item.verify_rows > 0
        wanted = {
            "propose_s": COSTS.propose_ms(count) if item.gamma else 0.0,
            "target_s": COSTS.pass_ms(1) if item.decoded else 0.0,
            "verify_s": COSTS.verify_ms(item.verify_rows) if is_verified else 0.0,
            "snapshot_s": COSTS.snapshot if is_verified and commit != PrefixCommit() else 0.0,
            "commit_s": COSTS.commit if is_verified else 0.0,
            "replay_s": COSTS.step_ms(f"replay_{replay.kind}", item.replayed_tokens),
        }
        if item.outcome == "no_room" and shape is SeparateLoop:
            wanted["propose_s"] = COSTS.propose_ms(1)  # asked before the room was looked at
        assert {name: 1000 * getattr(item, name) for name in wanted} == pytest.approx(wanted)
        assert 1000 * item.duration_s == pytest.approx(sum(wanted.values()))


def test_a_priced_run_is_the_same_run(tiny_model: Model) -> None:
    prompt = SCRIPT[:5]
    plain = rounds(FoldedLoop, PrefixCommit(), TokenReplay(), NoneDrafter(), session(tiny_model, None, 5))
    assert len(plain.tokens) == 14
    for shape in (FoldedLoop, SeparateLoop):
        drafter = OracleDrafter(accept_rate=0.6)
        done = rounds(shape, RollbackCommit(), TokenReplay(), drafter, session(tiny_model, None, 5), plain.tokens)
        assert done.tokens == plain.tokens
        again = rounds(shape, RollbackCommit(), TokenReplay(), drafter, session(tiny_model, None, 5), plain.tokens)
        assert again.rounds == done.rounds
        assert done.prefill.position == len(prompt) - 1
        assert mx.array(done.tokens).size == 14
