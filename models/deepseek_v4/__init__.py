"""The DeepSeek-V4 target."""

from models.deepseek_v4.cache import LayerCache
from models.deepseek_v4.config import DeepseekV4Config, LayerKind
from models.deepseek_v4.model import STREAMS, Model

__all__ = ["STREAMS", "DeepseekV4Config", "LayerCache", "LayerKind", "Model"]
