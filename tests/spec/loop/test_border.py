"""What is not what its contract says is refused at the loop's border: the part by name, what it owed, what came."""

from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from spec import (
    BlockPlan,
    FixedPolicy,
    FoldedLoop,
    GreedyVerifier,
    NoneDrafter,
    PartError,
    PrefixCommit,
    Proposal,
    Request,
    Sampling,
    SeparateLoop,
    SpeculativeLoop,
    TokenReplay,
    UserError,
    Verdict,
    collect,
)
from spec.testing import NosyPolicy, PlannedDrafter
from tests.spec.doubles import scripted_target

SCRIPT = tuple(range(1, 31))
SHAPES = pytest.mark.parametrize("shape", [FoldedLoop, SeparateLoop])


def run(shape: type[SpeculativeLoop], drafter: Any = None, **parts: Any) -> None:
    drafter = PlannedDrafter(SCRIPT) if drafter is None else drafter
    loop = shape(scripted_target(SCRIPT), drafter, **({"block": FixedPolicy(gamma=3)} | parts))
    collect(loop.rounds(Request(prompt=SCRIPT[:5], max_tokens=12)))


class Proposing(NoneDrafter):
    """Proposes whatever it is given."""

    def __init__(self, proposal: Any) -> None:
        self.proposal = proposal

    def propose(self, context, gamma, admits=None) -> Any:
        return self.proposal


class Judging(GreedyVerifier):
    """Judges what has drafts as it is told to, the rest rightly."""

    verdict: Any = None

    def accept(self, proposal, logits, context) -> Any:
        return self.verdict if proposal.tokens else super().accept(proposal, logits, context)


def judging(verdict: Any) -> Judging:
    verifier = Judging(sampling=Sampling())
    object.__setattr__(verifier, "verdict", verdict)
    return verifier


class Planning(NosyPolicy):
    """Plans whatever it is given."""

    def __init__(self, plan: Any) -> None:
        self.given = plan

    def plan(self, state, tokens_left) -> Any:
        return self.given


@SHAPES
@pytest.mark.parametrize(
    ("proposal", "message"),
    [
        (Proposal(tokens=tuple(np.array([6, 7]))), r"tuple of Python integers, got .*6.* \(int64\): use \.tolist"),
        (Proposal(tokens=tuple(mx.array([6, 7]))), r"tuple of Python integers, got .*6.* \(array\): use \.tolist"),
        (Proposal(tokens=(6, True)), r"tuple of Python integers, got True \(bool\)"),
        (Proposal(tokens=[6, 7]), r"tuple of Python integers, got \[6, 7\] \(list\)"),
        (Proposal(tokens=np.array([6, 7])), r"tuple of Python integers, got .*6, 7.* \(ndarray\)"),
        (Proposal(tokens=mx.array([6, 7])), r"tuple of Python integers, got .*6, 7.* \(array\)"),
        (Proposal(tokens=(6, 7, 8, 9)), "proposed 4 tokens, wanted at most 3"),
        ((6, 7), r"propose must return a Proposal, got \(6, 7\) \(tuple\)"),
        (None, r"propose must return a Proposal, got None \(NoneType\)"),
    ],
)
def test_what_is_no_proposal(shape: type[SpeculativeLoop], proposal: Any, message: str) -> None:
    with pytest.raises(PartError, match=f"^drafter: Proposing.*{message}"):
        run(shape, Proposing(proposal))


@SHAPES
@pytest.mark.parametrize(
    ("verdict", "message"),
    [
        ((1, 6), r"accept must return a Verdict, got \(1, 6\) \(tuple\)"),
        (None, r"accept must return a Verdict, got None"),
        (Verdict(accepted=9, next_token=6), r"accepted 9 \(int\) of [13] drafts, wanted an integer in 0\.\.[13]"),
        (Verdict(accepted=-1, next_token=6), r"accepted -1 \(int\) of [13] drafts"),
        (Verdict(accepted=mx.array(0), next_token=6), r"accepted array\(0.*\) \(array\) of"),
        (Verdict(accepted=0, next_token=32), r"next token 32 \(int\), wanted a Python integer in 0\.\.31"),
        (Verdict(accepted=0, next_token=-1), r"next token -1 \(int\), wanted a Python integer in 0\.\.31"),
        (Verdict(accepted=0, next_token=None), r"next token None \(NoneType\), wanted"),
        (Verdict(accepted=0, next_token=mx.array(6)), r"next token array\(6.*\) \(array\), wanted"),
        (Verdict(accepted=0, next_token=np.int64(6)), r"next token .*6.* \(int64\), wanted"),
    ],
)
def test_what_is_no_verdict(shape: type[SpeculativeLoop], verdict: Any, message: str) -> None:
    with pytest.raises(PartError, match=f"^verifier: Judging.*{message}"):
        run(shape, verifier=judging(verdict))


@SHAPES
def test_nine_of_three_are_not_accepted(shape: type[SpeculativeLoop]) -> None:
    """Also where the separate loop judges what follows the first draft."""

    class Generous(GreedyVerifier):
        def accept(self, proposal, logits, context) -> Verdict:
            found = super().accept(proposal, logits, context)
            return Verdict(accepted=9, next_token=6) if len(proposal.tokens) > 1 else found

    with pytest.raises(PartError, match=r"^verifier: Generous accepted 9 \(int\) of [23] drafts, wanted an integer in"):
        run(shape, verifier=Generous(sampling=Sampling()))


@SHAPES
@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (BlockPlan(gamma=3), r"plan wanted gamma in 0\.\.2, got 3"),
        (BlockPlan(gamma=-1), r"plan wanted gamma in 0\.\.2, got -1"),
        (BlockPlan(gamma=1.0), r"plan wanted gamma in 0\.\.2, got 1\.0"),
        (2, r"plan must return a BlockPlan, got 2 \(int\)"),
    ],
)
def test_what_is_no_plan(shape: type[SpeculativeLoop], plan: Any, message: str) -> None:
    with pytest.raises(PartError, match=rf"^block: Planning\.{message}"):
        run(shape, block=Planning(plan))


class Nothing:
    """Has nothing that any protocol has."""


@pytest.mark.parametrize(
    ("role", "protocol", "lacking"),
    [
        ("drafter", "Drafter", "tapped_layers, max_gamma, reset, observe, propose"),
        ("verifier", "Verifier", "guarantee, accept"),
        ("block", "BlockPolicy", "max_gamma, init, plan, admits, after"),
        ("commit", "CommitPath", "adopts"),
        ("replay", "Replay", "kind, run"),
    ],
)
def test_a_part_that_lacks_something(role: str, protocol: str, lacking: str) -> None:
    message = f"^{role}: Nothing lacks {lacking}: wanted what spec.protocols.{protocol} has"
    with pytest.raises(PartError, match=message):
        FoldedLoop(scripted_target(SCRIPT), **{role: Nothing()})


def test_a_target_that_lacks_something() -> None:
    with pytest.raises(PartError, match=r"^target: Nothing lacks vocab_size, .*restore: wanted what .*Target has"):
        FoldedLoop(Nothing())


def test_one_missing_method_is_named() -> None:
    class Forgetful:
        max_gamma, init, plan, admits = 2, NosyPolicy.init, NosyPolicy.plan, NosyPolicy.admits

    with pytest.raises(PartError, match=r"^block: Forgetful lacks after: wanted what"):
        run(FoldedLoop, block=Forgetful())


@pytest.mark.parametrize(
    ("role", "part"),
    [
        ("drafter", NoneDrafter),
        ("verifier", GreedyVerifier),
        ("block", FixedPolicy),
        ("commit", PrefixCommit),
        ("replay", TokenReplay),
    ],
)
def test_a_class_is_no_part(role: str, part: type) -> None:
    with pytest.raises(PartError, match=f"^{role}: wanted an instance, got the class {part.__name__}: call it"):
        FoldedLoop(scripted_target(SCRIPT), **{role: part})


@pytest.mark.parametrize("token", [np.int64(3), mx.array(3), 32, -1, "3"])
def test_a_prompt_of_anything_but_ids(token: Any) -> None:
    loop = FoldedLoop(scripted_target(SCRIPT))
    with pytest.raises(UserError, match=r"^the prompt holds .*: wanted ids as Python integers in 0\.\.31"):
        loop.start(Request(prompt=[1, token], max_tokens=3))
