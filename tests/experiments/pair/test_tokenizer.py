"""Tokenizer and token files at toy size."""

import random

import numpy as np
import pytest
from jinja2 import TemplateError
from mlx_lm.tokenizer_utils import load as load_tokenizer
from transformers import AutoTokenizer

from experiments.pair.data.chat import ASSISTANT, BEGIN_OF_SENTENCE, END_OF_SENTENCE, USER, conversation
from experiments.pair.data.documents import CLASSES, Document, write_documents
from experiments.pair.data.render import render_json, render_markdown
from experiments.pair.data.synthetic import SyntheticRecords
from experiments.pair.tokenizer import (
    NOISE,
    SPECIAL_TOKENS,
    bytes_per_token,
    sample_texts,
    save_tokenizer,
    train_tokenizer,
)
from experiments.pair.tokens import encode_documents, encode_split
from spec.prompts import Prompt, encode

VOCABULARY = 500


def texts():
    maker = SyntheticRecords(seed=4)
    for number in range(20):
        draw = random.Random(number)
        yield render_json(maker.record_set(number, flat=False), draw)
        yield render_markdown(maker.record_set(number, flat=True), draw)


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(texts(), VOCABULARY)


def test_special_tokens_have_the_first_ids(tokenizer):
    assert tokenizer.get_vocab_size() == VOCABULARY
    assert [tokenizer.token_to_id(token) for token in SPECIAL_TOKENS] == list(range(16))
    assert tokenizer.token_to_id(NOISE) == 5


def test_any_text_round_trips(tokenizer):
    draw = random.Random(7)
    for _ in range(200):
        points = [
            draw.choice((draw.randrange(0x80), draw.randrange(0xD800), draw.randrange(0xE000, 0x110000)))
            for _ in range(40)
        ]
        text = "".join(map(chr, points))
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids) == text
    assert tokenizer.decode(tokenizer.encode("\n\n\tx  \r\n  y 2024-01-01 ", add_special_tokens=False).ids) == (
        "\n\n\tx  \r\n  y 2024-01-01 "
    )


def test_digits_stand_alone_and_a_line_break_takes_its_indentation(tokenizer):
    encoding = tokenizer.encode('1234\n    "id": 7', add_special_tokens=False)
    assert encoding.tokens[:4] == list("1234")
    assert encoding.tokens[4] == "ĊĠĠĠĠ"


def test_transformers_loads_it_and_prepends_begin_of_sentence(tokenizer, tmp_path):
    save_tokenizer(tokenizer, tmp_path, context_length=128)
    loaded = AutoTokenizer.from_pretrained(str(tmp_path))
    assert loaded("some text").input_ids == [0, *tokenizer.encode("some text", add_special_tokens=False).ids]
    assert loaded("some text", add_special_tokens=False).input_ids[0] != 0
    assert (loaded.bos_token_id, loaded.eos_token_id, loaded.pad_token_id) == (0, 1, 2)
    assert loaded.bos_token == BEGIN_OF_SENTENCE
    assert loaded.decode(loaded("a  b , c\n").input_ids, skip_special_tokens=True) == "a  b , c\n"


def test_a_vocabulary_that_cannot_be_filled_is_refused():
    with pytest.raises(ValueError, match="wanted a vocabulary"):
        train_tokenizer(iter(["abc"]), VOCABULARY)


def test_documents_are_encoded_one_after_the_other(tokenizer, tmp_path):
    made = list(texts())
    for kind in CLASSES:
        for split in ("train", "valid"):
            rows = (Document(kind=kind, text=text, source="made", id=f"made/{n}") for n, text in enumerate(made))
            write_documents(tmp_path / split / f"{kind}.jsonl", rows)
    for split in ("train", "valid"):  # a byte is text, a marker is not
        chats = [Document(kind="chat", text=conversation("é?", "b"), source="made", id="made/0")]
        write_documents(tmp_path / split / "chat.jsonl", chats)
    arrays = encode_split(tokenizer, tmp_path, "train", seed=1)
    assert list(arrays) == [name for kind in CLASSES for name in (kind, f"{kind}_bytes")]
    assert arrays["chat_bytes"] == 4
    assert sorted(sample_texts(tmp_path, {**dict.fromkeys(CLASSES, 0), "chat": 100})) == ["b", "é?"]
    ids = arrays["prose"]
    assert ids.dtype == np.uint16
    assert np.sum(ids == 0) == np.sum(ids == 1) == len(made)
    documents = np.split(ids, np.flatnonzero(ids == 0)[1:])
    assert all(row[0] == 0 and row[-1] == 1 for row in documents)
    assert sorted(tokenizer.decode(row[1:-1].tolist()) for row in documents) == sorted(made)
    assert arrays["prose_bytes"] == sum(len(text.encode()) for text in made)
    ratio = bytes_per_token(tokenizer, tmp_path)["prose"]
    assert ratio == pytest.approx(arrays["prose_bytes"] / (len(ids) - 2 * len(made)))


def test_only_conversations_have_special_tokens(tokenizer):
    text = conversation("What is <b>?", "It is < a mark.")
    spoken = encode_documents(tokenizer, [text], has_markers=True)
    user, assistant = tokenizer.token_to_id(USER), tokenizer.token_to_id(ASSISTANT)
    assert spoken[:2].tolist() == [0, user]
    assert np.flatnonzero(spoken < len(SPECIAL_TOKENS)).tolist() == [
        0,
        1,
        spoken.tolist().index(assistant),
        len(spoken) - 1,
    ]
    quoted = encode_documents(tokenizer, [f'USER = "{USER}"  # before {END_OF_SENTENCE}'])
    assert np.flatnonzero(quoted < len(SPECIAL_TOKENS)).tolist() == [0, len(quoted) - 1]
    assert tokenizer.decode(quoted[1:-1].tolist()) == f'USER = "{USER}"  # before {END_OF_SENTENCE}'
    assert tokenizer.encode(USER, add_special_tokens=False).ids == [user]  # and the tokenizer is as before


def test_the_chat_template_makes_what_a_conversation_was_trained_as(tokenizer, tmp_path):
    save_tokenizer(tokenizer, tmp_path, context_length=128)
    trained = encode_documents(tokenizer, [conversation("What is it?", "A mark.")], has_markers=True).tolist()
    messages = [{"role": "user", "content": "What is it?"}, {"role": "assistant", "content": "A mark."}]
    loaded = AutoTokenizer.from_pretrained(str(tmp_path))
    assert loaded.apply_chat_template(messages, return_dict=False) == trained
    start = trained[: trained.index(tokenizer.token_to_id(ASSISTANT)) + 1]
    wrapped = load_tokenizer(tmp_path)  # mlx-lm's, as spec.run has it
    prompt = Prompt(prompt_id="x", prompt_class="chat", turns=("What is it?",), is_chat=True)
    assert list(encode(prompt, wrapped)) == start
    longer = Prompt(prompt_id="x", prompt_class="chat", turns=("What is it?", "A mark.", "Why?"), is_chat=True)
    assert list(encode(longer, wrapped))[: len(trained)] == trained
    with pytest.raises(TemplateError, match="roles are user and assistant, got system"):
        loaded.apply_chat_template([{"role": "system", "content": "x"}])


def test_ids_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="uint16"):
        encode_documents(type("Wide", (), {"get_vocab_size": lambda self: 1 << 17})(), ["a"])
