"""A checkpoint is loaded whole or refused in one line that names what is wrong."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from models import Model, ModelError, load, load_model
from models.deepseek_v4.checkpoint import checkpoint_tensors
from tests.random_models import TINY, random_model, random_tokens, tiny_config

CONFIG = {name: value for name, value in TINY.items() if name != "rope_scaling"} | {
    "model_type": "deepseek_v4",
    "compress_ratios": [0, 4, 128, 0],  # the last entry is a drafter block's
    "rope_scaling": {"type": "yarn", "factor": 4, "original_max_position_embeddings": 32},
}
SIZES = {"compress_ratios": (0, 4, 128)}
FLOAT32_LEAVES = ("attn_sink", "ape", "fn", "base", "scale", "bias")


def write_checkpoint(folder: Path, model: Model, dtype: mx.Dtype | None = None) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    mx.save_safetensors(str(folder / "model.safetensors"), checkpoint_tensors(model, dtype))


def write_tokenizer(folder: Path, words: int) -> None:
    tokenizer = Tokenizer(WordLevel({f"w{number}": number for number in range(words)}, unk_token="w0"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "w1", "bos_token": "w0"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


@pytest.fixture(scope="module")
def model() -> Model:
    return random_model(tiny_config(**SIZES))


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory, model: Model) -> Path:
    """A float32 checkpoint with a tokenizer; not to be changed."""
    folder = tmp_path_factory.mktemp("checkpoint")
    write_checkpoint(folder, model)
    write_tokenizer(folder, TINY["vocab_size"])
    return folder


@pytest.fixture
def checkpoint(stored: Path, tmp_path: Path) -> Path:
    """A copy of it that a test may damage."""
    return Path(shutil.copytree(stored, tmp_path / "checkpoint"))


def change_tensors(folder: Path, change: Callable[[dict[str, mx.array]], object]) -> None:
    tensors = dict(mx.load(str(folder / "model.safetensors")))
    mx.eval(tensors)
    change(tensors)
    mx.save_safetensors(str(folder / "model.safetensors"), tensors)


def change_config(folder: Path, **changes: object) -> None:
    """Sets keys; a value of ... removes one."""
    values = json.loads((folder / "config.json").read_text()) | changes
    values = {key: value for key, value in values.items() if value is not ...}
    (folder / "config.json").write_text(json.dumps(values))


def refusal(path: Path | str, **arguments: object) -> str:
    """The message of the ModelError that loading raises, which must be one line."""
    with pytest.raises(ModelError) as caught:
        load(path, **arguments)
    message = str(caught.value)
    assert message
    assert "\n" not in message
    return message


# --- what loads ---


def test_a_round_trip_gives_equal_logits(stored: Path, model: Model) -> None:
    loaded, tokenizer = load(stored)
    tokens = random_tokens(60)
    assert mx.array_equal(loaded(tokens), model(tokens))
    assert tokenizer.encode("w5 w7", add_special_tokens=False) == [5, 7]
    assert not loaded.training
    assert loaded.path == str(stored)
    assert load_model(str(stored)).args == loaded.args == tiny_config(**SIZES)


def test_checkpoint_names_are_the_original_ones(model: Model) -> None:
    names = set(checkpoint_tensors(model))
    assert names >= {
        "embed.weight",
        "head.weight",
        "norm.weight",
        "hc_head_fn",
        "layers.0.hc_attn_fn",
        "layers.0.ffn.gate.tid2eid",
        "layers.0.ffn.experts.5.w1.weight",
        "layers.1.attn.attn_sink",
        "layers.1.attn.compressor.ape",
        "layers.1.attn.indexer.compressor.wgate.weight",
        "layers.1.attn.indexer.weights_proj.weight",
        "layers.1.ffn.gate.bias",
        "layers.2.ffn.shared_experts.w2.weight",
    }
    assert not any("hc_attn." in name or "gate_proj" in name for name in names)


def test_experts_are_stored_one_by_one_in_order(model: Model) -> None:
    tensors = checkpoint_tensors(model)
    experts = model.layers[1].ffn.experts
    for number in range(TINY["n_routed_experts"]):
        for name, stacked in (("w1", experts.gate_proj), ("w2", experts.down_proj), ("w3", experts.up_proj)):
            assert mx.array_equal(tensors[f"layers.1.ffn.experts.{number}.{name}.weight"], stacked.weight[number])


def test_a_model_of_one_expert_goes_through_a_checkpoint(tmp_path: Path) -> None:
    model = random_model(tiny_config(**SIZES, n_routed_experts=1, num_experts_per_tok=1))
    write_checkpoint(tmp_path, model)
    change_config(tmp_path, n_routed_experts=1, num_experts_per_tok=1)
    tokens = random_tokens(20)
    assert mx.array_equal(load_model(tmp_path)(tokens), model(tokens))


def test_shards_are_read_together(checkpoint: Path, model: Model) -> None:
    tensors = dict(mx.load(str(checkpoint / "model.safetensors")))
    mx.eval(tensors)
    names = sorted(tensors)
    (checkpoint / "model.safetensors").unlink()
    for part in range(3):
        shard = {name: tensors[name] for name in names[part::3]}
        mx.save_safetensors(str(checkpoint / f"model-{part + 1:05}-of-00003.safetensors"), shard)
    tokens = random_tokens(20)
    assert mx.array_equal(load_model(checkpoint)(tokens), model(tokens))


def test_bfloat16_storage_keeps_float32_where_v4_computes_in_it(tmp_path: Path, model: Model) -> None:
    write_checkpoint(tmp_path, model, mx.bfloat16)
    kept = {name: array.dtype for name, array in mx.load(str(tmp_path / "model.safetensors")).items()}
    assert kept["layers.1.attn.wkv.weight"] == mx.bfloat16
    assert kept["layers.1.ffn.gate.bias"] == mx.float32
    assert kept["layers.1.hc_attn_scale"] == mx.float32
    assert kept["layers.0.ffn.gate.tid2eid"] == mx.int64
    loaded = load_model(tmp_path)
    for name, array in tree_flatten(loaded.parameters()):
        leaf = name.rsplit(".", 1)[-1]
        if leaf == "tid2eid":
            assert array.dtype == mx.int64, name
        elif leaf in FLOAT32_LEAVES or "gate.weight" in name or "compressor.wkv" in name or "wgate" in name:
            assert array.dtype == mx.float32, name
        else:
            assert array.dtype == mx.bfloat16, name


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", mx.bfloat16])
def test_a_dtype_can_be_asked_for(stored: Path, model: Model, dtype: str | mx.Dtype) -> None:
    loaded = load_model(stored, dtype=dtype)
    wanted = getattr(mx, dtype) if isinstance(dtype, str) else dtype
    assert loaded.layers[0].attn.wq_a.weight.dtype == wanted
    assert loaded.layers[0].ffn.experts.up_proj.weight.dtype == wanted
    assert mx.array_equal(loaded.layers[1].attn.compressor.ape, model.layers[1].attn.compressor.ape)
    assert mx.array_equal(loaded.layers[1].ffn.gate.weight, model.layers[1].ffn.gate.weight)
    assert mx.array_equal(loaded.layers[0].hc_attn.fn, model.layers[0].hc_attn.fn)
    cache = loaded.make_cache()
    logits = loaded(random_tokens(20), cache=cache)
    assert logits.dtype == mx.float32
    assert cache[0].raw.rows.dtype == wanted
    assert cache[1].compressor.frontier.rows.dtype == mx.float32


def test_bfloat16_storage_can_be_widened(tmp_path: Path, model: Model) -> None:
    write_checkpoint(tmp_path, model, mx.bfloat16)
    loaded = load_model(tmp_path, dtype="float32")
    assert {array.dtype for _, array in tree_flatten(loaded.parameters())} == {mx.float32, mx.int64}
    tokens = random_tokens(20)
    assert 0 < mx.abs(loaded(tokens) - model(tokens)).mean().item() < 0.1


def test_a_bfloat16_model_runs(tmp_path: Path, model: Model) -> None:
    write_checkpoint(tmp_path, model, mx.bfloat16)
    loaded, tokens = load_model(tmp_path), random_tokens(20)
    assert mx.abs(loaded(tokens) - model(tokens)).mean().item() < 0.1


def test_a_tokenizer_loads_beside_ratios_that_no_real_model_has(checkpoint: Path) -> None:
    write_checkpoint(checkpoint, random_model(tiny_config(compress_ratios=(0, 4, 16))))
    change_config(checkpoint, compress_ratios=[0, 4, 16, 0])
    _, tokenizer = load(checkpoint)
    assert tokenizer.encode("w5 w7", add_special_tokens=False) == [5, 7]


def test_a_drafter_beside_the_target_is_left_alone(checkpoint: Path, model: Model) -> None:
    change_tensors(checkpoint, lambda tensors: tensors.update({"mtp.0.main_proj.weight": mx.zeros((3, 3))}))
    tokens = random_tokens(20)
    assert mx.array_equal(load_model(checkpoint)(tokens), model(tokens))


# --- what is refused ---


def test_missing_tensors_are_named(checkpoint: Path) -> None:
    change_tensors(checkpoint, lambda tensors: tensors.pop("layers.1.ffn.experts.3.w2.weight"))
    assert "1 missing: layers.1.ffn.experts.3.w2.weight" in refusal(checkpoint)


def test_unexpected_tensors_are_named(checkpoint: Path) -> None:
    change_tensors(checkpoint, lambda tensors: tensors.update({"layers.7.attn_norm.weight": mx.ones(32)}))
    assert "1 unexpected: layers.7.attn_norm.weight" in refusal(checkpoint)


def test_misshapen_tensors_are_named_with_both_shapes(checkpoint: Path) -> None:
    change_tensors(checkpoint, lambda tensors: tensors.update({"norm.weight": mx.ones(31)}))
    assert "1 misshapen: norm.weight (wanted [32], got [31])" in refusal(checkpoint)


def test_unreadable_types_are_named(checkpoint: Path) -> None:
    change_tensors(checkpoint, lambda tensors: tensors.update({"norm.weight": mx.ones(32, mx.uint8)}))
    assert "norm.weight (U8)" in refusal(checkpoint)


def test_all_faults_are_told_at_once_and_long_lists_cut(checkpoint: Path) -> None:
    def change(tensors: dict[str, mx.array]) -> None:
        for name in [name for name in tensors if ".experts." in name]:
            del tensors[name]
        tensors["model.embed_tokens.weight"] = tensors.pop("embed.weight")
        tensors["head.weight"] = mx.zeros((2, 2))

    change_tensors(checkpoint, change)
    message = refusal(checkpoint)
    missing = 3 * 3 * TINY["n_routed_experts"] + 1
    assert f"{missing} missing: embed.weight, " in message
    assert f" and {missing - 8} more" in message
    assert "1 unexpected: model.embed_tokens.weight" in message
    assert "1 misshapen: head.weight" in message
    assert str(checkpoint) in message


def test_another_number_of_layers_does_not_fit(checkpoint: Path) -> None:
    change_config(checkpoint, num_hidden_layers=4)
    assert "missing: layers.3.attn.attn_sink" in refusal(checkpoint)
    change_config(checkpoint, num_hidden_layers=2)
    assert "unexpected: layers.2.attn.attn_sink" in refusal(checkpoint)


def test_nothing_is_read_before_the_census(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change_tensors(checkpoint, lambda tensors: tensors.pop("norm.weight"))
    monkeypatch.setattr(mx, "load", lambda *_: pytest.fail("weights were read"))
    refusal(checkpoint)


@pytest.mark.parametrize("model_type", ["deepseek_v3", ...])
def test_another_model_type(checkpoint: Path, model_type: object) -> None:
    change_config(checkpoint, model_type=model_type)
    got = None if model_type is ... else model_type
    assert f"wanted model_type deepseek_v4 in config.json, got {got!r}" in refusal(checkpoint)


def test_a_missing_config_key_is_named(checkpoint: Path) -> None:
    change_config(checkpoint, index_topk=...)
    message = refusal(checkpoint)
    assert "index_topk" in message
    assert "config.json" in message


def test_a_missing_list_of_ratios_is_named(checkpoint: Path) -> None:
    change_config(checkpoint, compress_ratios=...)
    assert "compress_ratios needs an entry for each of the 3 layers, got 0" in refusal(checkpoint)


@pytest.mark.parametrize("key", ["factor", "original_max_position_embeddings"])
def test_a_missing_key_of_the_rope_scaling_is_named(checkpoint: Path, key: str) -> None:
    scaling = {name: value for name, value in CONFIG["rope_scaling"].items() if name != key}
    change_config(checkpoint, rope_scaling=scaling)
    assert f"rope_scaling has no {key}" in refusal(checkpoint)


def test_simulated_quantization_of_unsuitable_sizes_is_refused_before_weights_are_read(checkpoint: Path) -> None:
    (checkpoint / "model.safetensors").unlink()
    change_config(checkpoint, simulate_quantization=True)
    assert "simulate_quantization needs head_dim - qk_rope_head_dim in multiples of 64" in refusal(checkpoint)


@pytest.mark.parametrize("text", ["{", "", "[]", "null", '"deepseek_v4"', '{"a":' + "[" * 100_000])
def test_a_config_that_is_no_object(checkpoint: Path, text: str) -> None:
    (checkpoint / "config.json").write_text(text)
    assert "config.json" in refusal(checkpoint)


def test_a_path_that_does_not_exist(tmp_path: Path) -> None:
    message = refusal(tmp_path / "nowhere")
    assert "nowhere is no folder" in message
    assert "wanted a checkpoint folder" in message


def test_a_path_to_a_file(stored: Path) -> None:
    assert "is no folder" in refusal(stored / "model.safetensors")


def test_a_folder_without_a_config(tmp_path: Path) -> None:
    assert "holds no config.json" in refusal(tmp_path)


def test_a_folder_without_weights(checkpoint: Path) -> None:
    (checkpoint / "model.safetensors").unlink()
    assert "no *.safetensors" in refusal(checkpoint)


def damaged(content: bytes, how: str) -> bytes:
    """A safetensors file's content, damaged."""
    length = int.from_bytes(content[:8], "little")
    header = content[8 : 8 + length]
    return {
        "empty": b"",
        "short length": content[:5],
        "cut in the header": content[: 8 + length // 2],
        "cut in the data": content[: 8 + length + 100],
        "a page of HTML": b"<!DOCTYPE html><html><body>404 Not Found</body></html>",
        "a Git LFS pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
        "header of another kind": (2).to_bytes(8, "little") + b"[]",
        "deeply nested header": (20_006).to_bytes(8, "little") + b'{"a":' + b"[" * 10_000 + b"]" * 10_000 + b"}",
        "entry without a shape": content[:8] + header.replace(b'"shape"', b'"shade"') + content[8 + length :],
        "shape of letters": content[:8] + header.replace(b'"shape":[32]', b'"shape":"ab"') + content[8 + length :],
        "shape of another size": content[:8] + header.replace(b'"shape":[32]', b'"shape":[33]') + content[8 + length :],
    }[how]


@pytest.mark.parametrize(
    "how",
    [
        "shape of letters",
        "shape of another size",
        "empty",
        "short length",
        "cut in the header",
        "cut in the data",
        "a page of HTML",
        "a Git LFS pointer",
        "header of another kind",
        "deeply nested header",
        "entry without a shape",
    ],
)
def test_damaged_weights(checkpoint: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    file = checkpoint / "model.safetensors"
    content = file.read_bytes()
    assert damaged(content, how) != content
    file.write_bytes(damaged(content, how))
    monkeypatch.setattr(mx, "load", lambda *_: pytest.fail("weights were read"))
    assert "model.safetensors is no readable safetensors file (" in refusal(checkpoint)


def test_a_link_to_weights_that_are_gone(checkpoint: Path) -> None:
    (checkpoint / "model.safetensors").unlink()
    (checkpoint / "model.safetensors").symlink_to(checkpoint / "gone")
    assert "model.safetensors is no readable safetensors file" in refusal(checkpoint)


def test_two_checkpoints_in_one_folder(checkpoint: Path) -> None:
    shutil.copy(checkpoint / "model.safetensors", checkpoint / "old.safetensors")
    assert "stands both in model.safetensors and in old.safetensors" in refusal(checkpoint)


def test_an_unknown_dtype(stored: Path) -> None:
    assert "wanted one of float32, bfloat16, float16 or null, got 'int8'" in refusal(stored, dtype="int8")


def test_a_missing_tokenizer(checkpoint: Path) -> None:
    (checkpoint / "tokenizer.json").unlink()
    assert "holds no tokenizer.json" in refusal(checkpoint)
    assert load_model(checkpoint).args.vocab_size == TINY["vocab_size"]


def test_a_tokenizer_with_ids_beyond_the_vocabulary(checkpoint: Path) -> None:
    write_tokenizer(checkpoint, TINY["vocab_size"] + 1)
    message = refusal(checkpoint)
    assert f"token id {TINY['vocab_size']}" in message
    assert f"vocabulary has {TINY['vocab_size']}" in message


def test_a_tokenizer_smaller_than_the_vocabulary_is_fine(checkpoint: Path) -> None:
    write_tokenizer(checkpoint, 7)
    _, tokenizer = load(checkpoint)
    assert max(tokenizer.get_vocab().values()) == 6


@pytest.mark.parametrize("text", ["{", "{}", "[]", '{"model": {"type": "BPE"}}', '{"model": 3, "added_tokens": []}'])
def test_a_tokenizer_that_is_no_tokenizer(checkpoint: Path, text: str) -> None:
    (checkpoint / "tokenizer.json").write_text(text)
    message = refusal(checkpoint)
    assert f"the tokenizer in {checkpoint} cannot be read (" in message
    assert "copy the checkpoint's tokenizer files again" in message


def test_the_tokenizer_is_checked_before_weights_are_read(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mx, "load", lambda *_: pytest.fail("weights were read"))
    (checkpoint / "tokenizer.json").write_text("{")
    refusal(checkpoint)
    write_tokenizer(checkpoint, TINY["vocab_size"] + 1)
    refusal(checkpoint)


# --- what ships ---


def test_the_shipped_checkpoint_loads_from_any_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    loaded, tokenizer = load("models/pretrained/tiny")
    assert Path(loaded.path).is_absolute()
    assert tokenizer.eos_token_ids == {1}
    text = "for name in names:\n    print(name)"
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text
    assert "tiny is no folder" in refusal("pretrained/tiny")


def test_a_folder_here_goes_before_what_ships(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(checkpoint, tmp_path / "models" / "pretrained" / "tiny")
    monkeypatch.chdir(tmp_path)
    assert load_model("models/pretrained/tiny").args.vocab_size == TINY["vocab_size"]
