"""Block policies: how many tokens a round proposes.

``fixed`` knows nothing; ``ladder`` and ``window`` follow what was accepted; ``confidence`` and ``throughput`` what the
drafter thinks of its next token; ``break_even`` and ``ds4_scheduler`` turn drafting off when it does not pay, by costs
that are supplied; ``auto`` puts two of them together.
"""

from spec.blocks.auto import AutoBlock
from spec.blocks.break_even import BreakEvenBlock
from spec.blocks.confidence import ConfidenceBlock
from spec.blocks.ds4_scheduler import Ds4SchedulerBlock
from spec.blocks.fixed import FixedBlock
from spec.blocks.ladder import CappedBlock, SingleJumpBlock, StagedBlock
from spec.blocks.prices import Costs
from spec.blocks.throughput import ThroughputBlock
from spec.blocks.window import WindowBlock

__all__ = [
    "AutoBlock",
    "BreakEvenBlock",
    "CappedBlock",
    "ConfidenceBlock",
    "Costs",
    "Ds4SchedulerBlock",
    "FixedBlock",
    "SingleJumpBlock",
    "StagedBlock",
    "ThroughputBlock",
    "WindowBlock",
]
