"""Toy runs of the training programs, and what the target's losses teach."""

import json
import math
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from experiments.pair import train_dspark, train_target
from experiments.pair.training import curves, drafter
from experiments.pair.training.balancing import Balancer
from experiments.pair.training.batches import sample_anchors
from experiments.pair.training.judging import DSparkLossWeights
from experiments.pair.training.loop import Trainer
from models import Model, load_dspark, load_model
from models.deepseek_v4.moe import evaluate_every_expert
from models.deepseek_v4.probe import Probe, observing
from tests.experiments.pair.training.toys import (
    CLASSES,
    DRAFTER,
    LENGTH,
    STEPS,
    VOCABULARY,
    assert_same_state,
    losses,
    read_tensors,
    steps_logged,
    toy_config,
    toy_model,
    toy_network,
    toy_plan,
    toy_sampler,
    write_tokens,
)
from tests.random_models import random_model, random_tokens, tiny_config


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokens(tmp_path_factory.mktemp("tokens"))


@pytest.fixture(autouse=True)
def no_curves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes longer than the training does."""
    monkeypatch.setattr(train_target, "draw_curves", lambda folder: None)
    monkeypatch.setattr(drafter, "draw_curves", lambda folder: None)


# --- the programs ---


@pytest.fixture(scope="module")
def trained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An unbroken run of the target's program and then of the drafter's, into one checkpoint."""
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train_target, "draw_curves", lambda folder: None)
        patch.setattr(drafter, "draw_curves", lambda folder: None)
        train_target.main(toy_config("train_target", data, folder))
        target = read_tensors(folder / "checkpoint", "model")
        mx.eval(target)
        config = toy_config(
            "train_dspark", data, folder, folder=folder / "drafter" / "run", target=folder / "checkpoint"
        )
        train_dspark.main(config)
    after = read_tensors(folder / "checkpoint", "model")
    assert after.keys() == target.keys()
    assert all(mx.array_equal(after[name], target[name]) for name in target)
    return folder


def test_what_was_trained_loads_and_drafts(trained: Path) -> None:
    target = load_model(trained / "checkpoint", "float32")
    network = load_dspark(target=target)
    assert (network.num_stages, network.block_size, network.tapped_layers) == (2, 4, (1, 2))
    tokens = random_tokens(30, vocab_size=VOCABULARY)
    logits, features = target(tokens, tapped_layers=network.tapped_layers)
    context = [rows[:, -network.window :] for rows in network.context_rows(features[:, :29])]
    drafted = network.draft(tokens[:, 29], 29, context)
    assert drafted.tokens.shape == (1, 4)
    assert mx.isfinite(drafted.logits).all()
    assert mx.isfinite(logits).all()
    assert ((drafted.confidence > 0) & (drafted.confidence < 1)).all()
    tensors = read_tensors(trained / "checkpoint", "model") | read_tensors(trained / "checkpoint", "mtp")
    assert tensors["embed.weight"].dtype == tensors["mtp.0.main_proj.weight"].dtype == mx.bfloat16
    index = json.loads((trained / "checkpoint" / "model.safetensors.index.json").read_text())
    assert index["weight_map"].keys() == tensors.keys()


def test_the_exported_target_is_the_trained_one(trained: Path) -> None:
    target = load_model(trained / "checkpoint")
    trainer = Trainer(Model(target.args).trainable_parameters(), lambda *_: None, toy_plan(), trained / "run")
    trainer.resume()
    assert trainer.step == STEPS
    exported = dict(tree_flatten(target.parameters()))
    for name, weight in tree_flatten(trainer.parameters):
        stored = weight.astype(mx.float32 if name.endswith(("base", "scale", "sink", "ape", ".fn")) else mx.bfloat16)
        assert mx.array_equal(exported[name].astype(stored.dtype), stored), name
    for layer in ("1", "2"):
        bias = mx.load(str(trained / "run" / "state.safetensors"))[f"extra.{layer}"]
        assert mx.array_equal(exported[f"layers.{layer}.ffn.gate.bias"], bias)
        assert mx.abs(bias).max().item() == pytest.approx(0.001 * STEPS, rel=0.51)  # some moved at least half the time


def test_a_run_leaves_its_config_and_its_log(trained: Path) -> None:
    assert "num_hidden_layers: 3" in (trained / "run" / "config.yaml").read_text()
    lines = curves.read_log(trained / "run")
    losses = [line for line in lines if "loss" in line]
    assert [line["step"] for line in losses] == list(range(1, STEPS + 1))
    assert losses[0].keys() >= {"cross_entropy", "alignment", "gradient_norm", "worst_overload", "tokens_per_s"}
    assert losses[0]["loss"] == pytest.approx(losses[0]["cross_entropy"] + losses[0]["alignment"], rel=1e-5)
    evaluations = [line for line in lines if "evaluation" in line]
    assert [line["step"] for line in evaluations] == [4, STEPS]
    assert evaluations[0]["evaluation"].keys() == {*CLASSES, "all"}
    drafter = curves.read_log(trained / "drafter" / "run")
    assert drafter[0].keys() >= {"cross_entropy", "total_variation", "confidence", "worst_overload"}
    accepted = [line["evaluation"] for line in drafter if "evaluation" in line][-1]
    assert accepted.keys() == {name + end for name in CLASSES for end in ("", "_overlap_at_1")}
    assert all(0 <= value <= DRAFTER["dspark_block_size"] for value in accepted.values())


def test_an_interrupted_target_run_is_the_unbroken_one(data: Path, trained: Path, tmp_path: Path) -> None:
    for _ in range(4):  # stops in good order after one step each
        train_target.main(toy_config("train_target", data, tmp_path, max_seconds=0))
    assert steps_logged(tmp_path) == [1, 2, 3, 4]
    train_target.main(toy_config("train_target", data, tmp_path))
    assert steps_logged(tmp_path) == list(range(1, STEPS + 1))
    assert_same_state(tmp_path, trained)
    exported, expected = (read_tensors(folder / "checkpoint", "model") for folder in (tmp_path, trained))
    assert all(mx.array_equal(exported[name], expected[name]) for name in expected)


def test_a_killed_drafter_run_is_the_unbroken_one(
    data: Path, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed in step 6, it goes on from the checkpoint after step 4."""
    shutil.copytree(trained / "checkpoint", tmp_path / "checkpoint")
    config = toy_config("train_dspark", data, tmp_path, target=trained / "checkpoint")
    whole_step = Trainer._step

    def killed(trainer: Trainer, *arguments: Any) -> Any:
        if trainer.step == 5:
            raise KeyboardInterrupt
        return whole_step(trainer, *arguments)

    monkeypatch.setattr(Trainer, "_step", killed)
    with pytest.raises(KeyboardInterrupt):
        train_dspark.main(config)
    monkeypatch.setattr(Trainer, "_step", whole_step)
    assert mx.load(str(tmp_path / "run" / "state.safetensors"), return_metadata=True)[1]["step"] == "4"
    train_dspark.main(config)
    assert_same_state(tmp_path, trained / "drafter")


def test_a_state_of_other_sizes_is_refused(data: Path, trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained / "run", tmp_path / "run")
    config = toy_config("train_target", data, tmp_path, model__hidden_size=64)
    with pytest.raises(ValueError, match=r"state\.safetensors is the state of a model of other sizes"):
        train_target.main(config)
    assert not (tmp_path / "checkpoint").exists()


def test_curves_are_drawn_from_a_log_where_there_is_one(trained: Path, tmp_path: Path) -> None:
    assert curves.draw_curves(tmp_path) is None
    shutil.copy(trained / "run" / "log.jsonl", tmp_path)
    pytest.importorskip("matplotlib")
    assert curves.draw_curves(tmp_path).stat().st_size > 1000


# --- learning ---


def test_the_losses_fall_on_text_that_can_be_learnt(tmp_path: Path) -> None:
    model, sampler = toy_model(), toy_sampler()
    balancer = Balancer({str(layer): model.layers[layer].ffn.gate.bias for layer in (1, 2)}, 0.001)
    loss = partial(train_target.loss_function, model)
    plan = toy_plan(log_every=1)
    trainer = Trainer(model.trainable_parameters(), loss, plan, tmp_path / "target", extra=balancer.biases)
    is_done = trainer.run(
        lambda step: (mx.array(sampler.batch(step)), balancer.biases),
        phase=lambda step: step < 15,
        after_step=balancer.after_step,
    )
    assert is_done
    found = losses(tmp_path / "target", "cross_entropy")
    assert found[0] == pytest.approx(math.log(VOCABULARY), abs=1.0)
    assert np.mean(found[-3:]) < 0.65 * found[0]
    alignment = losses(tmp_path / "target", "alignment")
    assert np.mean(alignment[12:15]) < np.mean(alignment[:3])

    model.update(trainer.parameters)
    model.freeze()
    network = toy_network(model)
    balancer = Balancer({str(stage): network.mtp[stage].ffn.gate.bias for stage in (0, 1)}, 0.001)
    before = [np.array(array) for _, array in tree_flatten(model.parameters())]
    loss = partial(train_dspark.loss_function, network, model, DSparkLossWeights())
    trainer = Trainer(network.trainable_parameters(), loss, plan, tmp_path / "drafter", extra=balancer.biases)
    trainer.run(
        lambda step: (
            mx.array(sampler.batch(step)),
            sample_anchors((2, 4), LENGTH, 4, (0, step)),
            balancer.biases,
        ),
        after_step=balancer.after_step,
    )
    for name in ("loss", "total_variation"):
        found = losses(tmp_path / "drafter", name)
        assert np.mean(found[-3:]) < 0.9 * np.mean(found[:3]), name
    after = [np.array(array) for _, array in tree_flatten(model.parameters())]
    assert all(np.array_equal(old, new) for old, new in zip(before, after, strict=True))


def gradients(model: Model, name: str, is_dense: bool, tokens: mx.array) -> dict[str, float]:
    """Largest gradient of one of the target's losses, by parameter."""

    def loss(parameters: dict) -> mx.array:
        return train_target.loss_function(model, parameters, is_dense, tokens, {})[1][name]

    found = mx.grad(loss)(model.trainable_parameters())
    return {name: mx.abs(array).max().item() for name, array in tree_flatten(found)}


@pytest.mark.parametrize("is_dense", [True, False])
def test_each_loss_trains_its_own_parameters(is_dense: bool) -> None:
    model, tokens = evaluate_every_expert(random_model()), random_tokens(LENGTH)
    alignment = gradients(model, "alignment", is_dense, tokens)
    language = gradients(model, "cross_entropy", is_dense, tokens)
    indexer = {name for name in alignment if ".indexer." in name}
    assert indexer
    assert {name for name, largest in alignment.items() if largest > 0} == indexer
    assert {name for name, largest in language.items() if largest == 0} == indexer
    assert not any(name.endswith(("gate.bias", "tid2eid")) for name in language)


def test_the_dense_phase_attends_to_every_visible_row_and_the_sparse_phase_to_the_chosen() -> None:
    model = evaluate_every_expert(random_model())
    tokens = random_tokens(LENGTH)
    rows = LENGTH // 4
    assert rows > model.args.index_topk
    with observing(model, is_dense=True):
        dense = model(tokens)
    with observing(model):
        sparse = model(tokens)
    assert mx.array_equal(sparse, model(tokens))
    every = evaluate_every_expert(random_model(tiny_config(index_topk=rows)))
    np.testing.assert_allclose(np.array(dense), np.array(every(tokens)), atol=1e-5)
    change = mx.abs(dense - sparse).max(axis=-1)[0]
    first = 4 * (model.args.index_topk + 1) - 1  # where more rows become visible than are chosen
    assert (change[:first] < 1e-5).all()
    assert (change[first:] > 1e-5).any()


def test_the_alignment_loss_is_a_divergence() -> None:
    weights = mx.array([[[[0.2, 0.1, 0.0], [0.1, 0.3, 0.2]], [[0.0, 0.1, 0.0], [0.1, 0.1, 0.2]]]])  # (1, 2, 2, 3)
    scores = mx.array([[[1.0, -0.5, -math.inf], [0.3, 0.2, 0.1]]])
    is_attended = mx.array([[[True, True, False], [True, True, True]]])
    probe = Probe()
    probe.record_indexer(weights, scores, is_attended)
    expected = []
    for query, seen in ((0, 2), (1, 3)):
        p = np.array(weights)[0, :, query, :seen].sum(axis=0)
        p /= p.sum()
        q = np.exp(np.array(scores)[0, query, :seen])
        q /= q.sum()
        expected.append((p * np.log(p / q)).sum())
    assert probe.alignment[0].item() == pytest.approx(np.mean(expected), rel=1e-5)
    nothing = Probe()
    nothing.record_indexer(mx.zeros((1, 2, 2, 3)), scores, mx.zeros((1, 2, 3), mx.bool_))
    assert nothing.alignment[0].item() == 0


def test_biases_move_against_the_load() -> None:
    balancer = Balancer({"1": mx.array([0.0, 0.5, -0.5, 0.0]), "2": mx.zeros(4)}, rate=0.01)
    auxiliary = {"load": {"1": mx.array([10.0, 2.0, 0.0, 4.0]), "2": mx.array([3.0, 3.0, 3.0, 3.0])}, "loss": 1}
    balancer.after_step(auxiliary)
    np.testing.assert_allclose(balancer.biases["1"], [-0.01, 0.51, -0.49, 0.0], atol=1e-7)
    assert not balancer.biases["2"].any()
    assert auxiliary["worst_overload"].item() == 2.5
    assert auxiliary.keys() == {"loss", "worst_overload"}


def test_a_bias_changes_the_load() -> None:
    model, tokens = toy_model(), random_tokens(LENGTH, vocab_size=VOCABULARY)

    def load(bias: mx.array) -> mx.array:
        _, auxiliary = train_target.loss_function(model, {}, False, tokens, {"1": bias})
        return auxiliary["load"]["1"]

    plain = load(mx.zeros(4))
    assert plain.sum().item() == LENGTH * 2
    assert load(mx.array([9.0, 0, 0, 0]))[0].item() == LENGTH
    assert load(mx.array([-9.0, 0, 0, 0]))[0].item() == 0
