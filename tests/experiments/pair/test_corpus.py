"""The parts of the corpus on small inputs made here: reading, rendering, thinning, dividing."""

import io
import json
import lzma
import random
import struct
import tarfile
import zlib
from pathlib import Path

import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from experiments import pair
from experiments.pair.corpus import capped, make_corpus
from experiments.pair.data.archives import debian_payload, members
from experiments.pair.data.books import JsonText, RNovels, r_character_vectors, unwrap
from experiments.pair.data.chat import conversation, turns
from experiments.pair.data.code import is_written_by_hand, source_parts
from experiments.pair.data.deduplicate import NearDuplicateFilter, without_duplicates
from experiments.pair.data.documents import (
    CLASSES,
    SPLITS,
    Document,
    clean_text,
    corpus_classes,
    read_documents,
    train_digest,
    write_documents,
)
from experiments.pair.data.fields import DOMAINS, FIELDS
from experiments.pair.data.overlap import GRAM_WORDS, HeldOutText, count_shared, grams
from experiments.pair.data.prose import HtmlPages, html_paragraphs, is_running_prose, markup_paragraphs
from experiments.pair.data.records import CsvRecords, JsonRecords, RecordSet, views
from experiments.pair.data.render import cell, parse_table, render_json, render_markdown, render_table
from experiments.pair.data.sampled import before_repeating, fault, repeated_share, sampled_documents
from experiments.pair.data.sources import PackageSource, fetch
from experiments.pair.data.split import split_documents
from experiments.pair.data.synthetic import SyntheticRecords

SENTENCE = (
    "The harbour was quiet that morning, and the old keeper walked along the wall to see whether any of the boats had "
    "come back in the night with the others."
)


def write_tar(path, files: dict[str, bytes]):
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def document(text: str, number: int, kind: str = "prose", source: str = "made") -> Document:
    return Document(kind=kind, text=text, source=source, id=f"{source}/{number}")


def random_text(seed: int, words: int = 120) -> str:
    draw = random.Random(seed)
    return " ".join("".join(draw.choices("abcdefghijklmnop", k=draw.randrange(2, 9))) for _ in range(words))


def test_html_keeps_sentences_and_drops_code_tables_and_navigation():
    page = f"""<html><head><title>x</title></head><body><nav><p>{SENTENCE}</p></nav>
    <p>{SENTENCE} It was <em>cold</em> &amp; clear, as it is in the north.<p>Short.</p>
    <pre>for (i = 0; i < 3; i++) {{ print(i); }}</pre><table><tr><td>{SENTENCE}</td></tr></table></body></html>"""
    assert html_paragraphs(page) == [f"{SENTENCE} It was cold & clear, as it is in the north."]


def test_markup_loses_its_inline_marks_and_directives():
    text = (
        f"Title\n=====\n\n.. note:: no\n\n{SENTENCE} See :ref:`the log <log>` and ``open`` of `it <u>`_.\n\n    >>> x\n"
    )
    assert markup_paragraphs(text) == [f"{SENTENCE} See the log and open of it."]


@pytest.mark.parametrize(
    "text",
    [
        "Short one.",
        SENTENCE[:-1],
        "foo_bar(x) baz_qux[y] a::b c::d e->f g->h " * 4 + "of the and to.",
        "Alpha Beta Gamma Delta Epsilon Zeta Eta Theta Iota Kappa Lambda Mu Nu Xi Omicron Pi Rho Sigma Tau Upsilon.",
    ],
)
def test_listings_and_fragments_are_not_prose(text):
    assert not is_running_prose(text)
    assert is_running_prose(SENTENCE)


def test_r_string_vectors_are_read():
    def serialize(lines):
        body = b"X\n" + struct.pack(">iii", 3, 0x40201, 0x30500) + struct.pack(">i", 5) + b"UTF-8"
        body += struct.pack(">ii", 16, len(lines))
        body += b"".join(struct.pack(">ii", 0x40009, len(line.encode())) + line.encode() for line in lines)
        return struct.pack(">I", len(body)) + zlib.compress(body)

    database = serialize(["EMMA", "", "It was", "cold."]) + serialize(["Two"])
    assert list(r_character_vectors(database)) == [["EMMA", "", "It was", "cold."], ["Two"]]
    assert unwrap(["EMMA", "", " It was ", "cold."]) == ["EMMA", "It was cold."]


def test_speeches_are_cut_at_sentence_ends(tmp_path):
    text = " ".join(f"{SENTENCE} This was said for the {n}th time by all of them." for n in range(12))
    archive = write_tar(tmp_path / "a.tgz", {"s.json": json.dumps({"text": text}).encode()})
    (made,) = JsonText(include=["*.json"]).documents(archive, "speech")
    paragraphs = made.text.strip().split("\n\n")
    assert len(paragraphs) > 2
    assert all(paragraph.endswith(".") for paragraph in paragraphs)
    assert " ".join(paragraphs) == text


def test_debian_packages_and_archives_are_read(tmp_path):
    inner = write_tar(tmp_path / "inner.tar.gz", {"./usr/a.html": b"<p>x</p>", "./usr/b.txt": b"y"}).read_bytes()

    def member(name, content):
        return (
            f"{name:<16}{'0':<12}{'0':<6}{'0':<6}{'644':<8}{len(content):<10}`\n".encode()
            + content
            + b"\n" * (len(content) % 2)
        )

    package = (
        b"!<arch>\n"
        + member("debian-binary", b"2.0\n")
        + member("control.tar.gz", b"odd")
        + member("data.tar.gz", inner)
    )
    assert debian_payload(package) == inner
    (tmp_path / "p.deb").write_bytes(package)
    assert list(members(tmp_path / "p.deb", ["*.html", "*.txt"], ["*.txt"])) == [("usr/a.html", b"<p>x</p>")]
    with pytest.raises(ValueError, match="signature"):
        debian_payload(inner)
    with pytest.raises(ValueError, match="wheel"):
        list(members(tmp_path / "p.rar", ["*"]))


def test_code_is_told_from_generated_and_minified_files():
    code = "import os\n\n\ndef main(path):\n    for name in sorted(os.listdir(path)):\n        print(name)\n\n" * 6
    assert is_written_by_hand(code)
    assert not is_written_by_hand("# Automatically generated by build.py. DO NOT EDIT\n" + code)
    assert not is_written_by_hand(code.replace("\n", ";"))
    parts = list(source_parts(code * 40, "made", "a.py"))
    assert len(parts) > 1
    assert "".join(part.text for part in parts).replace("\n", "") == (code * 40).replace("\n", "")


def test_near_duplicates_go_and_the_first_stays():
    text = random_text(1)
    words = text.split()
    changed = " ".join([*words[:60], "entirely", "new", *words[60:-5]])
    kept = list(without_duplicates([document(t, n) for n, t in enumerate([text, text, changed, random_text(2)])]))
    assert [item.id for item in kept] == ["made/0", "made/3"]
    short = NearDuplicateFilter()
    assert short.admit("three short words")
    assert not short.admit("Three short words")


def test_a_gram_is_thirteen_words_whatever_the_marks_and_the_case():
    words = random_text(5, 40).split()
    text = " ".join(words)
    assert len(grams(text)) == 40 - GRAM_WORDS + 1
    assert len(grams(" ".join(words[:12]))) == 0
    assert grams("; ".join(words).upper()).tolist() == grams(text).tolist()
    assert not set(grams(text).tolist()) & set(grams(" ".join(words[::-1])).tolist())
    other = random_text(6, 40)
    assert count_shared([text, other, "few words"], [other, random_text(7)]) == [0, 28, 0]
    quoted = f"{random_text(8)}\n\n{' '.join(words[10:24])}, {random_text(9)}"  # 14 words are two grams
    assert count_shared([text], [quoted]) == [2]
    assert count_shared([text], []) == [0]


@pytest.mark.parametrize(("kind", "separator"), [("prose", "\n\n"), ("code_gen", "\n\n\n")])
def test_training_text_loses_the_paragraphs_that_held_out_text_has(kind, separator):
    held_out = random_text(1)
    paragraphs = [random_text(n) for n in range(2, 6)]
    start, middle, end = held_out[:200], held_out[200:420], held_out[420:]
    spoilt = [paragraphs[0], f"{start} {paragraphs[1]}", f"İ{paragraphs[2]}", f"    {middle}", f"{end}.", paragraphs[3]]
    left = HeldOutText([document(held_out, 0)]).clear(document(separator.join(spoilt) + "\n", 1, kind=kind))
    assert left == document(separator.join([paragraphs[0], f"İ{paragraphs[2]}", paragraphs[3]]) + "\n", 1, kind=kind)
    assert count_shared([held_out], [left.text]) == [0]


def test_grams_that_only_meet_when_a_paragraph_goes_are_cleared_too():
    held_out = random_text(1, 60)
    words = held_out.split()
    filler = random_text(2, 200)
    spoilt = "\n\n".join([filler, " ".join(words[:8]), " ".join(words[30:50]), " ".join(words[8:16]), random_text(3)])
    left = HeldOutText([document(held_out, 0)]).clear(document(spoilt + "\n", 1))
    assert left.text == f"{filler}\n\n{random_text(3)}\n"


def test_records_and_conversations_go_as_a_whole():
    asked = document(conversation("What is rain?", "It is."), 1, kind="chat")
    held_out = HeldOutText([document(random_text(1), 0), asked])
    spoilt = f"{random_text(2)}\n\n{random_text(1)}\n\n{random_text(3)}"
    for kind in ("json_repetitive", "md_table", "chat"):
        assert held_out.clear(document(spoilt, 2, kind=kind)) is None
        untouched = document(random_text(4), 3, kind=kind)
        assert held_out.clear(untouched) is untouched
    assert held_out.clear(document(random_text(1), 4)) is None
    for question, is_kept in (("What is  RAIN", False), ("What is fog?", True)):
        other = document(conversation(question, random_text(5)), 5, kind="chat")
        assert held_out.clear(other) is (other if is_kept else None)


def test_a_long_question_is_held_out_by_its_grams_too():
    words = random_text(6, 20)
    held_out = HeldOutText([document(conversation(f"What {words}?", random_text(7)), 0, kind="chat")])
    assert held_out.clear(document(conversation(f"Why {words}?", random_text(8)), 1, kind="chat")) is None


def test_splits_are_disjoint_and_do_not_depend_on_order():
    documents = [document(random_text(n, 50), n) for n in range(200)]
    options = {"valid_share": 0.05, "prompts_share": 0.02, "min_bytes": 1000, "min_documents": 6, "seed": 3}
    splits = split_documents(documents, **options)
    assert set(splits) == set(SPLITS)
    ids = [item.id for split in splits.values() for item in split]
    assert sorted(ids) == sorted(item.id for item in documents)
    assert len(splits["prompts"]) >= 6
    assert sum(item.num_bytes for item in splits["valid"]) >= 0.05 * sum(item.num_bytes for item in documents)
    assert split_documents(documents[::-1], **options) == splits
    with pytest.raises(ValueError, match="too few"):
        split_documents(documents[:8], **options)


def test_tables_round_trip_with_pipes_and_backslashes():
    headings = ["Name", "Pattern", "Count"]
    values = [["a|b", "\\d+\\|", "1"], ["", "plain", "-2.5"], ["ünï", "x \\\\ y", ""]]
    for padded in (False, True):
        for outer in (False, True):
            rows = [row for row in values if outer or (row[0] and row[-1])]
            text = render_table(
                headings, [[cell(v) for v in row] for row in rows], ["left", "center", "right"], padded, outer
            )
            assert parse_table("# T\n\n" + text + "\nEnd.\n") == (headings, rows)
    with pytest.raises(ValueError, match="cells"):
        render_table(headings, [["1"]], ["none"] * 3, False)
    with pytest.raises(ValueError, match="no Markdown table"):
        parse_table("a | b\n\nnothing")


@pytest.mark.parametrize("number", range(12))
def test_synthetic_records_render_to_what_they_hold(number):
    records = SyntheticRecords(seed=1).record_set(number, flat=True)
    assert records == SyntheticRecords(seed=1).record_set(number, flat=True)
    assert all(list(row) == list(records.rows[0]) for row in records.rows)
    data = json.loads(render_json(records, random.Random(number)))
    rows = data if isinstance(data, list) else next(value for value in data.values() if isinstance(value, list))
    assert [list(row.values()) for row in rows] == [list(row.values()) for row in records.rows]
    text = render_markdown(records, random.Random(number))
    headings, cells = parse_table(text)
    assert len(headings) == len(records.rows[0])
    assert cells == [[cell(v).replace("\\|", "|") for v in row.values()] for row in records.rows[: len(cells)]]


def test_every_field_of_a_domain_can_be_made():
    assert {name for names in DOMAINS.values() for name in names.split()} == set(FIELDS)
    seen = {SyntheticRecords(seed=0).record_set(n, flat=False).title for n in range(300)}
    assert seen == set(DOMAINS)


def test_views_of_records_share_no_row():
    records = RecordSet(
        title="things", rows=[{"n": n, "a": n * n, "b": "x", "c": None} for n in range(200)], origin="o"
    )
    numbers = [row["n"] for view in views(records, random.Random(0)) for row in view.rows if "n" in row]
    assert len(numbers) == len(set(numbers))
    assert all("c" not in view.rows[0] for view in views(records, random.Random(0)))


def test_structured_data_becomes_record_sets(tmp_path):
    archive = write_tar(
        tmp_path / "d.tgz",
        {
            "p/births/data/data.csv": b"year,rate,name\n1999,1.5,a\n2000,-2,b\n",
            "p/db.json": json.dumps({"text/a": {"source": "iana"}, "text/b": {"source": "x", "more": {}}}).encode(),
        },
    )
    (births,) = CsvRecords(titles={"births": "births"}).record_sets(archive)
    assert births.rows == [{"year": 1999, "rate": 1.5, "name": "a"}, {"year": 2000, "rate": -2, "name": "b"}]
    (types,) = JsonRecords(include=["p/db.json"], title="types", name_key="type").record_sets(archive)
    assert types.rows == [{"type": "text/a", "source": "iana"}, {"type": "text/b", "source": "x"}]


def test_sources_refuse_other_licences_and_registries():
    options = {"name": "x", "package": "x", "version": "1"}
    with pytest.raises(ValueError, match="GPL"):
        PackageSource(registry="pip", licence="GPL-3.0", **options)
    assert PackageSource(registry="npm", licence="GPL-2.0 OR MIT", **options).command()[-1] == "x@1"
    with pytest.raises(ValueError, match="registry must be"):
        PackageSource(registry="ftp", licence="MIT", **options).command()


def test_a_version_that_is_gone_is_named_with_those_on_offer(tmp_path, monkeypatch):
    """The clients are small scripts here: the registries need not be there."""
    for name, body in {
        "apt-get": "echo 'E: Version not found' >&2; exit 100",
        "apt-cache": "echo 'x | 2-1 | here'",
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    source = PackageSource(name="x", registry="apt", package="x", version="1-1", licence="MIT")
    with pytest.raises(ValueError, match=r"Version not found; run apt-get update, or pin .*: x \| 2-1 \| here"):
        fetch(source, tmp_path / "downloads")
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with pytest.raises(ValueError, match=r"npm is not installed.*none known"):
        fetch(PackageSource(name="y", registry="npm", package="y", version="1", licence="MIT"), tmp_path / "downloads")


STORY = (
    "Once upon a time there was a baker in a small village. She baked bread for all of her neighbors, and they were "
    "glad of it. One morning the oven was cold, so she went to see her brother, who had a farm by the river. He gave "
    "her wood from an old barn. By noon the oven was hot, and the smell of the bread was in every street. From that "
    "day on she kept a loaf for her brother, and he kept some wood for her."
)


def test_sampled_texts_are_kept_when_they_are_whole_english_and_not_repetitive():
    assert fault("prose", "Write a story.", STORY) is None
    assert fault("chat", "What is bread?", "Bread is a food that is made of flour and water.") is None
    faults = {
        "short": STORY[:300] + ".",
        "cut off": STORY[:-1],
        "about itself": STORY + " I hope that you like it, but as an AI language model I cannot eat.",
        "not English": "Es war einmal ein Bäcker in einem kleinen Dorf, der buk für alle Nachbarn das Brot. " * 6,
        "marker": STORY + " <|im_end|>.",
    }
    for reason, text in faults.items():
        assert fault("prose", "Write a story.", text.strip()) == reason
    assert fault("chat", "What <｜Assistant｜> is it?", "It is a food that is made of flour.") == "marker"
    assert fault("chat", "x", "I'm sorry, but I can't assist with that, it is not for me.") == "about itself"
    assert repeated_share("a b c d a b c d") == pytest.approx(1 / 5)
    assert repeated_share("a b") == 0


def write_sampled(folder: Path, rows: list[dict]) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "smollm2-0.jsonl.xz"
    with lzma.open(path, "at", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    return path


def test_text_ends_where_it_begins_to_repeat_itself():
    sentences = ["The fox went down to the river.", "It was cold and the water was grey.", "Nobody had seen the boat."]
    text = " ".join(sentences)
    looped = text + " It was cold and the water was grey." * 3
    assert before_repeating(text, 0.1) == text
    assert before_repeating(looped, 0.0) == text
    assert before_repeating(looped, 0.9) == looped
    assert before_repeating("so it goes so it goes so it goes", 0.1) == ""


def test_sampled_files_become_prose_and_conversations(tmp_path):
    write_sampled(tmp_path, [{"kind": "prose", "id": "0", "prompt": "Write a story.", "text": STORY}])
    answer = "Bread is a food that is made of flour and water.\r\n\nIt is good."
    path = write_sampled(  # a second stream of the same file, as a run that went on leaves it
        tmp_path,
        [
            {"kind": "chat", "id": "1", "prompt": "What is bread? ", "text": answer},
            {"kind": "chat", "id": "2", "prompt": "What is rice?", "text": "Rice is a food that is"},
        ],
    )
    (story, chat), counts = sampled_documents([path], "made", 0.25)
    assert story == Document(kind="prose", text=STORY + "\n", source="made", id="made/smollm2-0/0")
    assert turns(chat.text) == ("What is bread?", "Bread is a food that is made of flour and water.\n\nIt is good.")
    assert counts == {"prose: kept": 1, "chat: kept": 1, "chat: short": 1}
    write_sampled(tmp_path, [{"kind": "chat", "id": "3", "prompt": "x"}])
    with pytest.raises(ValueError, match="line 4: wanted texts kind, prompt, text and id"):
        sampled_documents([path], "made", 0.25)
    path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(ValueError, match="damaged"):
        sampled_documents([path], "made", 0.25)


def test_documents_round_trip_and_caps_hold(tmp_path):
    documents = [document(clean_text(f" a\r\n{random_text(n)} \n\n"), n) for n in range(20)]
    row = write_documents(tmp_path / "train" / "prose.jsonl", documents)
    assert list(read_documents(tmp_path, "train", "prose")) == documents
    assert row["text_bytes"] == sum(item.num_bytes for item in documents)
    kept = capped(documents, 3 * documents[0].num_bytes, "test")
    assert 3 <= len(kept) <= 5
    with pytest.raises(FileNotFoundError, match=r"experiments\.pair\.corpus"):
        list(read_documents(tmp_path, "valid", "prose"))


def test_a_whole_corpus_is_made_from_downloaded_packages(tmp_path):
    draw = random.Random(0)
    words = SENTENCE.split()

    def page():
        return "".join(
            f"<p>The {' '.join(draw.sample(words, len(words)))} and so it was said to him.</p>" for _ in range(9)
        )

    def module(number):
        lines = [
            f"    total_{draw.randrange(99)} = {random_text(draw.randrange(10**6), 2).replace(' ', '(')})"
            for _ in range(9)
        ]
        return f"def function_{number}():\n" + "\n".join(lines) + "\n"

    files = {f"d/{n}.html": page().encode() for n in range(40)} | {f"d/{n}.py": module(n).encode() for n in range(40)}
    folder = tmp_path / "downloads" / "npm-made-1"
    folder.mkdir(parents=True)
    write_tar(folder / "made.tgz", files)
    target = "experiments.pair.data."
    config = OmegaConf.create(
        {
            "output": str(tmp_path / "corpus"),
            "downloads": str(tmp_path / "downloads"),
            "seed": 1,
            "duplicate_threshold": 0.5,
            "max_record_chars": 9000,
            "class_bytes": dict.fromkeys(CLASSES, 60_000),
            "sampled": {
                "folder": str(tmp_path / "sampled"),
                "package": "made",
                "version": "1",
                "licence": "MIT",
                "max_repeated": 0.25,
                "max_bytes": {"prose": 20_000, "chat": 60_000},
            },
            "split": {"valid_share": 0.05, "prompts_share": 0.02, "min_bytes": 2000, "min_documents": 2},
            "sources": {
                "made": {
                    "registry": "npm",
                    "package": "made",
                    "version": "1",
                    "licence": "MIT",
                    "readers": [{"_target_": target + "prose.HtmlPages"}, {"_target_": target + "code.SourceFiles"}],
                }
            },
        }
    )
    with pytest.raises(ValueError, match=r"experiments\.pair\.sample_text, or give sampled=null"):
        make_corpus(config)
    answers = [f"The {' '.join(draw.choices(words, k=110))} and so it was said to him." for _ in range(160)]
    rows = [
        {
            "kind": ("prose", "chat")[n % 2],
            "id": str(n),
            "prompt": f"What is {random_text(n, 1)}?",
            "text": text,
        }
        for n, text in enumerate(answers)
    ]
    write_sampled(tmp_path / "sampled", rows)
    manifest = make_corpus(config)
    assert {(row["split"], row["class"]) for row in manifest["files"]} == {(s, c) for s in SPLITS for c in CLASSES}
    for kind in CLASSES:
        texts = {split: {item.text for item in read_documents(tmp_path / "corpus", split, kind)} for split in SPLITS}
        assert all(texts.values())
        assert not texts["train"] & (texts["valid"] | texts["prompts"])
        assert not texts["valid"] & texts["prompts"]
        held_out = [text for split in ("valid", "prompts") for text in texts[split]]
        assert not any(count_shared(held_out, texts["train"]))
    questions = {
        split: {turns(item.text)[0] for item in read_documents(tmp_path / "corpus", split, "chat")} for split in SPLITS
    }
    assert not questions["train"] & (questions["valid"] | questions["prompts"])
    sampled = next(row for row in manifest["sources"] if row["name"] == "smollm2")
    assert (sampled["licence"], sampled["sampled_files"][0]["path"]) == ("MIT", "smollm2-0.jsonl.xz")
    assert sampled["chat_bytes"] > 0
    assert make_corpus(config) == manifest
    digest = train_digest(tmp_path / "corpus")
    assert train_digest(tmp_path / "corpus" / "manifest.json") == digest
    config.sampled = None
    make_corpus(config)
    assert corpus_classes(tmp_path / "corpus") == [kind for kind in CLASSES if kind != "chat"]
    assert train_digest(tmp_path / "corpus") != digest


def test_readers_are_what_the_shipped_configuration_names():
    config = OmegaConf.load(Path(pair.__file__).parent / "configs" / "corpus.yaml")
    for name, entry in config.sources.items():
        source = PackageSource(**{**instantiate(entry, _convert_="all"), "name": name})
        assert source.readers or source.records
        assert source.command()
    assert isinstance(instantiate(config.sources.austen.readers[0]), RNovels)
    assert isinstance(instantiate(config.sources.sqlite_manual.readers[0]), HtmlPages)
