"""Drafters propose tokens and remember the committed ones."""

from spec.drafters.dspark import DSparkDrafter
from spec.drafters.language_model import LanguageModelDrafter
from spec.drafters.mtp import MTPDrafter
from spec.drafters.ngram import NgramDrafter
from spec.drafters.none import NoneDrafter
from spec.drafters.oracle import OracleDrafter
