"""Running English sentences out of documentation: HTML pages and reStructuredText or Markdown files."""

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from experiments.pair.data.archives import members
from experiments.pair.data.documents import Document, clean_text

_FUNCTION_WORDS = (
    "the of and to a in is that it for as with on be by this are or an not from at which if you can will was have has "
    "but they he his her she we i all when there their been one would what so no more than may its your do any only "
    "these such into my me him out up were had who them then unto said us our also"
)
FUNCTION_WORDS = frozenset(_FUNCTION_WORDS.split())
"""Words that carry almost no topic: running English has 35-55 % of them, listings and captions far less."""

_DROPPED = re.compile(r"<(script|style|pre|table|nav|head|footer|svg|math)\b.*?</\1\s*>", re.S | re.I)
_BLOCK = re.compile(
    r"<(/?)(p|div|h[1-6]|li|dd|dt|ul|ol|dl|section|article|aside|blockquote|hr|br|body|main|figure|form)\b[^>]*>", re.I
)
_TAG = re.compile(r"<[^>]*>")
_SPACE = re.compile(r"\s+")
WORD = re.compile(r"[A-Za-z]+(?:['’][a-z]+)?")
_IDENTIFIER = re.compile(r"\w*[_/\\=<>{}\[\]|]\w*|\w+\(\)|\w+::\w+|--\w+|\w\.\w+\.\w")


def is_running_prose(paragraph: str) -> bool:
    """Whether a paragraph (white space already collapsed) reads as sentences rather than as a listing, title or code.

    The bounds were set by reading what passed and what failed in the sources of `corpus.yaml`.
    """
    if len(paragraph) < 90 or not re.search(r"[.!?][\"'”’)\]]*$", paragraph) or paragraph[0] in "*-|+#>:":
        return False
    words = WORD.findall(paragraph)
    if len(words) < 15 or sum(map(len, words)) < 0.70 * len(paragraph):
        return False
    function_words = sum(word.lower() in FUNCTION_WORDS for word in words)
    return function_words >= 0.28 * len(words) and len(_IDENTIFIER.findall(paragraph)) <= 0.06 * len(words)


def pages(paragraphs: list[str], source: str, member: str, max_chars: int = 9000) -> Iterator[Document]:
    """Documents of whole paragraphs, at least 350 and about at most `max_chars` characters long each."""
    part: list[str] = []
    parts = []
    for paragraph in paragraphs:
        if part and sum(map(len, part)) + len(paragraph) > max_chars:
            parts.append(part)
            part = []
        part.append(paragraph)
    parts.append(part)
    for index, part in enumerate(parts):
        if sum(map(len, part)) >= 350:
            yield Document(
                kind="prose", text=clean_text("\n\n".join(part)), source=source, id=f"{source}/{member}#{index}"
            )


def html_paragraphs(page: str) -> list[str]:
    """Running paragraphs of an HTML page, in order.

    Text is cut at every block-level tag, so unclosed `<p>` elements (allowed in HTML) do not run together. Tables,
    preformatted blocks and navigation are dropped: their text has no sentences or repeats on every page.
    """
    body = _BLOCK.sub("\x1e", _DROPPED.sub("\x1e", page))
    blocks = (
        _SPACE.sub(" ", html.unescape(_TAG.sub("", block))).replace("¶", "").strip() for block in body.split("\x1e")
    )
    return [block for block in blocks if is_running_prose(block)]


_MARKUP_RULES = (
    (re.compile(r":[\w:+-]+:`~?!?([^`<]*?)(?:\s*<[^`>]*>)?`"), r"\1"),  # :role:`title <target>`
    (re.compile(r"`([^`<]+?)\s*<[^`>]*>`__?"), r"\1"),  # `title <url>`_
    (re.compile(r"``([^`]*)``"), r"\1"),
    (re.compile(r"`([^`]*)`_{0,2}"), r"\1"),
    (re.compile(r"!?\[([^\]]*)\]\([^)]*\)"), r"\1"),  # [title](url)
    (re.compile(r"\*\*?([^*\n]+)\*\*?"), r"\1"),
    (re.compile(r"\|(\w[^|\n]*)\|"), r"\1"),
)


def markup_paragraphs(text: str) -> list[str]:
    """Running paragraphs of a reStructuredText or Markdown file, inline markup removed.

    Directives, comments, code and list items are dropped; indented paragraphs are kept when they read as sentences
    (they are the bodies of notes and definitions).
    """
    text = re.sub(r"^(```|~~~).*?^\1", "", text, flags=re.S | re.M)
    paragraphs = []
    for block in re.split(r"\n\s*\n", text):
        block = block.strip()
        if block.startswith((".. ", "..\n", ":", ">>>", "#", "|", "=", "+-", "$ ", "<")):
            continue
        block = re.sub(r"^(?:[*-]|\d+\.)\s+", "", block)
        for pattern, replacement in _MARKUP_RULES:
            block = pattern.sub(replacement, block)
        block = re.sub(r"::$", ":", _SPACE.sub(" ", block))
        if is_running_prose(block):
            paragraphs.append(block)
    return paragraphs


@dataclass(frozen=True, kw_only=True)
class HtmlPages:
    """Reader of HTML manuals.

    Attributes:
        include, exclude: member patterns, see `experiments.pair.data.archives.members`.
    """

    include: list[str] = field(default_factory=lambda: ["*.html"])
    exclude: list[str] = field(default_factory=list)

    def documents(self, archive: Path, source: str) -> Iterator[Document]:
        """Documents of the archive's pages, `prose` only."""
        for name, content in members(archive, self.include, self.exclude):
            yield from pages(html_paragraphs(content.decode("utf-8", "replace")), source, name)


@dataclass(frozen=True, kw_only=True)
class MarkupPages:
    """Reader of reStructuredText or Markdown manuals.

    Attributes:
        include, exclude: member patterns, see `experiments.pair.data.archives.members`.
    """

    include: list[str]
    exclude: list[str] = field(default_factory=list)

    def documents(self, archive: Path, source: str) -> Iterator[Document]:
        """Documents of the archive's files, `prose` only."""
        for name, content in members(archive, self.include, self.exclude):
            yield from pages(markup_paragraphs(content.decode("utf-8", "replace")), source, name)
