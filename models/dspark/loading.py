"""Loads the DSpark drafter of a checkpoint."""

import re
from pathlib import Path

from models.deepseek_v4.checkpoint import load_weights
from models.deepseek_v4.model import Model
from models.dspark.config import DSparkConfig
from models.dspark.network import DSparkNetwork
from models.errors import ModelError
from models.loading import DRAFTER_PREFIX, find_drafter, read_config
from models.quantization import check_format, quantize

MARK = re.compile(r"mtp\.0\.main_proj\.weight|mtp\.\d+\.confidence_head\.proj\.weight")
"""Tensors by which DSpark is recognized; a drafter without features has only the second."""


def load_dspark(path: str | Path | None = None, *, target: Model, quant: str | None = None) -> DSparkNetwork:
    """Loads a DSpark drafter.

    Args:
        path: checkpoint folder; None for the target's.
        target: the model that it drafts for; its embedding and head are shared, and its dtype is used.
        quant: a name in `models.quantization.FORMATS` to quantize the drafter to; None keeps its weights as stored.

    Raises:
        ModelError: there is no DSpark drafter, it does not fit the target, or tensors are missing or unexpected.
    """
    check_format(quant)
    folder, headers = find_drafter(path, target)
    if "mtp.0.e_proj.weight" in headers or not any(MARK.fullmatch(name) for name in headers):
        kind = "the original MTP block (e_proj)" if any("e_proj" in name for name in headers) else "another drafter"
        raise ModelError(
            f"the {DRAFTER_PREFIX}* tensors in {folder} are {kind}, not DSpark (mtp.0.main_proj.weight): "
            "give drafter.path the folder of a DSpark checkpoint"
        )
    # From the tensors: num_nextn_predict_layers is 1 in the real checkpoints, whatever the number of stages.
    numbers = [re.match(r"mtp\.(\d+)\.", name) for name in headers]
    stages = 1 + max(int(number[1]) for number in numbers if number)
    try:
        config = DSparkConfig.from_dict(read_config(folder), target.args, stages)
    except ValueError as error:
        raise ModelError(f"{folder / 'config.json'}: {error}") from error
    network = DSparkNetwork(config, target)
    load_weights(network, headers, target.embed.weight.dtype, folder, "DSpark drafter")
    quantize(network, quant)
    return network.eval()
