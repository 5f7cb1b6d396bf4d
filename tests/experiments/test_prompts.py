"""Prompts: where they are cut, and that they come from their own documents."""

import json
import random

import pytest
from omegaconf import OmegaConf

from experiments.data.cuts import SPANS, code_spans, json_spans, prose_spans, table_spans
from experiments.data.documents import CLASSES, Document, read_documents, write_documents
from experiments.data.render import parse_table, render_json, render_markdown
from experiments.data.synthetic import SyntheticRecords
from experiments.prompts import choose_documents, make_prompts
from experiments.tokenizer import train_tokenizer

CODE = '''import os


def first(path):
    """Lists a folder.

    The order is that of the names, and folders are not followed, since links could lead back to where they started.
    """
    for name in sorted(os.listdir(path)):
        print(name)
        if name.endswith(".py"):
            yield name
'''


WORDS = "the harbour was quiet and an old keeper walked by a long wall while some boats came back, one after another"


def texts(kind: str, number: int) -> str:
    draw = random.Random(f"{kind}{number}")
    maker = SyntheticRecords(seed=9)
    if kind == "json_repetitive":
        return render_json(maker.record_set(number, flat=False), draw)
    if kind == "md_table":
        return render_markdown(maker.record_set(number, flat=True), draw)
    if kind == "code_gen":
        return "\n\n".join(
            CODE.removeprefix("import os\n\n\n").replace("first", f"f{number}_{part}") for part in range(8)
        )
    return "\n\n".join(" ".join(draw.choices(WORDS.split(), k=90)).capitalize() + "." for _ in range(6)) + "\n"


@pytest.mark.parametrize("style", range(8))
def test_json_is_cut_after_a_whole_record_inside_the_array(style):
    text = render_json(SyntheticRecords(seed=2).record_set(style, flat=False), random.Random(style))
    spans = json_spans(text)
    assert spans
    for start, end in spans:
        prompt = text[start:end].rstrip().removesuffix(",")
        assert any(_closes(prompt + tail) for tail in ("]", "]}"))


def _closes(text: str) -> bool:
    try:
        data = json.loads(text)
    except ValueError:
        return False
    rows = data if isinstance(data, list) else next(value for value in data.values() if isinstance(value, list))
    return len(rows) >= 2


def test_tables_are_cut_after_a_row():
    records = SyntheticRecords(seed=2).record_set(3, flat=True)
    text = render_markdown(records, random.Random(1))
    for start, end in table_spans(text):
        rows = parse_table(text[start:end])[1]
        assert 2 <= len(rows) < len(records.rows)
        assert text[end] == "\n"


def test_code_is_cut_after_signatures_docstrings_and_openings():
    ends = {CODE[:end].rsplit("\n", 1)[-1] for _, end in code_spans(CODE)}
    assert {'    """', "    for name in sorted(os.listdir(path)):", '        if name.endswith(".py"):'} <= ends


def test_prose_is_cut_inside_a_paragraph():
    text = texts("prose", 0)
    spans = prose_spans(text)
    assert spans
    for start, end in spans:
        assert text[end] == " "
        assert start == 0 or text[start - 1] == "\n"
        assert "\n" not in text[end : end + 60]


def test_sources_take_turns():
    documents = [Document(kind="prose", text="x", source=s, id=f"{s}/{n}") for s in "abc" for n in range(4)]
    order = [item.source for item in choose_documents(documents, {"a": 2}, random.Random(0))]
    assert order[:2] == ["a", "a"]
    assert sorted(order[2:4]) == ["b", "c"]
    assert order[4:6] == ["a", "a"]
    assert len(order) == 12


def test_prompts_are_prefixes_of_prompt_documents_and_of_no_other_split(tmp_path):
    for kind in CLASSES:
        for split, numbers in (("train", range(100, 130)), ("prompts", range(30))):
            rows = (Document(kind=kind, text=texts(kind, n), source="made", id=f"made/{n}") for n in numbers)
            write_documents(tmp_path / split / f"{kind}.jsonl", rows)
    tokenizer = train_tokenizer((texts(kind, n) for kind in CLASSES for n in range(100, 115)), 600)
    config = OmegaConf.create(
        {
            "corpus": str(tmp_path),
            "seed": 1,
            "prompts_per_class": 6,
            "min_tokens": 40,
            "max_tokens": 220,
            "min_continuation": 100,
            "max_shared": 1.0,
            "quota": {},
        }
    )
    for kind in CLASSES:
        rows = make_prompts(kind, config, tokenizer, {"made": "MIT"})
        assert [row["id"] for row in rows] == [f"{kind}-{n:02d}" for n in range(6)]
        assert len({row["source"] for row in rows}) == 6
        own = {item.id: item.text for item in read_documents(tmp_path, "prompts", kind)}
        others = {item.id for item in read_documents(tmp_path, "train", kind)}
        for row in rows:
            assert row["prompt"] in own[row["source"]]
            assert row["source"] not in others
            count = len(tokenizer.encode(row["prompt"], add_special_tokens=False).ids)
            assert 40 <= count <= 220
        assert make_prompts(kind, config, tokenizer, {"made": "MIT"}) == rows
    with pytest.raises(ValueError, match="wanted 60 prompts"):
        make_prompts("prose", OmegaConf.merge(config, {"prompts_per_class": 60}), tokenizer, {"made": "MIT"})
    with pytest.raises(ValueError, match="got 0"):  # the made code files are alike in all splits
        make_prompts("code_gen", OmegaConf.merge(config, {"max_shared": 0.1}), tokenizer, {"made": "MIT"})
    assert set(SPANS) == set(CLASSES)
