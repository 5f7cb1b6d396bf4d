"""``load(path) -> (model, tokenizer)``: a DeepSeek-V4 checkpoint folder becomes a target that runs."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.utils import load_tokenizer
from transformers import PretrainedConfig

from models.deepseek_v4.config import DeepseekV4Config
from models.deepseek_v4.model import Model
from models.errors import ModelError
from models.formats.checkpoint import TensorHeader, census, expected_tensors, load_weights, read_headers

DRAFTER_PREFIX = "mtp."  # a checkpoint keeps its drafter's tensors beside the target's, under this prefix
DTYPES = {"float32": mx.float32, "bfloat16": mx.bfloat16, "float16": mx.float16}


def find_checkpoint(path: str | Path) -> Path:
    """The folder of a checkpoint: as given, or, for what ships with the library, relative to its root.

    Raises:
        ModelError: there is no such folder, or it has no config.json.
    """
    here = Path(path).expanduser()
    for folder in (here, Path(__file__).parent.parent / here):
        if (folder / "config.json").is_file():
            return folder
    what = "holds no config.json" if here.is_dir() else "is no folder"
    raise ModelError(f"{path} {what}: wanted a checkpoint folder with config.json and *.safetensors")


def read_config(folder: Path) -> dict[str, Any]:
    """The folder's config.json.

    Raises:
        ModelError: it is no JSON object.
    """
    file = folder / "config.json"
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{file} is not valid JSON: {error}") from error
    if not isinstance(values, dict):
        raise ModelError(f"{file}: wanted a JSON object of the model's sizes, got {type(values).__name__}")
    return values


def read_target_config(folder: Path) -> DeepseekV4Config:
    """The target that the folder's config.json describes.

    Raises:
        ModelError: it describes none.
    """
    values = read_config(folder)
    if values.get("model_type") != "deepseek_v4":
        raise ModelError(f"{folder}: wanted model_type deepseek_v4 in config.json, got {values.get('model_type')!r}")
    try:
        return DeepseekV4Config.from_dict(values)
    except ValueError as error:
        raise ModelError(f"{folder / 'config.json'}: {error}") from error


def parse_dtype(dtype: str | mx.Dtype | None) -> mx.Dtype | None:
    """A dtype from its name.

    Raises:
        ModelError: the name is unknown.
    """
    if dtype is None or isinstance(dtype, mx.Dtype):
        return dtype
    if dtype not in DTYPES:
        raise ModelError(f"dtype: wanted one of {', '.join(DTYPES)} or null, got {dtype!r}")
    return DTYPES[dtype]


def load_model(path: str | Path, dtype: str | mx.Dtype | None = None) -> Model:
    """The target alone, without its tokenizer; arguments and errors as `load`."""
    folder, dtype = find_checkpoint(path), parse_dtype(dtype)
    model = Model(read_target_config(folder))
    headers = {name: header for name, header in read_headers(folder).items() if not name.startswith(DRAFTER_PREFIX)}
    census(expected_tensors(model), headers, folder, "target")
    load_weights(model, headers, dtype)
    model.path = str(folder)
    return model.eval()


def find_drafter(path: str | Path | None, target: Model) -> tuple[Path, dict[str, TensorHeader]]:
    """The folder of a drafter's checkpoint and the headers of the drafter's tensors.

    Args:
        path: checkpoint folder; None for the one that the target came from.
        target: the model that it drafts for.

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


def load(path: str | Path, dtype: str | mx.Dtype | None = None) -> tuple[Model, TokenizerWrapper]:
    """Loads a target and its tokenizer from a folder in the layout of the DeepSeek-V4 checkpoints.

    Args:
        path: folder with ``config.json`` (``model_type: deepseek_v4``), ``*.safetensors`` and tokenizer files.
        dtype: "float32", "bfloat16" or "float16" for the weights; None keeps the checkpoint's.

    Returns:
        The model in evaluation mode and mlx-lm's tokenizer wrapper.

    Raises:
        ModelError: the folder, its configuration, its tensors or its tokenizer do not fit; nothing is half-loaded.
    """
    folder = find_checkpoint(path)
    # The tokenizer is small: its faults are told before the weights, which may be large, are read.
    tokenizer = load_matching_tokenizer(folder, read_target_config(folder).vocab_size)
    return load_model(folder, dtype), tokenizer


def load_matching_tokenizer(folder: Path, vocab_size: int) -> TokenizerWrapper:
    """The folder's tokenizer.

    Raises:
        ModelError: there is none, it cannot be read, or it has ids that the vocabulary does not.
    """
    if not (folder / "tokenizer.json").is_file():
        raise ModelError(f"{folder} holds no tokenizer.json: copy the checkpoint's tokenizer files beside its weights")
    try:
        # An empty configuration, since transformers would read config.json for the tokenizer's class and refuse models
        # that its own DeepSeek-V4 does not cover; the class stands in tokenizer_config.json.
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
