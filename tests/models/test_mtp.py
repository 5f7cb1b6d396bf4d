"""The original MTP block: the reference's numbers, which streams and tokens a slot joins, its cache, and its files."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from models import Model, ModelError, load_dspark, load_model, load_mtp
from models.deepseek_v4 import STREAMS, LayerCache, LayerKind
from models.deepseek_v4.attention import NARROW
from models.deepseek_v4.checkpoint import checkpoint_tensors
from models.deepseek_v4.moe import evaluate_every_expert
from models.deepseek_v4.probe import observing
from models.mtp import MTPNetwork, block_config
from tests.models.cache_rows import rows_of
from tests.random_models import random_mtp, random_tokens

FIXTURES = Path(__file__).parent.parent / "fixtures"
DRAFTER = FIXTURES / "mtp" / "flashlike"
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def target() -> Model:
    return load_model(FIXTURES / "target" / "flashlike")


@pytest.fixture(scope="module")
def network(target: Model) -> MTPNetwork:
    return load_mtp(DRAFTER, target=target)


@pytest.fixture(scope="module")
def reference() -> dict[str, np.ndarray]:
    """Inputs and outputs as `tests/fixtures/make_mtp_fixture.py` names them."""
    with np.load(DRAFTER / "reference.npz") as arrays:
        return dict(arrays)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the block's checkpoint that a test may damage."""
    return Path(shutil.copytree(DRAFTER, tmp_path / "drafter"))


def slots(reference: dict) -> tuple[mx.array, mx.array]:
    """Tokens (1, S - 1) and streams (1, S - 1, N * H) of every slot whose token is known."""
    return mx.array(reference["tokens"])[None, 1:], mx.array(reference["streams"])[None, :-1]


def assert_close(found: mx.array, expected: mx.array | np.ndarray, atol: float = TOLERANCE) -> None:
    np.testing.assert_allclose(np.array(found), np.array(expected), rtol=0, atol=atol)


def chain(
    network: MTPNetwork, token: mx.array, streams: mx.array, cache: LayerCache, gamma: int
) -> tuple[list, mx.array]:
    """Greedy tokens and their logits (G, V), from one slot and then the block's own streams."""
    drafted, logits = [], []
    for _ in range(gamma):
        row, streams = network(token, streams, cache)
        token = mx.argmax(row, axis=-1)
        drafted.append(token.item())
        logits.append(row[0, 0])
    return drafted, mx.stack(logits)


def change_config(folder: Path, **changes: object) -> None:
    values = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(values))


def change_tensors(folder: Path, change: Callable[[dict[str, mx.array]], object]) -> None:
    tensors = dict(mx.load(str(folder / "model.safetensors")))
    mx.eval(tensors)
    change(tensors)
    mx.save_safetensors(str(folder / "model.safetensors"), tensors)


# --- parity ---


def test_one_pass_is_the_reference_s(network: MTPNetwork, reference: dict) -> None:
    tokens, streams = slots(reference)
    logits, output = network(tokens, streams)
    assert logits.dtype == mx.float32
    assert_close(logits[0], reference["logits"])
    assert_close(output[0], reference["output"])


@pytest.mark.parametrize("width", [1, 7, NARROW, NARROW + 1, 75])
def test_slots_may_come_in_chunks(network: MTPNetwork, reference: dict, width: int) -> None:
    tokens, streams = slots(reference)
    cache, found = network.make_cache(max_rollback=3), []
    for first in range(0, tokens.shape[1], width):
        logits, output = network(tokens[:, first : first + width], streams[:, first : first + width], cache)
        mx.eval(logits, output, cache.state)
        found.append((logits, output))
    assert cache.offset == tokens.shape[1]
    assert_close(mx.concatenate([logits for logits, _ in found], axis=1)[0], reference["logits"])
    assert_close(mx.concatenate([output for _, output in found], axis=1)[0], reference["output"])


@pytest.mark.parametrize("is_filled", [True, False], ids=["filled", "run"])
def test_chains_are_the_reference_s(network: MTPNetwork, reference: dict, is_filled: bool) -> None:
    """Each begins with a true slot and feeds the block's own streams; the cache before may be filled or run."""
    tokens, streams = slots(reference)
    for case, position in enumerate(reference["positions"].tolist()):
        cache = network.make_cache(max_rollback=0)
        if is_filled:
            network.fill(tokens[:, :position], streams[:, :position], cache)
        elif position:
            network(tokens[:, :position], streams[:, :position], cache)
        here = slice(position, position + 1)
        drafted, logits = chain(network, tokens[:, here], streams[:, here], cache, 5)
        assert drafted == reference["drafted"][case].tolist()
        assert_close(logits, reference["chain_logits"][case])


def test_the_target_s_collapse_is_an_option(target: Model, reference: dict) -> None:
    network = load_mtp(DRAFTER, target=target, collapse="target")
    logits, output = network(*slots(reference))
    assert_close(logits[0], reference["logits_target_collapse"])
    assert_close(output[0], reference["output"])


@pytest.mark.parametrize("width", [1, 4, 20])
def test_a_zero_first_token_is_an_option(target: Model, reference: dict, width: int) -> None:
    network = load_mtp(DRAFTER, target=target, zero_first_embedding=True)
    tokens, streams = slots(reference)
    cache, found = network.make_cache(), []
    for first in range(0, 20, width):
        found.append(network(tokens[:, first : first + width], streams[:, first : first + width], cache)[0])
    assert_close(mx.concatenate(found, axis=1)[0], reference["logits_zero_first"])


def test_target_and_block_together_give_the_reference_s_logits(
    target: Model, network: MTPNetwork, reference: dict
) -> None:
    tokens = mx.array(reference["tokens"])[None]
    _, streams = target(tokens, tapped_layers=network.tapped_layers)
    assert_close(streams[0], reference["streams"])
    logits, _ = network(tokens[:, 1:], streams[:, :-1])
    assert_close(logits[0], reference["logits"])


# --- the streams' tap ---


def test_the_streams_tap_stands_beside_layers_and_changes_nothing(target: Model) -> None:
    tokens, last = random_tokens(40, vocab_size=96), target.args.num_hidden_layers - 1
    logits, streams = target(tokens, tapped_layers=(STREAMS,))
    wide = streams.reshape(1, 40, target.args.hc_mult, -1)
    assert mx.array_equal(logits, target(tokens))
    assert mx.array_equal(target.head(target.norm(target.hc_head(wide))), logits)
    _, mean = target(tokens, tapped_layers=(last,))
    assert mx.array_equal(wide.mean(axis=2), mean)
    _, joined = target(tokens, tapped_layers=(last, STREAMS, 2))
    _, other = target(tokens, tapped_layers=(2,))
    assert mx.array_equal(joined, mx.concatenate([mean, streams, other], axis=-1))


# --- the cache ---


def test_filled_rows_are_those_of_a_pass(tiny_model: Model) -> None:
    network, window = random_mtp(tiny_model), tiny_model.args.sliding_window
    tokens = random_tokens(60)
    _, streams = tiny_model(tokens, tapped_layers=network.tapped_layers)
    run = network.make_cache()
    network(tokens[:, 1:], streams[:, :-1], run)
    for widths in ([59], [1] * 59, [5, 44, 10], [50, 0, 9]):
        filled, first = network.make_cache(), 0
        for width in widths:
            network.fill(tokens[:, 1 + first : 1 + first + width], streams[:, first : first + width], filled)
            first += width
        assert (filled.offset, filled.written) == (run.offset, run.written) == (59, 59)
        held = run.raw.capacity if len(widths) > 1 else window - 1
        assert_close(rows_of(filled.raw, 59 - held, 59), rows_of(run.raw, 59 - held, 59), 1e-5)


def test_drafted_slots_can_be_trimmed(tiny_model: Model) -> None:
    network = random_mtp(tiny_model)
    tokens = random_tokens(60)
    _, streams = tiny_model(tokens, tapped_layers=network.tapped_layers)
    cache = network.make_cache(max_rollback=5)
    network.fill(tokens[:, 1:31], streams[:, :30], cache)
    for offset in range(30, 58):
        here = slice(offset, offset + 1)
        expected = network(tokens[:, 1 : offset + 2], streams[:, : offset + 1])[0][0, -1]
        drafted, logits = chain(network, tokens[:, offset + 1 : offset + 2], streams[:, here], cache, 5)
        assert len(drafted) == 5
        assert_close(logits[0], expected)
        cache.trim(5)
        network.fill(tokens[:, offset + 1 : offset + 2], streams[:, here], cache)


def test_only_the_window_is_seen(tiny_model: Model) -> None:
    network, window = random_mtp(tiny_model), tiny_model.args.sliding_window
    tokens = random_tokens(40)
    _, streams = tiny_model(tokens, tapped_layers=network.tapped_layers)
    plain, _ = network(tokens[:, 1:], streams[:, :-1])
    for slot, is_seen in ((38 - window, False), (39 - window, True), (38, True)):
        other = streams + mx.where(mx.arange(40)[:, None] == slot, random_streams(streams.shape), 0.0)
        logits, _ = network(tokens[:, 1:], other[:, :-1])
        assert mx.array_equal(logits[:, 38], plain[:, 38]) != is_seen
        assert mx.array_equal(logits[:, :slot], plain[:, :slot])


def random_streams(shape: tuple[int, ...]) -> mx.array:
    return mx.random.normal(shape, key=mx.random.key(9))


def test_the_block_is_the_target_s_in_window_mode(target: Model, network: MTPNetwork) -> None:
    config = network.config
    assert [config.kind(0), config.num_hidden_layers, config.num_hash_layers] == [LayerKind.WINDOW, 1, 0]
    assert "bias" in network.mtp[0].ffn.gate
    assert "compressor" not in network.mtp[0].attn
    names = {name for name, _ in tree_flatten(network.parameters())}
    assert all(name.startswith("mtp.0.") for name in names)
    assert not any(name.endswith(("embed.weight", ".head.weight")) for name in names)


# --- many chains at once ---


def chained_alone(network: MTPNetwork, tokens: mx.array, streams: mx.array, anchor: int, depth: int) -> mx.array:
    """Logits (G, V) of drafting's own way through one text (1, S): rows filled, then a slot at a time with a cache."""
    cache = network.make_cache(max_rollback=0)
    network.fill(tokens[:, 1:anchor], streams[:, : anchor - 1], cache)
    current, found = streams[:, anchor - 1 : anchor], []
    for slot in range(anchor, anchor + depth):
        logits, current = network(tokens[:, slot : slot + 1], current, cache)
        found.append(logits[0, 0])
    return mx.stack(found)


@pytest.mark.parametrize("evaluates_every_expert", [False, True])
@pytest.mark.parametrize("zero_first_embedding", [False, True])
@pytest.mark.parametrize("depth", [1, 5, 15])
def test_chains_are_those_of_the_cache(
    tiny_model: Model, evaluates_every_expert: bool, zero_first_embedding: bool, depth: int
) -> None:
    """Anchors within and past the first window of 12, and a chain that is longer than the window."""
    network = random_mtp(tiny_model)
    network.zero_first_embedding = zero_first_embedding
    evaluate_every_expert(network, evaluates_every_expert)
    tokens = random_tokens(60, batch=2)
    _, streams = tiny_model(tokens, tapped_layers=network.tapped_layers)
    anchors = mx.array([[1, 2, 12, 13, 45], [7, 30, 14, 1, 60 - depth]])
    found = network.chains(tokens, streams, anchors, depth)
    assert (found.shape, found.dtype) == ((10, depth, tiny_model.args.vocab_size), mx.float32)
    evaluate_every_expert(network, False)
    for number, anchor in enumerate(anchors.flatten().tolist()):
        row = slice(number // 5, number // 5 + 1)
        assert_close(found[number], chained_alone(network, tokens[row], streams[row], anchor, depth), 1e-5)


def test_many_chains_are_the_reference_s(network: MTPNetwork, reference: dict) -> None:
    """Fed with what the reference drafted, as long as its argmax is the chain's input."""
    streams = mx.array(reference["streams"])[None]
    for case, position in enumerate(reference["positions"].tolist()):
        anchor, drafted = position + 1, reference["drafted"][case].tolist()
        tokens = [*reference["tokens"][: anchor + 1].tolist(), *drafted]
        padded = mx.pad(streams[:, :anchor], [(0, 0), (0, len(tokens) - anchor), (0, 0)])
        logits = network.chains(mx.array([tokens]), padded, mx.array([[anchor]]), len(drafted))
        assert_close(logits[0], reference["chain_logits"][case])


def test_chains_count_every_step_s_experts(tiny_model: Model) -> None:
    network = random_mtp(tiny_model)
    tokens = random_tokens(30)
    _, streams = tiny_model(tokens, tapped_layers=network.tapped_layers)
    with observing(network) as probe:
        network.chains(tokens, streams, mx.array([[3, 9]]), 4)
    assert probe.load[0].sum().item() == 2 * 4 * network.config.num_experts_per_tok


def test_no_row_past_the_chain_is_read(tiny_model: Model) -> None:
    """Neither tokens after the last one fed nor streams from the anchor on, which drafting cannot know."""
    network, tokens = random_mtp(tiny_model), random_tokens(40)
    _, streams = tiny_model(tokens, tapped_layers=network.tapped_layers)
    anchors = mx.array([[20]])
    plain = network.chains(tokens, streams, anchors, 3)

    def changes(slot: int) -> tuple[bool, bool]:
        here = mx.arange(40) == slot
        other_streams = mx.where(here[:, None], random_streams(streams.shape), streams)
        other_tokens = mx.where(here, (tokens + 1) % 48, tokens)
        return tuple(
            not mx.array_equal(plain, network.chains(some, values, anchors, 3))
            for some, values in ((tokens, other_streams), (other_tokens, streams))
        )

    window = tiny_model.args.sliding_window
    assert changes(19) == (True, True)
    assert changes(20) == changes(22) == (False, True)
    assert changes(23) == (False, False)
    assert changes(20 - window)[0]
    assert not changes(19 - window)[0]


# --- loading ---


def test_beside_dspark_the_block_lies_in_a_sub_folder(checkpoint: Path, mtp_checkpoint: Path, tmp_path: Path) -> None:
    shutil.copytree(checkpoint, tmp_path, dirs_exist_ok=True)
    target = load_model(tmp_path)
    assert "are DSpark" in refusal(None, target)
    shutil.copytree(mtp_checkpoint, tmp_path / "mtp")
    tokens = random_tokens(9, vocab_size=96)
    _, streams = target(tokens, tapped_layers=(STREAMS,))
    expected = load_mtp(mtp_checkpoint, target=target)(tokens, streams)[0]
    for path in (None, tmp_path, tmp_path / "mtp"):
        assert mx.array_equal(load_mtp(path, target=target)(tokens, streams)[0], expected)
    assert load_dspark(target=target).mtp[0].main_proj.weight.size  # the target's own folder still holds DSpark


def test_a_block_may_have_experts_of_its_own_number(target: Model, tmp_path: Path) -> None:
    values = {"mtp_n_routed_experts": 2, "mtp_num_experts_per_tok": 1}
    network = random_mtp(target, config=block_config(target.args, values))
    assert network.mtp[0].ffn.experts.gate_proj.weight.shape[0] == 2
    mx.save_safetensors(str(tmp_path / "mtp.safetensors"), checkpoint_tensors(network))
    shutil.copy(DRAFTER / "config.json", tmp_path)
    assert "missing: mtp.0.ffn.experts.2.w1.weight" in refusal(tmp_path, target)
    change_config(tmp_path, **values)
    again = load_mtp(tmp_path, target=target)
    tokens, streams = random_tokens(9, vocab_size=96), random_streams((1, 9, 256))
    assert mx.array_equal(again(tokens, streams)[0], network(tokens, streams)[0])
    assert target.args.num_experts_per_tok == 3


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ({"mtp_n_routed_experts": "2"}, "mtp_n_routed_experts: wanted a positive integer, got '2'"),
        ({"mtp_num_experts_per_tok": 0}, "mtp_num_experts_per_tok: wanted a positive integer, got 0"),
        ({"mtp_n_routed_experts": 2}, "num_experts_per_tok must lie in 1..n_routed_experts (2), got 3"),
    ],
)
def test_numbers_of_experts_that_cannot_be_are_refused(target: Model, folder: Path, values: dict, wanted: str) -> None:
    change_config(folder, **values)
    assert wanted in refusal(folder, target)


def refusal(path: Path | None, target: Model, **arguments: object) -> str:
    with pytest.raises(ModelError) as caught:
        load_mtp(path, target=target, **arguments)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_checkpoint_without_a_drafter(target: Model) -> None:
    assert "holds no drafter (mtp.* tensors)" in refusal(FIXTURES / "target" / "flashlike", target)
    assert "holds no drafter" in refusal(None, target)  # the folder that the target came from
    assert "drafter.path is null" in refusal(None, Model(target.args))


def test_dspark_is_no_mtp_block_and_the_other_way_round(target: Model) -> None:
    message = refusal(FIXTURES / "dspark" / "flashlike", target)
    assert "are DSpark (mtp.0.main_proj.weight), not the original MTP block: take drafter=dspark" in message
    with pytest.raises(ModelError, match=r"original MTP block \(e_proj\), not DSpark"):
        load_dspark(DRAFTER, target=target)


def test_other_drafters_are_no_mtp_block(target: Model, folder: Path) -> None:
    def change(tensors: dict[str, mx.array]) -> None:
        for name in list(tensors):
            tensors[f"mtp.layers.{name[4:]}"] = tensors.pop(name)

    change_tensors(folder, change)
    assert "another drafter, not the original MTP block (mtp.0.e_proj.weight)" in refusal(folder, target)


def test_tensors_that_do_not_fit_are_named(target: Model, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def change(tensors: dict[str, mx.array]) -> None:
        del tensors["mtp.0.hc_head_base"]
        tensors["mtp.0.h_proj.weight"] = mx.zeros((64, 63))
        tensors["mtp.1.norm.weight"] = mx.zeros(64)

    change_tensors(folder, change)
    monkeypatch.setattr(mx, "load", lambda *_: pytest.fail("weights were read"))
    message = refusal(folder, target)
    assert "1 missing: mtp.0.hc_head_base" in message
    assert "1 unexpected: mtp.1.norm.weight" in message
    assert "1 misshapen: mtp.0.h_proj.weight (wanted [64, 64], got [64, 63])" in message


def test_copies_of_the_target_s_embedding_and_head_are_left_alone(
    target: Model, network: MTPNetwork, folder: Path
) -> None:
    shared = {"mtp.0.emb.tok_emb.weight": mx.zeros((96, 64)), "mtp.0.head.weight": mx.zeros((96, 64))}
    change_tensors(folder, lambda tensors: tensors.update(shared))
    again = load_mtp(folder, target=target)
    tokens, streams = random_tokens(9, vocab_size=96), random_streams((1, 9, 256))
    assert mx.array_equal(again(tokens, streams)[0], network(tokens, streams)[0])


@pytest.mark.parametrize(
    ("key", "value", "wanted"),
    [
        ("sliding_window", 17, "sliding_window is 17, the target's is 16"),
        ("rope_theta", 160000, "rope_theta is 160000, the target's is 10000.0"),
        ("num_experts_per_tok", 2, "num_experts_per_tok is 2, the target's is 3"),
        ("compress_ratios", [0, 0, 4, 16, 4, 4], "gives the MTP block the ratio 4, wanted 0"),
    ],
)
def test_a_block_of_another_target_is_refused(
    target: Model, folder: Path, key: str, value: object, wanted: str
) -> None:
    change_config(folder, **{key: value})
    assert wanted in refusal(folder, target)


def test_unknown_options_are_refused(target: Model) -> None:
    assert "drafter.collapse: wanted one of own, target, got 'mean'" in refusal(DRAFTER, target, collapse="mean")
    assert "drafter.quant" in refusal(DRAFTER, target, quant="q7")
    assert "inputs" in refusal(DRAFTER, target, quant="q4")  # experts of 8 inputs: no multiple of a group


def test_the_block_takes_the_target_s_dtype(reference: dict) -> None:
    target = load_model(FIXTURES / "target" / "flashlike", "bfloat16")
    network = load_mtp(DRAFTER, target=target)
    assert network.mtp[0].e_proj.weight.dtype == mx.bfloat16
    assert network.mtp[0].hc_head.fn.dtype == mx.float32
    tokens, streams = slots(reference)
    logits, output = network(tokens, streams.astype(mx.bfloat16))
    assert (logits.dtype, output.dtype) == (mx.float32, mx.bfloat16)
    assert mx.abs(logits[0] - mx.array(reference["logits"])).mean().item() < 0.2
