"""Prompts: where they are cut, and that they come from their own documents."""

import json
import random
import shutil
from collections import Counter
from pathlib import Path

import pytest
from omegaconf import OmegaConf

import configs
import models
from experiments.pair.data.chat import conversation
from experiments.pair.data.cuts import SPANS, chat_spans, code_spans, json_spans, prose_spans, table_spans
from experiments.pair.data.documents import CLASSES, Document, read_documents, train_digest, write_documents
from experiments.pair.data.overlap import GRAM_WORDS, count_shared, grams
from experiments.pair.data.render import parse_table, render_json, render_markdown
from experiments.pair.data.synthetic import SyntheticRecords
from experiments.pair.data.tokenizing import read_tokenizer
from experiments.pair.prompts import alternate, choose_documents, make_prompts, training_texts
from experiments.pair.tokenizer import train_tokenizer

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
    if kind == "chat":
        return conversation(f"What do {number} boats do?", " ".join(draw.choices(WORDS.split(), k=150)) + ".")
    if kind == "code_gen":  # functions of the same form about different things
        code = CODE.removeprefix("import os\n\n\n")
        about = ["\n    ".join(" ".join(draw.choices(WORDS.split(), k=16)) for _ in range(2)) for _ in range(8)]
        first, rest = "Lists a folder.", code[code.index("    The order") : code.index('    """\n    for')]
        functions = (code.replace(rest, f"    {text}\n").replace(first, text[:30]) for text in about)
        return "\n\n".join(
            text.replace("first", f"f{number}_{part}").replace("name", f"n{number}_{part}")
            for part, text in enumerate(functions)
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


def test_a_conversation_is_cut_where_the_answer_begins():
    text = conversation("What is bread?", "It is baked.")
    ((start, end),) = chat_spans(text)
    assert text[start:end] == conversation("What is bread?", "")


def test_two_kinds_alternate_by_their_share():
    first, second = [f"a{n}" for n in range(9)], [f"b{n}" for n in range(9)]
    assert alternate(first, second, 8, 0.5) == ["b0", "a0", "b1", "a1", "b2", "a2", "b3", "a3"]
    assert alternate(first, second, 4, 0.25) == ["b0", "b1", "b2", "a0"]
    assert alternate(first, [], 4, 0.5) == first[:4]
    assert alternate(first[:1], second, 5, 1.0) == ["a0", "b0", "b1", "b2", "b3"]
    assert alternate(first[:1], second[:1], 5, 0.5) == ["b0", "a0"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """A corpus with 12 documents of every class to make prompts of; half of the prose was sampled."""
    folder = tmp_path_factory.mktemp("corpus")
    files = []
    for kind in CLASSES:
        for split, numbers in (("train", range(100, 112)), ("prompts", range(12))):
            sources = ["smollm2" if kind == "chat" or (kind == "prose" and n % 2) else "made" for n in numbers]
            rows = [
                Document(kind=kind, text=texts(kind, n), source=source, id=f"{source}/{n}")
                for n, source in zip(numbers, sources, strict=True)
            ]
            files.append({"split": split, "class": kind, **write_documents(folder / split / f"{kind}.jsonl", rows)})
    (folder / "manifest.json").write_text(json.dumps({"files": files}))
    return folder


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer((texts(kind, n) for kind in CLASSES if kind != "chat" for n in range(100, 115)), 600)


@pytest.fixture
def config(corpus):
    return OmegaConf.create(
        {
            "corpus": str(corpus),
            "seed": 1,
            "prompts_per_class": 6,
            "min_tokens": {"chat": 5, "other": 40},
            "max_tokens": 220,
            "continuation_tokens": 100,
            "sampled_share": {"prose": 0.5},
            "quota": {},
        }
    )


LICENCES = {"made": "MIT", "smollm2": "Apache-2.0"}


def test_prompts_are_prefixes_of_prompt_documents_and_of_no_other_split(corpus, tokenizer, config):
    made = make_prompts(config, tokenizer, LICENCES)
    assert list(made) == list(CLASSES)
    assert make_prompts(config, tokenizer, LICENCES) == made
    for kind, rows in made.items():
        assert [row["id"] for row in rows] == [f"{kind}-{n:02d}" for n in range(6)]
        assert len({row["source"] for row in rows}) == 6
        own = {item.id: item.text for item in read_documents(corpus, "prompts", kind)}
        others = {item.id for item in read_documents(corpus, "train", kind)}
        for row in rows:
            prompt = conversation(row["turns"][0], "") if kind == "chat" else row["prompt"]
            assert prompt + row["continuation"] in own[row["source"]]
            assert row["source"] not in others
            assert row["licence"] == LICENCES[row["source"].split("/")[0]]
            first = len(tokenizer.encode(prompt, add_special_tokens=False).ids)
            assert (5 if kind == "chat" else 40) <= first <= 220
            assert len(tokenizer.encode(prompt + row["continuation"], add_special_tokens=False).ids) == first + 100
            assert row["overlap"] == {
                "gram_words": GRAM_WORDS,
                "grams": len(grams(row["continuation"])),
                "shared": 0,
                "train_sha256": train_digest(corpus),
            }
    assert [row["source"].split("/")[0] for row in made["prose"]] == ["made", "smollm2"] * 3
    assert set(SPANS) == set(CLASSES)


def test_too_few_documents_are_refused(tokenizer, config):
    with pytest.raises(ValueError, match="class prose: wanted 60 prompts"):
        make_prompts(OmegaConf.merge(config, {"prompts_per_class": 60}), tokenizer, LICENCES)


def test_a_continuation_that_was_trained_on_is_refused(corpus, tokenizer, config, tmp_path):
    """The prompts' own documents are in the training text of another class."""
    shutil.copytree(corpus, tmp_path / "spoilt")
    learnt = [Document(kind="code_gen", text=texts("prose", n), source="made", id=f"x/{n}") for n in range(1, 12)]
    write_documents(tmp_path / "spoilt" / "train" / "code_gen.jsonl", learnt)
    config = OmegaConf.merge(config, {"corpus": str(tmp_path / "spoilt"), "prompts_per_class": 1})
    assert make_prompts(config, tokenizer, LICENCES)["prose"][0]["source"] == "made/0"
    with pytest.raises(ValueError, match="class prose: wanted 2 prompts, got 1 of 12 that could be cut"):
        make_prompts(OmegaConf.merge(config, {"prompts_per_class": 2}), tokenizer, LICENCES)


SHIPPED = Path(configs.__file__).parent / "prompts"
MANIFEST = Path(models.__file__).parent / "pretrained" / "tiny" / "corpus_manifest.json"
CORPUS = Path(configs.__file__).parents[1] / "data" / "corpus"


def shipped_rows() -> list[dict]:
    return [json.loads(line) for kind in CLASSES for line in (SHIPPED / f"{kind}.jsonl").read_text().splitlines()]


def test_no_shipped_prompt_s_continuation_stands_in_the_training_text():
    """By the figures that were counted when the prompts were made, for the very text that the shipped pair was trained
    on; the count itself is checked above, and against the text where it is there, below."""
    digest = train_digest(MANIFEST)
    licences = {source["name"]: source["licence"] for source in json.loads(MANIFEST.read_text())["sources"]}
    tokenizer = read_tokenizer(MANIFEST.parent)
    rows = shipped_rows()
    assert Counter(row["class"] for row in rows) == dict.fromkeys(CLASSES, 32)
    for row in rows:
        count = len(grams(row["continuation"]))
        assert row["overlap"] == {"gram_words": 13, "grams": count, "shared": 0, "train_sha256": digest}
        assert count >= 5  # a table has few words in 128 tokens
        assert len(tokenizer.encode(row["continuation"], add_special_tokens=False).ids) == 128
        assert row["licence"] == licences[row["source"].split("/")[0]]
    for kind, share in (("prose", 0.5), ("chat", 1.0)):
        sampled = [row["source"].startswith("smollm2/") for row in rows if row["class"] == kind]
        assert sum(sampled) == 32 * share
        assert sum(sampled[:8]) == 8 * share


@pytest.mark.slow
@pytest.mark.skipif(not CORPUS.is_dir(), reason="the corpus is not there: python -m experiments.pair.corpus")
def test_the_shipped_figures_are_those_of_the_training_text():
    rows = shipped_rows()
    assert {row["overlap"]["train_sha256"] for row in rows} == {train_digest(CORPUS)}
    assert not any(count_shared([row["continuation"] for row in rows], training_texts(CORPUS)))
