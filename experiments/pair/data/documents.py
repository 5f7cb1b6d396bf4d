"""Documents, the unit of the corpus: a text of one class, and its origin."""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from experiments.pair.data.chat import turns

CLASSES = ("prose", "code_gen", "json_repetitive", "md_table", "chat")
"""The prompt classes of the shipped pair, in the order in which reports list them."""

SPLITS = ("train", "valid", "prompts")


@dataclass(frozen=True, kw_only=True)
class Document:
    """A text that is never divided between splits.

    Attributes:
        kind: one of `CLASSES`.
        text: the whole text, LF line ends, not empty.
        source: name of the package it came from, as listed in the configuration.
        id: unique in the corpus, stable between runs: `source/member#part`.
    """

    kind: str
    text: str
    source: str
    id: str

    @property
    def num_bytes(self) -> int:
        """Length of the text in UTF-8 bytes, the unit of every size and of bits per byte."""
        return len(self.text.encode("utf-8"))

    @property
    def group(self) -> str:
        """What documents that ask the same share: of a conversation its question's words, else the id."""
        if self.kind != "chat":
            return self.id
        return " ".join(re.findall(r"\w+", turns(self.text)[0].lower()))


def clean_text(text: str) -> str:
    """Text with LF line ends, no trailing blanks, no control characters and exactly one LF at its end."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").replace("\x0c", "").replace("\x00", "").split("\n")
    return "\n".join(line.rstrip() for line in lines).strip("\n") + "\n"


def write_documents(path: Path, documents: Iterable[Document]) -> dict:
    """Writes one JSON object a line (`text`, `source`, `id`).

    Returns:
        `{"path", "documents", "text_bytes", "bytes", "sha256"}`: text_bytes counts the texts alone, bytes the file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    count = text_bytes = 0
    with path.open("w", encoding="utf-8") as file:
        for document in documents:
            row = {"text": document.text, "source": document.source, "id": document.id}
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
            count, text_bytes = count + 1, text_bytes + document.num_bytes
    return {
        "path": path.as_posix(),
        "documents": count,
        "text_bytes": text_bytes,
        "bytes": path.stat().st_size,
        "sha256": file_sha256(path),
    }


def read_documents(corpus: Path, split: str, kind: str) -> Iterator[Document]:
    """Documents of one split and class, in file order.

    Raises:
        FileNotFoundError: when the corpus has not been made; the message names the command that makes it.
    """
    path = corpus / split / f"{kind}.jsonl"
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist: run `python -m experiments.pair.corpus` first")
    with path.open(encoding="utf-8") as file:
        for line in file:
            yield Document(kind=kind, **json.loads(line))


def corpus_classes(corpus: Path) -> list[str]:
    """The classes that a corpus has: all, or all but `chat` when it was made without sampled text.

    Raises:
        FileNotFoundError: when the corpus has not been made; the message names the command that makes it.
    """
    kinds = [kind for kind in CLASSES if (corpus / "train" / f"{kind}.jsonl").exists()]
    if not kinds:
        raise FileNotFoundError(f"{corpus}/train holds no class: run `python -m experiments.pair.corpus` first")
    return kinds


def train_digest(corpus: Path) -> str:
    """Hex SHA-256 over the training files' hashes in a corpus's manifest: identifies the text behind a figure.

    Args:
        corpus: folder of `manifest.json`, or the path of a copy of it.
    """
    path = corpus / "manifest.json" if corpus.is_dir() else corpus
    files = json.loads(path.read_text(encoding="utf-8"))["files"]
    hashes = [f"{row['class']} {row['sha256']}\n" for row in files if row["split"] == "train"]
    return hashlib.sha256("".join(hashes).encode("utf-8")).hexdigest()


def file_sha256(path: Path) -> str:
    """Hex digest of a file, read in blocks of 1 MiB."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def stable_hash(text: str) -> int:
    """64-bit hash that is the same on every machine and run (Python's own `hash` is salted)."""
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8"), digest_size=8).digest(), "big")
