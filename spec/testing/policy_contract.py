"""What every block policy owes the loop, as tests that a policy from anywhere is run against.

The rounds are real ones: a policy is watched through both loops under drafters that are right, wrong or neither, and
asked again afterwards, from the states that it returned and from copies of them.
"""

import pickle
from collections.abc import Iterator
from typing import Any

from spec import protocols
from spec.drafters.oracle import OracleDrafter
from spec.loop import FoldedLoop, SeparateLoop
from spec.loop.border import check_part, check_plan
from spec.measure.generation import Generation, collect
from spec.protocols import BlockPolicy, Drafter
from spec.rounds import BlockPlan, Request
from spec.targets.recorded import RecordedTarget
from spec.testing.doubles import ConfidentOracle, WatchedPolicy, WatchedRound, random_text

LENGTH = 80
TEXT = random_text(8, 10 + LENGTH)
PROMPT, OUTPUT = TEXT[:10], TEXT[10:]
DRAFTERS: dict[str, Drafter] = {
    "a drafter that is always right": OracleDrafter(accept_rate=1.0),
    "a drafter that is always wrong": OracleDrafter(accept_rate=0.0),
    "a drafter that is right at random": OracleDrafter(accept_rate=0.7),
    "a drafter with confidences": ConfidentOracle(accept_rate=0.8),
}


class BlockPolicyContract:
    """Tests of a block policy. Subclass it in a test module, and say how yours is made::

    class TestAlternatingPolicy(BlockPolicyContract):
        def make(self):
            return AlternatingPolicy()
    """

    def make(self) -> BlockPolicy:
        """A policy."""
        raise NotImplementedError("say how your policy is made: def make(self): return MyPolicy(...)")

    # --- the tests ---

    def test_it_has_what_the_protocol_has(self) -> None:
        """Every attribute and method, and a limit that is a number."""
        policy = self.make()
        check_part("block", policy, protocols.BlockPolicy)
        longest = policy.max_gamma
        is_number = type(longest) is int and longest >= 0
        assert is_number, f"max_gamma: wanted a whole number of 0 or more, got {longest!r}"

    def test_the_output_is_plain_decodings_and_every_undrafted_round_says_why(self) -> None:
        """In both loops, whatever the drafter is worth."""
        for what, _, done, _ in self._runs():
            assert done.tokens == OUTPUT, f"{what}: wanted plain decoding's {OUTPUT}, got {done.tokens}"
            silent = [item.index for item in done.rounds if not item.proposed and not item.reason]
            assert not silent, f"{what}: rounds {silent} have neither a proposal nor a reason for none"

    def test_plans_stay_in_their_range(self) -> None:
        """0 to max_gamma, from every state, however little is left; 0 with a reason."""
        for what, policy, _, watched in self._runs():
            for state in {id(item.state): item.state for item in watched}.values():
                for tokens_left in (1, 2, 3, 7, 1000):
                    plan = check_plan(policy.plan(state, tokens_left), policy)
                    assert plan.gamma > 0 or plan.reason, f"{what}: a plan of 0 says why, got {plan}"

    def test_to_decide_changes_nothing(self) -> None:
        """`plan` and `admits` answer by the state and their arguments alone; `after` leaves the state it is given."""
        for what, policy, _, watched in self._runs():
            for item in reversed(watched):
                again = policy.plan(item.state, item.tokens_left)
                assert again == item.plan, (
                    f"{what}: round {item.finished.index} was planned as {item.plan}, and from the same state later as "
                    f"{again}: return a new state from after, and keep nothing in the policy"
                )
                for confidences, answer in item.asked:
                    assert type(answer) is bool, f"{what}: admits must return True or False, got {answer!r}"
                    assert policy.admits(item.state, confidences) is answer, (
                        f"{what}: admits({confidences}) was {answer} and is not when asked again with the same state"
                    )

    def test_a_state_is_a_value(self) -> None:
        """A run goes on from any state of it, and from a copy that was pickled then, as it went on before."""
        for what, policy, _, watched in self._runs():
            wanted = [item.plan for item in watched]
            for start in {0, 1, len(watched) // 3, len(watched) // 2, len(watched) - 1}:
                for kind, state in (
                    ("the state", watched[start].state),
                    ("a copy of the state", pickle.loads(watched[start].pickled)),
                ):
                    found = _plans(policy, state, watched[start:])
                    assert found == wanted[start:], (
                        f"{what}: from {kind} before round {start + 1} it plans {_gammas(found)}, the run planned "
                        f"{_gammas(wanted[start:])}: what is learned must be in the state alone"
                    )

    def test_init_forgets(self) -> None:
        """A run after another one, or of a new policy, is planned as the first was."""
        for what, policy, _, watched in self._runs():
            wanted = [item.plan for item in watched]
            for kind, asked in (("init", policy), ("a new policy", self.make())):
                found = _plans(asked, asked.init(), watched)
                assert found == wanted, (
                    f"{what}: after {kind} it plans {_gammas(found)}, the run before {_gammas(wanted)}: init must "
                    "return the state before the first round"
                )

    # --- what they are made of ---

    def _runs(self) -> Iterator[tuple[str, BlockPolicy, Generation, list[WatchedRound]]]:
        """Generations with what the policy was asked in each of their rounds."""
        for shape in (FoldedLoop, SeparateLoop):
            for what, drafter in DRAFTERS.items():
                policy = self.make()
                watched = WatchedPolicy(policy)
                loop = shape(RecordedTarget.of_tokens(TEXT, 8), drafter, block=watched)
                done = collect(loop.rounds(Request(prompt=PROMPT, max_tokens=LENGTH, reference=OUTPUT)))
                yield f"{shape.__name__}, {what}", policy, done, watched.rounds


def _plans(policy: BlockPolicy, state: Any, watched: list[WatchedRound]) -> list[BlockPlan]:
    """What is planned from a state on, when the same rounds follow."""
    plans = []
    for item in watched:
        plans.append(policy.plan(state, item.tokens_left))
        state = policy.after(state, item.finished)
    return plans


def _gammas(plans: list[BlockPlan]) -> list[int]:
    return [plan.gamma for plan in plans]
