"""Makes the prompt files of the shipped configuration: `python -m experiments.pair.prompts`.

Cuts documents of the `prompts` split, each once, so that at least `continuation_tokens` tokens of the same kind of text
follow, and writes `<output>/<class>.jsonl` with rows `{"id", "class", "prompt" or "turns", "source", "licence",
"continuation", "overlap"}`. `continuation` is the document's own text of those tokens. `overlap` shows that it is
not in the training text: how many word 13-grams it has, how many of them occur in the training text of any class, and
the digest of that text. Prompts with a shared 13-gram are left out.
"""

import json
import logging
import random
import sys
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import hydra
from omegaconf import DictConfig
from tokenizers import Encoding, Tokenizer

from experiments.pair.data.chat import turns
from experiments.pair.data.cuts import SPANS
from experiments.pair.data.documents import Document, corpus_classes, read_documents, train_digest
from experiments.pair.data.overlap import GRAM_WORDS, count_shared, grams
from experiments.pair.data.tokenizing import read_tokenizer
from models import ModelError
from spec.errors import UserError
from spec.programs.frame import run

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class PromptCut:
    """A document cut in two.

    Attributes:
        document: of the prompts split.
        prompt: text before the cut; of a conversation with its markers.
        continuation: text of the tokens that follow, as many as were asked for.
        tokens: of the prompt, begin of sentence not counted.
    """

    document: Document
    prompt: str
    continuation: str
    tokens: int


def cut_prompt(
    document: Document,
    tokenizer: Tokenizer,
    draw: random.Random,
    min_tokens: int,
    max_tokens: int,
    continuation_tokens: int,
) -> PromptCut | None:
    """Cuts a document.

    Only cuts at which the tokens of the prompt are the first tokens of the document are taken: else the model would
    have to continue from a token that the uncut text does not have there.

    Args:
        document: of the prompts split.
        tokenizer: whose tokens are counted.
        draw: picks one of the possible cuts.
        min_tokens, max_tokens: bounds of the prompt's length in tokens, begin of sentence not counted.
        continuation_tokens: tokens that must follow in the document.

    Returns:
        The cut, or None when no cut satisfies the bounds.
    """
    spans = SPANS[document.kind](document.text)
    draw.shuffle(spans)
    encodings: dict[int, Encoding] = {}
    for start, end in spans:
        text = document.text[start:]
        if start not in encodings:
            encodings[start] = tokenizer.encode(text, add_special_tokens=False)
        whole = encodings[start]
        count = bisect_right(whole.offsets, end - start, key=lambda offsets: offsets[1])
        last = count + continuation_tokens - 1
        if not min_tokens <= count <= max_tokens or last >= len(whole.ids):
            continue
        if tokenizer.encode(text[: end - start], add_special_tokens=False).ids == whole.ids[:count]:
            return PromptCut(
                document=document,
                prompt=text[: end - start],
                continuation=text[end - start : whole.offsets[last][1]],
                tokens=count,
            )
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


def cut_documents(kind: str, documents: list[Document], config: DictConfig, tokenizer: Tokenizer) -> list[PromptCut]:
    """All cuts of documents of one class, no two with the same prompt, varied in source."""
    draw = random.Random(f"{config.seed}/{kind}")
    min_tokens = config.min_tokens.get(kind, config.min_tokens.other)
    cuts: dict[str, PromptCut] = {}
    for document in choose_documents(documents, dict(config.quota.get(kind, {})), draw):
        cut = cut_prompt(document, tokenizer, draw, min_tokens, config.max_tokens, config.continuation_tokens)
        if cut:
            cuts.setdefault(cut.prompt, cut)
    return list(cuts.values())


def alternate(first: list, second: list, count: int, share: float) -> list:
    """`count` items, `share` of them from `first` and evenly spread; where one list is short, the other fills up."""
    items = []
    first, second = first[::-1], second[::-1]
    while len(items) < count and (first or second):
        wants_first = int((len(items) + 1) * share) > int(len(items) * share)
        items.append((first if (wants_first and first) or not second else second).pop())
    return items


def make_prompts(config: DictConfig, tokenizer: Tokenizer, licenses: dict[str, str]) -> dict[str, list[dict]]:
    """Rows of every class of the corpus.

    Args:
        config: see `configs/prompts.yaml`.
        tokenizer: whose tokens are counted.
        licenses: by source.

    Raises:
        UserError: when the prompts split of a class has too few documents that can be cut and share nothing with the
            training text.
    """
    corpus, count = Path(config.corpus), config.prompts_per_class
    classes = corpus_classes(corpus)
    cuts: dict[str, tuple[list[PromptCut], list[PromptCut]]] = {}
    for kind in classes:
        documents = list(read_documents(corpus, "prompts", kind))
        groups = [[one for one in documents if (one.source == "smollm2") == is_sampled] for is_sampled in (True, False)]
        cuts[kind] = tuple(cut_documents(kind, group, config, tokenizer) for group in groups)
    found = [cut for groups in cuts.values() for group in groups for cut in group]
    counts = count_shared([cut.continuation for cut in found], training_texts(corpus))
    shared = dict(zip(map(id, found), counts, strict=True))
    digest = train_digest(corpus)
    rows = {}
    for kind, groups in cuts.items():
        sampled, others = ([cut for cut in group if not shared[id(cut)]] for group in groups)
        chosen = alternate(sampled, others, count, config.sampled_share.get(kind, 1.0))
        if len(chosen) < count:
            raise UserError(
                f"class {kind}: wanted {count} prompts, got {len(chosen)} of "
                f"{sum(map(len, groups))} that could be cut; enlarge the prompts split"
            )
        rows[kind] = [_row(number, cut, shared[id(cut)], licenses, digest) for number, cut in enumerate(chosen)]
    return rows


def _row(number: int, cut: PromptCut, shared: int, licenses: dict[str, str], digest: str) -> dict:
    kind = cut.document.kind
    prompt = {"turns": [turns(cut.prompt)[0]]} if kind == "chat" else {"prompt": cut.prompt}
    return {
        "id": f"{kind}-{number:02d}",
        "class": kind,
        **prompt,
        "source": cut.document.id,
        "licence": licenses[cut.document.source],
        "continuation": cut.continuation,
        "overlap": {
            "gram_words": GRAM_WORDS,
            "grams": len(grams(cut.continuation)),
            "shared": shared,
            "train_sha256": digest,
        },
    }


def training_texts(corpus: Path) -> Iterator[str]:
    """Every training text of a corpus."""
    for kind in corpus_classes(corpus):
        for document in read_documents(corpus, "train", kind):
            yield document.text


@hydra.main(version_base="1.3", config_path=str(Path(__file__).parent / "configs"), config_name="prompts")
def main(config: DictConfig) -> None:
    """Entry point of `python -m experiments.pair.prompts`."""
    tokenizer = read_tokenizer(config.tokenizer)
    manifest = json.loads((Path(config.corpus) / "manifest.json").read_text(encoding="utf-8"))
    licenses = {source["name"]: source["licence"] for source in manifest["sources"]}
    output = Path(config.output)
    output.mkdir(parents=True, exist_ok=True)
    for kind, rows in make_prompts(config, tokenizer, licenses).items():
        lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
        (output / f"{kind}.jsonl").write_text("".join(lines), encoding="utf-8")
        sources = {row["source"].split("/")[0] for row in rows}
        least = min(row["overlap"]["grams"] for row in rows)
        logger.info("%-16s %d prompts of %d sources, %d or more 13-grams", kind, len(rows), len(sources), least)


if __name__ == "__main__":
    sys.exit(run(main, ModelError))
