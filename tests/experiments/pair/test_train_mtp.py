"""Toy runs of the MTP block's training program, and its loss against drafting's own way and the formulas."""

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from mlx.utils import tree_flatten
from omegaconf import DictConfig, OmegaConf

from experiments import pair
from experiments.pair import train_mtp
from experiments.pair.train_mtp import judge_chains, loss_function
from experiments.pair.training import curves, drafter
from experiments.pair.training.balancing import Balancer
from experiments.pair.training.initial import initialize
from experiments.pair.training.judging import LossWeights
from experiments.pair.training.loop import Trainer, TrainingPlan
from models import Model, load_dspark, load_model, load_mtp
from models.deepseek_v4.moe import evaluate_every_expert
from models.mtp import MTPNetwork
from spec import FixedPolicy, MTPDrafter, Request, collect
from spec.errors import UserError
from tests.random_models import random_model, random_mtp, random_tokens, tiny_config
from tests.spec.doubles import make_loop, session

VOCABULARY, LENGTH, DEPTH, STEPS = 96, 48, 4, 6
CLASSES = ("prose", "chat")


def toy_text(count: int, seed: int) -> np.ndarray:
    """Runs of a fixed cycle through 12 tokens, broken at random: easy to learn, not wholly determined."""
    generator = np.random.default_rng(seed)
    cycle = generator.permutation(VOCABULARY - 4)[:12]
    start = np.cumsum(generator.random(count) < 0.05) * 5
    return cycle[(np.arange(count) + start) % 12].astype(np.uint16)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Token files as `experiments.pair.tokens` writes them, one held-out class too short for a window."""
    folder = tmp_path_factory.mktemp("tokens")
    for split, count in (("train", 2000), ("valid", 200)):
        arrays = {name: toy_text(count, seed) for seed, name in enumerate(CLASSES)}
        arrays |= {f"{name}_bytes": np.array(3 * count, np.int64) for name in CLASSES}
        np.savez(folder / f"{split}.npz", **arrays, md_table=toy_text(LENGTH - 1, 5))
    generations = {
        "tokens": np.stack([toy_text(24, seed) for seed in range(20)]),
        "classes": np.arange(20, dtype=np.uint8) % 2,
        "class_names": np.array(CLASSES),
        "temperatures": np.array([0.0, 1.0, 1.0, 1.0] * 5, np.float32),  # every greedy row is prose
        "prompt_length": np.array(12),
    }
    np.savez(folder / "generations.npz", **generations)
    return folder


def toy_config(data: Path, folder: Path, target: Path, **changes: Any) -> DictConfig:
    """The program's own config with everything small; ``changes`` by dotted key, with __ for the dot."""
    values = {
        "folder": folder / "run",
        "target": target,
        "destination": target / "mtp",
        "batch_size": 2,
        "length": LENGTH,
        "anchors": 3,
        "depth": DEPTH,
        "generated_batch_size": 3,
        "generated_anchors": 2,
        "evaluation_windows": 2,
        "data.train": data / "train.npz",
        "data.valid": data / "valid.npz",
        "data.generations": data / "generations.npz",
        "data.held_out_generations": data / "generations.npz",
        "~data.shares": "",
        "+data.shares": "{prose: 0.75, chat: 0.25}",
        "plan.steps": STEPS,
        "plan.warmup_steps": 2,
        "plan.dtype": "float32",
        "plan.log_every": 1,
        "plan.evaluate_every": 4,
        "plan.checkpoint_every": 4,
        "model.mtp_n_routed_experts": 3,
        "model.mtp_num_experts_per_tok": 1,
    }
    values |= {key.replace("__", "."): value for key, value in changes.items()}
    overrides = [f"{key}={value}".removesuffix("=") for key, value in values.items()]
    with initialize_config_dir(str(Path(pair.__file__).parent / "configs"), version_base=None):
        return compose("train_mtp", overrides=overrides)


@pytest.fixture(scope="module")
def trained(data: Path, checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An unbroken run on text and generations, into the sub-folder of a target that holds DSpark."""
    folder = tmp_path_factory.mktemp("trained")
    shutil.copytree(checkpoint, folder / "target")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drafter, "draw_curves", lambda folder: None)  # drawing takes longer than the training does
        train_mtp.main(toy_config(data, folder, folder / "target"))
    return folder


def state_of(folder: Path) -> dict[str, np.ndarray]:
    return {name: np.array(array) for name, array in mx.load(str(folder / "run" / "state.safetensors")).items()}


# --- the program ---


def test_what_was_trained_loads_and_drafts(trained: Path) -> None:
    target = load_model(trained / "target", "float32")
    network = load_mtp(target=target)
    assert network.config.n_routed_experts == 3
    assert network.config.num_experts_per_tok == 1
    prompt = random_tokens(30, vocab_size=VOCABULARY)[0].tolist()
    plain = collect(make_loop(session(target)).rounds(Request(prompt=prompt, max_tokens=20))).tokens
    drafter = MTPDrafter.load(target, load_mtp)
    loop = make_loop(session(target, drafter, 3), drafter, 3)
    assert loop.block == FixedPolicy(gamma=3)
    rounds = list(loop.rounds(Request(prompt=prompt, max_tokens=20)))
    assert tuple(token for item in rounds for token in item.tokens) == plain
    assert any(item.proposed for item in rounds)
    assert load_dspark(target=target).block_size == 5  # what the folder held is still there


def test_the_exported_block_is_the_trained_one(trained: Path) -> None:
    target = load_model(trained / "target")
    network = load_mtp(target=target)
    trainer = Trainer(network.trainable_parameters(), lambda *_: None, toy_plan(), trained / "run")
    trainer.resume()
    assert trainer.step == STEPS
    exported = dict(tree_flatten(network.parameters()))
    for name, weight in tree_flatten(trainer.parameters):
        stored = weight.astype(mx.float32 if name.endswith(("base", "scale", "sink", ".fn")) else mx.bfloat16)
        assert mx.array_equal(exported[name].astype(stored.dtype), stored), name
    bias = mx.load(str(trained / "run" / "state.safetensors"))["extra.0"]
    assert mx.array_equal(exported["mtp.0.ffn.gate.bias"], bias)
    assert mx.abs(bias).max().item() > 0


def test_the_folder_describes_the_block_s_target(trained: Path) -> None:
    values, of_target = (
        json.loads((folder / "config.json").read_text()) for folder in (trained / "target" / "mtp", trained / "target")
    )
    assert values["compress_ratios"] == [0, 4, 128, 0]
    assert not any(name.startswith("dspark_") for name in values)
    same = of_target.keys() & values.keys() - {"compress_ratios"}
    assert len(same) > 20
    assert all(values[name] == of_target[name] for name in same)


def test_a_run_leaves_its_config_its_log_and_figures_of_held_out_text(trained: Path) -> None:
    assert f"depth: {DEPTH}" in (trained / "run" / "config.yaml").read_text()
    lines = curves.read_log(trained / "run")
    steps = [line for line in lines if "loss" in line]
    assert [line["step"] for line in steps] == list(range(1, STEPS + 1))
    for line in steps:
        expected = 0.1 * line["cross_entropy"] + 0.9 * line["total_variation"]
        assert line["loss"] == pytest.approx(expected, rel=1e-5)
        assert line["worst_overload"] >= 1
        assert line["tokens_per_s"] > 0
        assert all(0 <= line[f"match_at_{step + 1}"] <= 1 for step in range(DEPTH))
    assert {line["is_generated"] for line in steps} == {0.0, 1.0}
    evaluations = [line for line in lines if "evaluation" in line]
    assert [line["step"] for line in evaluations] == [4, STEPS]
    figures = evaluations[-1]["evaluation"]
    names = (*CLASSES, "own_prose")
    assert figures.keys() == {name + end for name in names for end in ("", "_overlap_at_1")}
    assert all(0 <= figures[name] <= DEPTH and 0 < figures[f"{name}_overlap_at_1"] <= 1 for name in names)


def test_an_interrupted_run_is_the_unbroken_one(
    data: Path, trained: Path, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drafter, "draw_curves", lambda folder: None)
    shutil.copytree(checkpoint, tmp_path / "target")
    for _ in range(3):  # stops in good order after one step each
        train_mtp.main(toy_config(data, tmp_path, tmp_path / "target", max_seconds=0))
    train_mtp.main(toy_config(data, tmp_path, tmp_path / "target"))
    ours, theirs = state_of(tmp_path), state_of(trained)
    assert ours.keys() == theirs.keys()
    assert not [name for name in ours if not np.array_equal(ours[name], theirs[name])]


def test_the_target_s_own_folder_is_no_destination(data: Path, checkpoint: Path, tmp_path: Path) -> None:
    before = {path.name: path.read_bytes() for path in checkpoint.iterdir()}
    with pytest.raises(UserError, match=r"wanted another folder than the target's.*take its sub-folder .*mtp"):
        train_mtp.main(toy_config(data, tmp_path, checkpoint, destination=checkpoint))
    assert {path.name: path.read_bytes() for path in checkpoint.iterdir()} == before


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"model__mtp_num_experts_per_tok": 0}, "mtp_num_experts_per_tok: wanted a positive integer, got 0"),
        ({"model__mtp_n_routed_experts": 1, "model__mtp_num_experts_per_tok": 2}, r"must lie in 1\.\.n_routed_experts"),
        ({"depth": LENGTH}, r"depth: wanted from 1 to 46, .* got 48"),
        ({"depth": 0}, r"depth: wanted from 1 to 46, .* got 0"),
    ],
)
def test_sizes_that_cannot_be_are_refused(
    data: Path, checkpoint: Path, tmp_path: Path, changes: dict, wanted: str
) -> None:
    with pytest.raises(UserError, match=wanted):
        train_mtp.main(toy_config(data, tmp_path, checkpoint, **changes))


def test_the_shipped_plan() -> None:
    with initialize_config_dir(str(Path(pair.__file__).parent / "configs"), version_base=None):
        config = compose("train_mtp")
    assert isinstance(instantiate(config.plan), TrainingPlan)
    assert isinstance(instantiate(config.weights), LossWeights)
    assert Path(config.destination) == Path(config.target) / "mtp"
    assert sum(config.data.shares.values()) == pytest.approx(1)
    assert not any(OmegaConf.to_container(config.model).values())  # the target's own numbers


# --- the loss ---


def toy_plan(**changes: Any) -> TrainingPlan:
    return TrainingPlan(
        **({"steps": 25, "learning_rate": 0.01, "warmup_steps": 2, "dtype": "float32", "log_every": 1} | changes)
    )


def toy_pair(seed: int = 4) -> tuple[Model, MTPNetwork]:
    target = evaluate_every_expert(random_model(tiny_config(vocab_size=VOCABULARY)))
    network = MTPNetwork(target)
    initialize(network, 1, seed)
    target.freeze()
    return target, evaluate_every_expert(network)


def softmax(logits: np.ndarray) -> np.ndarray:
    exponentials = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize("anchor", [1, 7, 12, 30, LENGTH - DEPTH - 1])
def test_a_chain_is_judged_by_the_formulas(anchor: int) -> None:
    """Drafting's own cached chain, fed with the true tokens, and the losses in numpy."""
    target = random_model(tiny_config(vocab_size=VOCABULARY))
    network = random_mtp(target)
    tokens = random_tokens(LENGTH, vocab_size=VOCABULARY)
    logits, streams = target(tokens, tapped_layers=network.tapped_layers)
    cache, drafted = network.make_cache(max_rollback=0), []
    network.fill(tokens[:, 1:anchor], streams[:, : anchor - 1], cache)
    current = streams[:, anchor - 1 : anchor]
    for step in range(DEPTH):
        row, current = network(tokens[:, anchor + step : anchor + step + 1], current, cache)
        drafted.append(np.array(row)[0, 0])
    q, p = softmax(np.stack(drafted)), softmax(np.array(logits)[0, anchor : anchor + DEPTH])
    truth = np.array(tokens)[0, anchor + 1 : anchor + 1 + DEPTH]
    cross_entropy, total_variation = -np.log(q[np.arange(DEPTH), truth]), 0.5 * np.abs(p - q).sum(axis=-1)

    evaluate_every_expert(target)
    evaluate_every_expert(network)
    judged = judge_chains(network, target, tokens, mx.array([[anchor]]), DEPTH)
    np.testing.assert_allclose(judged.overlap[0], 1 - total_variation, atol=1e-5)
    np.testing.assert_allclose(judged.cross_entropy[0], cross_entropy, atol=1e-4)
    assert judged.is_match[0].tolist() == (p.argmax(axis=-1) == q.argmax(axis=-1)).astype(float).tolist()

    weights = LossWeights(cross_entropy=0.2, total_variation=0.7, position_decay=3.0)
    loss, _ = loss_function(network, target, weights, DEPTH, {}, None, tokens, mx.array([[anchor]]), {})
    by_step = np.exp(-np.arange(DEPTH) / 3.0)
    expected = ((0.2 * cross_entropy + 0.7 * total_variation) * by_step / by_step.sum()).sum()
    assert loss.item() == pytest.approx(expected, rel=1e-4)


def test_every_parameter_learns_and_none_of_the_target_s() -> None:
    target, network = toy_pair()
    tokens, anchors = random_tokens(LENGTH, vocab_size=VOCABULARY, batch=2), mx.array([[5, 20, 40], [2, 30, 33]])
    logits, streams = target(tokens, tapped_layers=network.tapped_layers)

    def loss(parameters: dict, values: mx.array, wanted: mx.array) -> mx.array:
        def frozen(*_: Any, **__: Any) -> tuple[mx.array, mx.array]:
            return wanted, values

        return loss_function(network, frozen, LossWeights(), DEPTH, parameters, None, tokens, anchors, {})[0]

    own, of_streams, of_logits = mx.grad(loss, argnums=(0, 1, 2))(network.trainable_parameters(), streams, logits)
    assert not of_streams.any()
    assert not of_logits.any()
    gradients = dict(tree_flatten(own))
    assert gradients.keys() == dict(tree_flatten(network.parameters())).keys() - {"mtp.0.ffn.gate.bias"}
    assert all(mx.isfinite(array).all() for array in gradients.values())
    still = {name for name, array in gradients.items() if not mx.abs(array).max().item() > 0}
    assert not {name for name in still if "experts" not in name}, still


def test_the_gradient_is_the_loss_s_slope() -> None:
    """Along its own direction, by finite differences: through the chain, its rows and its streams."""
    target, network = toy_pair()
    tokens, anchors = random_tokens(LENGTH, vocab_size=VOCABULARY), mx.array([[5, 20, 40]])
    parameters = network.trainable_parameters()
    # Which experts are chosen may flip along the way: with all of them chosen none can.
    network.mtp[0].ffn.gate.topk = network.config.n_routed_experts
    logits, streams = target(tokens, tapped_layers=network.tapped_layers)

    def loss(values: list[mx.array]) -> mx.array:
        parts = {name: value for (name, _), value in zip(tree_flatten(parameters), values, strict=True)}
        network.load_weights(list(parts.items()), strict=False)
        return loss_function(
            network, lambda *_, **__: (logits, streams), LossWeights(), DEPTH, {}, None, tokens, anchors, {}
        )[0]

    start = [array for _, array in tree_flatten(parameters)]
    gradient = mx.grad(loss)(start)
    slope, size = mx.sqrt(sum((array * array).sum() for array in gradient)).item(), 1e-2

    def moved(by: float) -> float:
        return loss([array + by / slope * step for array, step in zip(start, gradient, strict=True)]).item()

    assert (moved(size) - moved(-size)) / (2 * size) == pytest.approx(slope, rel=0.01)


def test_the_losses_fall_on_text_that_can_be_learnt(tmp_path: Path) -> None:
    target, network = toy_pair()
    balancer = Balancer({"0": network.mtp[0].ffn.gate.bias}, 0.001)
    text = toy_text(1000, 0).astype(np.int32)
    before = [np.array(array) for _, array in tree_flatten(target.parameters())]
    loss = partial(loss_function, network, target, LossWeights(), DEPTH)
    trainer = Trainer(network.trainable_parameters(), loss, toy_plan(), tmp_path, extra=balancer.biases)

    def batch(step: int) -> tuple[Any, ...]:
        generator = np.random.default_rng(step)
        rows = np.stack([text[start : start + LENGTH] for start in generator.integers(0, 900, 2)])
        return mx.array(rows), mx.array(generator.integers(1, LENGTH - DEPTH, (2, 4)).astype(np.int32)), balancer.biases

    assert trainer.run(batch, after_step=balancer.after_step)
    lines = curves.read_log(tmp_path)
    for name in ("loss", "total_variation"):
        found = [line[name] for line in lines]
        assert np.mean(found[-3:]) < 0.9 * np.mean(found[:3]), name
    after = [np.array(array) for _, array in tree_flatten(target.parameters())]
    assert all(np.array_equal(old, new) for old, new in zip(before, after, strict=True))
