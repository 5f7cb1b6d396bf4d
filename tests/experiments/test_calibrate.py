"""The calibration program on a random pair: from recordings to what the drafter then says."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from experiments import calibrate
from experiments.calibrate import disjoint, judge, main
from experiments.evaluation.confidence_scores import ConfidenceScores, score
from experiments.evaluation.continuations import Continuation, load_continuations
from models import load_dspark, load_model
from spec import DSparkDrafter, RandomStream
from spec.errors import UserError
from tests.experiments.test_acceptance import composed, write_generations
from tests.spec.doubles import context_at, prefilled, session


@pytest.fixture
def folder(checkpoint: Path, tmp_path: Path) -> Path:
    """A copy of the checkpoint that may be written to."""
    return Path(shutil.copytree(checkpoint, tmp_path / "pair"))


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """13 positions a row, 12 rows a temperature."""
    place = tmp_path_factory.mktemp("generations")
    return write_generations(place / "fit.npz", 1, rows=24), write_generations(place / "judge.npz", 2, rows=24)


@pytest.fixture(autouse=True)
def few_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate, "MIN_POSITIONS", 100)


def test_temperatures_are_stored_and_used(
    folder: Path, recordings: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    fit, held_out = recordings
    raw = DSparkDrafter(load_dspark(folder, target=load_model(folder)), calibration="auto")
    output = tmp_path / "out" / "calibration.json"
    config = composed("calibrate", f"target={folder}", f"fit={fit}", f"judge={held_out}", f"output={output}")
    main.__wrapped__(config)
    stored = json.loads((folder / "config.json").read_text(encoding="utf-8"))["dspark_confidence_temperatures"]
    written = json.loads(output.read_text(encoding="utf-8"))
    assert set(stored) == set(written["results"]) == {"greedy", "matched", "sampled"}
    for name, result in written["results"].items():
        assert stored[name] == pytest.approx(result["temperatures"], abs=1e-4)
        assert result["num_fitted"] == 12 * 13
        assert set(result["judged"]) == {"all", "prose", "chat"}
        for variant in ("raw", "scaled", "affine"):
            assert [row["position"] for row in result["judged"]["all"][variant]] == [1, 2, 3, 4, 5]
        first = {variant: rows[0]["ece"] for variant, rows in result["fitted"].items()}
        assert first["scaled"] <= first["raw"]  # 1 is in the grid
        assert result["judged"]["all"]["raw"][0]["auroc"] == result["judged"]["all"]["scaled"][0]["auroc"]
    assert output.with_suffix(".png").stat().st_size > 1000
    assert "calibration error" in capsys.readouterr().out

    model = load_model(folder)
    network = load_dspark(folder, target=model)
    features = prefilled(session(model, raw), [1, 2, 3])
    said = {}
    for name, drafter in (
        ("raw", raw),
        ("greedy", DSparkDrafter(network, temperature=0.0, calibration="auto")),
        ("matched", DSparkDrafter(network, temperature=0.7, calibration="auto")),
    ):
        drafter.observe([1, 2, 3], features)
        said[name] = drafter.propose(context_at(4, 3, RandomStream()), 5)
    logits = np.log(said["raw"].confidence) - np.log1p(-np.array(said["raw"].confidence))
    for name in ("greedy", "matched"):
        assert said[name].tokens == said["raw"].tokens
        assert said[name].confidence == pytest.approx(1 / (1 + np.exp(-logits / np.array(stored[name]))), abs=1e-5)


def test_nothing_is_stored_when_not_asked_for(
    folder: Path, recordings: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (folder / "config.json").read_bytes()
    fit, held_out = recordings
    base = (f"target={folder}", f"judge={held_out}", f"output={tmp_path / 'c.json'}")
    main.__wrapped__(composed("calibrate", *base, f"fit={fit}", "store=false"))
    assert (folder / "config.json").read_bytes() == before
    for changes, message in (
        ([f"fit={held_out}"], "wanted other documents"),
        ([f"fit={fit}", "limit=2"], "fit: wanted 100 positions or more at temperature 0, got 52"),
        ([f"fit={fit}", "sampled_temperature=0"], "sampled_temperature: wanted a number above 0"),
        ([f"fit={fit}", "seed=cold"], "seed: wanted an integer from 0 up, got 'cold'"),
        ([f"fit={fit}", "sampled_temperature=0.5"], "sets: matched, sampled cannot be fitted, fit=.* temperature 0.5"),
        ([f"fit={fit}", "sets=[cold]"], r"sets: wanted one or more of greedy, matched, sampled, got \['cold'\]"),
    ):
        with pytest.raises(UserError, match=message):
            main.__wrapped__(composed("calibrate", *base, *changes))
    assert (folder / "config.json").read_bytes() == before


def test_sets_that_are_not_fitted_stay(folder: Path, recordings: tuple[Path, Path], tmp_path: Path) -> None:
    file, fitted = folder / "config.json", {"greedy": [2.0] * 5, "sampled": [3.0] * 5}
    values = json.loads(file.read_text(encoding="utf-8")) | {"dspark_confidence_temperatures": fitted}
    file.write_text(json.dumps(values), encoding="utf-8")
    fit, held_out = recordings
    base = (f"target={folder}", f"fit={fit}", f"judge={held_out}", f"output={tmp_path / 'c.json'}")
    main.__wrapped__(composed("calibrate", *base, "sets=[sampled]"))
    stored = json.loads(file.read_text(encoding="utf-8"))["dspark_confidence_temperatures"]
    assert list(stored) == ["greedy", "sampled"]
    assert stored["greedy"] == fitted["greedy"]
    assert stored["sampled"] != fitted["sampled"]
    assert set(json.loads((tmp_path / "c.json").read_text(encoding="utf-8"))["results"]) == {"sampled"}


def test_sampled_drafts_are_scored_by_their_chance(checkpoint: Path, recordings: tuple[Path, Path]) -> None:
    target = load_model(checkpoint, "float32")
    network = load_dspark(checkpoint, target=target)
    rows = [item for item in load_continuations(str(recordings[0])) if item.temperature == 1]
    first, again, other = (score(network, target, rows, Console(quiet=True), 1.0, seed) for seed in (0, 0, 1))
    argmax = score(network, target, rows, Console(quiet=True))
    assert (first.sequence == argmax.sequence).all()
    assert first.logits[:, 0] == pytest.approx(argmax.logits[:, 0], abs=1e-5)  # the anchor alone decides it
    assert (first.chances == again.chances).all()
    assert (first.accepted == again.accepted).all()
    assert (first.logits[:, 1:] != other.logits[:, 1:]).any()
    assert first.chances[:, 0] == pytest.approx(other.chances[:, 0], abs=1e-6)
    assert ((first.survived > 0) == first.is_reached).all()
    assert (argmax.survived == (argmax.accepted[:, None] > np.arange(5))).all()
    # A drafter whose confidence is the chance itself has no error given what stood.
    perfect = ConfidenceScores(
        logits=np.log(first.chances) - np.log1p(-first.chances.astype(np.float64)),
        accepted=first.accepted,
        chances=first.chances,
        sequence=first.sequence,
    )
    rows = judge(perfect)
    assert [row["conditional_ece"] for row in rows] == pytest.approx([0] * 5, abs=1e-6)
    assert rows[0]["ece"] == pytest.approx(0, abs=1e-6)
    assert judge(first)[0]["ece"] > 0.05


def test_sequences_that_begin_alike_are_not_judged_on() -> None:
    text = np.random.default_rng(0).integers(0, 1000, 300).astype(np.int32)

    def cut(begin: int, end: int, start: int, origin: str = "") -> Continuation:
        tokens = text[begin:end]
        return Continuation(tokens=tokens, start=start, prompt_class="x", temperature=0.0, origin=origin)

    fitted = [cut(0, 100, 60), cut(200, 260, 40, "a")]
    apart, moved, named, short = cut(100, 180, 50), cut(20, 100, 40), cut(120, 190, 40, "a"), cut(30, 60, 5)
    assert disjoint([apart, moved, named, short], fitted) == [apart]


def test_figures_by_hand() -> None:
    logits = np.log(np.array([[0.8, 0.5], [0.6, 0.5], [0.8, 0.5], [0.6, 0.5]]) / np.array([[0.2, 0.5], [0.4, 0.5]] * 2))
    accepted = np.array([2, 0, 1, 1])
    chances = (accepted[:, None] > np.arange(2)).astype(np.float32)
    scored = ConfidenceScores(logits=logits, accepted=accepted, chances=chances, sequence=np.array([0, 0, 1, 1]))
    first, second = judge(scored)
    assert (first["observed"], first["num_anchors"], second["num_reached"]) == (0.75, 4, 3)
    assert first["predicted"] == pytest.approx(0.7)
    assert first["brier"] == pytest.approx((0.04 + 0.36 + 0.04 + 0.16) / 4)
    assert first["ece"] == pytest.approx((abs(1.6 - 2) + abs(1.2 - 1)) / 4)
    assert first["conditional_brier"] == first["brier"]
    assert second["predicted"] == pytest.approx(0.35)
    assert second["brier"] == pytest.approx((0.36 + 0.09 + 0.16 + 0.09) / 4)
    assert second["conditional_brier"] == pytest.approx(0.25)
    assert second["conditional_ece"] == pytest.approx(abs(1.5 - 1) / 3)
    assert second["conditional_auroc"] == 0.5
    assert len(scored.of([1]).accepted) == 2
    chances = np.where(scored.is_reached, 0.5, np.nan)
    first, second = judge(ConfidenceScores(logits=logits, accepted=accepted, chances=chances, sequence=scored.sequence))
    assert (first["observed"], second["observed"]) == (0.5, 0.375)
    assert second["conditional_ece"] == pytest.approx(0)


def test_recordings_without_room_for_a_block_are_refused(checkpoint: Path, tmp_path: Path) -> None:
    file = tmp_path / "short.npz"
    arrays = dict(np.load(write_generations(tmp_path / "whole.npz", 0, rows=4)))
    np.savez(file, **(arrays | {"tokens": arrays["tokens"][:, :9]}))
    assert len(load_continuations(str(file))) == 4
    config = composed("calibrate", f"target={checkpoint}", f"fit={file}", f"judge={file}", "store=false")
    config.judge = str(write_generations(tmp_path / "other.npz", 5))
    with pytest.raises(UserError, match="no recording has 6 tokens of the target's own"):
        main.__wrapped__(config)
