"""For those who write parts: contracts that a part is tested against, the exact law of a verifier, and test doubles.

Nothing in ``spec`` imports this. A contract is a class of tests for pytest, which one subclasses with a part::

    from spec.testing import DrafterContract

    class TestEchoDrafter(DrafterContract):
        def make(self, target):
            return EchoDrafter()
"""

from spec.targets.recorded import RecordedTarget
from spec.testing.doubles import (
    ConfidentOracle,
    MixedDrafter,
    NosyPolicy,
    PlannedDrafter,
    WatchedPolicy,
    WatchedRound,
    WrongDrafter,
    random_text,
)
from spec.testing.drafter_contract import DrafterContract
from spec.testing.law import Law, Tree, TreeDrafter, distance, law_of, round_law, target_law
from spec.testing.policy_contract import BlockPolicyContract
from spec.testing.verifier_contract import VerifierContract
