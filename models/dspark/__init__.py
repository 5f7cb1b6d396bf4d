"""The DSpark drafter's network."""

from models.dspark.config import DSparkConfig
from models.dspark.loading import load_dspark
from models.dspark.network import BlockOutput, DraftOutput, DSparkNetwork
