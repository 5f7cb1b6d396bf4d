"""The table of runs and sweeps."""

import csv
import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from spec import report
from spec.measure.exactness import Divergence, Exactness

ROW = {
    "class": "prose",
    "num_prompts": 8,
    "num_tokens": 1024,
    "tokens_per_s": 52.25,
    "baseline_tokens_per_s": 40.0,
    "speedup": 1.306,
    "speedup_min": 1.2,
    "speedup_max": 1.4,
    "tau": 2.345,
    "acceptance_rate": 0.4,
    "accept_rate_at": [0.71, 0.502],
    "repeated_4gram_share": 0.125,
    "exactness": {"verdict": "as baseline"},
    "account": {
        "cycles": 10,
        "time_ms": {"propose": 31.0, "verify": 99.9, "commit": 0.01, "replay": 0.0, "target": 5.0, "other": 1.0},
    },
}
SUMMARY = ROW | {
    "experiment": "prose_b2",
    "overrides": ["+experiment=prose_b2", "hydra.run.dir=x"],
    "environment": {"device": "a chip", "backend": "cpu"},
    "by_class": [ROW],
}
EXACT = {
    "nspec": 9,
    "max_chunk": 3,
    "worst_argmax_gap": 0.0,
    "at": -1,
    "identical_to_baseline": True,
    "first_divergence": None,
}


def swept(**overrides: object) -> dict:
    return SUMMARY | {"overrides": ["+experiment=prose_b2", *(f"{key}={value}" for key, value in overrides.items())]}


def printed(*summaries: dict, width: int = 200) -> str:
    console = Console(width=width, file=io.StringIO())
    report.print_table(summaries, console)
    report.print_notes(summaries, console)
    return console.file.getvalue()


def test_a_row_says_everything() -> None:
    text = printed(SUMMARY)
    for cell in (
        "prose_b2, prose (8), on a chip (cpu)",
        "52.2",
        "40.0",
        "1.31x (1.20 to 1.40)",
        "2.35",
        "0.71 0.50",
        "as baseline",
        "0.12",
        "propose 3.10, verify 9.99, target 0.50, other 0.10",
    ):
        assert cell in text, cell
    assert "replay" not in text
    assert "gap" not in text


def test_a_row_fits_80_columns() -> None:
    (row,) = [line for line in printed(SUMMARY, width=80).splitlines() if "1.31x" in line]
    for cell in ("52.2", "40.0", "1.31x (1.20 to 1.40)", "2.35", "as baseline"):
        assert cell in row


def test_a_sweep_over_two_choices_fits_80_columns() -> None:
    jobs = [swept(**{"block.gamma": 5, "verifier": name}) for name in ("sample_match", "b2")]
    jobs += [swept(**{"block.gamma": 2, "verifier": "b2"})]
    lines = printed(*jobs, width=80).splitlines()
    (row,) = [line for line in lines if "sample_match" in line and "1.31x" in line]
    for cell in ("5", "52.2", "40.0", "1.31x (1.20 to 1.40)", "2.35", "as baseline"):
        assert cell in row


def test_several_classes_are_a_column() -> None:
    text = printed(SUMMARY | {"by_class": [ROW, ROW | {"class": "chat"}]})
    assert [line.split()[0] for line in text.splitlines() if "1.31x" in line] == ["prose", "chat"]


def test_what_was_not_measured_is_a_dash() -> None:
    row = ROW | {"speedup": None, "baseline_tokens_per_s": None, "tau": None, "accept_rate_at": []}
    assert report.speedup(row) == "-"
    assert report.number(None, 2) == "-"
    assert report.time_split({"cycles": 0}) == "-"
    assert printed(SUMMARY | {"by_class": [row], "baseline_tokens_per_s": None}).count(" - ") >= 3


def test_overrides_that_differ_are_columns() -> None:
    jobs = [swept(**{"block.gamma": gamma, "drafter.quant": "q8", "hydra.job.num": gamma}) for gamma in (2, 5)]
    text = printed(*jobs)
    assert any(line.startswith("gamma ") for line in text.splitlines())
    assert "drafter.quant" not in text
    assert "hydra" not in text
    assert [row["block.gamma"] for row in report.rows(jobs)] == ["2", "5"]
    assert [line.split()[0] for line in text.splitlines() if "1.31x" in line] == ["2", "5"]


def test_baselines_that_lie_apart_are_said() -> None:
    assert "baselines lie between" not in printed(SUMMARY, swept(seed=2))
    text = printed(SUMMARY, swept(seed=2) | {"baseline_tokens_per_s": 70.0})
    assert "The baselines lie between 40.0 and 70.0 tokens/s" in " ".join(text.split())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "as baseline"),
        ({"identical_to_baseline": None}, "argmax throughout"),
        ({"identical_to_baseline": None, "at": None, "worst_argmax_gap": None}, "not checked"),
        ({"guarantee": "law", "identical_to_baseline": False}, "exact in law"),
        ({"guarantee": "none", "identical_to_baseline": True}, "lossy"),
    ],
)
def test_what_a_verifier_promises_is_said(changes: dict, words: str) -> None:
    assert Exactness(**(EXACT | changes)).verdict == words


def test_a_divergence_is_told_in_words() -> None:
    split = Divergence(prompt_id="p3", position=88, round=4, logit_margin=0.00012)
    changes = {"identical_to_baseline": False, "first_divergence": split, "worst_argmax_gap": 0.25, "at": 17}
    said = "p3 leaves the baseline at position 88, which prefers its own token by 0.00012"
    gap = "token 17 of an output lies 0.25 below the argmax"
    assert Exactness(**(EXACT | changes)).verdict == f"{said}; {gap}"
    assert Exactness(**(EXACT | changes | {"guarantee": "none"})).verdict == f"lossy; {said}; {gap}"
    short = Divergence(prompt_id="p3", position=88, round=4, logit_margin=None)
    assert Exactness(**(EXACT | changes | {"first_divergence": short})).verdict.startswith(
        "p3 leaves the baseline at position 88; token"
    )


def test_rows_for_other_programs(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    for number, gamma in enumerate((2, 5, 3)):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "summary.json").write_text(json.dumps(swept(**{"block.gamma": gamma})))
    assert report.main([str(tmp_path), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["block.gamma"] for row in rows] == ["2", "5", "3"]
    assert rows[0]["verify_ms"] == pytest.approx(9.99)
    assert report.main([str(tmp_path / "0"), str(tmp_path / "2"), "--csv"]) == 0
    flat = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["block.gamma"] for row in flat] == ["2", "3"]
    assert flat[0]["exactness"] == "as baseline"
    assert report.main([str(tmp_path)]) == 0
    assert "gamma=5 prose (8): accepted" in capsys.readouterr().out


def test_a_folder_without_a_summary(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert report.main([str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("error: ")
    with pytest.raises(SystemExit, match="2"):
        report.main([])
    assert "usage" in capsys.readouterr().err
