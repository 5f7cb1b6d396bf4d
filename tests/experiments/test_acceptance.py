"""The acceptance program on a random pair: its files, its table, what it refuses."""

import json
from pathlib import Path

import numpy as np
import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

import experiments
from experiments.acceptance import main
from experiments.evaluation.continuations import batches, load_continuations
from spec.errors import UserError
from spec.run import main as decode
from tests.random_models import random_tokens

CLASSES = ("prose", "chat")
PROMPT, LENGTH = 6, 24


def write_generations(file: Path, seed: int, rows: int = 4) -> Path:
    """Rows of both classes and temperatures in turn; a constant second half, which prompt lookup gets right."""
    tokens = np.array(random_tokens(LENGTH, vocab_size=90, batch=rows, seed=seed)).astype(np.uint16)
    tokens[:, LENGTH // 2 :] = 7
    np.savez(
        file,
        tokens=tokens,
        classes=np.arange(rows, dtype=np.uint8) % 2,
        class_names=np.array(CLASSES),
        temperatures=(np.arange(rows) // 2 % 2).astype(np.float32),
        prompt_length=np.array(PROMPT),
    )
    return file


def composed(program: str, *overrides: str) -> DictConfig:
    with initialize_config_dir(str(Path(experiments.__file__).parent / "configs"), version_base=None):
        return compose(program, overrides=list(overrides))


def test_drafters_of_every_kind_come_out_of_one_program(
    checkpoint: Path, mtp_checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    output = tmp_path / "out" / "acceptance.json"
    config = composed(
        "acceptance",
        f"target={checkpoint}",
        f"continuations={write_generations(tmp_path / 'a.npz', 0)}",
        f"output={output}",
        "only=[stored,short,ngram,mtp]",
        "+drafters.short={kind: dspark, gamma: 2}",
        f"+drafters.mtp.path={mtp_checkpoint}",
        "+drafters.mtp.gamma=3",
    )
    main.__wrapped__(config)
    written = json.loads(output.read_text(encoding="utf-8"))
    assert set(written["seconds"]) == {"stored", "short", "ngram", "mtp"}
    assert written["drafters"]["short"]["gamma"] == 2
    assert written["environment"]["checkpoints"]["target"]
    rows = {(row["drafter"], row["class"], row["temperature"]): row for row in written["rows"]}
    assert len(rows) == 4 * 2 * 3
    stored, short, ngram = (rows[name, "all", 0.0] for name in ("stored", "short", "ngram"))
    # 18 own tokens each, a whole block of 5 after 13 of them; the same positions for the shorter block.
    assert stored["num_positions"] == short["num_positions"] == 2 * 13
    assert (ngram["num_positions"], ngram["accepted_drafts"]) == (0, None)
    assert stored["against_reference"] is None
    assert set(short["against_reference"]) == {"tau", "accepted_drafts"}
    assert ngram["against_reference"]["tau"]["value"] == pytest.approx(ngram["tau"]["value"] - stored["tau"]["value"])
    assert ngram["tau"]["value"] > 1.2  # the constant half
    for row in rows.values():
        assert row["num_sequences"] == (2 if row["class"] == "all" else 1)
        assert row["num_rounds"] * row["tau"]["value"] == pytest.approx(row["num_sequences"] * (LENGTH - PROMPT - 1))
        assert row["repeated_4gram_share"] > 0.3
    shown = capsys.readouterr().out
    assert "temperature 1" in shown
    assert "ngram" in shown


def test_a_drafter_is_compared_with_itself_as_equal(checkpoint: Path, tmp_path: Path) -> None:
    output = tmp_path / "acceptance.json"
    main.__wrapped__(
        composed(
            "acceptance",
            f"target={checkpoint}",
            f"continuations=[{write_generations(tmp_path / 'a.npz', 0)}]",
            f"output={output}",
            "only=[stored,again]",
            "+drafters.again={kind: dspark}",
            "temperatures=[0.0]",
            "limit=1",
        )
    )
    rows = json.loads(output.read_text(encoding="utf-8"))["rows"]
    assert {row["temperature"] for row in rows} == {0.0}
    for row in rows[1::2]:
        assert row["against_reference"]["tau"] == {"value": 0, "low": 0, "high": 0}
        assert row["against_reference"]["accepted_drafts"] == {"value": 0, "low": 0, "high": 0}


def test_what_cannot_be_done_is_said(checkpoint: Path, tmp_path: Path) -> None:
    file = write_generations(tmp_path / "a.npz", 0)
    base = (f"target={checkpoint}", f"continuations={file}", f"output={tmp_path / 'x.json'}")
    for changes, message in (
        (["only=[stored,other]"], "only: wanted some of stored, .*, got other"),
        (["only=[ngram]"], "reference: wanted null or one of ngram, got 'stored'"),
        (["only=[stored]", "drafters.stored.kind=eagle"], "drafters.stored.kind: wanted one of .*ngram.*, got 'eagle'"),
        (["only=[stored]", "+drafters.stored.gamma=9"], "drafters.stored.gamma: wanted 1 to 5, got 9"),
        (["only=[stored]", "+drafters.stored.quantt=q4"], "quantt"),
        (["only=[lm]", "reference=null", "+drafters.lm={kind: language_model}"], "drafters.lm: no value for path"),
        (["only=[stored]", "temperatures=[0.5]"], r"no continuations of temperatures \[0.5\]"),
        (["only=[stored]", f"continuations={tmp_path / 'none'}"], "no generations at"),
    ):
        with pytest.raises(UserError, match=message):
            main.__wrapped__(composed("acceptance", *base, *changes))


def test_outputs_of_the_loop_are_recordings_too(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = tmp_path / "mine.jsonl"
    prompts.write_text('{"prompt": "one two three", "id": "a"}\n{"prompt": "four", "id": "b"}\n', encoding="utf-8")
    folder = tmp_path / "run"
    arguments = [
        *("prompts=file", f"prompts.paths=[{prompts}]", f"target.path={checkpoint}", f"hydra.run.dir={folder}"),
        *("max_tokens=9", "repeats=2", "exactness=false", "warmup_tokens=0", "drafter=ngram"),
    ]
    monkeypatch.setattr("sys.argv", ["run", *arguments])
    decode()
    found = load_continuations(str(folder))
    lines = [json.loads(line) for line in (folder / "runs.jsonl").read_text(encoding="utf-8").splitlines()]
    emitted = {line["prompt_id"]: line["tokens"] for line in lines}
    assert [item.origin for item in found] == ["a", "b"]  # the first repeat of the speculative run of each
    for item in found:
        assert item.own.tolist() == emitted[item.origin]
        assert item.start >= 1
        assert (item.temperature, item.prompt_class) == (0.0, lines[0]["class"])
    prompts.unlink()  # the records hold the prompts' ids, so that nothing needs the prompt files again
    assert [item.tokens.tolist() for item in load_continuations(str(folder))] == [
        item.tokens.tolist() for item in found
    ]


def test_batches_hold_every_sequence_once(checkpoint: Path, tmp_path: Path) -> None:
    found = load_continuations(str(write_generations(tmp_path / "a.npz", 0, rows=5)))
    parts = list(batches(found, chunk=2 * LENGTH))
    assert sorted(number for part in parts for number in part.numbers) == list(range(5))
    assert [len(part.numbers) for part in parts] == [2, 2, 1]
    assert len(list(batches(found, chunk=1))) == 5
