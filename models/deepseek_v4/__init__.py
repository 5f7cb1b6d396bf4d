"""The DeepSeek-V4 target."""

from models.deepseek_v4.cache import LayerCache
from models.deepseek_v4.config import DeepseekV4Config, LayerKind
from models.deepseek_v4.model import STREAMS, Model
