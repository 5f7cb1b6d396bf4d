"""The trained tokenizer, for the programs that encode text."""

from pathlib import Path

from tokenizers import Tokenizer


def read_tokenizer(folder: str | Path) -> Tokenizer:
    """The tokenizer of a folder.

    Raises:
        FileNotFoundError: there is none; the message says which program makes it.
    """
    file = Path(folder) / "tokenizer.json"
    if not file.is_file():
        raise FileNotFoundError(f"{file} does not exist: make it with python -m experiments.pair.tokenizer")
    return Tokenizer.from_file(str(file))
