"""Source files as documents, without the ones that nobody wrote by hand."""

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from experiments.pair.data.archives import members
from experiments.pair.data.documents import Document, clean_text

MAX_CHARS = 12_000


def is_written_by_hand(text: str) -> bool:
    """Whether a source file has the line lengths, white space and alphabet of code that people write.

    Minified bundles have long lines, tables of constants have few letters, generated files say so at their top.
    """
    lines = text.split("\n")
    if len(text) < 200 or max(map(len, lines)) > 400 or len(text) / len(lines) > 90:
        return False
    letters = sum(character.isalpha() for character in text)
    ascii_share = len(text.encode("ascii", "ignore")) / len(text)
    digits = sum(character.isdigit() for character in text)
    generated = re.search(r"auto-?generated|generated (by|from|file)|do not edit", text[:1200], re.I)
    return letters > 0.35 * len(text) and digits < 0.12 * len(text) and ascii_share > 0.97 and not generated


def source_parts(text: str, source: str, member: str) -> Iterator[Document]:
    """Documents of at most about 12,000 characters, cut only where a line starts in the first column after a blank."""
    text = clean_text(text)
    blocks = re.split(r"(?<=\n\n)(?=\S)", text)
    parts = [""]
    for block in blocks:
        if parts[-1] and len(parts[-1]) + len(block) > MAX_CHARS:
            parts.append("")
        parts[-1] += block
    for index, part in enumerate(parts):
        if is_written_by_hand(part) and len(part) <= 2 * MAX_CHARS:
            yield Document(kind="code_gen", text=clean_text(part), source=source, id=f"{source}/{member}#{index}")


@dataclass(frozen=True, kw_only=True)
class SourceFiles:
    """Reader of source files.

    Attributes:
        include, exclude: member patterns, see `experiments.pair.data.archives.members`.
    """

    include: list[str] = field(default_factory=lambda: ["*.py"])
    exclude: list[str] = field(default_factory=list)

    def documents(self, archive: Path, source: str) -> Iterator[Document]:
        """Documents of the archive's files, `code_gen` only."""
        for name, content in members(archive, self.include, self.exclude):
            try:
                text = content.decode("utf-8")
            except UnicodeDecodeError:
                continue  # a few test files are in other encodings on purpose
            yield from source_parts(text, source, name)


@dataclass(frozen=True, kw_only=True)
class HighlightedRust:
    """Rust sources that rustdoc renders as `*.rs.html`: the code is the last `<pre>`, without its line numbers."""

    include: list[str]
    exclude: list[str] = field(default_factory=list)

    def documents(self, archive: Path, source: str) -> Iterator[Document]:
        """Documents of the archive's pages, `code_gen` only."""
        for name, content in members(archive, self.include, self.exclude):
            blocks = re.findall(r"<pre class=\"rust\">(.*?)</pre>", content.decode("utf-8", "replace"), re.S)
            if blocks:
                code = html.unescape(
                    re.sub(r"<[^>]*>", "", re.sub(r"<pre class=\"line-numbers\">.*?</pre>", "", blocks[-1]))
                )
                yield from source_parts(code, source, name.removesuffix(".html"))
