"""Public-domain books and reference works as packages carry them: R data, JSON verses, SWORD modules, dict files."""

import gzip
import json
import re
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path, PurePosixPath

from experiments.pair.data.archives import members
from experiments.pair.data.documents import Document
from experiments.pair.data.prose import is_running_prose, pages
from spec.errors import UserError


def unwrap(lines: list[str]) -> list[str]:
    """Paragraphs of hard-wrapped text: runs of lines between blank ones, joined by single spaces."""
    runs = groupby((line.strip() for line in lines), key=bool)
    return [re.sub(r"\s+", " ", " ".join(run)) for filled, run in runs if filled]


def novel_paragraphs(lines: list[str]) -> list[str]:
    """Paragraphs of a novel. Short ones are kept, they are dialogue; headings in capitals and stray marks are not."""
    return [
        p.replace("_", "") for p in unwrap(lines) if len(p) > 20 and p.upper() != p and not p.startswith(("[", "*"))
    ]


@dataclass(frozen=True, kw_only=True)
class RNovels:
    """Novels that an R package stores as character vectors in a lazy-load database (`Rdata.rdb`)."""

    include: list[str]

    def documents(self, archive: Path, source: str) -> Iterator[Document]:
        """Documents of about 9,000 characters, in the order of the books."""
        for name, content in members(archive, self.include):
            for index, lines in enumerate(r_character_vectors(content)):
                yield from pages(novel_paragraphs(lines), source, f"{name}:{index}")


def r_character_vectors(database: bytes) -> Iterator[list[str]]:
    """Character vectors of an R lazy-load database.

    Each record is a 4-byte big-endian length and a zlib stream of an R serialization in XDR format: `X\\n`, three
    integers, for version 3 the native encoding, then the object. A string vector (type 16) is a count and, for every
    element, flags, a length and the bytes ("R Internals", section 1.8 and `src/main/serialize.c`).

    Raises:
        UserError: when a record is something other than a plain string vector.
    """
    position = 0
    while position < len(database):
        inflater = zlib.decompressobj()
        record = inflater.decompress(database[position + 4 :])
        position = len(database) - len(inflater.unused_data)
        version = int.from_bytes(record[2:6], "big")
        cursor = 14 if version < 3 else 18 + int.from_bytes(record[14:18], "big")
        flags, count = struct.unpack_from(">II", record, cursor)
        if flags & 0xFF != 16:
            raise UserError(f"R object of type {flags & 0xFF}, wanted a string vector (16)")
        cursor += 8
        lines = []
        for _ in range(count):
            length = struct.unpack_from(">i", record, cursor + 4)[0]
            lines.append(record[cursor + 8 : cursor + 8 + max(length, 0)].decode("utf-8", "replace"))
            cursor += 8 + max(length, 0)
        yield lines


@dataclass(frozen=True, kw_only=True)
class PlainBook:
    """A book in one hard-wrapped text file.

    Attributes:
        include: member patterns.
        skip_lines: lines of front matter (title page, table of contents) to leave out.
    """

    include: list[str]
    skip_lines: int = 0

    def documents(self, archive: Path, source: str) -> Iterator[Document]:
        """Documents of about 9,000 characters."""
        for name, content in members(archive, self.include):
            lines = content.decode("utf-8", "replace").splitlines()[self.skip_lines :]
            yield from pages(novel_paragraphs(lines), source, name)


@dataclass(frozen=True, kw_only=True)
class JsonVerses:
    """Scripture as JSON lines with `book`, `chapter`, `verse` and `text`; verses are joined to paragraphs."""

    include: list[str]
    paragraph_chars: int = 500

    def documents(self, archive: Path, source: str) -> Iterator[Document]:
        """One or more documents a chapter."""
        for _, content in members(archive, self.include):
            verses = [json.loads(line) for line in content.decode("utf-8").splitlines() if line.strip()]
            for (book, chapter), group in groupby(verses, key=lambda verse: (verse["book"], verse["chapter"])):
                paragraphs = [""]
                for verse in group:
                    if len(paragraphs[-1]) > self.paragraph_chars:
                        paragraphs.append("")
                    paragraphs[-1] = f"{paragraphs[-1]} {verse['text'].strip()}".strip()
                yield from pages(paragraphs, source, f"{book} {chapter}")


@dataclass(frozen=True, kw_only=True)
class SwordBible:
    """A SWORD `zText` module with OSIS markup, compressed by book.

    `.bzs` holds 12 bytes a block (offset, compressed size, size; little endian) into `.bzz`, whose blocks are zlib
    streams (the SWORD engine's `zverse` layout). Paragraphs are the `x-p` divisions; notes and titles are dropped.
    """

    include: list[str]

    def documents(self, archive: Path, source: str) -> Iterator[Document]:
        """Documents of about 9,000 characters, never across books."""
        files = {PurePosixPath(name).name: content for name, content in members(archive, self.include)}
        for testament in ("ot", "nt"):
            index, blocks = files[f"{testament}.bzs"], files[f"{testament}.bzz"]
            for number in range(len(index) // 12):
                offset, size, _ = struct.unpack_from("<III", index, 12 * number)
                markup = zlib.decompress(blocks[offset : offset + size]).decode("utf-8", "replace")
                yield from pages(_osis_paragraphs(markup), source, f"{testament}{number}")


def _osis_paragraphs(markup: str) -> list[str]:
    markup = re.sub(r"<(note|title)\b.*?</\1>", "", markup, flags=re.S)
    markup = re.sub(r"<verse\b[^>]*/>", " ", markup)
    blocks = re.split(r"<div\b[^>]*/>|<lg\b[^>]*/>", markup)
    texts = (re.sub(r"\s+", " ", re.sub(r"<[^>]*>", "", block.replace("</l>", " "))).strip() for block in blocks)
    return [text for text in texts if len(text) > 60]


@dataclass(frozen=True, kw_only=True)
class DictionaryEssays:
    """A `dict` database (dictzip is gzip) whose entries are essays; the prose test drops short entries and verse."""

    include: list[str]

    def documents(self, archive: Path, source: str) -> Iterator[Document]:
        """Documents of about 4,000 characters: entries are short and unrelated."""
        for name, content in members(archive, self.include):
            lines = gzip.decompress(content).decode("utf-8", "replace").splitlines()
            paragraphs = [re.sub(r"\{\s*([^}]*)\}", r"\1", paragraph) for paragraph in unwrap(lines)]
            yield from pages([p for p in paragraphs if is_running_prose(p)], source, name, max_chars=4000)


@dataclass(frozen=True, kw_only=True)
class JsonProse:
    """Running paragraphs among the string leaves of JSON files (country profiles and the like), one document a file."""

    include: list[str]
    exclude: list[str] | None = None

    def documents(self, archive: Path, source: str) -> Iterator[Document]:
        """Documents of the archive's JSON files, `prose` only."""
        for name, content in members(archive, self.include, self.exclude):
            texts = (re.sub(r"\s+", " ", text).strip() for text in string_leaves(json.loads(content)))
            yield from pages([text for text in texts if is_running_prose(text)], source, name)


def string_leaves(value) -> Iterator[str]:
    """All strings of a JSON value, depth first, keys left out."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from string_leaves(item)


@dataclass(frozen=True, kw_only=True)
class WordNetGlosses:
    """WordNet synsets as dictionary paragraphs: the words, the definition, the example sentences.

    A data line is `offset file type count word lex_id ... | gloss` (wndb(5)). Only glosses with an example are taken:
    without one they are noun phrases, not sentences.
    """

    include: list[str]

    def documents(self, archive: Path, source: str) -> Iterator[Document]:
        """Documents of about 3,000 characters, in the file's (topical) order."""
        for name, content in members(archive, self.include):
            paragraphs = []
            for line in content.decode("utf-8", "replace").splitlines():
                head, _, gloss = line.partition(" | ")
                fields = head.split()
                if line.startswith(" ") or len(fields) < 6 or '"' not in gloss:
                    continue
                words = [
                    re.sub(r"\(\w+\)$", "", w).replace("_", " ") for w in fields[4 : 4 + 2 * int(fields[3], 16) : 2]
                ]
                definition, _, examples = gloss.strip().partition('; "')
                paragraphs.append(f'{", ".join(words)}: {definition}. "{examples}'.replace('"; "', '" "').rstrip("; "))
            yield from pages(paragraphs, source, name, max_chars=3000)


@dataclass(frozen=True, kw_only=True)
class JsonText:
    """Speeches and chapters as JSON objects with one long `text`, one object a file.

    Attributes:
        include: member patterns.
        key: the key that holds the text.
        paragraph_chars: where the text has no blank lines it is cut at the first sentence end after so many characters.
    """

    include: list[str]
    key: str = "text"
    paragraph_chars: int = 550

    def documents(self, archive: Path, source: str) -> Iterator[Document]:
        """Documents of about 9,000 characters, never across files."""
        for name, content in members(archive, self.include):
            paragraphs = []
            for paragraph in unwrap(json.loads(content)[self.key].splitlines()):
                for sentence in re.split(r"(?<=[.!?][\"”'’])\s+(?=[A-Z])|(?<=[a-z)][.!?])\s+(?=[\"“A-Z])", paragraph):
                    if not paragraphs or len(paragraphs[-1]) > self.paragraph_chars or sentence is paragraph:
                        paragraphs.append(sentence)
                    else:
                        paragraphs[-1] += " " + sentence
            yield from pages(paragraphs, source, name)
