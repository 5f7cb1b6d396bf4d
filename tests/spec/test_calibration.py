"""The DSpark drafter's calibrated confidences: which temperatures divide its logits, and what is refused."""

import json
import shutil
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from models import Model, ModelError, load_dspark, load_model
from models.dspark import DSparkNetwork
from spec import DSparkDrafter, RandomStream, UserError
from tests.random_models import random_tokens
from tests.spec.doubles import context_at, prefilled, session

FIXTURES = Path(__file__).parents[1] / "fixtures"
PROMPT = random_tokens(21, vocab_size=96, seed=6)[0].tolist()
TEMPERATURES = {"greedy": [2.0, 0.5, 1.0, 3.0, 0.25], "matched": [1.5, 1, 4, 1, 1], "sampled": [1, 2, 1, 0.5, 1]}


@pytest.fixture(scope="module")
def target() -> Model:
    return load_model(FIXTURES / "target" / "flashlike")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FIXTURES / "dspark" / "flashlike", tmp_path / "drafter"))


def stored(folder: Path, target: Model, temperatures: object) -> DSparkNetwork:
    file = folder / "config.json"
    values = json.loads(file.read_text(encoding="utf-8")) | {"dspark_confidence_temperatures": temperatures}
    file.write_text(json.dumps(values), encoding="utf-8")
    return load_dspark(folder, target=target)


def confidence(target: Model, network: DSparkNetwork, gamma: int = 5, **options) -> np.ndarray:
    drafter = DSparkDrafter(network, **options)
    drafter.observe(PROMPT, prefilled(session(target, drafter), PROMPT))
    return np.array(drafter.propose(context_at(7, len(PROMPT), RandomStream()), gamma).confidence)


def test_the_calibration_divides_the_logits(target: Model, folder: Path) -> None:
    network = stored(folder, target, TEMPERATURES)
    raw = confidence(target, network, calibration=None)
    logits = np.log(raw / (1 - raw))
    for name, row in TEMPERATURES.items():
        expected = 1 / (1 + np.exp(-logits / np.array(row)))
        assert confidence(target, network, calibration=name) == pytest.approx(expected, abs=1e-5)
        assert confidence(target, network, 2, calibration=name) == pytest.approx(expected[:2], abs=1e-5)
    greedy, matched, _ = (confidence(target, network, calibration=name) for name in TEMPERATURES)
    assert (confidence(target, network, temperature=0.0, calibration="auto") == greedy).all()
    assert (confidence(target, network, temperature=0.6, calibration="auto") == matched).all()
    assert (confidence(target, network, temperature=0.0) == greedy).all()  # auto is the default
    drawn = {"proposal": "sampled", "temperature": 0.6}
    ours, theirs, raw = (confidence(target, network, calibration=name, **drawn) for name in ("auto", "sampled", None))
    assert (ours == theirs).all()
    assert (ours != raw).any()


def test_a_drafter_that_was_never_calibrated_works_as_before(target: Model, folder: Path) -> None:
    network = load_dspark(folder, target=target)
    assert network.confidence_temperatures == {}
    raw = confidence(target, network)
    assert (confidence(target, network, temperature=0.0, calibration="auto") == raw).all()
    with pytest.raises(UserError, match=r"calibration=greedy: the checkpoint has no .* experiments\.calibrate"):
        DSparkDrafter(network, calibration="greedy")
    half = stored(folder, target, {"greedy": TEMPERATURES["greedy"]})
    assert (confidence(target, half, temperature=0.6, calibration="auto") == raw).all()
    sampled = {"proposal": "sampled", "temperature": 0.6}
    assert (confidence(target, half, **sampled, calibration="auto") == confidence(target, half, **sampled)).all()


def test_another_calibration_is_refused(target: Model, folder: Path) -> None:
    with pytest.raises(UserError, match="calibration must be auto, greedy, matched or sampled, got 'cold'"):
        DSparkDrafter(load_dspark(folder, target=target), calibration="cold")


@pytest.mark.parametrize(
    "temperatures",
    [
        *([1, 1, 1, 1, 1], "greedy", None, {"cold": [1, 1, 1, 1, 1]}, {"greedy": [1, 1, 1]}),
        *({"greedy": [1, 1, 1, 1, 0]}, {"sampled": [1, 1, 1, 1, "1"]}, {"sampled": 1.0}, {"greedy": [True] * 5}),
    ],
)
def test_stored_values_that_do_not_fit_are_named(target: Model, folder: Path, temperatures: object) -> None:
    with pytest.raises(ModelError, match="dspark_confidence_temperatures: wanted 5 positive numbers"):
        stored(folder, target, temperatures)


def test_a_draft_s_own_confidence_is_raw(target: Model, folder: Path) -> None:
    network = stored(folder, target, TEMPERATURES)
    context = [mx.zeros((1, 0, target.args.head_dim))] * network.num_stages
    drafted = network.draft(mx.array([3]), 0, context)
    assert mx.allclose(drafted.confidence, mx.sigmoid(drafted.confidence_logits))
