"""The original one-stage MTP block, the drafter of the first DeepSeek-V4 checkpoints."""

from models.mtp.loading import load_mtp
from models.mtp.network import Collapse, MTPNetwork, block_config
