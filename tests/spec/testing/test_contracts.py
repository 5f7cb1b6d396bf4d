"""The contracts find what is wrong with a part, and say it; a right part passes in the tests of its role."""

import itertools
import subprocess
import sys
from dataclasses import dataclass, replace

import mlx.core as mx
import numpy as np
import pytest

from spec import (
    BlockPlan,
    GreedyVerifier,
    NoneDrafter,
    PartError,
    Proposal,
    RejectionVerifier,
    SampleMatchVerifier,
    Sampling,
    Verdict,
)
from spec.testing import (
    BlockPolicyContract,
    ConfidentOracle,
    DrafterContract,
    NosyPolicy,
    VerifierContract,
)
from spec.verifiers import processed_rows


class Shown(NoneDrafter):
    """Proposes what it was shown first and the number of tokens that it was shown: a right drafter to be spoiled."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def reset(self, prompt_length: int) -> None:
        self.seen = []

    def observe(self, tokens, features) -> None:
        self.seen += tokens

    def propose(self, context, gamma, admits=None) -> Proposal:
        return Proposal(tokens=tuple([self.seen[0], len(self.seen) % 8, context.anchor][:gamma]))


class RemembersDrafts(Shown):
    def propose(self, context, gamma, admits=None) -> Proposal:
        proposal = super().propose(context, gamma)
        self.seen += proposal.tokens
        return proposal


class ForgetsMisses(Shown):
    def observe(self, tokens, features) -> None:
        if len(tokens) != 1 or len(self.seen) < 21:
            super().observe(tokens, features)


class ForgetsUndrafted(Shown):
    def reset(self, prompt_length: int) -> None:
        self.prompt_length, self.has_drafted = prompt_length, False
        super().reset(prompt_length)

    def observe(self, tokens, features) -> None:
        if self.has_drafted or len(self.seen) < self.prompt_length:
            super().observe(tokens, features)
        self.has_drafted = False

    def propose(self, context, gamma, admits=None) -> Proposal:
        self.has_drafted = True
        return super().propose(context, gamma)


class KeepsTheLastText(Shown):
    def reset(self, prompt_length: int) -> None: ...


class ForgetsChunks(Shown):
    def observe(self, tokens, features) -> None:
        self.seen += tokens[-1:]


class ProposesArrays(Shown):
    def propose(self, context, gamma, admits=None) -> Proposal:
        return Proposal(tokens=tuple(np.array(super().propose(context, gamma).tokens)))


class ProposesTooMany(Shown):
    def propose(self, context, gamma, admits=None) -> Proposal:
        return super().propose(context, gamma + 1)


class ProposesForeignIds(Shown):
    def propose(self, context, gamma, admits=None) -> Proposal:
        return Proposal(tokens=(8,))


class NeverAsks(Shown):
    def propose(self, context, gamma, admits=None) -> Proposal:
        return replace(super().propose(context, gamma), confidence=(0.5,) * min(gamma, 3))


class AsksOn(ConfidentOracle):
    def propose(self, context, gamma, admits=None) -> Proposal:
        whole = super().propose(context, gamma)
        answers = [admits is None or admits(whole.confidence[: at + 1]) for at in range(len(whole.tokens))]
        count = (*answers, False).index(False)
        return whole[:count]


class Lists(Shown):
    tapped_layers = [1]  # noqa: RUF012


@pytest.mark.parametrize(
    ("drafter", "test", "message"),
    [
        (RemembersDrafts, "proposing_leaves_what_is_remembered_as_it_was", "proposed again: it proposes"),
        (RemembersDrafts, "it_remembers_the_committed_tokens_after_any_mix_of_rounds", "round 1 .*shapes"),
        (RemembersDrafts, "what_is_committed_counts_and_not_what_was_proposed", r"committed .*shapes"),
        (ForgetsMisses, "it_remembers_the_committed_tokens_after_any_mix_of_rounds", r"round 2 \(partial\).*shapes"),
        (ForgetsUndrafted, "it_remembers_the_committed_tokens_after_any_mix_of_rounds", r"round 1 .*shapes"),
        (
            ForgetsMisses,
            "it_does_not_matter_how_the_text_is_cut",
            "41 tokens in chunks of 5: it remembers arrays of sh",
        ),
        (ForgetsChunks, "it_does_not_matter_how_the_text_is_cut", "chunks of 5: it remembers arrays of shapes"),
        (KeepsTheLastText, "a_reset_forgets", "something is left after a reset"),
        (ProposesArrays, "proposals_are_well_formed", r"tuple of Python integers.*use \.tolist"),
        (ProposesTooMany, "proposals_are_well_formed", "proposed 2 tokens, wanted at most 1"),
        (ProposesForeignIds, "proposals_are_well_formed", r"proposed \[8\]: wanted ids below the target's 8"),
        (NeverAsks, "it_stops_at_the_first_refusal", "it has confidences: wanted admits to be asked"),
        (AsksOn, "it_stops_at_the_first_refusal", "token 1 was refused, admits was asked on"),
        (Lists, "it_has_what_the_protocol_has", r"wanted a tuple, got \[1\]"),
    ],
)
def test_what_is_wrong_with_a_drafter(drafter: type, test: str, message: str) -> None:
    class Contract(DrafterContract):
        def make(self, target):
            return drafter()

        def memory(self, drafter):
            return [mx.array(getattr(drafter, "seen", []))]

        def make_target(self, drafter):
            return super().make_target(NoneDrafter())

    with pytest.raises((AssertionError, PartError), match=message):
        getattr(Contract(), f"test_{test}")()


def test_a_drafter_that_reads_features_needs_a_model() -> None:
    class Contract(DrafterContract):
        def make(self, target):
            return Lists()

    with pytest.raises(AssertionError, match=r"wants layers of a model: override model\(self\)"):
        Contract().test_proposals_are_well_formed()


# --- verifiers ---


class Lossy(GreedyVerifier):
    """Says tokens and accepts everything."""

    def accept(self, proposal, logits, context) -> Verdict:
        rows, count = processed_rows(self.sampling, proposal, logits, context), len(proposal.tokens)
        return Verdict(accepted=count, next_token=int(mx.argmax(rows[count])) if len(rows) > count else None)


class Biased(RejectionVerifier):
    """Says law and corrects from p in place of the residual."""

    def accept(self, proposal, logits, context) -> Verdict:
        verdict = super().accept(proposal, logits, context)
        if verdict.accepted == len(proposal.tokens):
            return verdict
        row = self.sampling.logprobs(logits, context.tokens, proposal.tokens)[verdict.accepted]
        token = context.random.categorical(row, context.position + 1 + verdict.accepted, "bonus")
        return replace(verdict, next_token=int(token))


class LawAlone(RejectionVerifier):
    guarantee = "tokens"


class Counting(SampleMatchVerifier):
    """Keeps state: every second verdict is another."""

    count = itertools.count()

    def accept(self, proposal, logits, context) -> Verdict:
        verdict = super().accept(proposal, logits, context)
        return verdict if next(self.count) % 2 else Verdict(accepted=0, next_token=0)


class Bonus(GreedyVerifier):
    """Makes up a token where there is no row."""

    def accept(self, proposal, logits, context) -> Verdict:
        verdict = super().accept(proposal, logits, context)
        return replace(verdict, next_token=0) if verdict.next_token is None else verdict


class Promising(GreedyVerifier):
    guarantee = "exact"


@pytest.mark.parametrize(
    ("verifier", "test", "message"),
    [
        (Lossy, "a_round_has_the_targets_law_if_that_is_promised", "this is not the target's law, which guarantee 'to"),
        (Lossy, "the_tokens_are_plain_decodings_if_that_is_promised", "wanted plain decoding's .* 'tokens' promises"),
        (Biased, "a_round_has_the_targets_law_if_that_is_promised", "a probability is off by 0"),
        (LawAlone, "the_tokens_are_plain_decodings_if_that_is_promised", "temperature 1, .* 'tokens' promises them"),
        (Counting, "verdicts_are_well_formed", "asked twice it decides differently"),
        (Bonus, "verdicts_are_well_formed", "no row is left for a bonus: wanted next_token None, got 0"),
        (Promising, "it_has_what_the_protocol_has", "wanted tokens .*, law .* or none, got 'exact'"),
    ],
)
def test_what_is_wrong_with_a_verifier(verifier: type, test: str, message: str) -> None:
    class Contract(VerifierContract):
        def make(self, sampling):
            return verifier(sampling=sampling)

    with pytest.raises(AssertionError, match=message):
        getattr(Contract(), f"test_{test}")()


def test_a_verifier_that_takes_no_setting_is_not_tested_by_silence() -> None:
    class Contract(VerifierContract):
        settings = {"warm": Sampling(temperature=1.0)}  # noqa: RUF012

        def make(self, sampling):
            return GreedyVerifier(sampling=sampling)

    with pytest.raises(AssertionError, match="every setting is refused, the first with: verifier=greedy"):
        Contract().test_verdicts_are_well_formed()


# --- policies ---


@dataclass
class Counter:
    value: int = 0


class Mutating(NosyPolicy):
    """Changes the state that it is given."""

    def init(self) -> Counter:
        return Counter()

    def plan(self, state, tokens_left) -> BlockPlan:
        return BlockPlan(gamma=1 + state.value % 2)

    def after(self, state, finished) -> Counter:
        state.value += 1 + finished.accepted
        return state


class Learning(NosyPolicy):
    """Keeps in itself what it learns."""

    def __init__(self) -> None:
        self.last = 0

    def plan(self, state, tokens_left) -> BlockPlan:
        return BlockPlan(gamma=1 + self.last % 2)

    def after(self, state, finished) -> int:
        self.last += 1 + finished.accepted
        return state


class Restless(NosyPolicy):
    """Plans another block whenever it is asked."""

    def __init__(self) -> None:
        self.asked = itertools.count()

    def plan(self, state, tokens_left) -> BlockPlan:
        return BlockPlan(gamma=1 + next(self.asked) % 2)


class Greedier(NosyPolicy):
    def plan(self, state, tokens_left) -> BlockPlan:
        return BlockPlan(gamma=3 if tokens_left > 500 else 2)


class Unsure(NosyPolicy):
    """Admits now this, now that."""

    def __init__(self) -> None:
        self.asked = itertools.count()

    def admits(self, state, confidences) -> bool:
        return next(self.asked) % 3 > 0


class Closed(NosyPolicy):
    """Its state is no value."""

    def init(self):
        return lambda: 0


class Unlimited(NosyPolicy):
    max_gamma = None


@pytest.mark.parametrize(
    ("policy", "test", "message"),
    [
        (Mutating, "to_decide_changes_nothing", "from the same state later as .*: return a new state from after"),
        (Mutating, "a_state_is_a_value", "what is learned must be in the state alone"),
        (Learning, "a_state_is_a_value", "from the state before round .* must be in the state alone"),
        (Learning, "init_forgets", "after init it plans .*: init must return the state before the first round"),
        (Restless, "to_decide_changes_nothing", "keep nothing in the policy"),
        (Greedier, "plans_stay_in_their_range", r"Greedier.plan wanted gamma in 0..2, got 3"),
        (Unsure, "to_decide_changes_nothing", r"admits\(.*\) was .* and is not when asked again"),
        (Closed, "a_state_is_a_value", "must be a value that can be pickled"),
        (Unlimited, "it_has_what_the_protocol_has", "max_gamma: wanted a whole number of 0 or more, got None"),
    ],
)
def test_what_is_wrong_with_a_policy(policy: type, test: str, message: str) -> None:
    class Contract(BlockPolicyContract):
        def make(self):
            return policy()

    with pytest.raises((AssertionError, PartError), match=message):
        getattr(Contract(), f"test_{test}")()


# --- the package ---


@pytest.mark.parametrize(
    ("contract", "test", "message"),
    [
        (DrafterContract, "proposals_are_well_formed", r"def make\(self, target\)"),
        (VerifierContract, "verdicts_are_well_formed", r"def make\(self, sampling\)"),
        (BlockPolicyContract, "init_forgets", r"def make\(self\)"),
    ],
)
def test_a_contract_without_a_part_says_what_to_write(contract: type, test: str, message: str) -> None:
    with pytest.raises(NotImplementedError, match=message):
        getattr(contract(), f"test_{test}")()


def test_nothing_in_the_library_imports_its_tests_nor_do_they_pytest() -> None:
    program = (
        "import sys, spec; assert 'spec.testing' not in sys.modules;"
        "import spec.testing; assert not {'pytest', 'hypothesis'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
