"""What every verifier owes the loop, as tests that a verifier from anywhere is run against.

The promise is its own: ``tokens`` and ``law`` are checked by enumeration of all its draws, so a verifier that draws
does so by `RandomStream.accepts` and `RandomStream.categorical`; ``none`` promises only that what it returns is a
verdict.
"""

import itertools
from collections.abc import Iterator, Mapping
from typing import ClassVar

from spec import protocols
from spec.blocks.fixed import FixedPolicy
from spec.drafters.ngram import NgramDrafter
from spec.drafters.none import NoneDrafter
from spec.errors import UserError
from spec.loop import FoldedLoop, SeparateLoop
from spec.loop.border import check_part, check_verdict, foreign
from spec.measure.generation import collect
from spec.protocols import Drafter, Verifier
from spec.randomness import RandomStream
from spec.rounds import Context, Proposal, Request
from spec.sampling import DraftSampler, Sampling
from spec.testing.doubles import NosyPolicy
from spec.testing.law import (
    Sampler,
    Tree,
    TreeDrafter,
    completed,
    distance,
    law_of,
    proposals,
    propose,
    round_law,
    target_law,
)

PROMPT = (1, 0, 2, 1)
SHAPES = (FoldedLoop, SeparateLoop)
DRAFTS: dict[str, Sampling | None] = {"argmax drafts": None, "sampled drafts": Sampling(temperature=1.0)}


class VerifierContract:
    """Tests of a verifier. Subclass it in a test module, and say how yours is made::

        class TestLenientVerifier(VerifierContract):
            def make(self, sampling):
                return LenientVerifier(sampling)

    Attributes:
        settings: what it is made for; a setting that it refuses with a `UserError` is left out, as long as one is left.
        tolerance: of a probability in an enumerated law.
    """

    settings: ClassVar[Mapping[str, Sampling]] = {
        "temperature 0": Sampling(),
        "temperature 0, penalties": Sampling(repetition_penalty=1.5, frequency_penalty=1.0),
        "temperature 1": Sampling(temperature=1.0),
        "temperature 0.5, top-k": Sampling(temperature=0.5, top_k=3),
        "top-p, min-p": Sampling(temperature=1.2, top_p=0.9, min_p=0.05),
        "penalties": Sampling(temperature=0.9, repetition_penalty=1.3, frequency_penalty=0.6, penalty_context=3),
    }
    tolerance: float = 1e-6

    def make(self, sampling: Sampling) -> Verifier:
        """A verifier of a processed distribution."""
        raise NotImplementedError("say how your verifier is made: def make(self, sampling): return MyVerifier(...)")

    # --- the tests ---

    def test_it_has_what_the_protocol_has(self) -> None:
        """Every attribute and method, and one of the three promises."""
        for _, _, verifier in self._made():
            check_part("verifier", verifier, protocols.Verifier)
            assert verifier.guarantee in ("tokens", "law", "none"), (
                f"guarantee: wanted tokens (plain decoding's very tokens), law (its distribution) or none, got "
                f"{verifier.guarantee!r}"
            )

    def test_verdicts_are_well_formed(self) -> None:
        """On proposals of 0 to 3 drafts, argmax and sampled, with a row for the bonus token and without."""
        for name, _, verifier in self._made():
            for proposal, context in _cases():
                rows, count = Tree(4, 1).judging(PROMPT, proposal.tokens), len(proposal.tokens)
                for logits in (rows, rows[:count]) if count else (rows,):
                    what = f"{name}: {count} drafts, {logits.shape[0]} rows"
                    verdict = verifier.accept(proposal, logits, context)
                    check_verdict(verdict, proposal, logits.shape[0], 4, verifier)
                    assert verdict.accepted < logits.shape[0] or verdict.next_token is None, (
                        f"{what}: everything was accepted and no row is left for a bonus: wanted next_token None, got "
                        f"{verdict.next_token}"
                    )
                    assert verifier.accept(proposal, logits, context) == verdict, (
                        f"{what}: asked twice it decides differently: draw from context.random alone, keep no state"
                    )

    def test_a_round_has_the_targets_law_if_that_is_promised(self) -> None:
        """The next tokens after one round, enumerated, are those of plain decoding."""
        for name, sampling, verifier in self._promising("tokens", "law"):
            for vocab_size, gamma in ((4, 2), (6, 1)):
                target = Tree(vocab_size, 1)
                wanted = target_law(target, sampling, PROMPT, gamma + 1)
                for kind in DRAFTS:
                    drafted = proposals(Tree(vocab_size, 2), _sampler(kind), PROMPT, gamma)
                    law = round_law(verifier, target, drafted, PROMPT)
                    found = distance(completed(law, target, sampling, PROMPT, gamma + 1), wanted)
                    assert found <= self.tolerance, (
                        f"{name}, {kind}, gamma {gamma}: a probability is off by {found:.3g}: this is not the target's "
                        f"law, which guarantee {verifier.guarantee!r} promises"
                    )

    def test_a_generation_has_the_targets_law_if_that_is_promised(self) -> None:
        """The first tokens of a generation through the real loop, all draws of all rounds enumerated."""
        for name, sampling, verifier in self._promising("tokens", "law"):
            wanted = target_law(Tree(3, 1), sampling, PROMPT[:2], 3)
            for shape, (kind, draft) in itertools.product(SHAPES, DRAFTS.items()):
                drafter = TreeDrafter(Tree(3, 2), draft)
                loop = shape(Tree(3, 1).target(), drafter, verifier=verifier, block=NosyPolicy())
                found = distance(law_of(lambda random, loop=loop: _tokens(loop, random, PROMPT[:2], 3)), wanted)
                assert found <= self.tolerance, (
                    f"{name}, {kind}, {shape.__name__}: a probability is off by {found:.3g} after some rounds: does a "
                    "number that was drawn once decide twice?"
                )

    def test_the_tokens_are_plain_decodings_if_that_is_promised(self) -> None:
        """Under the same seed, whatever the drafter and the length of a block."""
        for name, _, verifier in self._promising("tokens"):
            for seed, gamma in ((1, 1), (2, 4)):
                random, block = RandomStream(seed=seed), FixedPolicy(gamma=gamma)
                plain = _tokens(FoldedLoop(Tree(8, 1).target(), verifier=verifier), random, PROMPT, 20)
                for drafter, shape in itertools.product(_drafters(), SHAPES):
                    loop = shape(Tree(8, 1).target(), drafter, verifier=verifier, block=block)
                    found = _tokens(loop, random, PROMPT, 20)
                    assert found == plain, (
                        f"{name}, {type(drafter).__name__}, {shape.__name__}, gamma {gamma}, seed {seed}: wanted plain "
                        f"decoding's {plain}, got {found}: guarantee 'tokens' promises them"
                    )

    def test_a_generation_ends_at_its_limits(self) -> None:
        """With as many tokens as were asked for, each of them the target's."""
        for name, _, verifier in self._made():
            for drafter, shape, length in itertools.product(_drafters(), SHAPES, (1, 2, 11)):
                loop = shape(Tree(8, 1).target(), drafter, verifier=verifier, block=FixedPolicy(gamma=3))
                found = _tokens(loop, RandomStream(), PROMPT, length)
                assert len(found) == length, f"{name}: wanted {length} tokens, got {len(found)}"
                assert not foreign(found, 8), f"{name}: wanted ids below 8, got {found}"

    # --- what they are made of ---

    def _made(self) -> Iterator[tuple[str, Sampling, Verifier]]:
        refusals = []
        for name, sampling in self.settings.items():
            try:
                verifier = self.make(sampling)
            except UserError as error:
                refusals.append(error)
                continue
            yield name, sampling, verifier
        assert len(refusals) < len(self.settings), f"every setting is refused, the first with: {refusals[0]}"

    def _promising(self, *guarantees: str) -> Iterator[tuple[str, Sampling, Verifier]]:
        return (made for made in self._made() if made[2].guarantee in guarantees)


def _sampler(kind: str) -> Sampler:
    sampling = DRAFTS[kind]
    return lambda random, position: None if sampling is None else DraftSampler(random, position, sampling)


def _cases() -> Iterator[tuple[Proposal, Context]]:
    for seed in range(4):
        context = Context(PROMPT, RandomStream(seed=seed))
        yield Proposal(reason="a plain decode"), context
        for kind in DRAFTS:
            for gamma in (1, 2, 3):
                for tree in (1, 2):  # the target's own, and another
                    sampler = _sampler(kind)(context.random, context.position)
                    yield propose(Tree(4, tree), sampler, PROMPT, gamma), context


def _drafters() -> list[Drafter]:
    sampled = Sampling(temperature=1.0)
    return [
        NoneDrafter(),
        NgramDrafter(n_max=2, n_min=1),
        TreeDrafter(Tree(8, 1), None),
        TreeDrafter(Tree(8, 2), None),
        TreeDrafter(Tree(8, 2), sampled),
    ]


def _tokens(loop: protocols.Loop, random: RandomStream, prompt: tuple[int, ...], length: int) -> tuple[int, ...]:
    return collect(loop.rounds(Request(prompt=prompt, max_tokens=length, random=random))).tokens
