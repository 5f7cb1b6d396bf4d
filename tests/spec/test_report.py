"""The table of a run."""

import copy
import io

import pytest
from rich.console import Console

from spec import report

ROW = {
    "class": "prose",
    "num_prompts": 8,
    "tokens_per_s": 52.25,
    "baseline_tokens_per_s": 40.0,
    "speedup": 1.306,
    "speedup_min": 1.2,
    "speedup_max": 1.4,
    "tau": 2.345,
    "accept_rate_at": [0.71, 0.502],
    "repeated_4gram_share": 0.125,
    "exactness": {
        "identical_to_baseline": True,
        "first_divergence": None,
        "worst_argmax_gap": 0.0,
        "at": -1,
    },
    "account": {
        "cycles": 10,
        "time_ms": {"propose": 31.0, "verify": 99.9, "commit": 0.01, "replay": 0.0, "target": 5.0, "other": 1.0},
    },
}
SUMMARY = {"experiment": "prose_b2", "environment": {"device": "a chip", "backend": "cpu"}, "by_class": [ROW]}


def printed(summary: dict) -> str:
    console = Console(width=200, file=io.StringIO())
    report.print_summary(summary, console)
    return console.file.getvalue()


def test_a_row_says_everything() -> None:
    text = printed(SUMMARY)
    for cell in (
        "prose_b2 on a chip (cpu)",
        "prose (8)",
        "52.2",
        "40.0",
        "1.31x (1.20 to 1.40)",
        "2.35",
        "0.71 0.50",
        "as baseline, gap 0.000 at -1",
        "0.12",
        "propose 3.10, verify 9.99, target 0.50, other 0.10",
    ):
        assert cell in text, cell
    assert "replay" not in text


def test_what_was_not_measured_is_a_dash() -> None:
    row = ROW | {"speedup": None, "baseline_tokens_per_s": None, "tau": None, "accept_rate_at": []}
    assert report.speedup(row) == "-"
    assert report.number(None, 2) == "-"
    assert report.time_split({"cycles": 0}) == "-"
    unchecked = dict.fromkeys(ROW["exactness"])
    assert report.exactness(unchecked) == "not checked"
    assert printed(SUMMARY | {"by_class": [row]}).count(" - ") >= 4


def test_a_divergence_is_shown() -> None:
    values = copy.deepcopy(ROW["exactness"])
    values |= {
        "identical_to_baseline": False,
        "first_divergence": {"prompt_id": "p3", "position": 88, "round": 4, "logit_margin": 0.00012},
        "worst_argmax_gap": 0.25,
        "at": 17,
    }
    assert report.exactness(values) == "p3 differs at 88, margin 0.00012, gap 0.250 at 17"
    values["first_divergence"]["logit_margin"] = None
    assert report.exactness(values) == "p3 differs at 88, gap 0.250 at 17"


def test_a_folder_without_a_summary(tmp_path, capsys: pytest.CaptureFixture) -> None:
    assert report.main([str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("error: ")
    assert report.main([]) == 2
    assert "usage" in capsys.readouterr().err
