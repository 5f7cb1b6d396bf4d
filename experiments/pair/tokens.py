"""Encodes the corpus: `python -m experiments.pair.tokens`.

Writes `<output>/train.npz` and `<output>/valid.npz`. In each, for every class, `<class>` is a flat uint16 array in
which every document starts with the begin and ends with the end of sentence token, and `<class>_bytes` is the UTF-8
bytes of the texts (markers of turns left out), the denominator of bits per byte. `<output>/summary.json` has the
counts.
"""

import logging
import random
import sys
from pathlib import Path

import hydra
import numpy as np
from omegaconf import DictConfig
from tokenizers import Tokenizer

from experiments.pair.data.chat import BEGIN_OF_SENTENCE, END_OF_SENTENCE, turns
from experiments.pair.data.documents import corpus_classes, file_sha256, read_documents
from experiments.pair.data.tokenizing import read_tokenizer
from experiments.results import write_json
from models import ModelError
from spec.errors import UserError
from spec.programs.frame import run

logger = logging.getLogger(__name__)


def encode_documents(tokenizer: Tokenizer, texts: list[str], *, has_markers: bool = False) -> np.ndarray:
    """Token ids of documents, one after the other.

    Args:
        tokenizer: with at most 65,536 entries.
        texts: documents, in the order of the result.
        has_markers: whether special tokens in the texts are meant as such, as in conversations. Otherwise they are
            text: a source file that quotes one does not end a sentence.

    Returns:
        (tokens,) uint16; each document is begin of sentence, text, end of sentence.

    Raises:
        UserError: when ids do not fit uint16.
    """
    if tokenizer.get_vocab_size() > 1 << 16:
        raise UserError(f"a vocabulary of {tokenizer.get_vocab_size()} does not fit uint16; wanted at most 65536")
    begin, end = tokenizer.token_to_id(BEGIN_OF_SENTENCE), tokenizer.token_to_id(END_OF_SENTENCE)
    pieces = []
    tokenizer.encode_special_tokens = not has_markers
    try:
        for start in range(0, len(texts), 512):  # batches bound the memory of the encodings
            for encoding in tokenizer.encode_batch(texts[start : start + 512], add_special_tokens=False):
                pieces.append(np.array([begin, *encoding.ids, end], dtype=np.uint16))
    finally:
        tokenizer.encode_special_tokens = False
    return np.concatenate(pieces)


def encode_split(tokenizer: Tokenizer, corpus: Path, split: str, seed: int) -> dict[str, np.ndarray]:
    """Arrays of one split by class, and their byte counts, documents shuffled by the seed."""
    arrays = {}
    for kind in corpus_classes(corpus):
        texts = [document.text for document in read_documents(corpus, split, kind)]
        random.Random(f"{seed}/{split}/{kind}").shuffle(texts)
        is_chat = kind == "chat"
        arrays[kind] = encode_documents(tokenizer, texts, has_markers=is_chat)
        spoken = ("".join(turns(text)) for text in texts) if is_chat else texts  # a marker is no text
        arrays[f"{kind}_bytes"] = np.array(sum(len(text.encode("utf-8")) for text in spoken), dtype=np.int64)
        tokens, size = len(arrays[kind]), int(arrays[f"{kind}_bytes"])
        logger.info(
            "%-6s %-16s %10d tokens %8.2f MB %.3f bytes a token", split, kind, tokens, size / 1e6, size / tokens
        )
    return arrays


@hydra.main(version_base="1.3", config_path=str(Path(__file__).parent / "configs"), config_name="tokens")
def main(config: DictConfig) -> None:
    """Entry point of `python -m experiments.pair.tokens`."""
    tokenizer_path = Path(config.tokenizer) / "tokenizer.json"
    tokenizer = read_tokenizer(config.tokenizer)
    output = Path(config.output)
    output.mkdir(parents=True, exist_ok=True)
    summary: dict = {"tokenizer_sha256": file_sha256(tokenizer_path), "seed": config.seed, "splits": {}}
    for split in ("train", "valid"):
        arrays = encode_split(tokenizer, Path(config.corpus), split, config.seed)
        np.savez(output / f"{split}.npz", **arrays)
        rows = {
            kind: {"tokens": len(arrays[kind]), "bytes": int(arrays[f"{kind}_bytes"])}
            for kind in corpus_classes(Path(config.corpus))
        }
        summary["splits"][split] = {"sha256": file_sha256(output / f"{split}.npz"), "classes": rows}
    write_json(output / "summary.json", summary)


if __name__ == "__main__":
    sys.exit(run(main, ModelError))
