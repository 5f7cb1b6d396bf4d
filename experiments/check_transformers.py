"""Does transformers compute the same from a checkpoint folder? ``python -m experiments.check_transformers``.

Both implementations load the folder in float32, on the CPU, and read the same held-out text: the prompts of each class,
one after the other. Exits with 1 where any logit differs by more than the tolerance. Needs PyTorch, which nothing else
here does.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import hydra
import mlx.core as mx
import numpy as np
from omegaconf import DictConfig
from rich.console import Console
from rich.table import Table

from models import ModelError, load
from models.loading import find_checkpoint
from spec.errors import UserError
from spec.programs.frame import run
from spec.prompts import encode, load_prompts


@dataclass(frozen=True, kw_only=True)
class LogitComparison:
    """Two implementations' logits (T, V) of one text.

    Attributes:
        tokens: T. largest_gap: largest absolute difference of two logits. deviation: standard deviation of the
            reference's logits, the scale of the gap. same_argmax: share of positions whose argmaxes agree.
    """

    tokens: int
    largest_gap: float
    deviation: float
    same_argmax: float


def compare(ours: np.ndarray, reference: np.ndarray) -> LogitComparison:
    """Compares logits (T, V) float32 of the same T tokens; a logit that is no number is an infinite gap."""
    gaps = np.abs(ours - reference)
    return LogitComparison(
        tokens=len(ours),
        largest_gap=float(np.where(np.isnan(gaps), np.inf, gaps).max()),
        deviation=float(reference.std()),
        same_argmax=float((ours.argmax(axis=-1) == reference.argmax(axis=-1)).mean()),
    )


def read_texts(paths: Sequence[str], length: int, tokenizer: Any) -> dict[str, list[int]]:
    """Token ids by prompt class: the prompts of the class, one after the other, up to ``length`` tokens.

    Args:
        paths: prompt files, as `load_prompts`. length: tokens, at least 1. tokenizer: mlx-lm's wrapper.

    Raises:
        UserError: a file is missing or broken.
    """
    texts: dict[str, list[int]] = {}
    for prompt in load_prompts(paths, name="text"):
        text = texts.setdefault(prompt.prompt_class, [])
        text += encode(prompt, tokenizer)[: length - len(text)]
    return texts


def transformers_logits(folder: Path, texts: Sequence[Sequence[int]]) -> list[np.ndarray]:
    """Logits (T, V) float32 of each text, by transformers' own implementation.

    Raises:
        UserError: PyTorch is not installed.
    """
    if find_spec("torch") is None:
        raise UserError("transformers computes with PyTorch, which is not installed here: pip install torch")
    import torch  # no dependency of the project
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        return [model(torch.tensor([list(text)])).logits[0].numpy() for text in texts]


@hydra.main(version_base=None, config_path=str(Path(__file__).parent / "configs"), config_name="check_transformers")
def main(config: DictConfig) -> None:
    """Compares, prints a table and says by the exit code whether both agree."""
    if type(config.length) is not int or config.length < 1:
        raise UserError(f"length: wanted an integer of 1 or more, got {config.length!r}")
    mx.set_default_device(mx.cpu)  # GPUs may round float32 products to fewer bits
    model, tokenizer = load(config.target, "float32")
    texts = read_texts(config.prompts, config.length, tokenizer)
    reference = transformers_logits(find_checkpoint(config.target), list(texts.values()))
    table = Table(title=f"{config.target} in float32 beside transformers")
    for column in ("class", "tokens", "largest gap", "deviation of logits", "same argmax"):
        table.add_column(column)
    largest = 0.0
    for (name, text), theirs in zip(texts.items(), reference, strict=True):
        found = compare(np.array(model(mx.array([text]))[0]), theirs)
        largest = max(largest, found.largest_gap)
        gap, deviation = f"{found.largest_gap:.1e}", f"{found.deviation:.2f}"
        table.add_row(name, str(found.tokens), gap, deviation, f"{found.same_argmax:.2%}")
    Console().print(table)
    is_same = largest <= config.tolerance
    print(f"largest gap {largest:.1e}: {'within' if is_same else 'above'} the tolerance of {config.tolerance:.0e}")
    if not is_same:
        sys.exit(1)


if __name__ == "__main__":
    sys.exit(run(main, ModelError))
