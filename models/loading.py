"""Loads a DeepSeek-V4 target and its tokenizer from a checkpoint folder."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mlx.core as mx

from models.deepseek_v4.checkpoint import load_weights
from models.deepseek_v4.config import DeepseekV4Config
from models.deepseek_v4.model import Model
from models.errors import ModelError
from models.formats.checkpoint import TensorHeader, read_headers

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

DRAFTER_PREFIX = "mtp."  # a checkpoint keeps its drafter's tensors beside the target's, under this prefix
DTYPES = {"float32": mx.float32, "bfloat16": mx.bfloat16, "float16": mx.float16}


def load(path: str | Path, dtype: str | mx.Dtype | None = None) -> tuple[Model, "TokenizerWrapper"]:
    """Loads a target and its tokenizer, in mlx-lm's wrapper.

    Args:
        path: folder with ``config.json`` (``model_type: deepseek_v4``), ``*.safetensors`` and tokenizer files, named as
            in the DeepSeek-V4 checkpoints. Relative paths also find what ships: ``models/pretrained/tiny``.
        dtype: "float32", "bfloat16" or "float16" for the weights; None keeps the checkpoint's.

    Raises:
        ModelError: the folder, its configuration, its tensors or its tokenizer cannot be used.
    """
    folder = find_checkpoint(path)
    # The tokenizer first: it is small, and its faults are then reported before large weights are read.
    tokenizer = load_matching_tokenizer(folder, read_target_config(folder).vocab_size)
    return load_model(folder, dtype), tokenizer


def load_model(path: str | Path, dtype: str | mx.Dtype | None = None) -> Model:
    """Loads a target without its tokenizer; see `load`."""
    folder, dtype = find_checkpoint(path), parse_dtype(dtype)
    model = Model(read_target_config(folder))
    headers = {name: header for name, header in read_headers(folder).items() if not name.startswith(DRAFTER_PREFIX)}
    load_weights(model, headers, dtype, folder, "target")
    model.path = str(folder)
    return model.eval()


def find_checkpoint(path: str | Path) -> Path:
    """The folder at a path, or else at the path from the library's root; a `ModelError` without a config.json there."""
    here = Path(path).expanduser()
    for folder in (here, Path(__file__).parent.parent / here):
        if (folder / "config.json").is_file():
            return folder
    what = "holds no config.json" if here.is_dir() else "is no folder"
    raise ModelError(f"{path} {what}: wanted a checkpoint folder with config.json and *.safetensors")


def read_config(folder: Path) -> dict[str, Any]:
    """The folder's config.json; a `ModelError` if it is no JSON object."""
    file = folder / "config.json"
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{file} is not valid JSON: {error}") from error
    if not isinstance(values, dict):
        raise ModelError(f"{file}: wanted a JSON object of the model's sizes, got {type(values).__name__}")
    return values


def read_target_config(folder: Path) -> DeepseekV4Config:
    """The target that the folder's config.json describes; a `ModelError` if that is no DeepSeek-V4."""
    values = read_config(folder)
    if values.get("model_type") != "deepseek_v4":
        raise ModelError(f"{folder}: wanted model_type deepseek_v4 in config.json, got {values.get('model_type')!r}")
    try:
        return DeepseekV4Config.from_dict(values)
    except ValueError as error:
        raise ModelError(f"{folder / 'config.json'}: {error}") from error


def parse_dtype(dtype: str | mx.Dtype | None) -> mx.Dtype | None:
    """The dtype of a name; a `ModelError` if it is not in `DTYPES`."""
    if dtype is None or isinstance(dtype, mx.Dtype):
        return dtype
    if dtype not in DTYPES:
        raise ModelError(f"dtype: wanted one of {', '.join(DTYPES)} or null, got {dtype!r}")
    return DTYPES[dtype]


def find_drafter(path: str | Path | None, target: Model) -> tuple[Path, dict[str, TensorHeader]]:
    """The folder of a drafter (by default its target's), and the headers of the drafter's tensors in it.

    Raises:
        ModelError: there is no folder, or no drafter in it.
    """
    if path is None and target.path is None:
        raise ModelError("drafter.path is null and the target was not loaded from a folder: give a checkpoint folder")
    folder = find_checkpoint(path or target.path)
    headers = {name: header for name, header in read_headers(folder).items() if name.startswith(DRAFTER_PREFIX)}
    if not headers:
        raise ModelError(f"{folder} holds no drafter ({DRAFTER_PREFIX}* tensors): give drafter.path another folder")
    return folder, headers


def load_matching_tokenizer(folder: Path, vocab_size: int) -> "TokenizerWrapper":
    """Loads the folder's tokenizer.

    Raises:
        ModelError: there is none, it cannot be read, or it has ids outside the model's vocabulary.
    """
    from mlx_lm.utils import load_tokenizer
    from transformers import PretrainedConfig

    if not (folder / "tokenizer.json").is_file():
        raise ModelError(f"{folder} holds no tokenizer.json: copy the checkpoint's tokenizer files beside its weights")
    try:
        # With an empty configuration transformers takes the class from tokenizer_config.json. Left alone it would read
        # config.json and refuse compression ratios that its own DeepSeek-V4 does not have.
        tokenizer = load_tokenizer(folder, {"config": PretrainedConfig()})
        largest = max(tokenizer.get_vocab().values(), default=-1)
    except Exception as error:  # the tokenizers package raises plain Exception for a file that it cannot read
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise ModelError(
            f"the tokenizer in {folder} cannot be read ({reason}): copy the checkpoint's tokenizer files again"
        ) from error
    if largest >= vocab_size:
        raise ModelError(
            f"the tokenizer in {folder} has token id {largest}, but the model's vocabulary has {vocab_size}: "
            "use the tokenizer that the checkpoint came with"
        )
    return tokenizer
