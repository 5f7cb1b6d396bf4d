"""The main program, whole: records, repeatability, sweeps, and one clear line for what cannot be done."""

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from spec.loop import base, folded
from spec.measure import read_lines
from spec.programs import rotation
from spec.programs.parts import load_target

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "configs" / "experiment"
EXPERIMENTS = sorted(path.stem for path in FOLDER.glob("[!_]*.yaml"))
SWEEPS = {name for name in EXPERIMENTS if "MULTIRUN" in (FOLDER / f"{name}.yaml").read_text(encoding="utf-8")}
PROMPT_CLASSES = ("json_repetitive", "md_table", "code_gen", "prose", "chat")
SUMMARY_FIELDS = [
    "experiment",
    "prompt_class",
    "num_prompts",
    "num_tokens",
    "tokens_per_s",
    "baseline_tokens_per_s",
    "speedup",
    "speedup_min",
    "speedup_max",
    "tau",
    "acceptance_rate",
    "accept_rate_at",
    "exactness",
    "account",
    "environment",
    "by_prompt",
]
RUN_FIELDS = [
    "prompt_id",
    "class",
    "repeat",
    "mode",
    "prompt",
    "sampling",
    "tokens",
    "text",
    "finish_reason",
    "tokens_per_s",
    "prefill_tokens_per_s",
    "peak_memory_gb",
]
ACCOUNT_FIELDS = [
    "cycles",
    "first_tokens",
    "proposed",
    "accepted_draft",
    "accept_rate",
    "avg_accept",
    "full",
    "partial",
    "miss_first",
    "no_draft",
    "no_room",
    "invalid",
    "scheduler_skips",
    "tail_skips",
    "errors",
    "time_ms",
    "draft_len_hist",
    "accepted_len_hist",
]
TIME_FIELDS = ["propose", "snapshot", "verify", "replay", "spec_total", "target", "saved", "net_saved"]


def summary_of(folder: Path) -> dict:
    return json.loads((folder / "summary.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_experiment_runs(program, tmp_path: Path, experiment: str, capsys: pytest.CaptureFixture) -> None:
    assert program(f"+experiment={experiment}") == 0
    if experiment in SWEEPS:
        summaries = [summary_of(path.parent) for path in (tmp_path / "sweep").glob("*/summary.json")]
        assert len(summaries) > 1
        for summary in summaries:
            assert summary["experiment"] == experiment
            assert summary["exactness"]["identical_to_baseline"] is True
        return
    summary = summary_of(tmp_path / "out")
    prompt_class = next(name for name in PROMPT_CLASSES if experiment.startswith(name))
    fixed = re.search(r"_b(\d)$", experiment)
    gamma = int(fixed[1]) if fixed else 5
    assert summary["experiment"] == experiment
    assert summary["prompt_class"] == prompt_class
    assert {round_["gamma"] for round_ in read_lines(tmp_path / "out" / "rounds.jsonl")} <= set(range(gamma + 1))
    assert summary["exactness"]["identical_to_baseline"] is True
    assert prompt_class in capsys.readouterr().out


def test_records_hold_together(program, tmp_path: Path, prompt_file: Path) -> None:
    """The figures of the summary are recomputed from the lines."""
    assert program("drafter=oracle", "drafter.accept_rate=0.6", "prompts.limit=3", "repeats=2", "max_tokens=12") == 0
    folder = tmp_path / "out"
    summary, rounds = summary_of(folder), list(read_lines(folder / "rounds.jsonl"))
    runs = list(read_lines(folder / "runs.jsonl"))
    assert set(SUMMARY_FIELDS) <= set(summary)
    assert set(ACCOUNT_FIELDS) <= set(summary["account"])
    assert set(TIME_FIELDS) <= set(summary["account"]["time_ms"])
    assert all(list(run) == RUN_FIELDS for run in runs)
    # interleaved: for each repeat and prompt the baseline, then the speculative run
    order = [(repeat, name, mode) for repeat in (0, 1) for name in ("one", "two", "three") for mode in ("b", "s")]
    assert [(run["repeat"], run["prompt_id"], run["mode"][0]) for run in runs] == order
    by_key = {(run["prompt_id"], run["repeat"], run["mode"]): run for run in runs}
    for (name, repeat, mode), run in by_key.items():
        assert run["tokens"] == by_key[(name, 0, "baseline")]["tokens"], (name, repeat, mode)
        assert run["finish_reason"] in ("eos", "max_tokens")
        assert run["peak_memory_gb"] > 0
        assert run["prefill_tokens_per_s"] > 0
    ours = [run for run in runs if run["mode"] == "speculative"]
    accepted, proposed = sum(r["accepted"] for r in rounds), sum(r["proposed"] for r in rounds)
    assert 0 < accepted < proposed
    assert summary["num_tokens"] == sum(len(run["tokens"]) for run in ours)
    assert summary["num_prompts"] == 3
    assert summary["acceptance_rate"] == accepted / proposed
    assert summary["tau"] == (summary["num_tokens"] - len(ours)) / len(rounds)
    for at, rate in enumerate(summary["accept_rate_at"]):
        there = [r for r in rounds if r["proposed"] > at]
        assert rate == sum(r["accepted"] > at for r in there) / len(there)
    account = summary["account"]
    assert (account["cycles"], account["accepted_draft"], account["proposed"]) == (len(rounds), accepted, proposed)
    for outcome in ("full", "partial", "miss_first", "no_draft", "no_room", "invalid"):
        assert account[outcome] == sum(r["outcome"] == outcome for r in rounds)
    for part in ("propose", "verify", "commit", "replay", "target"):
        assert account["time_ms"][part] == pytest.approx(sum(r[f"{part}_ms"] for r in rounds))
    assert {entry["prompt_id"] for entry in summary["by_prompt"]} == {"one", "two", "three"}
    assert summary["exactness"]["nspec"] == sum(len(run["tokens"]) for run in ours) / 2
    assert (summary["exactness"]["worst_argmax_gap"], summary["exactness"]["at"]) == (0.0, -1)
    assert summary["speedup_min"] <= summary["speedup"] <= summary["speedup_max"]
    files = summary["environment"]["checkpoints"]["target"]
    assert {"config.json", "model.safetensors", "drafter.safetensors", "tokenizer.json"} <= set(files)
    assert (folder / ".hydra" / "config.yaml").is_file()


def test_a_run_without_baseline_or_exactness(program, tmp_path: Path) -> None:
    assert program("baseline=false", "exactness=false", "drafter=ngram", "drafter.n_min=1") == 0
    summary = summary_of(tmp_path / "out")
    assert {run["mode"] for run in read_lines(tmp_path / "out" / "runs.jsonl")} == {"speculative"}
    for field in ("baseline_tokens_per_s", "speedup", "speedup_min", "speedup_max"):
        assert summary[field] is None
    assert summary["account"]["time_ms"]["saved"] is None
    assert summary["exactness"]["identical_to_baseline"] is None
    assert summary["tokens_per_s"] > 0


def test_sampled_runs_equal_their_baseline(program, tmp_path: Path) -> None:
    sampled = ("verifier=sample_match", "sampling.temperature=0.8", "sampling.top_k=20", "seed=5")
    assert program(*sampled, "drafter=oracle", "prompts.limit=2") == 0
    summary = summary_of(tmp_path / "out")
    assert summary["exactness"]["identical_to_baseline"] is True
    assert summary["exactness"]["worst_argmax_gap"] is None
    assert summary["account"]["accepted_draft"] > 0


def test_stop_strings_and_context_reach_the_loop(program, tmp_path: Path) -> None:
    assert program("context=21", "max_tokens=100") == 0
    (baseline, ours) = read_lines(tmp_path / "out" / "runs.jsonl")
    text = ours["text"]
    assert ours["finish_reason"] == "context"
    assert ours["tokens"] == baseline["tokens"]
    stop = text[4:6]
    for given in (f"stop=['{stop}']", f"stop='{stop}'"):  # a list, or one text
        assert program(given, "max_tokens=100") == 0
        (baseline, ours) = read_lines(tmp_path / "out" / "runs.jsonl")
        assert ours["finish_reason"] == baseline["finish_reason"] == "stop_string"
        assert ours["text"] == baseline["text"] == text[: text.index(stop)]


def test_a_sweep_runs_in_one_process_and_loads_the_target_once(program, tmp_path: Path) -> None:
    load_target.cache_clear()
    assert program("-m", "+experiment=prose_b5", "block.gamma=0,3") == 0
    assert load_target.cache_info().misses == 1
    gammas = []
    for number in (0, 1):
        rounds = list(read_lines(tmp_path / "sweep" / str(number) / "rounds.jsonl"))
        gammas.append(max(line["gamma"] for line in rounds))
        assert summary_of(tmp_path / "sweep" / str(number))["exactness"]["identical_to_baseline"] is True
    assert gammas == [0, 3]


def test_the_jobs_of_a_sweep_are_measured_in_one_rotation(
    program, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """Prompt by prompt: plain decoding once, then every job; one table at the end, the overrides as columns."""
    sweep = ("-m", "+experiment=json_repetitive_b5", "prompts.limit=2", "repeats=2", "block.gamma=1,4")
    assert program(*sweep, "drafter.calibration=auto,null") == 0
    captured = capsys.readouterr()
    folders = [tmp_path / "sweep" / str(number) for number in range(4)]
    records = [list(read_lines(folder / "runs.jsonl")) for folder in folders]
    plain = [[run for run in runs if run["mode"] == "baseline"] for runs in records]
    assert plain[0] == plain[1] == plain[2] == plain[3]  # the very same measurement, not just the same tokens
    assert [(run["prompt_id"], run["repeat"]) for run in plain[0]] == [("one", 0), ("two", 0), ("one", 1), ("two", 1)]
    summaries = [summary_of(folder) for folder in folders]
    assert len({summary["baseline_tokens_per_s"] for summary in summaries}) == 1
    assert [summary["overrides"][-2:] for summary in summaries] == [
        [f"block.gamma={gamma}", f"drafter.calibration={name}"] for gamma in (1, 4) for name in ("auto", "null")
    ]
    assert captured.out.count("tokens/s") == 1  # one table
    assert "gamma=4 calibration=null json_repetitive (2): accepted at 1 to 4" in captured.out
    assert f"records: {tmp_path / 'sweep'}" in captured.out
    assert "baselines lie" not in captured.out
    assert "json_repetitive_b5: 4 jobs in rotation, 2 prompts x 2 repeats, speculative and baseline" in captured.err


def test_jobs_that_share_too_little_are_measured_apart(program, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert program("-m", "drafter=ngram", "max_tokens=4,6") == 0
    records = [list(read_lines(tmp_path / "sweep" / str(number) / "runs.jsonl")) for number in (0, 1)]
    assert [len(runs[0]["tokens"]) for runs in records] == [4, 6]
    assert "The baselines lie between" in " ".join(capsys.readouterr().out.split())


def test_a_run_says_what_it_runs_and_where_its_records_are(program, tmp_path: Path, capsys) -> None:
    assert program("verifier=b2", "sampling.temperature=0.8", "drafter=ngram") == 0
    captured = capsys.readouterr()
    (said,) = [line for line in captured.err.splitlines() if "prompts x" in line]
    for part in ("run: target=tiny", "drafter=ngram", "verifier=b2", "block=fixed (gamma up to 5)", "1 prompts x 1"):
        assert part in said
    assert f"records: {tmp_path / 'out'}" in captured.out
    assert "exact in law" in captured.out
    exactness = summary_of(tmp_path / "out")["exactness"]
    assert (exactness["guarantee"], exactness["verdict"], exactness["first_divergence"]) == (
        *("law", "exact in law"),
        None,
    )


def test_records_are_enough_to_run_a_prompt_again(program, tmp_path: Path) -> None:
    """Ids, sampling and seed stand in every line."""
    assert program("verifier=sample_match", "sampling.temperature=0.7", "+sampling.logit_bias={3: -inf}", "seed=4") == 0
    for run in read_lines(tmp_path / "out" / "runs.jsonl"):
        assert run["prompt"]
        assert (run["sampling"]["temperature"], run["sampling"]["seed"]) == (0.7, 4)
        assert run["sampling"]["logit_bias"] == {"3": "-inf"}
        assert 3 not in run["tokens"]


def test_a_verifier_that_would_ignore_the_sampling_is_refused(program, capsys: pytest.CaptureFixture) -> None:
    assert (
        program("~verifier.sampling", "+verifier.sampling={_target_: spec.Sampling}", "sampling.temperature=0.8") == 2
    )
    assert "would have no effect: add sampling: ${sampling} there" in capsys.readouterr().err
    assert program("~verifier.sampling") == 2
    assert "verifier.sampling is missing" in capsys.readouterr().err


def test_one_way_to_wire(program, capsys: pytest.CaptureFixture) -> None:
    assert program("+verifier._partial_=true") == 2
    assert "nothing is given to it at run time: remove it" in capsys.readouterr().err
    for part in ("loop", "drafter"):
        assert program(f"~{part}._partial_") == 2
        assert "_partial_: true" in capsys.readouterr().err


def test_a_sweep_over_groups_loads_the_target_once(program, tmp_path: Path) -> None:
    load_target.cache_clear()
    assert program("-m", "drafter=ngram", "drafter.n_min=1", "loop=folded,separate", "commit=full_only,rollback") == 0
    assert load_target.cache_info().misses == 1
    summaries = [summary_of(tmp_path / "sweep" / str(number)) for number in range(4)]
    assert all(summary["exactness"]["identical_to_baseline"] for summary in summaries)
    accounts = [summary["account"] for summary in summaries]
    assert len({account["accepted_draft"] for account in accounts}) == 1
    assert all(account["verify_calls"] == account["replay_fallbacks"] for account in accounts[1::2])  # rollback


def test_an_interrupted_sweep_goes_on_where_it_was(
    program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """Finished jobs are not run again, unless their configuration is another; the job that was cut off is."""
    real, done = rotation.summarize, []

    def interrupted(**values):
        if len(done) == 1:
            raise KeyboardInterrupt  # in the second job, when all its rounds are on disk
        done.append(1)
        return real(**values)

    sweep = ("-m", "drafter=ngram", "drafter.n_min=1", "block.gamma=1,2,3")
    with monkeypatch.context() as patch:
        patch.setattr(rotation, "summarize", interrupted)
        assert program(*sweep) == 130
    folders = [tmp_path / "sweep" / str(number) for number in range(3)]
    assert [(folder / "summary.json").exists() for folder in folders] == [True, False, False]
    said = capsys.readouterr().err
    (command,) = [line for line in said.splitlines() if line.startswith("to go on: python -m spec.run -m ")]
    assert f"hydra.sweep.dir={tmp_path / 'sweep'}" in command
    assert list(read_lines(folders[1] / "rounds.jsonl"))
    first = (folders[0] / "summary.json").read_bytes()
    capsys.readouterr()

    assert program(*sweep) == 0
    assert capsys.readouterr().out.count("finished before with this configuration, skipped") == 1
    assert (folders[0] / "summary.json").read_bytes() == first
    assert all((folder / "summary.json").exists() for folder in folders)
    assert program(*sweep) == 0
    assert capsys.readouterr().out.count("skipped") == 3
    assert program(*sweep, "seed=7") == 0  # not the same jobs
    assert "skipped" not in capsys.readouterr().out


def test_on_the_virtual_clock_two_runs_are_the_same_to_the_byte(program, tmp_path: Path) -> None:
    records = []
    for number in (0, 1):
        folder = tmp_path / str(number)
        parts = ("loop=separate", "commit=rollback", "drafter=ngram", "drafter.n_min=1", "prompts.limit=2", "repeats=2")
        assert program(*parts, "clock=virtual", "costs=m3_ultra", "max_tokens=12", f"hydra.run.dir={folder}") == 0
        summary = summary_of(folder)
        for changing in ("environment", "config_hash"):
            summary.pop(changing)
        records.append(((folder / "rounds.jsonl").read_bytes(), summary))
        runs = list(read_lines(folder / "runs.jsonl"))
    assert records[0] == records[1]
    speeds = [run["tokens_per_s"] for run in runs if run["mode"] == "baseline"]
    assert speeds == pytest.approx([1000 / 27.492] * 4)
    assert {run["prefill_tokens_per_s"] for run in runs} == {None}  # no table prices a prompt
    assert summary_of(folder)["environment"]["clock"] == "virtual"
    assert summary_of(folder)["environment"]["costs"]["name"] == "M3 Ultra"
    times = records[0][1]["account"]["time_ms"]
    assert times["other"] == 0
    assert times["wall_saved"] == pytest.approx(times["baseline_wall"] - times["wall"])


def test_a_job_that_fails_does_not_end_the_sweep(program, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert program("-m", "block.gamma=6,2") == 2
    assert "at most 5 tokens" in capsys.readouterr().err
    assert not (tmp_path / "sweep" / "0" / "summary.json").exists()
    assert (tmp_path / "sweep" / "1" / "summary.json").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["drafter=magic"],
            "In 'config': Could not find 'drafter/magic'; Available options in 'drafter': dspark, .*, none, oracle$",
        ),
        (["+experiment=magic"], "Could not find 'experiment/magic'"),
        (["block.gama=3"], "Could not override 'block.gama'. To append"),
        (["+block.gama=3"], "block: .*unexpected keyword argument 'gama'"),
        (["+sampling.warmth=3"], "sampling: .*unexpected keyword argument 'warmth'"),
        (["block.gamma=6"], "block.gamma: the drafter proposes at most 5 tokens .* got 6"),
        (["block.gamma=-1"], "block.gamma must be a whole number"),
        (["sampling.temperature=0.7"], "choose verifier=sample_match"),
        (["sampling.top_p=2"], "sampling.top_p must be a number in 0..1, got 2"),
        (["target=deepseek_v4", "target.path=???"], "no value for target.path"),
        (["target.path=/nowhere/at/all"], "target: /nowhere/at/all"),
        (["drafter.path=/nowhere/at/all"], "drafter: /nowhere/at/all"),
        (["drafter.quant=q99"], "drafter: .*quant"),
        (["target.dtype=float12"], "target: dtype"),
        (["prompts=file", "prompts.paths=???"], "no value for prompts.paths"),
        (["prompts.paths=[nowhere.jsonl]"], "prompt file nowhere.jsonl does not exist"),
        (["context=5"], "prompt one has 15 tokens, the context holds 5"),
        (["context=0"], "context must lie in 1.."),
        (["max_tokens=0"], "max_tokens must be a whole number of 1 or more, got 0"),
        (["repeats=many"], "repeats must be a whole number of 1 or more, got 'many'"),
        (["baseline=maybe"], "baseline must be true or false"),
        (["seed=x"], "seed must be a whole number"),
        (["context=long"], "context must be a whole number"),
        (["prompts.limit=few"], "prompts.limit must be a whole number"),
        (["+loop.speed=3"], "loop: .*unexpected keyword argument 'speed'"),
        (["sampling.top_k=2.5"], "sampling.top_k must be a whole number"),
        (["sampling.temperature=hot"], "sampling.temperature must be a number of 0 or more, got 'hot'"),
        (["drafter=oracle", "baseline=false"], "run it with baseline=true"),
        (["drafter=oracle", "drafter.accept_rate=2"], "drafter.accept_rate must be a number in 0..1, got 2"),
        (["clock=virtual"], "choose one, for example costs=m3_ultra"),
        (["clock=sundial"], "clock must be wall or virtual, got 'sundial'"),
        (["costs=m3_ultra", "costs.snapshot=-1"], "costs.snapshot must be a number of 0 or more, got -1"),
        (["costs=this_machine", "costs.path=/nowhere"], "costs: /nowhere cannot be read"),
        (["loop=separate", "loop.correction=drop"], "loop.correction must be decode or replay, got 'drop'"),
        (["max_tokens="], "max_tokens must be a whole number"),
        (["max_tokens"], "mismatched input|missing"),
    ],
)
def test_bad_input_gets_one_line_and_code_2(
    program, tmp_path: Path, capsys: pytest.CaptureFixture, arguments: list[str], message: str
) -> None:
    assert program(*arguments) == 2
    error = capsys.readouterr().err
    (line,) = [line for line in error.splitlines() if line.strip()]
    assert line.startswith("error: ")

    assert re.search(message, line), line
    assert not (tmp_path / "out" / "summary.json").exists()


def test_an_empty_prompt(program, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    path = tmp_path / "empty.jsonl"
    path.write_text('{"prompt": ""}\n')
    assert program(f"prompts.paths=[{path}]") == 2
    assert "line 1: the prompt is empty" in capsys.readouterr().err


def test_a_tensor_that_is_missing_is_named(program, checkpoint: Path, tmp_path: Path, capsys) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    for file in checkpoint.iterdir():
        if file.name != "drafter.safetensors":
            (broken / file.name).symlink_to(file)
    assert program(f"target.path={broken}") == 2
    assert "holds no drafter" in capsys.readouterr().err
    assert program(f"target.path={broken}", "drafter=none") == 0


@pytest.mark.parametrize(("warmup_tokens", "generations"), [(0, 2), (3, 4)])
def test_the_warm_up_runs_both_loops_and_leaves_no_record(
    program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warmup_tokens: int, generations: int
) -> None:
    real, limits = base.SpeculativeLoop.start, []

    def counted(self, request):
        limits.append(request.max_tokens)
        return real(self, request)

    monkeypatch.setattr(base.SpeculativeLoop, "start", counted)
    assert program(f"warmup_tokens={warmup_tokens}") == 0
    assert limits == [3] * (generations - 2) + [8, 8]
    assert len(list(read_lines(tmp_path / "out" / "runs.jsonl"))) == 2


def test_an_interrupted_run_keeps_its_rounds(program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = base.emit, []

    def interrupted(*arguments: object):
        calls.append(1)
        if len(calls) == 12:  # eight tokens of the baseline, then the prefill and two rounds of the speculative run
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(base, "emit", interrupted)
    monkeypatch.setattr(folded, "emit", interrupted)
    assert program() == 130
    assert [line["round"] for line in read_lines(tmp_path / "out" / "rounds.jsonl")] == [1, 2]
    assert [line["mode"] for line in read_lines(tmp_path / "out" / "runs.jsonl")] == ["baseline"]
    assert not (tmp_path / "out" / "summary.json").exists()


def test_a_fault_of_the_program_keeps_its_traceback(program, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object) -> None:
        raise ZeroDivisionError("a fault")

    monkeypatch.setattr(base, "emit", broken)
    with pytest.raises(ZeroDivisionError):
        program()


def test_a_killed_run_keeps_its_rounds(tmp_path: Path, checkpoint: Path, prompt_file: Path) -> None:
    """SIGKILL: nothing of the program runs after it."""
    folder = tmp_path / "out"
    arguments = [f"target.path={checkpoint}", f"prompts.paths=[{prompt_file}]", f"hydra.run.dir={folder}"]
    more = ["max_tokens=2000", "baseline=false", "repeats=1", "warmup_tokens=0", "drafter=none"]
    command = [sys.executable, "-m", "spec.run", *arguments, *more]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 60
        while not (folder / "rounds.jsonl").is_file() or (folder / "rounds.jsonl").read_bytes().count(b"\n") < 3:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.kill()
    rounds = list(read_lines(folder / "rounds.jsonl"))
    assert [line["round"] for line in rounds] == list(range(1, len(rounds) + 1))
    assert len(rounds) >= 3
    assert not (folder / "summary.json").exists()


def outside(arguments: list[str], folder: Path) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )


def test_as_a_process_an_unwritable_folder_is_one_line(tmp_path: Path, checkpoint: Path) -> None:
    (tmp_path / "file").write_text("")
    done = outside(["spec.run", f"target.path={checkpoint}", f"hydra.run.dir={tmp_path}/file/out"], tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert f"{tmp_path}/file" in line


def test_as_a_process_a_run_and_its_report(tmp_path: Path, checkpoint: Path, prompt_file: Path) -> None:
    arguments = [f"target.path={checkpoint}", f"prompts.paths=[{prompt_file}]", "max_tokens=4", "repeats=1"]
    done = outside(["spec.run", "+experiment=prose_b2", f"hydra.run.dir={tmp_path}/out", *arguments], tmp_path)
    assert done.returncode == 0, done.stderr
    assert "prose (3)" in done.stdout
    again = outside(["spec.report", f"{tmp_path}/out"], tmp_path)
    assert again.returncode == 0
    assert again.stdout.strip() in done.stdout
