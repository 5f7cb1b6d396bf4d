"""Loads the original MTP block of a checkpoint."""

import re
from pathlib import Path
from typing import get_args

from models.deepseek_v4.checkpoint import load_weights
from models.deepseek_v4.model import Model
from models.errors import ModelError
from models.loading import DRAFTER_PREFIX, find_drafter, read_config
from models.mtp.network import Collapse, MTPNetwork, block_config
from models.quantization import check_format, quantize

SHARED = re.compile(r"mtp\.0\.(emb\..*|head\.weight)")
"""Copies of the target's embedding and head that some checkpoints have; they are not loaded."""

BESIDE_DSPARK = "mtp"
"""Subfolder with the MTP block of a checkpoint whose own ``mtp.*`` tensors are DSpark's."""

UNSEEN_IN_SHAPES = (
    "sliding_window",
    "rope_theta",
    "qk_rope_head_dim",
    "num_experts_per_tok",
    "routed_scaling_factor",
    "swiglu_limit",
    "hc_sinkhorn_iters",
    "hc_eps",
    "rms_norm_eps",
)
"""Keys of ``config.json`` that block and target must have in common although no tensor's shape depends on them."""


def load_mtp(
    path: str | Path | None = None,
    *,
    target: Model,
    quant: str | None = None,
    collapse: Collapse = "own",
    zero_first_embedding: bool = False,
) -> MTPNetwork:
    """Loads an MTP block.

    Args:
        path: checkpoint folder; None for the target's. If it holds DSpark, its subfolder `BESIDE_DSPARK` is used.
        target: the model that it drafts for; its embedding and head are shared, and its sizes and dtype are used.
        quant: a name in `models.quantization.FORMATS` to quantize the block to; None keeps its weights as stored.
        collapse: see `MTPNetwork`, as for ``zero_first_embedding``.

    Raises:
        ModelError: there is no MTP block, it does not fit the target, an option is unknown, or tensors are missing or
            unexpected.
    """
    check_format(quant)
    if collapse not in get_args(Collapse):
        raise ModelError(f"drafter.collapse: wanted one of {', '.join(get_args(Collapse))}, got {collapse!r}")
    folder, headers = find_drafter(path, target)
    if "mtp.0.e_proj.weight" not in headers and (folder / BESIDE_DSPARK / "config.json").is_file():
        folder, headers = find_drafter(folder / BESIDE_DSPARK, target)
    if "mtp.0.main_proj.weight" in headers:
        raise ModelError(
            f"the {DRAFTER_PREFIX}* tensors in {folder} are DSpark (mtp.0.main_proj.weight), not the original MTP "
            "block: take drafter=dspark, or give drafter.path the folder of an original checkpoint"
        )
    if "mtp.0.e_proj.weight" not in headers:
        raise ModelError(
            f"the {DRAFTER_PREFIX}* tensors in {folder} are another drafter, not the original MTP block "
            "(mtp.0.e_proj.weight): give drafter.path the folder of an original checkpoint"
        )
    _check_constants(folder, target)
    headers = {name: header for name, header in headers.items() if not SHARED.fullmatch(name)}
    try:
        config = block_config(target.args, read_config(folder))
    except ValueError as error:
        raise ModelError(f"{folder / 'config.json'}: {error}") from error
    network = MTPNetwork(target, collapse, zero_first_embedding, config)
    load_weights(network, headers, target.norm.weight.dtype, folder, "MTP block")
    quantize(network, quant)
    return network.eval()


def _check_constants(folder: Path, target: Model) -> None:
    """Raises a `ModelError` if config.json tells that the block was trained for another target."""
    values = read_config(folder)
    for name in UNSEEN_IN_SHAPES:
        wanted = getattr(target.args, name)
        if values.get(name, wanted) != wanted:
            raise ModelError(
                f"{folder / 'config.json'}: {name} is {values[name]!r}, the target's is {wanted!r}: give drafter.path "
                "a block that was trained with this target"
            )
    ratios, depth = values.get("compress_ratios"), target.args.num_hidden_layers
    if isinstance(ratios, list) and any(ratios[depth : depth + 1]):
        raise ModelError(
            f"{folder / 'config.json'}: compress_ratios gives the MTP block the ratio {ratios[depth]}, wanted 0: only "
            "the window-only block of DeepSeek-V4 is known"
        )
