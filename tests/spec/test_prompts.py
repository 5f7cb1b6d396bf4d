"""Prompt files."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from spec import UserError
from spec.prompts import encode, load_prompts
from tests.spec.tiny_text import wrapped_tokenizer


def write(path: Path, *rows: object) -> str:
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def test_rows_name_themselves_or_are_named(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.jsonl", {"prompt": "x"}, "", {"prompt": "y", "id": "why", "class": "other"}, {"turns": ["z"]}
    )
    first, second, third = load_prompts([path], name="prose")
    assert (first.prompt_id, first.prompt_class, first.turns, first.is_chat) == ("prose-1", "prose", ("x",), False)
    assert (second.prompt_id, second.prompt_class) == ("why", "other")
    assert (third.prompt_id, third.turns, third.is_chat) == ("prose-4", ("z",), True)


def test_of_several_files_each_gives_its_class_and_its_limit(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{name}.jsonl", *({"prompt": str(n)} for n in range(3))) for name in ("one", "two")]
    prompts = load_prompts(paths, name="all", limit=2)
    assert [prompt.prompt_id for prompt in prompts] == ["one-1", "one-2", "two-1", "two-2"]
    assert [prompt.prompt_class for prompt in prompts] == ["one", "one", "two", "two"]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (['{"prompt": '], "line 1 is not valid JSON"),
        ([{"text": "x"}], 'wanted an object with either "prompt" or "turns"'),
        ([{"prompt": "x", "turns": ["x"]}], 'either "prompt" or "turns"'),
        ([[1]], 'either "prompt" or "turns"'),
        ([{"prompt": 3}], "must be a text"),
        ([{"turns": ["a", "b"]}], "an odd number of texts"),
        ([{"prompt": " \n"}], "line 1: the prompt is empty"),
        ([{"prompt": "x"}, {"turns": ["a", "", "b"]}], "line 2: the prompt is empty"),
        ([], "no prompts in"),
        ([{"prompt": "x", "id": "p"}, {"prompt": "y", "id": "p"}], "more than one of p"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(tmp_path: Path, rows: list, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_prompts([write(tmp_path / "a.jsonl", *rows)], name="a")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere.jsonl does not exist: looked for"):
        load_prompts([str(tmp_path / "nowhere.jsonl")], name="a")
    with pytest.raises(UserError, match="limit must be a whole number of 1 or more"):
        load_prompts([], name="a", limit=0)


def test_texts_and_conversations_become_tokens(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", {"prompt": "ab"}, {"prompt": "<bos>ab"}, {"turns": ["a", "b", "c"]})
    text, started, chat = load_prompts([path], name="a")
    tokenizer = wrapped_tokenizer()
    plain = tokenizer.encode("ab", add_special_tokens=False)
    assert encode(text, tokenizer) == plain  # this tokenizer adds nothing of its own
    assert encode(started, tokenizer) == [tokenizer.bos_token_id, *plain]
    with pytest.raises(UserError, match=r"a-3 has .* no chat template"):
        encode(chat, tokenizer)
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.role[0] + m.content }}{% endfor %}{% if add_generation_prompt %}a{% endif %}"
    )
    with_template = SimpleNamespace(
        has_chat_template=True,
        apply_chat_template=lambda messages, **options: tokenizer.apply_chat_template(messages, **options),
    )
    assert tokenizer.decode(encode(chat, with_template)) == "uaabuca"
