"""Toy runs of the training programs, and the parts that they are made of, against their formulas."""

import json
import math
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hydra import compose, initialize_config_dir
from mlx.utils import tree_flatten, tree_map
from omegaconf import DictConfig

import experiments
from experiments import train_dspark, train_target
from experiments.train_dspark import Weights, judge_blocks, sample_anchors
from experiments.train_target import Balancer
from experiments.training import curves
from experiments.training.batches import WindowSampler, evaluation_windows, load_tokens
from experiments.training.evaluation import bits_per_byte, read_bytes_per_token
from experiments.training.flat import ALIGNMENT, FlatLayout
from experiments.training.initial import initialise
from experiments.training.loop import Plan, Trainer, group_of, is_decayed, is_kept_float32
from models import Model, load_dspark, load_model
from models.deepseek_v4.probe import Probe
from models.dspark import DSparkConfig, Network
from tests.random_models import random_model, random_tokens, tiny_config

VOCABULARY, LENGTH = 64, 48
CLASSES = ("prose", "code_gen")
BYTES_PER_TOKEN = {"prose": 3.0, "code_gen": 2.0}
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "head_dim": 16,
    "qk_rope_head_dim": 8,
    "q_lora_rank": 16,
    "o_lora_rank": 8,
    "sliding_window": 12,
    "compress_ratios": [0, 4, 16],
    "index_n_heads": 4,
    "index_head_dim": 8,
    "index_topk": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "num_hash_layers": 1,
    "hc_sinkhorn_iters": 2,
}
DRAFTER = {
    "dspark_block_size": 4,
    "dspark_target_layer_ids": [1, 2],
    "dspark_markov_rank": 8,
    "dspark_noise_token_id": 63,
    "dspark_n_routed_experts": 3,
    "dspark_num_experts_per_tok": 1,
    "dspark_confidence_input": "pre_norm",
}
STEPS = 6


def toy_text(count: int, seed: int) -> np.ndarray:
    """Runs of a fixed cycle through 12 tokens, broken at random: easy to learn, not wholly determined."""
    generator = np.random.default_rng(seed)
    cycle = generator.permutation(VOCABULARY - 4)[:12]
    start = np.cumsum(generator.random(count) < 0.05) * 5
    return cycle[(np.arange(count) + start) % 12].astype(np.uint16)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Token files as `experiments.tokens` writes them."""
    folder = tmp_path_factory.mktemp("tokens")
    for split, count in (("train", 2000), ("valid", 200)):
        arrays = {name: toy_text(count, seed) for seed, name in enumerate(CLASSES)}
        starts = {f"{name}_starts": np.zeros(1, np.int64) for name in CLASSES}
        np.savez(folder / f"{split}.npz", **arrays, **starts)
    counts = {name: {"bytes": 200 * rate, "tokens": 200} for name, rate in BYTES_PER_TOKEN.items()}
    (folder / "summary.json").write_text(json.dumps({"splits": {"valid": {"classes": counts}}}))
    return folder


@pytest.fixture(autouse=True)
def no_curves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes longer than the training does."""
    monkeypatch.setattr(train_target, "draw_curves", lambda folder: None)
    monkeypatch.setattr(train_dspark, "draw_curves", lambda folder: None)


def toy_config(program: str, data: Path, folder: Path, /, **changes: Any) -> DictConfig:
    """The program's own config with everything small; ``changes`` by dotted key, with __ for the dot."""
    values = {
        "folder": folder / "run",
        "destination": folder / "checkpoint",
        "batch_size": 2,
        "length": LENGTH,
        "evaluation_windows": 2,
        "data.train": data / "train.npz",
        "data.valid": data / "valid.npz",
        "~data.shares": "",
        "+data.shares": "{prose: 0.75, code_gen: 0.25}",
        "plan.steps": STEPS,
        "plan.warmup_steps": 2,
        "plan.dtype": "float32",
        "plan.log_every": 1,
        "plan.evaluate_every": 4,
        "plan.checkpoint_every": 4,
    }
    if program == "train_target":
        values |= {"data.summary": data / "summary.json"} | {f"model.{key}": value for key, value in SIZES.items()}
    else:
        values |= {"anchors": 3, "stages": 2} | {f"model.{key}": value for key, value in DRAFTER.items()}
    values |= {key.replace("__", "."): value for key, value in changes.items()}
    overrides = [f"{key}={value}".removesuffix("=") for key, value in values.items()]
    with initialize_config_dir(str(Path(experiments.__file__).parent / "configs"), version_base=None):
        return compose(program, overrides=overrides)


def state_of(folder: Path) -> dict[str, np.ndarray]:
    """Everything that a run remembers: weights, optimiser, selection biases."""
    return {name: np.array(array) for name, array in mx.load(str(folder / "run" / "state.safetensors")).items()}


def assert_same_state(found: Path, expected: Path) -> None:
    ours, theirs = state_of(found), state_of(expected)
    assert ours.keys() == theirs.keys()
    assert any(name.startswith("extra.") for name in ours)
    assert any(name.startswith("optimizer.") for name in ours)
    unequal = [name for name in ours if not np.array_equal(ours[name], theirs[name])]
    assert not unequal


def read_tensors(folder: Path, stem: str) -> dict[str, mx.array]:
    return {name: array for file in folder.glob(f"{stem}-*.safetensors") for name, array in mx.load(str(file)).items()}


def steps_logged(folder: Path) -> list[int]:
    return [line["step"] for line in curves.read_log(folder / "run") if "loss" in line]


# --- the programs ---


@pytest.fixture(scope="module")
def trained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An unbroken run of the target's program and then of the drafter's, into one checkpoint."""
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train_target, "draw_curves", lambda folder: None)
        patch.setattr(train_dspark, "draw_curves", lambda folder: None)
        train_target.main(toy_config("train_target", data, folder))
        target = read_tensors(folder / "checkpoint", "model")
        mx.eval(target)
        drafter = toy_config(
            "train_dspark", data, folder, folder=folder / "drafter" / "run", target=folder / "checkpoint"
        )
        train_dspark.main(drafter)
    after = read_tensors(folder / "checkpoint", "model")
    assert after.keys() == target.keys()
    assert all(mx.array_equal(after[name], target[name]) for name in target)
    return folder


def test_what_was_trained_loads_and_drafts(trained: Path) -> None:
    target = load_model(trained / "checkpoint", "float32")
    network = load_dspark(target=target)
    assert (network.num_stages, network.block_size, network.taps) == (2, 4, (1, 2))
    tokens = random_tokens(30, vocab_size=VOCABULARY)
    logits, features = target(tokens, taps=network.taps)
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


def toy_plan(**changes: Any) -> Plan:
    return Plan(**({"steps": 25, "learning_rate": 0.01, "warmup_steps": 2, "dtype": "float32"} | changes))


def toy_model(**changes: Any) -> Model:
    model = Model(tiny_config(**(SIZES | {"compress_ratios": (0, 4, 16)} | changes)))
    initialise(model, model.args.num_hidden_layers, 3)
    return model.train()


def toy_network(target: Model) -> Network:
    network = Network(DSparkConfig.from_dict(DRAFTER, target.args, stages=2), target)
    initialise(network, 2, 4)
    return network.train()


def toy_sampler(seed: int = 0) -> WindowSampler:
    tokens = {name: toy_text(1000, number) for number, name in enumerate(CLASSES)}
    return WindowSampler(tokens, {"prose": 1, "code_gen": 1}, 2, LENGTH, seed)


def losses(folder: Path, name: str) -> list[float]:
    return [line[name] for line in curves.read_log(folder) if name in line]


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
    loss = partial(train_dspark.loss_function, network, model, Weights())
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
    model, tokens = random_model().train(), random_tokens(LENGTH)
    alignment = gradients(model, "alignment", is_dense, tokens)
    language = gradients(model, "cross_entropy", is_dense, tokens)
    indexer = {name for name in alignment if ".indexer." in name}
    assert indexer
    assert {name for name, largest in alignment.items() if largest > 0} == indexer
    assert {name for name, largest in language.items() if largest == 0} == indexer
    assert not any(name.endswith(("gate.bias", "tid2eid")) for name in language)


def test_the_dense_phase_attends_to_every_visible_row_and_the_sparse_phase_to_the_chosen() -> None:
    model = random_model().train()
    tokens = random_tokens(LENGTH)
    rows = LENGTH // 4
    assert rows > model.args.index_topk
    dense, sparse = model(tokens, probe=Probe(is_dense=True)), model(tokens, probe=Probe())
    assert mx.array_equal(sparse, model(tokens))
    every = random_model(tiny_config(index_topk=rows)).train()
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


# --- the drafter's loss ---


def softmax(logits: np.ndarray) -> np.ndarray:
    exponentials = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize("anchor", [1, 7, 12, 30, LENGTH - 5])
def test_a_block_is_judged_by_the_formulas(anchor: int) -> None:
    """One block, with the drafter's own one-block interface, the Markov head and the losses in numpy."""
    target, gamma = random_model(tiny_config(vocab_size=VOCABULARY)).train(), 4
    network = toy_network(target)
    network.markov_head.markov_w2.weight = mx.random.normal((VOCABULARY, 8), key=mx.random.key(7))
    tokens = random_tokens(LENGTH, vocab_size=VOCABULARY)
    logits, features = target(tokens, taps=network.taps)
    context = [rows[:, -network.window :] for rows in network.context_rows(features[:, :anchor])]
    block = network.block(tokens[:, anchor], anchor, context)
    text = np.array(tokens)[0]
    embedded = np.array(network.markov_head.markov_w1.weight)[text[anchor : anchor + gamma]]
    q = softmax(np.array(block.logits)[0] + embedded @ np.array(network.markov_head.markov_w2.weight).T)
    p = softmax(np.array(logits)[0, anchor : anchor + gamma])
    truth = text[anchor + 1 : anchor + 1 + gamma]
    joined = np.concatenate([np.array(block.hidden)[0], embedded], axis=-1)
    confidence = joined @ np.array(network.mtp[-1].confidence_head.proj.weight)[0]

    judged = judge_blocks(network, target, tokens, mx.array([[anchor]]))
    total_variation = 0.5 * np.abs(p - q).sum(axis=-1)
    np.testing.assert_allclose(judged.overlap[0], 1 - total_variation, atol=1e-5)
    np.testing.assert_allclose(judged.cross_entropy[0], -np.log(q[np.arange(gamma), truth]), atol=1e-4)
    assert judged.is_match[0].tolist() == (p.argmax(axis=-1) == q.argmax(axis=-1)).astype(float).tolist()
    np.testing.assert_allclose(judged.confidence_logits[0], confidence, atol=1e-4)

    weights = Weights(cross_entropy=0.2, total_variation=0.7, confidence=0.4, position_decay=3.0)
    arguments = (mx.array([[anchor]]), {})
    loss, _ = train_dspark.loss_function(network, target, weights, {}, None, tokens, *arguments)
    by_position = np.exp(-np.arange(gamma) / 3.0)
    by_position /= by_position.sum()
    sure = 1 / (1 + np.exp(-confidence))
    label = 1 - total_variation
    forecast = -(label * np.log(sure) + (1 - label) * np.log(1 - sure))
    terms = 0.2 * -np.log(q[np.arange(gamma), truth]) + 0.7 * total_variation + 0.4 * forecast
    assert loss.item() == pytest.approx((terms * by_position).sum(), rel=1e-4)


def test_blocks_are_judged_alike_alone_and_together() -> None:
    target = random_model(tiny_config(vocab_size=VOCABULARY)).train()
    network, tokens = toy_network(target), random_tokens(LENGTH, vocab_size=VOCABULARY, batch=2)
    anchors = mx.array([[3, 40], [13, 20]])
    together = judge_blocks(network, target, tokens, anchors)
    assert together.overlap.shape == (4, 4)
    for row in range(2):
        for column in range(2):
            alone = judge_blocks(network, target, tokens[row : row + 1], anchors[row : row + 1, column : column + 1])
            np.testing.assert_allclose(together.overlap[2 * row + column], alone.overlap[0], atol=1e-5)


def test_only_the_window_before_the_anchor_counts() -> None:
    """In training as in drafting; the target itself sees further, so its features are what is changed here."""
    target = random_model(tiny_config(vocab_size=VOCABULARY)).train()
    network, tokens = toy_network(target), random_tokens(LENGTH, vocab_size=VOCABULARY)
    logits, features = target(tokens, taps=network.taps)

    def overlap(changed: int) -> mx.array:
        values = mx.where(mx.arange(LENGTH)[:, None] == changed, features + 1.0, features)
        return judge_blocks(network, lambda *_, **__: (logits, values), tokens, mx.array([[30]])).overlap

    plain = overlap(-1)
    for position, is_seen in ((30 - network.window - 1, False), (30 - network.window, True), (29, True), (30, False)):
        assert mx.array_equal(overlap(position), plain) != is_seen


def test_anchors_leave_room_for_a_context_and_a_block() -> None:
    anchors = np.array(sample_anchors((50, 40), 12, 4, (1, 2)))
    assert anchors.dtype == np.int32
    assert sorted(set(anchors.flatten().tolist())) == list(range(1, 8))  # 7 + 4 = 11, the last token
    assert np.array_equal(anchors, np.array(sample_anchors((50, 40), 12, 4, (1, 2))))
    assert not np.array_equal(anchors, np.array(sample_anchors((50, 40), 12, 4, (1, 3))))


def test_the_drafter_s_gradient_never_reaches_the_target() -> None:
    target = random_model(tiny_config(vocab_size=VOCABULARY)).train()
    network, tokens = toy_network(target), random_tokens(LENGTH, vocab_size=VOCABULARY)
    assert not {name for name, _ in tree_flatten(network.trainable_parameters())} & {
        name for name, _ in tree_flatten(target.parameters())
    }

    def loss(parameters: dict, values: mx.array, logits: mx.array) -> mx.array:
        def frozen(*_: Any, **__: Any) -> tuple[mx.array, mx.array]:
            return logits, values

        anchors = mx.array([[5, 20, 40]])
        return train_dspark.loss_function(network, frozen, Weights(), parameters, None, tokens, anchors, {})[0]

    logits, features = target(tokens, taps=network.taps)
    own, of_features, of_logits = mx.grad(loss, argnums=(0, 1, 2))(network.trainable_parameters(), features, logits)
    assert not of_features.any()
    assert not of_logits.any()
    still = {name for name, array in tree_flatten(own) if not mx.abs(array).max().item() > 0}
    assert not {name for name in still if "experts" not in name}, still


def test_the_confidence_loss_does_not_make_its_label_easier() -> None:
    """The label is what the drafter's distribution earns; only the distribution's own terms may change that."""
    target = random_model(tiny_config(vocab_size=VOCABULARY)).train()
    network, tokens = toy_network(target), random_tokens(LENGTH, vocab_size=VOCABULARY)

    def loss(parameters: dict) -> mx.array:
        weights, anchors = Weights(cross_entropy=0.0, total_variation=0.0), mx.array([[5, 20]])
        return train_dspark.loss_function(network, target, weights, parameters, None, tokens, anchors, {})[0]

    found = mx.grad(loss)(network.trainable_parameters())["mtp"][-1]
    assert not found["markov_head"]["markov_w2"]["weight"].any()  # bears on the distribution alone
    assert not found["norm"]["weight"].any()
    assert found["markov_head"]["markov_w1"]["weight"].any()
    assert found["confidence_head"]["proj"]["weight"].any()


# --- data ---


def test_a_batch_depends_on_seed_and_step_alone() -> None:
    first, again = toy_sampler(), toy_sampler()
    again.batch(3)
    for step in (0, 7, 1):
        assert np.array_equal(first.batch(step), again.batch(step))
    assert not np.array_equal(first.batch(0), first.batch(1))
    assert not np.array_equal(first.batch(0), toy_sampler(seed=1).batch(0))


def test_windows_are_whole_and_classes_come_by_their_shares() -> None:
    tokens = {"a": np.arange(30, dtype=np.uint16), "b": np.arange(100, 130, dtype=np.uint16), "c": np.arange(3)}
    sampler = WindowSampler(tokens, {"a": 3, "b": 1, "c": 0}, 64, 10, 0)
    batches = np.concatenate([sampler.batch(step) for step in range(10)])
    assert (np.diff(batches, axis=1) == 1).all()
    assert {int(start) for start in batches[:, 0]} == {*range(21), *range(100, 121)}
    assert (batches[:, 0] < 100).mean() == pytest.approx(0.75, abs=0.06)
    with pytest.raises(ValueError, match="more than 10 tokens a class, got fewer or none of c, d"):
        WindowSampler(tokens, {"a": 1, "c": 1, "d": 1}, 64, 10, 0)


@pytest.mark.parametrize(("count", "batch_size"), [(48, 2), (72, 2), (240, 3), (251, 4)])
def test_evaluation_scores_every_token_but_the_first_once(count: int, batch_size: int) -> None:
    scored = []
    for windows, tail in evaluation_windows(np.arange(count, dtype=np.uint16), 48, batch_size):
        assert windows.shape[0] <= batch_size
        assert windows.shape[1] == 48
        assert (np.diff(windows, axis=1) == 1).all()
        scored += windows[:, -tail:].flatten().tolist()
        assert tail == 24 or windows[0, 0] == 0
    whole = 48 + (count - 48) // 24 * 24  # what is left over is no half window
    assert sorted(scored) == list(range(1, whole))


def test_evaluation_can_be_limited_and_needs_a_whole_window() -> None:
    tokens = np.arange(500, dtype=np.uint16)
    assert sum(len(windows) for windows, _ in evaluation_windows(tokens, 48, 4, limit=6)) == 6
    assert not list(evaluation_windows(tokens[:47], 48, 4))


def test_token_files_hold_the_classes_and_other_things(data: Path, tmp_path: Path) -> None:
    assert load_tokens(data / "train.npz").keys() == set(CLASSES)
    assert read_bytes_per_token(data / "summary.json", "valid") == BYTES_PER_TOKEN
    with pytest.raises(FileNotFoundError, match=r"python -m experiments\.tokens"):
        load_tokens(tmp_path / "none.npz")


def test_bits_per_byte_of_a_uniform_model() -> None:
    tokens = {"prose": toy_text(96, 0), "code_gen": toy_text(192, 1), "short": toy_text(20, 2)}
    rates = BYTES_PER_TOKEN | {"short": 1.0}
    found = bits_per_byte(lambda inputs: mx.zeros((*inputs.shape, VOCABULARY)), tokens, rates, length=48, batch_size=2)
    bits = math.log2(VOCABULARY)
    assert found.keys() == {"prose", "code_gen", "all"}
    assert found["prose"] == pytest.approx(bits / 3)
    assert found["code_gen"] == pytest.approx(bits / 2)
    assert found["all"] == pytest.approx(bits * (95 + 191) / (95 * 3 + 191 * 2))


def test_bits_per_byte_reads_the_token_after_each_position() -> None:
    """A model that knows the next token of counting text needs no bits; one that is off by one needs many."""
    text = {"a": np.arange(60, dtype=np.uint16)}

    def ahead(step: int, inputs: mx.array) -> mx.array:
        return 50.0 * (mx.expand_dims(inputs + step, -1) == mx.arange(64))

    assert bits_per_byte(partial(ahead, 1), text, {"a": 1.0}, length=20, batch_size=2)["all"] == pytest.approx(0)
    assert bits_per_byte(partial(ahead, 0), text, {"a": 1.0}, length=20, batch_size=2)["all"] > 50


# --- optimisation ---


@pytest.fixture
def parameters() -> dict:
    """Shapes that are and are not multiples of the alignment."""
    keys = iter(mx.random.split(mx.random.key(0), 9))
    return {
        "embed": {"weight": mx.random.normal((5, 13), key=next(keys))},
        "layers": [{"wq": {"weight": mx.random.normal((8, 16), key=next(keys))}, "norm": {"weight": mx.ones(7)}}] * 2,
        "attn_sink": mx.random.normal((3,), key=next(keys)),
        "scalar": mx.random.normal((1,), key=next(keys)),
    }


def test_a_tree_comes_back_from_its_vectors(parameters: dict) -> None:
    layout = FlatLayout(parameters, group_of)
    vectors = layout.pack(parameters)
    assert len(vectors) == len(layout.members) == 3
    leaves = dict(tree_flatten(parameters))
    assert sorted(name for members in layout.members.values() for name, _ in members) == sorted(leaves)
    for vector in vectors.values():
        assert vector.ndim == 1
        assert vector.size % ALIGNMENT == 0
    back = dict(tree_flatten(layout.unpack(vectors)))
    assert back.keys() == leaves.keys()
    for name, array in leaves.items():
        assert mx.array_equal(back[name], array), name


def test_every_parameter_starts_at_a_multiple_of_the_alignment(parameters: dict) -> None:
    layout = FlatLayout(parameters, lambda name, array: "all")
    numbered = tree_map(lambda array: mx.zeros(array.shape), parameters)
    vector = layout.pack(tree_map(lambda array: array + 1, numbered))["all"]
    start = 0
    for _, shape in layout.members["all"]:
        size = math.prod(shape)
        assert vector[start : start + size].all()
        padded = -(-size // ALIGNMENT) * ALIGNMENT
        assert not vector[start + size : start + padded].any()
        start += padded
    assert start == vector.size


def test_decay_and_dtype_go_by_what_a_parameter_is() -> None:
    model = toy_model()
    network = toy_network(model)
    leaves = dict(tree_flatten(model.parameters())) | dict(tree_flatten(network.parameters()))
    decayed = {name for name, array in leaves.items() if is_decayed(name, array)}
    assert decayed >= {"head.weight", "layers.1.attn.wq_a.weight", "layers.1.ffn.experts.up_proj.weight"}
    assert decayed >= {"mtp.0.main_proj.weight", "mtp.1.markov_head.markov_w2.weight"}
    assert not decayed & {"embed.weight", "mtp.1.markov_head.markov_w1.weight", "layers.0.attn_norm.weight"}
    assert not any(name.endswith((".fn", ".base", ".scale", "ape", "attn_sink", "bias")) for name in decayed)
    kept = {name for name in leaves if is_kept_float32(name)}
    assert kept >= {"layers.0.hc_attn.fn", "layers.1.attn.compressor.wkv.weight", "layers.1.ffn.gate.weight"}
    assert not kept & {"layers.1.attn.wkv.weight", "embed.weight", "layers.1.ffn.experts.gate_proj.weight"}


def test_the_arithmetic_may_be_in_bfloat16(tmp_path: Path) -> None:
    model, sampler = toy_model(), toy_sampler()
    loss = partial(train_target.loss_function, model)
    biases = {"1": mx.zeros(4), "2": mx.zeros(4)}
    trainer = Trainer(model.trainable_parameters(), loss, toy_plan(steps=2, dtype="bfloat16"), tmp_path)
    cast = dict(tree_flatten(trainer.arithmetic_parameters()))
    assert cast["embed.weight"].dtype == mx.bfloat16
    assert cast["layers.0.hc_attn.fn"].dtype == mx.float32
    trainer.run(
        lambda step: (mx.array(sampler.batch(step)), biases),
        phase=lambda step: False,
        after_step=lambda auxiliary: auxiliary.pop("load"),
    )
    for name, array in tree_flatten(trainer.parameters):
        assert array.dtype == mx.float32, name
        assert mx.isfinite(array).all(), name


def test_the_learning_rate_rises_and_falls() -> None:
    schedule = toy_plan(steps=100, learning_rate=1.0, warmup_steps=10, final_fraction=0.1).schedule()
    rates = [float(schedule(mx.array(step))) for step in range(101)]
    assert rates[0] == pytest.approx(0.1)
    assert np.argmax(rates) == 10
    assert rates[10] == pytest.approx(1.0)
    assert rates[55] == pytest.approx(0.55, abs=0.01)
    assert rates[100] == pytest.approx(0.1, abs=1e-3)
    assert (np.diff(rates[:11]) > 0).all()
    assert (np.diff(rates[10:]) < 0).all()


def test_large_gradients_are_clipped(tmp_path: Path) -> None:
    weights = {"a": {"weight": mx.zeros((2, 2))}}

    def loss(parameters: dict, phase: None, size: mx.array) -> tuple[mx.array, dict]:
        return (parameters["a"]["weight"] * size).sum(), {}

    trainer = Trainer(weights, loss, toy_plan(clip_norm=1.0), tmp_path)
    _, auxiliary = trainer._step(None, mx.array(50.0))
    assert auxiliary["gradient_norm"].item() == pytest.approx(100.0)
    moments = {name: array for name, array in tree_flatten(trainer.optimizer.state) if name.endswith(".m")}
    assert mx.abs(next(iter(moments.values()))).max().item() == pytest.approx(0.1 * 0.5, rel=1e-3)
