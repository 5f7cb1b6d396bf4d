"""Verifiers: which prefix of a proposal is accepted, and which token comes next.

`processed_rows`, `target_rows`, `acceptance`, `residual`, `correction` and `bonus` are what they are made of, for a
verifier of one's own.
"""

from spec.verifiers.block import BlockVerifier
from spec.verifiers.greedy import GreedyVerifier
from spec.verifiers.rejection import RejectionVerifier, acceptance, bonus, correction, residual
from spec.verifiers.rows import processed_rows, target_rows
from spec.verifiers.sample_match import SampleMatchVerifier
