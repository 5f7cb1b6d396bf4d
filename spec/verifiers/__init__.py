"""Verifiers: which prefix of a proposal stands, and which token comes next."""

from spec.verifiers.greedy import GreedyVerifier
from spec.verifiers.sample_match import SampleMatchVerifier

__all__ = ["GreedyVerifier", "SampleMatchVerifier"]
