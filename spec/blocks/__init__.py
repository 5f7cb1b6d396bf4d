"""Block policies: how many tokens a round proposes.

``fixed`` knows nothing; ``ladder`` and ``window`` follow what was accepted; ``confidence`` and ``throughput`` what the
drafter thinks of its next token; ``break_even`` and ``ds4_scheduler`` turn drafting off when it does not pay, by costs
that are supplied; ``auto`` puts two of them together.
"""

from spec.blocks.auto import AutoPolicy
from spec.blocks.break_even import BreakEvenPolicy
from spec.blocks.confidence import ConfidencePolicy
from spec.blocks.ds4_scheduler import Ds4SchedulerPolicy
from spec.blocks.fixed import FixedPolicy
from spec.blocks.ladder import CappedPolicy, SingleJumpPolicy, StagedPolicy
from spec.blocks.policy import FullBlockPolicy
from spec.blocks.prices import Costs
from spec.blocks.throughput import ThroughputPolicy
from spec.blocks.window import WindowPolicy
