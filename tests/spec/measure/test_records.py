"""The files of a run: names that other programs rely on, a line at a time."""

import json
from pathlib import Path

import pytest

from spec import UserError
from spec.measure import RunFolder, read_lines, read_summary, repeated_ngram_share
from spec.measure.environment import describe, git_commit, hash_checkpoint
from tests.spec.measure.test_account import make_round

ROUND_FIELDS = [
    "prompt_id",
    "repeat",
    "round",
    "position",
    "gamma",
    "proposed",
    "accepted",
    "kind",
    "confidence",
    "outcome",
    "propose_ms",
    "verify_ms",
    "commit_ms",
    "replay_ms",
    "target_ms",
    "replayed_tokens",
    "snapshot_ms",
    "skip",
    "commit",
    "verify_rows",
]


def test_a_round_is_on_disk_before_the_next_one(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "new" / "folder") as folder:
        for count in (1, 2, 3):
            folder.write_round("p1", 0, make_round(index=count, confidence=(0.25,)))
            lines = list(read_lines(folder.path / "rounds.jsonl"))
            assert [line["round"] for line in lines] == list(range(1, count + 1))
    (first, *_) = lines
    assert set(ROUND_FIELDS) <= set(first)
    assert first | {"proposed": 1, "accepted": 1, "kind": "bonus", "confidence": [0.25], "outcome": "full"} == first
    assert (first["propose_ms"], first["verify_ms"], first["commit_ms"]) == pytest.approx((2.0, 10.0, 1.0))


def test_a_summary_of_an_earlier_run_does_not_outlive_its_rounds(tmp_path: Path) -> None:
    with RunFolder(tmp_path) as folder:
        folder.write_summary({"tau": 1.5})
    with RunFolder(tmp_path):
        assert not (tmp_path / "summary.json").exists()


def test_a_line_that_a_killed_run_left_unfinished_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "rounds.jsonl"
    path.write_text('{"round": 1}\n{"round": 2}\n{"rou', encoding="utf-8")
    assert [line["round"] for line in read_lines(path)] == [1, 2]


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"output folder .*file/out cannot be written .*hydra.run.dir"):
        RunFolder(tmp_path / "file" / "out")


def test_summaries_round_trip_and_hold_no_nan(tmp_path: Path) -> None:
    with RunFolder(tmp_path) as folder:
        folder.write_summary({"tau": 1.5, "speedup": None})
        assert read_summary(tmp_path) == {"tau": 1.5, "speedup": None}
        with pytest.raises(ValueError, match="JSON"):
            folder.write_summary({"tau": float("nan")})
        assert read_summary(tmp_path)["tau"] == 1.5  # the failed write left the file alone
    (tmp_path / "summary.json").write_text("{")
    with pytest.raises(UserError, match="not valid JSON"):
        read_summary(tmp_path)
    with pytest.raises(UserError, match="cannot be read"):
        read_summary(tmp_path / "nowhere")


def test_repeated_ngrams() -> None:
    assert repeated_ngram_share([1, 2, 3]) == 0.0
    assert repeated_ngram_share([1, 2, 3, 4, 5]) == 0.0
    assert repeated_ngram_share([7] * 13) == pytest.approx(0.9)  # ten windows, one of them new
    assert repeated_ngram_share([1, 2, 3, 4, 1, 2, 3, 4]) == pytest.approx(1 / 5)
    assert repeated_ngram_share([1, 2, 1, 2, 1], n=2) == pytest.approx(2 / 4)


def test_the_environment_names_what_was_measured(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "other.txt").write_text("not hashed")
    found = describe(seed=3, dtype="float32", checkpoints={"target": str(tmp_path), "drafter": None})
    assert found["backend"] == "cpu"
    assert (found["seed"], found["dtype"]) == (3, "float32")
    assert all(found[name] for name in ("mlx", "mlx_lm", "python", "device", "platform"))
    empty_object = "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
    assert found["checkpoints"] == {"target": {"config.json": empty_object}}
    json.dumps(found)
    before = hash_checkpoint(str(tmp_path))
    (tmp_path / "config.json").write_text('{"changed": true}')
    assert hash_checkpoint(str(tmp_path)) != before
    assert hash_checkpoint(str(tmp_path / "config.json")) == hash_checkpoint(str(tmp_path))


def test_the_commit_is_a_hash_or_unknown() -> None:
    commit = git_commit()
    assert commit is None or len(commit.removesuffix("+changes")) == 40
