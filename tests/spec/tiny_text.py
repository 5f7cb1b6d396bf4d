"""A byte-level tokenizer of a handful of merges, and prompt texts for it."""

from pathlib import Path

from mlx_lm.tokenizer_utils import BPEStreamingDetokenizer, TokenizerWrapper
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

BOS, EOS = "<bos>", "<eos>"


def make_tokenizer(size: int | None = None, merges: tuple[tuple[str, str], ...] = ()) -> PreTrainedTokenizerFast:
    """Ids 0 and 1 are the special tokens, then single bytes (printable ones first), then merges.

    Args:
        size: ids to keep; bytes beyond it cannot be encoded. None keeps all 256.
        merges: pairs of existing tokens.
    """
    table = pre_tokenizers.ByteLevel.alphabet()
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    symbols = ["Ġ", "Ċ", *letters, *sorted(set(table) - set(letters) - {"Ġ", "Ċ"})]
    tokens = [BOS, EOS, *symbols, *(left + right for left, right in merges)]
    vocabulary = {token: number for number, token in enumerate(tokens[:size])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=list(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=BOS, eos_token=EOS)


def wrapped_tokenizer(merges: tuple[tuple[str, str], ...] = ()) -> TokenizerWrapper:
    """All 256 bytes, in mlx-lm's wrapper, with the detokenizer that it picks for byte-level vocabularies."""
    return TokenizerWrapper(make_tokenizer(merges=merges), BPEStreamingDetokenizer)


def save_tokenizer(folder: Path, size: int) -> None:
    """Writes the tokenizer files of a checkpoint folder."""
    make_tokenizer(size).save_pretrained(folder)
