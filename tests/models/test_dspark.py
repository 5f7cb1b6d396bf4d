"""The DSpark network: the reference's numbers, where its features come from, what its rows see, and its files."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from experiments.pair.training import export
from models import Model, ModelError, load_dspark, load_model
from models.deepseek_v4.checkpoint import checkpoint_tensors
from models.dspark import DSparkConfig, DSparkNetwork
from models.formats.checkpoint import read_headers
from tests.random_models import random_tokens

FIXTURES = Path(__file__).parent.parent / "fixtures"
DRAFTER = FIXTURES / "dspark" / "flashlike"
TOLERANCE = 1e-4
TOKENS = random_tokens(40, vocab_size=96)


@pytest.fixture(scope="module")
def target() -> Model:
    return load_model(FIXTURES / "target" / "flashlike")


@pytest.fixture(scope="module")
def network(target: Model) -> DSparkNetwork:
    return load_dspark(DRAFTER, target=target)


@pytest.fixture(scope="module")
def reference() -> dict[str, np.ndarray]:
    """Inputs and outputs as `tests/fixtures/make_dspark_fixture.py` names them."""
    with np.load(DRAFTER / "reference.npz") as arrays:
        return dict(arrays)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the drafter's checkpoint that a test may damage."""
    return Path(shutil.copytree(DRAFTER, tmp_path / "drafter"))


def context_before(network: DSparkNetwork, features: mx.array, position: int) -> list[mx.array]:
    """The rows that a block whose anchor stands at ``position`` sees; features (1, S, L*H) from position 0."""
    return [rows[:, -network.window :] for rows in network.context_rows(features[:, :position])]


def assert_close(found: mx.array, expected: mx.array | np.ndarray) -> None:
    np.testing.assert_allclose(np.array(found), np.array(expected), rtol=0, atol=TOLERANCE)


def change_config(folder: Path, **changes: object) -> None:
    """Sets keys; a value of ... removes one."""
    values = json.loads((folder / "config.json").read_text()) | changes
    values = {key: value for key, value in values.items() if value is not ...}
    (folder / "config.json").write_text(json.dumps(values))


def change_tensors(folder: Path, change: Callable[[dict[str, mx.array]], object]) -> None:
    tensors = dict(mx.load(str(folder / "model.safetensors")))
    mx.eval(tensors)
    change(tensors)
    mx.save_safetensors(str(folder / "model.safetensors"), tensors)


# --- parity ---


def test_blocks_are_those_of_the_reference(network: DSparkNetwork, reference: dict) -> None:
    features = mx.array(reference["features"])[None]
    for case, position in enumerate(reference["positions"].tolist()):
        context = context_before(network, features, position + 1)
        anchor = mx.array(reference["anchors"][case : case + 1])
        block = network.block(anchor, position + 1, context)
        assert_close(block.hidden[0], reference["hidden"][case])
        assert_close(block.logits[0], reference["base_logits"][case])
        drafted = network.draft(anchor, position + 1, context)
        assert_close(drafted.logits[0], reference["logits"][case])
        assert drafted.tokens[0].tolist() == reference["drafted"][case].tolist()
        assert_close(drafted.confidence[0], mx.sigmoid(mx.array(reference["confidence_pre_norm"][case])))


def test_confidence_after_the_norm_is_an_option(target: Model, folder: Path, reference: dict) -> None:
    change_config(folder, dspark_confidence_input="post_norm")
    network = load_dspark(folder, target=target)
    features = mx.array(reference["features"])[None]
    for case, position in enumerate(reference["positions"].tolist()):
        context = context_before(network, features, position + 1)
        drafted = network.draft(mx.array(reference["anchors"][case : case + 1]), position + 1, context)
        assert_close(drafted.confidence[0], mx.sigmoid(mx.array(reference["confidence_post_norm"][case])))


def test_target_and_drafter_together_give_the_reference_s_drafts(
    target: Model, network: DSparkNetwork, reference: dict
) -> None:
    _, features = target(mx.array(reference["tokens"])[None], tapped_layers=network.tapped_layers)
    assert_close(features[0], reference["features"])
    first = network.mtp[0]
    assert_close(first.main_norm(first.main_proj(features))[0], reference["context"])
    for case, position in enumerate(reference["positions"].tolist()):
        context = context_before(network, features, position + 1)
        drafted = network.draft(mx.array(reference["anchors"][case : case + 1]), position + 1, context)
        assert drafted.tokens[0].tolist() == reference["drafted"][case].tolist()


def test_blocks_of_one_batch_may_stand_anywhere(network: DSparkNetwork, reference: dict) -> None:
    """As training runs them: each block has its own position, and short contexts are filled up and masked."""
    features = mx.array(reference["features"])[None]
    positions = reference["positions"] + 1
    contexts = [context_before(network, features, position) for position in positions.tolist()]
    window = network.window

    def filled_up(rows: mx.array) -> mx.array:
        return mx.pad(rows, [(0, 0), (window - rows.shape[1], 0), (0, 0)], constant_values=3.0)

    padded = [mx.concatenate([filled_up(rows) for rows in of]) for of in zip(*contexts, strict=True)]
    is_context = mx.arange(window) >= window - mx.minimum(mx.array(positions), window)[:, None]
    block = network.block(mx.array(reference["anchors"]), mx.array(positions), padded, is_context)
    assert_close(block.logits, reference["base_logits"])


def test_a_draft_may_be_cut(network: DSparkNetwork, reference: dict) -> None:
    context = context_before(network, mx.array(reference["features"])[None], 64)
    anchor = mx.array(reference["anchors"][4:5])
    for gamma in (1, 3):
        drafted = network.draft(anchor, 64, context, gamma)
        assert drafted.tokens[0].tolist() == reference["drafted"][4, :gamma].tolist()
        assert_close(drafted.confidence[0], mx.sigmoid(mx.array(reference["confidence_pre_norm"][4, :gamma])))


# --- the capture point ---


def test_taps_are_the_streams_mean_after_a_layer(target: Model) -> None:
    x = target.embed(TOKENS)
    streams = mx.broadcast_to(x[:, :, None], (*x.shape[:2], target.args.hc_mult, x.shape[-1]))
    outputs = []
    for layer in target.layers:
        streams = layer(streams, TOKENS, None)
        outputs.append(streams.mean(axis=2))
    _, features = target(TOKENS, tapped_layers=(2, 4))
    assert_close(features, mx.concatenate([outputs[2], outputs[4]], axis=-1))
    _, entering = target(TOKENS, tapped_layers=(1, 3))  # the outputs of 1 and 3 are what enters 2 and 4
    assert mx.abs(features - entering).max().item() > 0.1


def test_the_drafter_asks_for_the_layers_of_its_config_in_their_order(target: Model, folder: Path) -> None:
    assert load_dspark(folder, target=target).tapped_layers == (2, 3, 4)
    change_config(folder, dspark_target_layer_ids=[4, 0, 3])
    assert load_dspark(folder, target=target).tapped_layers == (4, 0, 3)


@pytest.mark.parametrize(
    "tapped_layers", [(1, 2, 3), (4, 3, 2), (3, 2, 4)], ids=["entering", "reversed", "two swapped"]
)
def test_features_of_other_layers_give_other_drafts(
    target: Model, network: DSparkNetwork, reference: dict, tapped_layers: tuple[int, ...]
) -> None:
    _, features = target(mx.array(reference["tokens"])[None], tapped_layers=tapped_layers)
    changed = 0
    for case, position in enumerate(reference["positions"].tolist()):
        context = context_before(network, features, position + 1)
        drafted = network.draft(mx.array(reference["anchors"][case : case + 1]), position + 1, context)
        assert mx.abs(drafted.logits[0, 0] - mx.array(reference["logits"][case, 0])).max().item() > 0.05
        changed += drafted.tokens[0].tolist() != reference["drafted"][case].tolist()
    assert changed >= 3


# --- what a block's rows see ---


def run_stages(network: DSparkNetwork, x: mx.array, position: int, context: list[mx.array]) -> mx.array:
    """Block input (1, G, H) in place of embeddings -> streams (1, G, N, H) after the last stage."""
    streams = mx.broadcast_to(x[:, :, None], (*x.shape[:2], network.config.block.hc_mult, x.shape[-1]))
    tokens = mx.zeros(x.shape[:2], mx.int32)
    for stage, rows in zip(network.mtp, context, strict=True):
        streams = stage(streams, tokens, position, rows)
    return streams


@pytest.mark.parametrize("changed", range(5))
def test_every_row_of_a_block_sees_every_other(target: Model, network: DSparkNetwork, changed: int) -> None:
    _, features = target(TOKENS, tapped_layers=network.tapped_layers)
    context = context_before(network, features, 30)
    x = target.embed(TOKENS[:, 30:35])
    other = x + mx.where(mx.arange(5)[:, None] == changed, 0.5, 0.0)
    change = mx.abs(run_stages(network, x, 30, context) - run_stages(network, other, 30, context))
    assert (change.max(axis=(0, 2, 3)) > 1e-4).all()


def test_one_attention_is_not_causal_in_the_block_and_sees_all_its_context(
    target: Model, network: DSparkNetwork
) -> None:
    _, features = target(TOKENS, tapped_layers=network.tapped_layers)
    context = context_before(network, features, 30)[1]
    attention, x = network.mtp[1].attn, target.embed(TOKENS[:, 30:35])
    plain = attention(x, 30, context, None)
    changed = attention(x + mx.where(mx.arange(5)[:, None] == 4, 0.5, 0.0), 30, context, None)
    assert (mx.abs(changed - plain).max(axis=(0, 2)) > 1e-5).all()
    for row in (0, network.window - 1):
        other = context + mx.where(mx.arange(network.window)[:, None] == row, 0.5, 0.0)
        assert (mx.abs(attention(x, 30, other, None) - plain).max(axis=(0, 2)) > 1e-5).all()
        is_context = mx.arange(network.window)[None] != row
        assert mx.array_equal(attention(x, 30, other, is_context), attention(x, 30, context, is_context))


def test_a_context_row_belongs_to_its_own_position_alone(target: Model, network: DSparkNetwork) -> None:
    """So a token older than the window, whose row is cut off, changes nothing."""
    _, features = target(TOKENS, tapped_layers=network.tapped_layers)
    position, window, anchor = 30, network.window, TOKENS[:, 30]
    plain = network.draft(anchor, position, context_before(network, features, position))
    for changed, is_seen in ((position - window - 1, False), (position - window, True), (position - 1, True)):
        other = features + mx.where(mx.arange(40)[:, None] == changed, 1.0, 0.0)
        drafted = network.draft(anchor, position, context_before(network, other, position))
        assert mx.array_equal(drafted.logits, plain.logits) != is_seen


def test_context_rows_are_the_same_in_one_call_and_in_several(target: Model, network: DSparkNetwork) -> None:
    _, features = target(TOKENS, tapped_layers=network.tapped_layers)
    whole = network.context_rows(features)
    assert [rows.shape for rows in whole] == [(1, 40, 24)] * 3
    parts = [network.context_rows(features[:, first : first + 8], first) for first in range(0, 40, 8)]
    for stage, rows in enumerate(whole):
        assert mx.array_equal(mx.concatenate([part[stage] for part in parts], axis=1), rows)


def test_a_block_leaves_nothing_behind(target: Model, network: DSparkNetwork) -> None:
    _, features = target(TOKENS, tapped_layers=network.tapped_layers)
    context = context_before(network, features, 30)
    before = [np.array(rows) for rows in context]
    first = network.draft(TOKENS[:, 30], 30, context)
    network.draft(TOKENS[:, 3], 30, context)
    again = network.draft(TOKENS[:, 30], 30, context)
    assert mx.array_equal(first.logits, again.logits)
    after = context_before(network, features, 30)
    for old, held, made in zip(before, context, after, strict=True):
        assert old.shape[1] == network.window
        assert np.array_equal(old, held)
        assert np.array_equal(old, made)


def test_context_features_enter_as_rows_of_attention_only(target: Model, network: DSparkNetwork) -> None:
    """A block whose context rows are all masked depends on no feature."""
    _, features = target(TOKENS, tapped_layers=network.tapped_layers)
    context, anchor = context_before(network, features, 30), TOKENS[:, 30]
    masked = network.block(anchor, 30, context, mx.zeros((1, network.window), dtype=mx.bool_))
    alone = network.block(anchor, 30, [mx.zeros((1, 0, 24))] * 3)
    assert_close(masked.logits, alone.logits)
    assert mx.abs(network.block(anchor, 30, context).logits - alone.logits).max().item() > 0.1


def test_the_target_s_weights_are_none_of_the_drafter_s(network: DSparkNetwork) -> None:
    names = {name for name, _ in tree_flatten(network.parameters())}
    assert all(name.startswith("mtp.") for name in names)
    assert not any("embed.weight" in name or name.endswith("head.weight") for name in names)


# --- loading ---


def refusal(path: Path | None, target: Model, **arguments: object) -> str:
    with pytest.raises(ModelError) as caught:
        load_dspark(path, target=target, **arguments)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_stages_are_counted_in_the_tensors(target: Model, network: DSparkNetwork, folder: Path) -> None:
    values = json.loads((folder / "config.json").read_text())
    assert values["num_nextn_predict_layers"] == 1
    assert network.num_stages == len(network.mtp) == 3

    def drop_a_stage(tensors: dict[str, mx.array]) -> None:
        for name in [name for name in tensors if name.startswith("mtp.1.")]:
            del tensors[name]
        for name in [name for name in tensors if name.startswith("mtp.2.")]:
            tensors[name.replace("mtp.2.", "mtp.1.")] = tensors.pop(name)

    change_tensors(folder, drop_a_stage)
    for claimed in (1, 3):
        change_config(folder, num_nextn_predict_layers=claimed)
        assert load_dspark(folder, target=target).num_stages == 2


def test_ten_stages_are_counted_as_numbers(target: Model, folder: Path) -> None:
    change_tensors(folder, lambda tensors: tensors.update({"mtp.10.norm.weight": mx.ones(64)}))
    assert "missing: mtp.10.attn.attn_sink" in refusal(folder, target)


def test_blocks_are_the_target_s_in_window_mode(network: DSparkNetwork, target: Model) -> None:
    block = network.config.block
    assert block.compress_ratios == (0, 0, 0)
    assert block.num_hash_layers == 0
    assert (block.hidden_size, block.sliding_window) == (target.args.hidden_size, target.args.sliding_window)
    assert not any("compressor" in stage.attn for stage in network.mtp)


def test_a_drafter_may_have_other_experts_than_the_target(target: Model) -> None:
    values = json.loads((DRAFTER / "config.json").read_text())
    values |= {"dspark_n_routed_experts": 3, "dspark_num_experts_per_tok": 1}
    block = DSparkConfig.from_dict(values, target.args, stages=2).block
    assert (block.n_routed_experts, block.num_experts_per_tok) == (3, 1)


def test_a_checkpoint_without_a_drafter(target: Model) -> None:
    assert "holds no drafter (mtp.* tensors)" in refusal(FIXTURES / "target" / "flashlike", target)
    assert "holds no drafter" in refusal(None, target)  # the folder that the target came from


def test_a_target_from_no_folder_needs_a_path(target: Model) -> None:
    assert "drafter.path is null" in refusal(None, Model(target.args))


def test_the_original_mtp_block_is_no_dspark(target: Model, folder: Path) -> None:
    def change(tensors: dict[str, mx.array]) -> None:
        del tensors["mtp.0.main_proj.weight"]
        tensors["mtp.0.e_proj.weight"] = tensors["mtp.0.h_proj.weight"] = mx.zeros((64, 64))

    change_tensors(folder, change)
    assert "the original MTP block (e_proj), not DSpark" in refusal(folder, target)


def test_other_drafters_are_no_dspark(target: Model, folder: Path) -> None:
    def change(tensors: dict[str, mx.array]) -> None:
        for name in [name for name in tensors if name.startswith("mtp.")]:
            tensors[f"mtp.layers.{name[4:]}"] = tensors.pop(name)

    change_tensors(folder, change)
    assert "not DSpark (mtp.0.main_proj.weight)" in refusal(folder, target)


def test_tensors_that_do_not_fit_are_named(target: Model, folder: Path) -> None:
    def change(tensors: dict[str, mx.array]) -> None:
        del tensors["mtp.2.markov_head.markov_w2.weight"]
        tensors["mtp.1.attn.wkv.weight"] = mx.zeros((24, 63))
        tensors["mtp.1.main_norm.weight"] = mx.zeros(64)

    change_tensors(folder, change)
    message = refusal(folder, target)
    assert "1 missing: mtp.2.markov_head.markov_w2.weight" in message
    assert "1 unexpected: mtp.1.main_norm.weight" in message
    assert "1 misshapen: mtp.1.attn.wkv.weight (wanted [24, 64], got [24, 63])" in message


def test_nothing_is_read_before_the_census(target: Model, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change_tensors(folder, lambda tensors: tensors.pop("mtp.2.norm.weight"))
    monkeypatch.setattr(mx, "load", lambda *_: pytest.fail("weights were read"))
    refusal(folder, target)


@pytest.mark.parametrize(
    "key", ["dspark_block_size", "dspark_target_layer_ids", "dspark_markov_rank", "dspark_noise_token_id"]
)
def test_every_key_of_the_drafter_is_needed(target: Model, folder: Path, key: str) -> None:
    change_config(folder, **{key: ...})
    assert f"config.json has no {key}" in refusal(folder, target)


@pytest.mark.parametrize(
    ("key", "value", "wanted"),
    [
        ("dspark_target_layer_ids", [2, 3, 5], "wanted a list of layers in 0..4, got [2, 3, 5]"),
        ("dspark_target_layer_ids", [-1], "wanted a list of layers in 0..4"),
        ("dspark_target_layer_ids", 4, "wanted a list of layers in 0..4, got 4"),
        ("dspark_block_size", 0, "wanted an integer from 1 up, got 0"),
        ("dspark_block_size", "5", "wanted an integer from 1 up, got '5'"),
        ("dspark_markov_rank", None, "wanted an integer from 0 up, got None"),
        ("dspark_markov_rank", -1, "wanted an integer from 0 up, got -1"),
        ("dspark_noise_token_id", 96, "wanted an integer from 0 below 96, got 96"),
        ("dspark_confidence_input", "norm", "wanted pre_norm or post_norm, got 'norm'"),
        ("dspark_num_experts_per_tok", 9, "must lie in 1..n_routed_experts (6), got 9"),
        ("dspark_n_routed_experts", "6", "wanted an integer from 1 up, got '6'"),
    ],
)
def test_values_that_do_not_fit_are_named(target: Model, folder: Path, key: str, value: object, wanted: str) -> None:
    change_config(folder, **{key: value})
    message = refusal(folder, target)
    assert wanted in message
    assert key.removeprefix("dspark_") in message


def test_a_drafter_without_features_or_markov_head_lacks_their_tensors(target: Model, folder: Path) -> None:
    change_config(folder, dspark_target_layer_ids=[], dspark_markov_rank=0)
    message = refusal(folder, target)
    assert "4 unexpected: mtp.0.main_norm.weight, mtp.0.main_proj.weight, mtp.2.markov_head.markov_w1" in message
    assert "1 misshapen: mtp.2.confidence_head.proj.weight (wanted [1, 64]" in message

    def change(tensors: dict[str, mx.array]) -> None:
        for name in [name for name in tensors if "main_" in name or "markov" in name]:
            del tensors[name]
        proj = "mtp.2.confidence_head.proj.weight"
        tensors[proj] = mx.contiguous(tensors[proj][:, :64])

    change_tensors(folder, change)
    network = load_dspark(folder, target=target)
    assert (network.tapped_layers, network.num_stages) == ((), 3)
    drafted = network.draft(TOKENS[:, 30], 30, network.context_rows(None))
    assert drafted.tokens.shape == drafted.confidence.shape == (1, 5)


def test_another_rank_does_not_fit_the_tensors(target: Model, folder: Path) -> None:
    change_config(folder, dspark_markov_rank=13)
    assert "3 misshapen: " in refusal(folder, target)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_drafter_takes_the_target_s_dtype(reference: dict, dtype: str) -> None:
    target = load_model(FIXTURES / "target" / "flashlike", dtype)
    network = load_dspark(DRAFTER, target=target)
    assert network.mtp[0].main_proj.weight.dtype == getattr(mx, dtype)
    assert network.mtp[0].hc_attn.fn.dtype == mx.float32
    context = context_before(network, mx.array(reference["features"])[None], 64)
    drafted = network.draft(mx.array(reference["anchors"][4:5]), 64, context)
    assert drafted.logits.dtype == mx.float32
    assert mx.abs(drafted.logits[0] - mx.array(reference["logits"][4])).mean().item() < 0.2


# --- writing ---


def test_target_and_drafter_go_through_one_folder(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "SHARD_BYTES", 40_000)
    target = load_model(checkpoint)
    network = load_dspark(checkpoint, target=target)
    target_tensors, drafter_tensors = checkpoint_tensors(target), checkpoint_tensors(network)
    export.write_shards(tmp_path, target_tensors, stem="model")
    export.update_config(tmp_path, json.loads((checkpoint / "config.json").read_text()))
    export.write_shards(tmp_path, drafter_tensors, stem="mtp")

    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["weight_map"].keys() == target_tensors.keys() | drafter_tensors.keys()
    assert index["weight_map"] == {name: header.file.name for name, header in read_headers(tmp_path).items()}
    everything = [*target_tensors.values(), *drafter_tensors.values()]
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in everything)
    for name, file in index["weight_map"].items():
        assert file.split("-")[0] == ("mtp" if name.startswith("mtp.") else "model")
    for stem in ("model", "mtp"):
        files = sorted(tmp_path.glob(f"{stem}-*.safetensors"))
        assert len(files) > 1
        assert files[-1].name == f"{stem}-{len(files):05}-of-{len(files):05}.safetensors"

    again = load_model(tmp_path)
    drafter = load_dspark(target=again)
    logits, features = target(TOKENS, tapped_layers=network.tapped_layers)
    same_logits, same_features = again(TOKENS, tapped_layers=drafter.tapped_layers)
    assert mx.array_equal(same_logits, logits)
    drafts = [
        of.draft(TOKENS[:, 30], 30, context_before(of, seen, 30))
        for of, seen in ((network, features), (drafter, same_features))
    ]
    assert mx.array_equal(drafts[0].logits, drafts[1].logits)
    assert mx.array_equal(drafts[0].confidence, drafts[1].confidence)

    export.write_shards(tmp_path, {"mtp.0.main_norm.weight": mx.ones(32)}, stem="mtp")
    assert [file.name for file in tmp_path.glob("mtp-*")] == ["mtp-00001-of-00001.safetensors"]
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["weight_map"].keys() == target_tensors.keys() | {"mtp.0.main_norm.weight"}
