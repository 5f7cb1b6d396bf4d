"""The second report's run, computed again from its histograms, and what another loop or commit path makes of it."""

import json
import re
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spec import (
    BatchReplay,
    CostTable,
    FoldedLoop,
    FullOnlyCommit,
    PrefixCommit,
    RollbackCommit,
    SeparateLoop,
    TokenReplay,
    UserError,
)
from spec import simulate as simulator
from spec.measure import read_lines
from spec.simulation import simulate
from spec.simulation.recording import Cycle, Recording, num_tokens, pair_lengths
from tests.spec.measure.test_account import ds4_account
from tests.spec.test_costs import named

LINE = ds4_account()
COUNTS = ("full", "miss_first", "no_draft", "scheduler_skips", "tail_skips")
REPORT = Recording.from_histograms(
    name="issue 731",
    draft_len_hist=LINE["draft_len_hist"],
    accepted_len_hist=LINE["accepted_len_hist"],
    **{name: LINE[name] for name in COUNTS},
)


def run(loop, commit, replay=None, costs: str | CostTable = "m3_ultra", recording: Recording = REPORT):
    table = named(costs) if isinstance(costs, str) else costs
    return simulate(recording, loop=loop, commit=commit, replay=replay or TokenReplay(), costs=table)


def test_the_reports_run_comes_out() -> None:
    """10.94 s and 23.3 tokens/s; every counter to the unit, every timer to 0.1 %, ``saved`` to 1.5 %."""
    result = run(SeparateLoop, RollbackCommit())
    account = result.account.to_json()
    counters = [name for name, value in LINE.items() if isinstance(value, int) and not name.startswith("num_")]
    assert {name: account[name] for name in counters} == {name: LINE[name] for name in counters}
    assert result.account.draft_len_hist == LINE["draft_len_hist"]
    assert result.account.accepted_len_hist == LINE["accepted_len_hist"]
    for name in ("propose", "snapshot", "verify", "replay", "spec_total", "target"):
        assert account["time_ms"][name] == pytest.approx(LINE["time_ms"][name], rel=1e-3), name
    # ds4 prices an accepted draft at its own cycle's decode, 27.10 ms on average; here all decodes are 27.49
    assert account["time_ms"]["saved"] == pytest.approx(LINE["time_ms"]["saved"], rel=0.015)
    assert account["time_ms"]["net_saved"] == pytest.approx(LINE["time_ms"]["net_saved"], rel=0.015)
    assert result.seconds == pytest.approx(10.94, abs=0.005)
    assert result.num_tokens == 255  # after the one that the prefill yields: 256 in all
    assert result.num_tokens / result.seconds == pytest.approx(23.3, abs=0.05)
    assert result.plain_seconds / result.seconds == pytest.approx(0.640, abs=0.005)


def test_what_the_commit_path_and_the_loop_shape_change() -> None:
    """Without replay about 33.5 tokens/s, with the anchor folded in 36 to 38 and a little."""
    speeds = {
        name: (lambda result: result.num_tokens / result.seconds)(run(*parts))
        for name, parts in {
            "rollback": (SeparateLoop, RollbackCommit()),
            "batch": (SeparateLoop, RollbackCommit(), BatchReplay()),
            "full_only": (SeparateLoop, FullOnlyCommit()),
            "prefix": (SeparateLoop, PrefixCommit()),
            "folded": (FoldedLoop, PrefixCommit()),
        }.items()
    }
    assert speeds["prefix"] == pytest.approx(33.5, abs=0.3)
    assert 36.0 <= speeds["folded"] <= 38.5
    assert speeds["rollback"] < speeds["batch"] < speeds["full_only"] < speeds["prefix"] < speeds["folded"]
    folded = run(FoldedLoop, PrefixCommit()).account
    assert (folded.verify_calls, folded.num_tokens) == (60, 256)  # the misses cost a pass there
    assert folded.time_ms["wall_saved"] > 0 > run(SeparateLoop, PrefixCommit()).account.time_ms["wall_saved"]


def test_the_order_of_the_cycles_does_not_matter() -> None:
    totals = set()
    for seed in range(3):
        shuffled = Recording.from_histograms(
            name="again",
            draft_len_hist=LINE["draft_len_hist"],
            accepted_len_hist=LINE["accepted_len_hist"],
            seed=seed,
            **{name: LINE[name] for name in COUNTS},
        )
        assert seed == 0 or shuffled.generations != REPORT.generations
        totals.add(round(run(SeparateLoop, RollbackCommit(), recording=shuffled).seconds, 6))
    assert len(totals) == 1


def test_a_recording_of_this_library_gives_its_account_again(program, tmp_path: Path) -> None:
    """A run on the virtual clock, and its rounds.jsonl through the simulator: all counters and times agree."""
    for number, (loop, commit) in enumerate([("folded", "full_only"), ("separate", "rollback")]):
        folder = tmp_path / str(number)
        parts = (f"loop={loop}", f"commit={commit}", "drafter=oracle", "drafter.accept_rate=0.7", "prompts.limit=2")
        assert program(*parts, "clock=virtual", "costs=m5_max", "max_tokens=20", f"hydra.run.dir={folder}") == 0
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        recording = Recording.from_rounds(str(folder / "rounds.jsonl"))
        shape = {"folded": FoldedLoop, "separate": SeparateLoop}[loop]
        path = {"rollback": RollbackCommit, "full_only": FullOnlyCommit}[commit]()
        again = run(shape, path, costs="m5_max", recording=recording)
        ours, theirs = again.account.to_json(), summary["account"]
        assert {k: v for k, v in ours.items() if k != "time_ms"} == {k: v for k, v in theirs.items() if k != "time_ms"}
        assert ours["time_ms"] == pytest.approx(theirs["time_ms"], abs=1e-3)
        assert again.num_tokens / again.seconds == pytest.approx(summary["tokens_per_s"])


@given(st.lists(st.integers(1, 6).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))), max_size=25))
def test_any_run_s_histograms_can_be_paired(pairs: list[tuple[int, int]]) -> None:
    lengths, runs = Counter(n for n, _ in pairs), Counter(k for _, k in pairs)
    full, missed = sum(n == k for n, k in pairs), sum(k == 0 for _, k in pairs)
    again = pair_lengths(lengths, runs, full=full, miss_first=missed)
    assert Counter(n for n, _ in again) == lengths
    assert Counter(k for _, k in again) == runs
    assert sum(n == k for n, k in again) == full
    assert all(0 <= k <= n for n, k in again)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"full": 50}, "no blocks have the lengths"),
        ({"full": 3}, "no blocks have the lengths"),  # six runs of 5 need six full blocks of 5
        ({"miss_first": 12}, "no blocks have the lengths"),
        ({"no_draft": 60}, "counts 126 cycles"),
        ({"scheduler_skips": 67}, "counts 126 cycles"),
    ],
)
def test_histograms_of_no_run_are_refused(changes: dict, message: str) -> None:
    counts = {name: LINE[name] for name in COUNTS} | changes
    with pytest.raises(UserError, match=message):
        Recording.from_histograms(
            name="x", draft_len_hist=LINE["draft_len_hist"], accepted_len_hist=LINE["accepted_len_hist"], **counts
        )


def test_every_kind_of_cycle_is_kept() -> None:
    """Also an end inside an accepted run, ids outside the vocabulary, and a last round without room."""
    drafted = Cycle(kind="drafted", proposed=4, accepted=2)
    others = [Cycle(kind=kind) for kind in ("empty", "skip", "plain", "invalid")]
    recording = Recording(
        name="x",
        generations=((drafted, *others, Cycle(kind="tail")), (drafted, Cycle(kind="no_room")), (*others, drafted)),
        has_next=(True, True, False),
    )
    for shape in (FoldedLoop, SeparateLoop):
        account = run(shape, PrefixCommit(), recording=recording).account
        assert (account.no_draft, account.scheduler_skips, account.invalid, account.no_room) == (6, 2, 2, 1)
        assert (account.tail_skips, account.partial, account.num_pending) == (1, 3, 2)
        assert account.num_tokens == 3 + 3 * 3 + 4 * 2 + 1 + 1 - 1
    assert num_tokens((drafted,), has_next=False) == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "holds no round"), ("[1]\n", "is no rounds.jsonl"), ('{"round": 1}\n', "is no rounds.jsonl"), (None, "read")],
)
def test_a_recording_that_is_none(tmp_path: Path, text: str | None, message: str) -> None:
    path = tmp_path / "rounds.jsonl"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=message):
        Recording.from_rounds(str(path))


def simulated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *arguments: str) -> int:
    folders = [f"hydra.run.dir={tmp_path / 'out'}", f"hydra.sweep.dir={tmp_path / 'sweep'}"]
    monkeypatch.setattr(sys, "argv", ["spec.simulate", *arguments, *folders])
    return simulator.main()


def test_the_program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert simulated(monkeypatch, tmp_path) == 0
    assert "255 tokens in 10.941 s, 23.31 tokens/s" in capsys.readouterr().out
    record = json.loads((tmp_path / "out" / "simulation.json").read_text(encoding="utf-8"))
    assert record["account"]["replayed_tokens"] == 121
    assert simulated(monkeypatch, tmp_path, "-m", "loop=separate,folded", "commit=prefix") == 0
    speeds = re.findall(r"([\d.]+) tokens/s", capsys.readouterr().out)
    assert [float(speed) for speed in speeds] == pytest.approx([33.6, 38.2], abs=0.1)
    for arguments, message in (
        (["costs=none"], "needs a cost table"),
        (["recording=rounds"], "no value for recording.path"),
        (["recording.full=50"], "no blocks have the lengths"),
        (["recording=magic"], "Could not find 'recording/magic'"),
    ):
        assert simulated(monkeypatch, tmp_path, *arguments) == 2
        (line,) = capsys.readouterr().err.strip().splitlines()
        assert line.startswith("error: ")
        assert message in line


def test_lines_of_a_killed_run_serve_too(tmp_path: Path) -> None:
    path = tmp_path / "rounds.jsonl"
    line = {"prompt_id": "p", "repeat": 0, "proposed": 3, "accepted": 1, "outcome": "partial", "kind": "correction"}
    path.write_text(json.dumps(line | {"skip": None, "gamma": 3}) + '\n{"prompt_id": "p", "rep', encoding="utf-8")
    assert len(list(read_lines(path))) == 1
    (cycles,) = Recording.from_rounds(str(path)).generations
    assert cycles == (Cycle(kind="drafted", proposed=3, accepted=1),)
