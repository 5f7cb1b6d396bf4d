"""MLX models for speculative decoding, and their files: ``from models import load``."""

from models.deepseek_v4 import DeepseekV4Config, Model
from models.dspark import load_dspark
from models.errors import ModelError
from models.loading import load, load_model
from models.mtp import load_mtp
