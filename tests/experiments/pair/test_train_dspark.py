"""What the DSpark drafter is trained on: blocks of text and of the target's own generations, and what it leaves out."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from experiments.pair import train_dspark
from experiments.pair.train_dspark import judge_blocks
from experiments.pair.training import curves, drafter
from experiments.pair.training.batches import BlockSampler
from experiments.pair.training.initial import initialize
from experiments.pair.training.judging import DSparkLossWeights
from models import Model, load_dspark, load_model
from models.deepseek_v4.moe import evaluate_every_expert
from models.dspark import DSparkNetwork
from spec import DSparkDrafter, RandomStream, Request, UserError, collect
from tests.experiments.pair.training.toys import (
    CLASSES,
    DRAFTER,
    LENGTH,
    STEPS,
    VOCABULARY,
    read_tensors,
    toy_config,
    toy_network,
    write_checkpoint,
    write_generations,
    write_tokens,
)
from tests.random_models import random_model, random_tokens, tiny_config
from tests.spec.doubles import context_at, make_loop, session

# --- the drafter's loss ---


def softmax(logits: np.ndarray) -> np.ndarray:
    exponentials = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize("anchor", [1, 7, 12, 30, LENGTH - 5])
def test_a_block_is_judged_by_the_formulas(anchor: int) -> None:
    """One block, with the drafter's own one-block interface, the Markov head and the losses in numpy."""
    target, gamma = evaluate_every_expert(random_model(tiny_config(vocab_size=VOCABULARY))), 4
    network = toy_network(target)
    network.markov_head.markov_w2.weight = mx.random.normal((VOCABULARY, 8), key=mx.random.key(7))
    tokens = random_tokens(LENGTH, vocab_size=VOCABULARY)
    logits, features = target(tokens, tapped_layers=network.tapped_layers)
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

    weights = DSparkLossWeights(cross_entropy=0.2, total_variation=0.7, confidence=0.4, position_decay=3.0)
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
    target = evaluate_every_expert(random_model(tiny_config(vocab_size=VOCABULARY)))
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
    target = evaluate_every_expert(random_model(tiny_config(vocab_size=VOCABULARY)))
    network, tokens = toy_network(target), random_tokens(LENGTH, vocab_size=VOCABULARY)
    logits, features = target(tokens, tapped_layers=network.tapped_layers)

    def overlap(changed: int) -> mx.array:
        values = mx.where(mx.arange(LENGTH)[:, None] == changed, features + 1.0, features)
        return judge_blocks(network, lambda *_, **__: (logits, values), tokens, mx.array([[30]])).overlap

    plain = overlap(-1)
    for position, is_seen in ((30 - network.window - 1, False), (30 - network.window, True), (29, True), (30, False)):
        assert mx.array_equal(overlap(position), plain) != is_seen


def test_the_drafter_s_gradient_never_reaches_the_target() -> None:
    target = evaluate_every_expert(random_model(tiny_config(vocab_size=VOCABULARY)))
    network, tokens = toy_network(target), random_tokens(LENGTH, vocab_size=VOCABULARY)
    assert not {name for name, _ in tree_flatten(network.trainable_parameters())} & {
        name for name, _ in tree_flatten(target.parameters())
    }

    def loss(parameters: dict, values: mx.array, logits: mx.array) -> mx.array:
        def frozen(*_: Any, **__: Any) -> tuple[mx.array, mx.array]:
            return logits, values

        weights, anchors = DSparkLossWeights(), mx.array([[5, 20, 40]])
        return train_dspark.loss_function(network, frozen, weights, parameters, None, tokens, anchors, {})[0]

    logits, features = target(tokens, tapped_layers=network.tapped_layers)
    own, of_features, of_logits = mx.grad(loss, argnums=(0, 1, 2))(network.trainable_parameters(), features, logits)
    assert not of_features.any()
    assert not of_logits.any()
    still = {name for name, array in tree_flatten(own) if not mx.abs(array).max().item() > 0}
    assert not {name for name in still if "experts" not in name}, still


def test_the_confidence_loss_does_not_make_its_label_easier() -> None:
    """The label is what the drafter's distribution earns; only the distribution's own terms may change that."""
    target = evaluate_every_expert(random_model(tiny_config(vocab_size=VOCABULARY)))
    network, tokens = toy_network(target), random_tokens(LENGTH, vocab_size=VOCABULARY)

    def loss(parameters: dict) -> mx.array:
        weights, anchors = DSparkLossWeights(cross_entropy=0.0, total_variation=0.0), mx.array([[5, 20]])
        return train_dspark.loss_function(network, target, weights, parameters, None, tokens, anchors, {})[0]

    found = mx.grad(loss)(network.trainable_parameters())["mtp"][-1]
    assert not found["markov_head"]["markov_w2"]["weight"].any()  # bears on the distribution alone
    assert not found["norm"]["weight"].any()
    assert found["markov_head"]["markov_w1"]["weight"].any()
    assert found["confidence_head"]["proj"]["weight"].any()


# --- the program: what is left out, what is drawn from generations, what is written ---


@pytest.fixture(scope="module")
def target_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokens(tmp_path_factory.mktemp("tokens"))


def train_drafter(
    data: Path, target: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, **changes: Any
) -> tuple[Model, DSparkNetwork]:
    """Runs the program for few steps into a folder of its own; the target and the drafter as others load them."""
    monkeypatch.setattr(drafter, "draw_curves", lambda folder: None)
    given = {"target": target, "plan.steps": 2, "plan.evaluate_every": 2, "evaluation_windows": 1}
    train_dspark.main(toy_config("train_dspark", data, folder, **(given | changes)))
    model = load_model(target, "float32")
    return model, load_dspark(folder / "checkpoint", target=model)


ABLATIONS = {
    "no Markov head": {"dspark_markov_rank": 0},
    "no features": {"dspark_target_layer_ids": []},
    "neither": {"dspark_markov_rank": 0, "dspark_target_layer_ids": []},
    "block of 3": {"dspark_block_size": 3},
    "block of 8": {"dspark_block_size": 8},
    "rank 128": {"dspark_markov_rank": 128},
    "confidence after the norm, alone": {"dspark_markov_rank": 0, "dspark_confidence_input": "post_norm"},
}


@pytest.mark.parametrize("changes", ABLATIONS.values(), ids=ABLATIONS)
def test_ablations_train_load_and_draft(
    data: Path, target_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    settings = {f"model.{key}": value for key, value in changes.items()}
    target, network = train_drafter(data, target_folder, tmp_path, monkeypatch, **settings)
    wanted = DRAFTER | changes
    rank, tapped_layers, gamma = (wanted[f"dspark_{key}"] for key in ("markov_rank", "target_layer_ids", "block_size"))
    names = read_tensors(tmp_path / "checkpoint", "mtp")
    assert any("markov" in name for name in names) == (rank > 0)
    assert any("main_" in name for name in names) == bool(tapped_layers)
    assert names["mtp.1.confidence_head.proj.weight"].shape == (1, 32 + rank)
    assert (network.tapped_layers, network.block_size) == (tuple(tapped_layers), gamma)
    started = DSparkNetwork(network.config, target)
    initialize(started, 2, 2)
    moved = [
        not mx.array_equal(ours, theirs.astype(ours.dtype))
        for (_, ours), (_, theirs) in zip(
            tree_flatten(network.trainable_parameters()), tree_flatten(started.trainable_parameters()), strict=True
        )
    ]
    assert np.mean(moved) > 0.8  # experts that no row chose may stand still

    drafter = DSparkDrafter(network)
    prompt = random_tokens(21, vocab_size=VOCABULARY)[0].tolist()
    plain = collect(make_loop(session(target)).rounds(Request(prompt=prompt, max_tokens=12))).tokens
    loop = make_loop(session(target, drafter, gamma), drafter, gamma)
    result = collect(loop.rounds(Request(prompt=prompt, max_tokens=12)))
    assert result.tokens == plain
    assert any(item.proposed for item in result.rounds)
    again = DSparkDrafter(network)  # what a round proposes is a function of the tokens before it
    again.observe(
        prompt, target(mx.array([prompt]), tapped_layers=network.tapped_layers)[1][0] if tapped_layers else None
    )
    proposal = again.propose(context_at(plain[0], len(prompt), RandomStream()), gamma)
    assert len(proposal.tokens) == len(proposal.confidence) == gamma


def test_a_block_without_features_sees_its_own_rows_alone() -> None:
    target = evaluate_every_expert(random_model(tiny_config(vocab_size=VOCABULARY)))
    network = toy_network(target, dspark_target_layer_ids=[])
    assert network.context_rows(None) == []
    tokens = random_tokens(LENGTH, vocab_size=VOCABULARY)
    judged = judge_blocks(network, target, tokens, mx.array([[20]]))
    alone = network.block(tokens[:, 20], 20, [])
    masked = network.block(tokens[:, 20], 20, [mx.ones((1, 5, 16))] * 2, mx.zeros((1, 5), mx.bool_))
    np.testing.assert_allclose(alone.logits, masked.logits, atol=1e-5)
    embedded = network.markov_head.embed(tokens[:, 20:24])
    q = softmax(np.array(alone.logits + network.markov_head.bias(embedded))[0])
    p = softmax(np.array(target(tokens))[0, 20:24])
    np.testing.assert_allclose(judged.overlap[0], np.minimum(p, q).sum(axis=-1), atol=1e-5)


def test_a_draft_without_markov_head_is_the_argmax_of_each_row() -> None:
    target = random_model(tiny_config(vocab_size=VOCABULARY))
    network = toy_network(target, dspark_markov_rank=0)
    _, features = target(random_tokens(30, vocab_size=VOCABULARY), tapped_layers=network.tapped_layers)
    context = [rows[:, -network.window :] for rows in network.context_rows(features)]
    block, drafted = network.block(mx.array([7]), 30, context), network.draft(mx.array([7]), 30, context)
    assert mx.array_equal(drafted.logits, block.logits)
    assert mx.array_equal(drafted.tokens, mx.argmax(block.logits, axis=-1))
    weight = np.array(network.mtp[-1].confidence_head.proj.weight)[0]
    np.testing.assert_allclose(drafted.confidence_logits[0], np.array(block.hidden)[0] @ weight, atol=1e-5)


def test_generations_are_trained_and_evaluated_on(
    data: Path, target_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In bfloat16, as on a GPU; the log says which steps drew from generations, and held-out rows get figures."""
    own, held_out = (write_generations(tmp_path / f"{name}.npz", count=count) for name, count in (("a", 12), ("b", 8)))
    changes = {"data.generations": own, "data.held_out_generations": f"[{held_out}]", "data.generated_share": 0.5}
    changes |= {"generated_batch_size": 3, "generated_anchors": 4, "evaluation_rows": 2, "plan.steps": STEPS}
    train_drafter(data, target_folder, tmp_path, monkeypatch, **changes, **{"plan.dtype": "bfloat16"})
    lines = curves.read_log(tmp_path / "run")
    steps = [line for line in lines if "loss" in line]
    sampler = BlockSampler.from_config(toy_config("train_dspark", data, tmp_path, **changes), 4)
    kinds = [float(sampler.is_generated(step)) for step in range(STEPS)]
    assert [line["is_generated"] for line in steps] == kinds
    assert set(kinds) == {0.0, 1.0}
    for line in steps:
        assert min(line[f"match_at_{position}"] for position in range(1, 5)) >= 0
        assert "match_at_5" not in line
    figures = [line["evaluation"] for line in lines if "evaluation" in line][-1]
    names = [*CLASSES, *(f"own_{name}" for name in CLASSES)]
    assert figures.keys() == {name + end for name in names for end in ("", "_overlap_at_1")}
    assert all(0 <= value <= 4 for value in figures.values())


def test_the_program_writes_the_drafter_and_its_keys_alone(
    data: Path, target_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also over an older drafter, whose fitted confidences say nothing of the new one; the target's folder stays."""
    before = {path.name: path.read_bytes() for path in target_folder.iterdir()}
    (tmp_path / "checkpoint").mkdir()
    stale = {"dspark_confidence_temperatures": {"greedy": [1.0] * 9}, "note": "kept"}
    (tmp_path / "checkpoint" / "config.json").write_text(json.dumps(stale))
    train_drafter(data, target_folder, tmp_path, monkeypatch, **{"plan.steps": 1})
    assert {path.name for path in (tmp_path / "checkpoint").iterdir()} == {
        "config.json",
        "model.safetensors.index.json",
        "mtp-00001-of-00001.safetensors",
    }
    values = json.loads((tmp_path / "checkpoint" / "config.json").read_text())
    assert values == {"note": "kept", **DRAFTER}
    assert {path.name: path.read_bytes() for path in target_folder.iterdir()} == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model.dspark_markov_rank": -1}, "model.dspark_markov_rank: wanted an integer from 0 up, got -1"),
        ({"data.generations": "nowhere/*.npz"}, "no generations at nowhere"),
    ],
)
def test_what_the_program_cannot_use_is_one_line(
    data: Path,
    target_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any],
    message: str,
) -> None:
    with pytest.raises(UserError, match=message):
        train_drafter(data, target_folder, tmp_path, monkeypatch, **changes)
