"""``load_mtp(path, target) -> network``: the MTP block that an original checkpoint keeps under ``mtp.0.*``."""

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
"""Copies of the target's embedding and head: DeepSeek's own conversion drops them from a checkpoint that has them."""

BESIDE_DSPARK = "mtp"
"""Sub-folder of a checkpoint that holds the block where the checkpoint's own ``mtp.*`` tensors are DSpark's."""

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
"""Sizes and constants of the block that no tensor's shape tells."""


def load_mtp(
    path: str | Path | None = None,
    *,
    target: Model,
    quant: str | None = None,
    collapse: Collapse = "own",
    zero_first_embedding: bool = False,
) -> MTPNetwork:
    """Loads the MTP block of a checkpoint.

    Args:
        path: checkpoint folder; None for the one that the target came from. Where DSpark stands in it, the block is
            looked for in its sub-folder `BESIDE_DSPARK`, since both go by the same names.
        target: the model that it drafts for; gives sizes, embedding, head and dtype.
        quant: format of its matrices, a name of `models.quantization.FORMATS`; None keeps them as stored.
        collapse: see `MTPNetwork`.
        zero_first_embedding: see `MTPNetwork`.

    Returns:
        The network in evaluation mode.

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
    """Refuses a block that was made for another target where the tensors' shapes would not tell.

    Raises:
        ModelError: config.json says so.
    """
    values = read_config(folder)
    for name in UNSEEN_IN_SHAPES:
        wanted = getattr(target.args, name)
        if values.get(name, wanted) != wanted:
            raise ModelError(
                f"{folder / 'config.json'}: {name} is {values[name]!r}, the target's is {wanted!r}: give drafter.path "
                "a block that was trained with this target"
            )
    ratios, depth = values.get("compress_ratios", ()), target.args.num_hidden_layers
    if any(ratios[depth : depth + 1]):
        raise ModelError(
            f"{folder / 'config.json'}: compress_ratios gives the MTP block the ratio {ratios[depth]}, wanted 0: only "
            "the window-only block of DeepSeek-V4 is known"
        )
