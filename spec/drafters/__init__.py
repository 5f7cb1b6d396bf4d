"""Drafters: what proposes tokens, and remembers the committed ones."""

from spec.drafters.dspark import DSparkDrafter
from spec.drafters.ngram import NgramDrafter
from spec.drafters.none import NoneDrafter
from spec.drafters.oracle import OracleDrafter

__all__ = ["DSparkDrafter", "NgramDrafter", "NoneDrafter", "OracleDrafter"]
