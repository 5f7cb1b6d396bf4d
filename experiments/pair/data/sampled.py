"""Which texts of `python -m experiments.pair.sample_text` become documents of the corpus."""

import json
import lzma
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from experiments.pair.data.chat import conversation
from experiments.pair.data.documents import Document, clean_text
from experiments.pair.data.prose import FUNCTION_WORDS, WORD
from spec.errors import UserError
from spec.measure.repetition import repeated_ngram_share

SAMPLED_CLASSES = ("prose", "chat")

_END = re.compile(r"[.!?][\"'”’)\]*_]*$")
_ABOUT_ITSELF = re.compile(
    r"\bas an? (?:ai|artificial|language|digital|virtual)\b|\blanguage model\b|\bAI(?:[- ]powered)? assistant\b"
    r"|\bI(?:['’]?m| am) (?:an AI|sorry,? but|unable to|not able to)"
    r"|\bI (?:can(?:no|')t|can’t|do not|don['’]t) (?:assist|provide|fulfil|help|have (?:personal|real|feelings|access))"
    r"|\bsmollm|\bhugging ?face\b|\bopenai\b|\bchatgpt\b|\bmy (?:training|knowledge cut-?off)",
    re.I,
)
_MARKERS = re.compile(r"<[|｜]|[|｜]>|</?s>|\[INST|�")


def repeated_share(text: str) -> float:
    """Share of the text's word 4-grams that occur earlier in it, in [0, 1)."""
    return repeated_ngram_share(text.lower().split())


def before_repeating(text: str, max_repeated: float, width: int = 4) -> str:
    """The longest beginning of whole sentences whose share of repeated word `width`-grams is at most `max_repeated`.

    A small model that begins to repeat itself goes on with it, so this keeps the good part of most texts.
    """
    seen, repeated, runs, end = set(), 0, 0, 0
    window: list[str] = []
    for match in re.finditer(r"\S+", text):
        window = [*window, match.group().lower()][-width:]
        if len(window) == width:
            runs += 1
            repeated += tuple(window) in seen
            seen.add(tuple(window))
        if repeated <= max_repeated * runs and _END.search(match.group()):
            end = match.end()
    return text[:end]


def is_english(text: str) -> bool:
    """Whether a text is almost ASCII and has the share of function words that running English has."""
    words = WORD.findall(text)
    return (
        len(text.encode("ascii", "ignore")) >= 0.98 * len(text.replace("’", "'").replace("—", "-"))
        and sum(word.lower() in FUNCTION_WORDS for word in words) >= 0.2 * len(words)
        and len(words) > 0
    )


def fault(kind: str, prompt: str, text: str) -> str | None:
    """Why a sampled text is not kept, in a word or two; None when it is."""
    if _MARKERS.search(prompt + text):
        return "marker"
    if len(text) < (400 if kind == "prose" else 40):
        return "short"
    if not _END.search(text) and (kind == "prose" or len(text) > 200):  # an answer may be a few words
        return "cut off"
    if _ABOUT_ITSELF.search(text):
        return "about itself"
    if not is_english(text):
        return "not English"
    return None


def _rows(path: Path) -> Iterator[dict]:
    try:
        with lzma.open(path, "rt", encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                row = json.loads(line)
                if not isinstance(row, dict) or not all(
                    isinstance(row.get(key), str) for key in ("kind", "prompt", "text", "id")
                ):
                    raise UserError(f"{path}, line {number}: wanted texts kind, prompt, text and id, got {line[:80]!r}")
                yield row
    except (lzma.LZMAError, EOFError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{path} is damaged or not JSON: {error}; delete it and sample it again") from error


def sampled_files(folder: Path) -> list[Path]:
    """The files of `python -m experiments.pair.sample_text`, by name.

    Raises:
        UserError: there are none.
    """
    files = sorted(folder.glob("*.jsonl.xz"))
    if not files:
        raise UserError(
            f"no {folder}/*.jsonl.xz: make them with python -m experiments.pair.sample_text, or give sampled=null to "
            "do without sampled prose and without the class chat"
        )
    return files


def sampled_documents(files: list[Path], source: str, max_repeated: float) -> tuple[list[Document], Counter]:
    """Documents of the texts that are English and not about their author, each up to where it repeats itself.

    Args:
        files: JSON lines, xz-compressed; rows have `kind` (`prose` or `chat`), `prompt`, `text` and `id`.
        source: name for the documents.
        max_repeated: largest share of repeated word 4-grams; a text is cut back to where it had so many.

    Returns:
        The documents (of prose the text alone, of chat the prompt as the user's turn, too), and how many rows were
        kept or left out, by class and reason.

    Raises:
        UserError: a file is damaged or a row lacks a key.
    """
    documents, counts = [], Counter()
    for path in files:
        for row in _rows(path):
            kind, prompt, text = row["kind"], row["prompt"].strip(), clean_text(row["text"]).strip()
            if kind not in SAMPLED_CLASSES:
                raise UserError(f"{path}: kind must be one of {', '.join(SAMPLED_CLASSES)}, got {kind!r}")
            if repeated_share(text) > max_repeated:
                text = before_repeating(text, max_repeated)
            reason = fault(kind, prompt, text)
            counts[f"{kind}: {reason or 'kept'}"] += 1
            if reason is None:
                whole = conversation(prompt, text) if kind == "chat" else text + "\n"
                documents.append(
                    Document(kind=kind, text=whole, source=source, id=f"{source}/{path.name.split('.')[0]}/{row['id']}")
                )
    return documents, counts
