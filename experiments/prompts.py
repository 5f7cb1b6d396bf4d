"""Makes the prompt files of the shipped configuration: `python -m experiments.prompts`.

Takes documents of the `prompts` split only, and of them those that share little text with the train split (duplicates
are removed in one pass, so a short document may stand although a later, longer one contains most of it). Cuts each once
so that at least `min_continuation` tokens of the same kind of text would follow, and writes `<output>/<class>.jsonl`
with rows `{"id", "class", "prompt", "source", "licence"}`.
"""

import json
import logging
import random
from collections import defaultdict
from pathlib import Path

import hydra
from omegaconf import DictConfig
from tokenizers import Tokenizer

from experiments.data.cuts import SPANS
from experiments.data.deduplicate import SHINGLE_WIDTH, NearDuplicateFilter
from experiments.data.documents import CLASSES, Document, read_documents
from experiments.program import run
from experiments.tokenizer import read_tokenizer
from spec.errors import UserError

logger = logging.getLogger(__name__)


def cut_prompt(
    document: Document,
    tokenizer: Tokenizer,
    draw: random.Random,
    min_tokens: int,
    max_tokens: int,
    min_continuation: int,
) -> str | None:
    """A prompt from a document.

    Only cuts at which the tokens of the prompt are the first tokens of the document are taken: else the model would
    have to continue from a token that the uncut text does not have there.

    Args:
        document: of the prompts split.
        tokenizer: whose tokens are counted.
        draw: picks one of the possible cuts.
        min_tokens, max_tokens: bounds of the prompt's length in tokens, begin of sentence not counted.
        min_continuation: tokens that must follow in the document.

    Returns:
        The prompt, or None when no cut satisfies the bounds.
    """
    spans = SPANS[document.kind](document.text)
    draw.shuffle(spans)
    for start, end in spans[:200]:
        text = document.text[start:]
        whole = tokenizer.encode(text, add_special_tokens=False).ids
        prompt = tokenizer.encode(text[: end - start], add_special_tokens=False).ids
        enough = len(whole) - len(prompt) >= min_continuation
        if min_tokens <= len(prompt) <= max_tokens and enough and whole[: len(prompt)] == prompt:
            return text[: end - start]
    return None


def choose_documents(documents: list[Document], quota: dict[str, int], draw: random.Random) -> list[Document]:
    """Documents in the order in which they are to be tried, varied in source.

    Args:
        documents: all candidates.
        quota: documents of these sources that come in each turn; other sources have one a turn.
        draw: orders sources and the documents of each.

    Returns:
        All documents; each turn goes through all sources.
    """
    by_source: dict[str, list[Document]] = defaultdict(list)
    for document in documents:
        by_source[document.source].append(document)
    for group in by_source.values():
        draw.shuffle(group)
    sources = sorted(by_source)
    draw.shuffle(sources)
    sources.sort(key=lambda source: source not in quota)  # stable: sources with a quota come first in every turn
    ordered = []
    while any(by_source.values()):
        for source in sources:
            count = quota.get(source, 1)
            ordered += by_source[source][:count]
            del by_source[source][:count]
    return ordered


def make_prompts(kind: str, config: DictConfig, tokenizer: Tokenizer, licences: dict[str, str]) -> list[dict]:
    """Rows of one class.

    Raises:
        UserError: when the prompts split has too few documents that can be cut.
    """
    corpus = Path(config.corpus)
    trained = NearDuplicateFilter(width=SHINGLE_WIDTH[kind])
    for document in read_documents(corpus, "train", kind):
        trained.remember(document.text)
    candidates = [
        document
        for document in read_documents(corpus, "prompts", kind)
        if trained.seen_share(document.text) <= config.max_shared
    ]
    draw = random.Random(f"{config.seed}/{kind}")
    documents = choose_documents(candidates, dict(config.quota.get(kind, {})), draw)
    rows = []
    for document in documents:
        prompt = cut_prompt(document, tokenizer, draw, config.min_tokens, config.max_tokens, config.min_continuation)
        if prompt is None:
            continue
        rows.append(
            {
                "id": f"{kind}-{len(rows):02d}",
                "class": kind,
                "prompt": prompt,
                "source": document.id,
                "licence": licences[document.source],
            }
        )
        if len(rows) == config.prompts_per_class:
            return rows
    raise UserError(
        f"class {kind}: wanted {config.prompts_per_class} prompts, got {len(rows)}; enlarge the prompts split"
    )


@hydra.main(config_path="configs", config_name="prompts", version_base="1.3")
def main(config: DictConfig) -> None:
    """Entry point of `python -m experiments.prompts`."""
    tokenizer = read_tokenizer(config.tokenizer)
    manifest = json.loads((Path(config.corpus) / "manifest.json").read_text(encoding="utf-8"))
    licences = {source["name"]: source["licence"] for source in manifest["sources"]}
    output = Path(config.output)
    output.mkdir(parents=True, exist_ok=True)
    for kind in CLASSES:
        rows = make_prompts(kind, config, tokenizer, licences)
        lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
        (output / f"{kind}.jsonl").write_text("".join(lines), encoding="utf-8")
        sources = {row["source"].split("/")[0] for row in rows}
        lengths = sorted(len(tokenizer.encode(row["prompt"], add_special_tokens=False).ids) for row in rows)
        logger.info(
            "%-16s %d prompts of %d sources, %d-%d tokens", kind, len(rows), len(sources), lengths[0], lengths[-1]
        )


if __name__ == "__main__":
    run(main)
