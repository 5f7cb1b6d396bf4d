"""Sampling of text from a Llama in a GGUF file, at toy size."""

import itertools
import json
import lzma
import math
import random

import gguf
import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten
from mlx_lm.models.llama import Model, ModelArgs
from tokenizers import pre_tokenizers

from experiments.evaluate_reference import document_bits, windows
from experiments.pair.data.smollm import _PARTS, load_llama, user_turn
from experiments.pair.sample_text import append_rows, equal_lengths, make_request, sample_batch, whole_sentences
from spec.errors import UserError

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 64, "num_attention_heads": 2}
BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *BYTES, "he", "hel"]


def interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a head in the order of llama.cpp's converter: its two halves, one from each in turn."""
    rows, width = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, width).swapaxes(1, 2).reshape(rows, width)


@pytest.fixture(scope="module")
def plain_model() -> Model:
    mx.random.seed(5)
    return Model(
        ModelArgs(
            model_type="llama",
            **SIZES,
            num_key_value_heads=1,
            rms_norm_eps=1e-5,
            vocab_size=len(TOKENS),
            rope_theta=5e3,
        )
    ).eval()


@pytest.fixture(scope="module")
def gguf_file(plain_model, tmp_path_factory):
    """The plain model as llama.cpp's converter would store it."""
    file = tmp_path_factory.mktemp("gguf") / "toy.gguf"
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_embedding_length(32)
    writer.add_block_count(2)
    writer.add_feed_forward_length(64)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_context_length(128)
    writer.add_rope_freq_base(5e3)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 3, 3] + [1] * (len(TOKENS) - 3))
    writer.add_token_merges(["h e", "he l"])
    writer.add_eos_token_id(2)
    stored = {mlx: ours for ours, mlx in _PARTS.items()}
    for name, array in tree_flatten(plain_model.parameters()):
        value = np.array(array)
        if name.startswith("model.layers."):
            number, part = name.removeprefix("model.layers.").removesuffix(".weight").split(".", 1)
            if part in ("self_attn.q_proj", "self_attn.k_proj"):
                value = interleaved(value, 2 if "q_proj" in part else 1)
            target = f"blk.{number}.{stored[part]}.weight"
        else:
            target = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}[name]
        writer.add_tensor(target, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def test_gguf_gives_the_logits_of_the_model_that_was_stored(plain_model, gguf_file):
    loaded = load_llama(gguf_file, "float32")
    tokens = mx.array([[3, 50, 7, 19, 200, 4]])
    assert mx.abs(loaded.model(tokens) - plain_model(tokens)).max().item() < 1e-4
    assert loaded.end_id == 2


def test_tokenizer_merges_and_matches_special_tokens(gguf_file):
    tokenizer = load_llama(gguf_file, "float32").tokenizer
    assert tokenizer.encode("hel").ids == [TOKENS.index("hel")]
    assert tokenizer.encode("12").ids == [TOKENS.index("1"), TOKENS.index("2")]
    ids = tokenizer.encode(user_turn("h")).ids
    assert ids.count(1) == 3
    assert ids.count(2) == 2
    assert tokenizer.decode(ids) == user_turn("h").replace("<|im_start|>", "").replace("<|im_end|>", "")


def test_another_architecture_is_refused(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "other.gguf", "qwen2")
    writer.add_tokenizer_model("gpt2")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UserError, match="architecture qwen2"):
        load_llama(tmp_path / "other.gguf", "float32")


def test_samples_do_not_depend_on_rows_that_left_and_end_at_the_end_token(plain_model):
    prompts = [[3, 4, 5]] * 40
    sampled = sample_batch(plain_model, prompts, temperature=1.0, max_tokens=70, end_id=9, key=mx.random.key(3))
    lengths = [len(tokens) for tokens, _ in sampled]
    assert all(9 not in tokens for tokens, _ in sampled)
    assert all(is_ended or length == 70 for length, (_, is_ended) in zip(lengths, sampled, strict=True))
    assert len({tuple(tokens) for tokens, _ in sampled}) > 30


def test_low_temperature_is_greedy_through_compaction(plain_model):
    """A row's tokens at a temperature near 0 are those of greedy decoding, also after other rows have been dropped."""
    prompts = [[3 + number, 4, 5] for number in range(12)]
    greedy = {}
    for row, prompt in enumerate(prompts):
        tokens = list(prompt)
        for _ in range(64):
            tokens.append(mx.argmax(plain_model(mx.array([tokens]))[0, -1]).item())
        greedy[row] = tokens[3:]
    end = greedy[0][20]  # some rows end early, so the batch is compacted
    sampled = sample_batch(plain_model, prompts, temperature=1e-6, max_tokens=64, end_id=end, key=mx.random.key(0))
    for row, (tokens, is_ended) in enumerate(sampled):
        expected = greedy[row][: greedy[row].index(end)] if end in greedy[row] else greedy[row]
        assert is_ended == (end in greedy[row])
        assert tokens == expected
    assert sampled[0][1]


def test_requests_are_made_of_the_lists_and_do_not_depend_on_each_other():
    templates = {"prose": {"share": 1.0, "prompts": ["about {who} and {who}"]}}
    words = {"who": ["a cat", "a dog"]}
    made = [make_request(number, templates, words, seed=1).prompt for number in range(40)]
    assert set(made) == {f"About {a} and {b}" for a in words["who"] for b in words["who"]}
    assert make_request(17, templates, words, seed=1).prompt == made[17]


def test_batches_have_equal_lengths_and_lose_no_request():
    templates = {"prose": {"share": 1.0, "prompts": ["{word}"]}}
    words = {"word": ["a", "bb", "cc"]}
    requests = (make_request(number, templates, words, seed=0) for number in range(30))
    seen = []
    for group, tokens in equal_lengths(requests, list, batch_size=4):
        assert len({len(prompt) for prompt in tokens}) == 1
        seen += [request.number for request in group]
    assert len(seen) == len(set(seen)) >= 30 - 2 * 3


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("One. Two", "One."),
        ('He said "No!" Then', 'He said "No!"'),
        ("Version 1.5 is", ""),
        ("None", ""),
        ("It ends.", "It ends."),
    ],
)
def test_whole_sentences(text, whole):
    assert whole_sentences(text) == whole


def test_rows_are_appended(tmp_path):
    file = tmp_path / "out.jsonl.xz"
    append_rows(file, [{"text": "a"}])
    append_rows(file, [{"text": "b"}, {"text": "ü"}])
    with lzma.open(file, "rt", encoding="utf-8") as stream:
        assert [json.loads(line)["text"] for line in stream] == ["a", "b", "ü"]


@pytest.mark.parametrize("size", [1, 2, 7, 8, 9, 12, 13, 100])
def test_windows_score_each_token_once_with_half_a_window_before_it(size):
    tokens = list(range(size))
    scored = list(
        itertools.chain.from_iterable(window[len(window) - tail :] for window, tail in windows(tokens, length=8))
    )
    assert sorted(scored) == tokens[1:]
    for window, tail in windows(tokens, length=8):
        first = window[len(window) - tail]
        assert len(window) - tail >= min(first, 4)


def test_bits_are_those_of_one_pass_over_a_short_text(gguf_file):
    loaded = load_llama(gguf_file, "float32")
    texts = ["hello there", "x", "a longer text than the two"]
    expected = 0.0
    for text in texts:
        tokens = mx.array([[0, *loaded.tokenizer.encode(text).ids]])
        logits = loaded.model(tokens)[0, :-1]
        chosen = mx.take_along_axis(logits - mx.logsumexp(logits, axis=-1, keepdims=True), tokens[0, 1:, None], axis=-1)
        expected -= chosen.sum().item() / math.log(2)
    order = random.Random(0).sample(texts, 3)
    assert document_bits(loaded, order, length=64, batch_size=2) == pytest.approx(expected, rel=1e-5)
