"""The comparison with transformers, but for transformers itself: it needs PyTorch, which the tests do without."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hydra import compose, initialize_config_dir

from experiments import check_transformers
from experiments.check_transformers import compare, read_texts
from models import ModelError, load
from spec import UserError


@pytest.fixture
def prompts(tmp_path: Path) -> list[str]:
    paths = []
    for kind, texts in {"prose": ["a b c d", "b c", "d d d"], "md_table": ["a a a"]}.items():
        rows = [{"id": f"{kind}-{n}", "class": kind, "prompt": text} for n, text in enumerate(texts)]
        paths.append(tmp_path / f"{kind}.jsonl")
        paths[-1].write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return [str(path) for path in paths]


def check(target: Path | str, prompts: list[str], **changes: Any) -> None:
    overrides = [f"target={target}", f"prompts=[{','.join(prompts)}]", *(f"{key}={changes[key]}" for key in changes)]
    with initialize_config_dir(str(Path(check_transformers.__file__).parent / "configs"), version_base=None):
        config = compose("check_transformers", overrides=overrides)
    check_transformers.main(config)


def test_the_largest_gap_counts_and_a_missing_number_is_one() -> None:
    generator = np.random.default_rng(0)
    theirs = generator.normal(size=(6, 9)).astype(np.float32)
    ours = theirs.copy()
    assert compare(ours, theirs).largest_gap == 0
    assert compare(ours, theirs).same_argmax == 1
    ours[2, theirs[2].argmin()] += 100
    found = compare(ours, theirs)
    assert found.largest_gap == pytest.approx(100, rel=1e-6)
    assert found.same_argmax == pytest.approx(5 / 6)
    assert found.deviation == pytest.approx(float(theirs.std()))
    assert found.tokens == 6
    ours[0, 0] = np.nan
    assert compare(ours, theirs).largest_gap == np.inf


def test_texts_are_the_prompts_of_a_class_up_to_a_length(checkpoint: Path, prompts: list[str]) -> None:
    _, tokenizer = load(checkpoint)
    whole = read_texts(prompts, 1000, tokenizer)
    assert list(whole) == ["prose", "md_table"]
    assert whole["md_table"] == tokenizer.encode("a a a")
    assert whole["prose"] == [token for text in ("a b c d", "b c", "d d d") for token in tokenizer.encode(text)]
    assert read_texts(prompts, 5, tokenizer) == {name: text[:5] for name, text in whole.items()}


def test_the_exit_code_tells_whether_both_agree(
    checkpoint: Path, prompts: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    model, _ = load(checkpoint, "float32")
    shift = 0.0

    def reference(folder: Path, texts: list[list[int]]) -> list[np.ndarray]:
        assert folder == checkpoint
        return [np.array(model(mx.array([text]))[0]) + np.float32(shift) for text in texts]

    monkeypatch.setattr(check_transformers, "transformers_logits", reference)
    check(checkpoint, prompts)
    assert "within the tolerance" in capsys.readouterr().out
    shift = 0.01
    with pytest.raises(SystemExit) as stopped:
        check(checkpoint, prompts)
    assert stopped.value.code == 1
    assert "largest gap 1.0e-02: above the tolerance of 1e-04" in capsys.readouterr().out
    check(checkpoint, prompts, tolerance=0.1)


def test_faults_name_their_remedy(checkpoint: Path, prompts: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_transformers, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="not installed here: pip install torch"):
        check(checkpoint, prompts)
    with pytest.raises(UserError, match="length: wanted an integer of 1 or more, got 0"):
        check(checkpoint, prompts, length=0)
    with pytest.raises(ModelError, match="nowhere is no folder"):
        check("nowhere", prompts)
    with pytest.raises(UserError, match=r"missing\.jsonl does not exist"):
        check(checkpoint, ["missing.jsonl"])
