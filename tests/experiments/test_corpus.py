"""The parts of the corpus on small inputs made here: reading, rendering, thinning, dividing."""

import io
import json
import random
import struct
import tarfile
import zlib
from pathlib import Path

import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

import experiments
from experiments.corpus import capped, make_corpus
from experiments.data.archives import debian_payload, members
from experiments.data.books import JsonText, RNovels, r_character_vectors, unwrap
from experiments.data.code import is_written_by_hand, source_parts
from experiments.data.deduplicate import NearDuplicateFilter, without_duplicates
from experiments.data.documents import CLASSES, SPLITS, Document, clean_text, read_documents, write_documents
from experiments.data.fields import DOMAINS, FIELDS
from experiments.data.prose import HtmlPages, html_paragraphs, is_running_prose, markup_paragraphs
from experiments.data.records import CsvRecords, JsonRecords, RecordSet, views
from experiments.data.render import cell, parse_table, render_json, render_markdown, render_table
from experiments.data.sources import Source
from experiments.data.split import split_documents
from experiments.data.synthetic import SyntheticRecords

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
    def serialise(lines):
        body = b"X\n" + struct.pack(">iii", 3, 0x40201, 0x30500) + struct.pack(">i", 5) + b"UTF-8"
        body += struct.pack(">ii", 16, len(lines))
        body += b"".join(struct.pack(">ii", 0x40009, len(line.encode())) + line.encode() for line in lines)
        return struct.pack(">I", len(body)) + zlib.compress(body)

    database = serialise(["EMMA", "", "It was", "cold."]) + serialise(["Two"])
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
    whole = NearDuplicateFilter()
    assert whole.seen_share(text) == 0.0
    whole.remember(text)
    assert whole.seen_share(text) == 1.0
    assert 0.3 < whole.seen_share(" ".join(words[:60]) + " " + random_text(3, 60)) < 0.7
    short = NearDuplicateFilter()
    assert short.admit("three short words")
    assert not short.admit("Three short words")


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
        Source(registry="pip", licence="GPL-3.0", **options)
    assert Source(registry="npm", licence="GPL-2.0 OR MIT", **options).command()[-1] == "x@1"
    with pytest.raises(ValueError, match="registry must be"):
        Source(registry="ftp", licence="MIT", **options).command()


def test_documents_round_trip_and_caps_hold(tmp_path):
    documents = [document(clean_text(f" a\r\n{random_text(n)} \n\n"), n) for n in range(20)]
    row = write_documents(tmp_path / "train" / "prose.jsonl", documents)
    assert list(read_documents(tmp_path, "train", "prose")) == documents
    assert row["text_bytes"] == sum(item.num_bytes for item in documents)
    kept = capped(documents, 3 * documents[0].num_bytes, "test")
    assert 3 <= len(kept) <= 5
    with pytest.raises(FileNotFoundError, match=r"experiments\.corpus"):
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
    target = "experiments.data."
    config = OmegaConf.create(
        {
            "output": str(tmp_path / "corpus"),
            "downloads": str(tmp_path / "downloads"),
            "seed": 1,
            "duplicate_threshold": 0.5,
            "max_record_chars": 9000,
            "class_bytes": dict.fromkeys(CLASSES, 60_000),
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
    manifest = make_corpus(config)
    assert {(row["split"], row["class"]) for row in manifest["files"]} == {(s, c) for s in SPLITS for c in CLASSES}
    for kind in CLASSES:
        texts = {split: {item.text for item in read_documents(tmp_path / "corpus", split, kind)} for split in SPLITS}
        assert all(texts.values())
        assert not texts["train"] & (texts["valid"] | texts["prompts"])
        assert not texts["valid"] & texts["prompts"]
    assert make_corpus(config) == manifest


def test_readers_are_what_the_shipped_configuration_names():
    config = OmegaConf.load(Path(experiments.__file__).parent / "configs" / "corpus.yaml")
    for name, entry in config.sources.items():
        source = Source(**{**instantiate(entry, _convert_="all"), "name": name})
        assert source.readers or source.records
        assert source.command()
    assert isinstance(instantiate(config.sources.austen.readers[0]), RNovels)
    assert isinstance(instantiate(config.sources.sqlite_manual.readers[0]), HtmlPages)
