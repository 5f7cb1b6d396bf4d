"""Measuring a run: benchmark, cost account, exactness, records."""

from spec.measure.account import Account, IdentityError, account_for, check_round
from spec.measure.environment import describe
from spec.measure.exactness import Divergence, Exactness, teacher_force
from spec.measure.records import RunFolder, read_lines, read_summary
from spec.measure.repetition import repeated_ngram_share
