"""Verifiers: which prefix of a proposal stands, and which token comes next."""

from spec.verifiers.block import BlockVerifier
from spec.verifiers.greedy import GreedyVerifier
from spec.verifiers.rejection import RejectionVerifier
from spec.verifiers.sample_match import SampleMatchVerifier

__all__ = ["BlockVerifier", "GreedyVerifier", "RejectionVerifier", "SampleMatchVerifier"]
