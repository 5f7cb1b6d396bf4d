"""Trains the tokenizer of the shipped pair: `python -m experiments.pair.tokenizer`.

Byte-level BPE, so that any text round-trips, with the special tokens of DeepSeek's tokenizers. Choices for a small
vocabulary:

- Every digit is a token. Groups of three, as in DeepSeek-V3, would take 1,110 of 6,144 entries; and where ids count up,
  only the last digit changes, which a small drafter can learn.
- A line break and the indentation after it are one token, so a line of code or indented JSON costs one token of white
  space at any depth.
- A run of letters includes one mark or space before it (`_id`, `"name`, `.join`, ` the`), as in GPT-4's pattern.
"""

import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import hydra
from omegaconf import DictConfig
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from experiments.pair.data.chat import ASSISTANT, BEGIN_OF_SENTENCE, CHAT_TEMPLATE, END_OF_SENTENCE, USER, turns
from experiments.pair.data.documents import corpus_classes, read_documents
from models import ModelError
from spec.errors import UserError
from spec.programs.frame import run

logger = logging.getLogger(__name__)

PAD = "<｜▁pad▁｜>"
NOISE = "<｜noise｜>"
SPECIAL_TOKENS = (
    BEGIN_OF_SENTENCE,
    END_OF_SENTENCE,
    PAD,
    USER,
    ASSISTANT,
    NOISE,
    *(f"<｜reserved▁{number}｜>" for number in range(10)),
)
"""Special tokens in the order of their ids, 0 to 15. `NOISE` fills the positions that a DSpark drafter predicts."""

WORD_PATTERN = (
    r"'(?:[sdmtSDMT]|ll|ve|re)(?!\p{L})"  # English contractions
    r"|[^\r\n\p{L}\p{N}]?\p{L}+"  # letters with one mark or space before them
    r"|\p{N}"  # single digits
    r"| ?[^\s\p{L}\p{N}]+"  # runs of marks
    r"|[ \t]*[\r\n]+[ \t]*"  # line breaks with the indentation after them
    r"|\s+(?!\S)|\s+"
)
"""Where text may not be merged across."""


def train_tokenizer(texts: Iterator[str], vocabulary_size: int) -> Tokenizer:
    """Trains byte-level BPE on texts.

    Args:
        texts: training documents.
        vocabulary_size: entries including the special tokens and the 256 bytes.

    Returns:
        Tokenizer that prepends the begin-of-sentence token when asked for special tokens.

    Raises:
        UserError: when the texts have too few distinct pairs to fill the vocabulary exactly.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORD_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        max_token_length=24,  # long enough for deep indentation; longer words of one source would crowd out common ones
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() != vocabulary_size:
        raise UserError(f"wanted a vocabulary of {vocabulary_size}, got {tokenizer.get_vocab_size()}: give more text")
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN_OF_SENTENCE} $A",
        pair=f"{BEGIN_OF_SENTENCE} $A {BEGIN_OF_SENTENCE} $B:1",
        special_tokens=[(BEGIN_OF_SENTENCE, 0)],
    )
    return tokenizer


def sample_texts(corpus: Path, sample_bytes: dict[str, float]) -> Iterator[str]:
    """Training texts of every class, up to the wanted bytes of each; of a conversation the turns, without markers."""
    for kind in corpus_classes(corpus):
        taken = 0
        for document in read_documents(corpus, "train", kind):
            if taken >= sample_bytes[kind]:
                break
            taken += document.num_bytes
            yield from turns(document.text) if kind == "chat" else (document.text,)


def save_tokenizer(tokenizer: Tokenizer, output: Path, context_length: int) -> None:
    """Writes `tokenizer.json` (compact) and a `tokenizer_config.json` that transformers and mlx-lm load."""
    output.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(output / "tokenizer.json"), pretty=False)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context_length,
        "bos_token": BEGIN_OF_SENTENCE,
        "eos_token": END_OF_SENTENCE,
        "pad_token": PAD,
        "add_bos_token": True,
        "add_eos_token": False,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    text = json.dumps(config, ensure_ascii=False, indent=2)
    (output / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")


def bytes_per_token(tokenizer: Tokenizer, corpus: Path) -> dict[str, float]:
    """UTF-8 bytes a token on the valid documents, by class."""
    ratios = {}
    for kind in corpus_classes(corpus):
        texts = [document.text for document in read_documents(corpus, "valid", kind)]
        tokens = sum(len(encoding.ids) for encoding in tokenizer.encode_batch(texts, add_special_tokens=False))
        ratios[kind] = sum(len(text.encode("utf-8")) for text in texts) / tokens
    return ratios


@hydra.main(version_base="1.3", config_path=str(Path(__file__).parent / "configs"), config_name="tokenizer")
def main(config: DictConfig) -> None:
    """Entry point of `python -m experiments.pair.tokenizer`."""
    tokenizer = train_tokenizer(sample_texts(Path(config.corpus), config.sample_bytes), config.vocabulary_size)
    save_tokenizer(tokenizer, Path(config.output), config.context_length)
    for kind, ratio in bytes_per_token(tokenizer, Path(config.corpus)).items():
        logger.info("%-16s %.3f bytes a token", kind, ratio)


if __name__ == "__main__":
    sys.exit(run(main, ModelError))
