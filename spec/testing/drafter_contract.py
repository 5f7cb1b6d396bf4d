"""What every drafter owes the loop, as tests that a drafter from anywhere is run against.

The oracle of memory is a fresh drafter that was shown the committed tokens one plain decode at a time, and never
proposed. Whatever else happened to a drafter, it must remember and propose what that one does.
"""

from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, ClassVar

import mlx.core as mx

from spec import protocols
from spec.blocks.fixed import FixedPolicy
from spec.drafters.none import NoneDrafter
from spec.loop import FoldedLoop, PrefixCommit, SpeculativeLoop
from spec.loop.border import check_part, check_proposal, foreign
from spec.measure.generation import collect
from spec.protocols import Drafter, Target
from spec.randomness import RandomStream
from spec.rounds import Context, Proposal, Request
from spec.targets.recorded import RecordedTarget
from spec.targets.session import TargetSession
from spec.testing.doubles import MixedDrafter, random_text
from spec.testing.paths import PATHS, LoopPath


class DrafterContract:
    """Tests of a drafter. Subclass it in a test module, and say how yours is made::

        class TestEchoDrafter(DrafterContract):
            def make(self, target):
                return EchoDrafter()

    A drafter that reads a model's features, its embedding or its head also says which `model`; one that keeps arrays
    gives them as its `memory`, so that they are compared and not only the proposals made of them.

    Attributes:
        vocab_size: of the default target and the default prompt.
        prompt: ids; longer than any window of the drafter, if it has one.
        length: tokens that each run emits.
        gamma: the longest block in the loops; the drafter's own ``max_gamma`` where that is less.
        tolerance: numbers that differ by no more are the same: passes of different widths round differently.
        paths: loops and commit paths to run it through; name fewer where each run is slow.
    """

    vocab_size: int = 8
    length: int = 20
    gamma: int = 5
    tolerance: float = 1e-5
    paths: ClassVar[tuple[LoopPath, ...]] = PATHS
    random: ClassVar[RandomStream] = RandomStream(seed=1)

    def make(self, target: Any) -> Drafter:
        """A fresh drafter.

        Args:
            target: what `model` returns, None by default.
        """
        raise NotImplementedError("say how your drafter is made: def make(self, target): return MyDrafter()")

    def model(self) -> Any:
        """The target's model, the same at every call; None for a target that plays back a random text."""
        return None

    def make_target(self, drafter: Drafter) -> Target:
        """A target with the drafter's tapped layers, which can take back `gamma` + 1 tokens."""
        model = self.model()
        if model is not None:
            return TargetSession(model, tapped_layers=drafter.tapped_layers, max_rollback=self.gamma + 1)
        assert not drafter.tapped_layers, "the drafter wants layers of a model: override model(self) to give one"
        return RecordedTarget.of_tokens(random_text(self.vocab_size, 1000), self.vocab_size)

    def memory(self, drafter: Drafter) -> list[mx.array]:
        """What the drafter remembers of the committed tokens."""
        return []

    @property
    def prompt(self) -> Sequence[int]:
        """The prompt of every test; a class attribute of this name takes its place."""
        return random_text(self.vocab_size, 21)

    # --- the tests ---

    def test_it_has_what_the_protocol_has(self) -> None:
        """Every attribute and method, and limits that are numbers."""
        drafter, _ = self._fresh()
        check_part("drafter", drafter, protocols.Drafter)
        assert isinstance(drafter.tapped_layers, tuple), f"tapped_layers: wanted a tuple, got {drafter.tapped_layers!r}"
        longest = drafter.max_gamma
        assert longest is None or (type(longest) is int and longest > 0), (
            f"max_gamma: wanted a whole number of 1 or more, or None for no limit, got {longest!r}"
        )

    def test_proposals_are_well_formed(self) -> None:
        """From the first committed token on, for every gamma."""
        drafter, target = self._fresh()
        text, gammas = self._text(), self._gammas(drafter)
        for at in range(1, len(text), 2):
            _decode(drafter, target, text[target.offset : at])
            for gamma in gammas if at + 2 >= len(text) else [gammas[at // 2 % len(gammas)]]:
                proposal = check_proposal(drafter.propose(self._context(text[: at + 1]), gamma), gamma, drafter)
                wrong = foreign(proposal.tokens, target.vocab_size)
                assert not wrong, f"proposed {wrong}: wanted ids below the target's {target.vocab_size}"
                assert bool(proposal.tokens) != bool(proposal.reason), (
                    f"a proposal has tokens or says why not, got {proposal.tokens} and the reason {proposal.reason!r}"
                )
                assert all(0 <= value <= 1 for value in proposal.confidence or ()), (
                    f"confidence: wanted probabilities, got {proposal.confidence}"
                )
                if proposal.sampler is not None:
                    sums = mx.sum(proposal.draft_probs, axis=-1)
                    assert mx.allclose(sums, mx.ones_like(sums), atol=1e-4), "draft_probs: wanted rows that sum to 1"

    def test_proposing_leaves_what_is_remembered_as_it_was(self) -> None:
        """Asked again it proposes the same, and its memory is what it was."""
        drafter, target = self._fresh()
        text = self._text()
        _show(drafter, target, text[:-1])
        before = self._arrays(drafter)
        first = drafter.propose(self._context(text), self._longest(drafter))
        self._same_proposal("proposed again", drafter.propose(self._context(text), self._longest(drafter)), first)
        self._same_memory("proposing changed what is remembered", self._arrays(drafter), before)

    def test_what_is_committed_counts_and_not_what_was_proposed(self) -> None:
        """Whatever is committed in place of a proposal, and however often was proposed before it."""
        text = self._text()
        for gamma in {self._longest(self._fresh()[0]), self._gammas(self._fresh()[0])[-1]}:
            drafter, target = self._fresh()
            _show(drafter, target, text[:-1])
            drafted = drafter.propose(self._context(text), gamma).tokens
            continuations = _continuations(text[-1], drafted, target.vocab_size)
            for committed in continuations if gamma <= self.gamma else continuations[-2:]:
                drafter, target = self._fresh()
                _show(drafter, target, text[:-1])
                drafter.propose(self._context((*text[:-1], (text[-1] + 1) % target.vocab_size)), min(gamma, 3))
                drafter.propose(self._context(text), gamma)
                _show(drafter, target, committed)
                other, target = self._fresh()
                _show(other, target, (*text[:-1], *committed))
                what = f"proposed {drafted}, committed {committed}"
                self._same_memory(what, self._arrays(drafter), self._arrays(other))
                proposals = [one.propose(self._context((*text[:-1], *committed, 0)), 2) for one in (drafter, other)]
                self._same_proposal(what, *proposals)

    def test_it_does_not_matter_how_the_text_is_cut(self) -> None:
        """A token at a time, in chunks, whole."""
        text = (*self.prompt, *self._known[: self.length])
        for chunk in (1, 5, 16, 1000):
            for end in (len(self.prompt), len(text)):
                drafter, target = self._fresh()
                _show(drafter, target, text[: end - 1], chunk)
                _decode(drafter, target, text[end - 1 : end])
                self._is_plain_decodings(f"{end} tokens in chunks of {chunk}", drafter, end)

    def test_it_remembers_the_committed_tokens_after_any_mix_of_rounds(self) -> None:
        """Full blocks, parts of one, misses and rounds without a proposal, in both loops, by every commit path."""
        outcomes = set()
        paths = self._paths()
        for path, shown in [*((path, 0) for path in paths), (paths[0], 7)]:
            drafter, target = self._fresh()
            loop = path.loop(target, MixedDrafter(drafter), self._longest(drafter))
            outcomes |= self._follow(str(path), loop, drafter, shown)
        wanted = {"full", "partial", "miss_first"} if self._longest(drafter) > 1 else {"full", "miss_first"}
        assert wanted <= outcomes, f"wanted rounds that are {wanted}, there were {outcomes}: make `length` longer"

    def test_it_remembers_rounds_without_a_proposal(self) -> None:
        """Plain decoding is remembered as well."""
        drafter, target = self._fresh()
        loop = FoldedLoop(target, drafter, block=FixedPolicy(gamma=0))
        self._follow("plain decoding", loop, drafter, 0)

    def test_a_reset_forgets(self) -> None:
        """After it, a longer or a shorter text finds nothing of the one before."""
        text = self._text()
        for other in (text[::-1], text[:2]):
            drafter, target = self._fresh()
            fresh, fresh_target = self._fresh()
            _show(drafter, target, text[:-1])
            drafter.propose(self._context(text), self._longest(drafter))
            target.reset()
            drafter.reset(len(other))
            self._same_memory("something is left after a reset", self._arrays(drafter), self._arrays(fresh))
            fresh.reset(len(other))
            _show(drafter, target, other[:-1])
            _show(fresh, fresh_target, other[:-1])
            self._same_memory("after a reset", self._arrays(drafter), self._arrays(fresh))
            context, gamma = self._context(other), self._longest(drafter)
            self._same_proposal("after a reset", drafter.propose(context, gamma), fresh.propose(context, gamma))

    def test_it_stops_at_the_first_refusal(self) -> None:
        """Asked with c_1, then (c_1, c_2), and so on; or, without confidences, never."""
        drafter, target = self._fresh()
        text, gamma = self._text(), self._longest(drafter)
        _show(drafter, target, text[:-1])
        whole = drafter.propose(self._context(text), gamma)
        for admitted in range(gamma + 1):
            asked: list[tuple[float, ...]] = []

            def admits(confidences: tuple[float, ...], asked: list = asked, admitted: int = admitted) -> bool:
                asked.append(confidences)
                return len(confidences) <= admitted

            proposal = check_proposal(drafter.propose(self._context(text), gamma, admits), gamma, drafter)
            if not asked:
                assert not whole.tokens or whole.confidence is None, "it has confidences: wanted admits to be asked"
                self._same_proposal("with a policy that is not asked", proposal, whole)
                continue
            assert [len(confidences) for confidences in asked] == list(range(1, len(asked) + 1)), (
                f"admits: wanted c_1, then (c_1, c_2), and so on, got {asked}"
            )
            assert all(later[: len(one)] == one for one, later in pairwise(asked)), f"confidences changed: {asked}"
            assert len(asked) <= admitted + 1, f"token {admitted + 1} was refused, admits was asked on: {asked}"
            assert proposal.tokens == whole.tokens[:admitted], (
                f"{admitted} tokens of {whole.tokens} were admitted, got {proposal.tokens}"
            )

    def test_the_output_is_plain_decodings(self) -> None:
        """In both loops, by every commit path, for blocks of every length."""
        for number, path in enumerate(self._paths()):
            self._runs_as_plain_decoding(self.prompt, self._known, path, number)

    def test_the_output_is_plain_decodings_from_a_prompt_of_one_token(self) -> None:
        """Nothing comes before the first anchor but that token."""
        plain = self._plain(self.prompt[:1])
        for path in (self._paths()[0], self._paths()[-1]):
            self._runs_as_plain_decoding(self.prompt[:1], plain, path, 0)

    # --- what they are made of ---

    def _fresh(self) -> tuple[Drafter, Target]:
        drafter = self.make(self.model())
        target = self.make_target(drafter)
        target.reset()
        drafter.reset(len(self.prompt))
        return drafter, target

    def _longest(self, drafter: Drafter) -> int:
        return min(self.gamma, drafter.max_gamma or self.gamma)

    def _gammas(self, drafter: Drafter) -> list[int]:
        return sorted({*range(1, self._longest(drafter) + 1), drafter.max_gamma or self.gamma})

    def _paths(self) -> list[LoopPath]:
        """Those of `paths` that the target can take."""
        _, target = self._fresh()
        return [path for path in self.paths if target.can_trim or not isinstance(path.commit, PrefixCommit)]

    def _plain(self, prompt: Sequence[int]) -> tuple[int, ...]:
        """What plain decoding emits: one token more than the runs, for an anchor after the last of them."""
        loop = FoldedLoop(self.make_target(NoneDrafter()), block=FixedPolicy(gamma=0))
        request = Request(prompt=prompt, max_tokens=self.length + 1, random=self.random)
        return collect(loop.rounds(request)).tokens

    @cached_property
    def _known(self) -> tuple[int, ...]:
        return self._plain(self.prompt)

    def _text(self) -> tuple[int, ...]:
        """The prompt and the beginning of plain decoding; the last token is the anchor."""
        return (*self.prompt, *self._known[:6])

    def _context(self, text: Sequence[int]) -> Context:
        return Context(text, self.random, self._known, min(len(self.prompt), len(text)))

    def _request(self, prompt: Sequence[int], reference: Sequence[int], shown: int = 0) -> Request:
        """For what is left of a run once some of the known tokens are counted to the prompt."""
        return Request(
            prompt=[*prompt, *reference[:shown]],
            max_tokens=self.length - shown,
            random=self.random,
            reference=reference[shown:],
        )

    def _runs_as_plain_decoding(
        self, prompt: Sequence[int], plain: tuple[int, ...], path: LoopPath, number: int
    ) -> None:
        drafter, target = self._fresh()
        gammas = self._gammas(drafter)[::-1]
        loop = path.loop(target, drafter, min(self._longest(drafter), gammas[number % len(gammas)]))
        done, wanted = collect(loop.rounds(self._request(prompt, plain))), plain[: self.length]
        assert done.tokens == wanted, f"{path}: wanted plain decoding's {wanted}, got {done.tokens}"
        silent = [item.index for item in done.rounds if not item.proposed and not item.reason]
        assert not silent, f"{path}: rounds {silent} have neither a proposal nor a reason for none"

    def _follow(self, what: str, loop: SpeculativeLoop, drafter: Drafter, shown: int) -> set[str]:
        """Generates, and compares memory after every round and the proposal at the end; returns the outcomes."""
        outcomes, emitted = set(), [*self.prompt, *self._known[:shown]]
        for item in loop.rounds(self._request(self.prompt, self._known, shown)):
            emitted += item.tokens
            outcomes.add(item.outcome)
            wanted = self._remembered[loop.target.offset]
            self._same_memory(f"{what}, round {item.index} ({item.outcome})", self._arrays(drafter), wanted)
        plain = [*self.prompt, *self._known[: self.length]]
        assert emitted == plain, f"{what}: wanted plain decoding's {plain}, got {emitted}"
        self._is_plain_decodings(f"{what}, after the last round", drafter, loop.target.offset)
        return outcomes

    @cached_property
    def _remembered(self) -> list[list[mx.array]]:
        """The memory after each of the known tokens in plain decoding, where nothing is proposed; [0] is none."""
        drafter, target = self._fresh()
        arrays = [self._arrays(drafter)]
        for token in (*self.prompt, *self._known):
            _decode(drafter, target, [token])
            arrays.append(self._arrays(drafter))
        return arrays

    @cached_property
    def _proposals(self) -> dict[int, Proposal]:
        """What is proposed after so many of the known tokens in plain decoding; filled where it is asked for."""
        return {}

    def _is_plain_decodings(self, what: str, drafter: Drafter, count: int) -> None:
        """Memory and proposal are those of plain decoding after ``count`` of the known tokens."""
        self._same_memory(what, self._arrays(drafter), self._remembered[count])
        context, gamma = self._context((*self.prompt, *self._known)[: count + 1]), self._longest(drafter)
        if count not in self._proposals:
            other, target = self._fresh()
            _decode(other, target, context.tokens[:-1])
            self._proposals[count] = other.propose(context, gamma)
        self._same_proposal(what, drafter.propose(context, gamma), self._proposals[count])

    def _same_memory(self, what: str, found: list[mx.array], wanted: list[mx.array]) -> None:
        shapes = [[array.shape for array in arrays] for arrays in (found, wanted)]
        assert shapes[0] == shapes[1], f"{what}: it remembers arrays of shapes {shapes[0]}, wanted {shapes[1]}"
        for at, (ours, theirs) in enumerate(zip(found, wanted, strict=True)):
            worst = mx.max(mx.abs(ours.astype(mx.float32) - theirs.astype(mx.float32))).item() if ours.size else 0.0
            assert worst <= self.tolerance, (
                f"{what}: array {at} of its memory is off by {worst:.3g}, wanted that of a drafter that was shown the "
                "committed tokens one at a time"
            )

    def _same_proposal(self, what: str, found: Proposal, wanted: Proposal) -> None:
        assert found.tokens == wanted.tokens, (
            f"{what}: it proposes {found.tokens}, wanted {wanted.tokens}, as a drafter with the same text does"
        )
        pairs = [(found.confidence, wanted.confidence), (found.draft_probs, wanted.draft_probs)]
        for name, (ours, theirs) in zip(("confidence", "draft_probs"), pairs, strict=True):
            assert (ours is None) == (theirs is None), f"{what}: {name}: wanted {theirs}, got {ours}"
            if ours is not None:
                worst = mx.max(mx.abs(mx.array(ours) - mx.array(theirs))).item()
                assert worst <= self.tolerance, f"{what}: {name} is off by {worst:.3g}"

    def _arrays(self, drafter: Drafter) -> list[mx.array]:
        return [mx.array(array) for array in self.memory(drafter)]


def _show(drafter: Drafter, target: Target, tokens: Sequence[int], chunk: int = 1000) -> None:
    """Committed tokens, some at a time."""
    for start in range(0, len(tokens), chunk):
        for shown, features in target.prefill(tokens[start : start + chunk]):
            drafter.observe(shown, features)


def _decode(drafter: Drafter, target: Target, tokens: Iterable[int]) -> None:
    """Committed tokens, one plain decode each."""
    for token in tokens:
        drafter.observe((token,), target.forward((token,)).features)


def _continuations(anchor: int, drafted: tuple[int, ...], vocab_size: int) -> list[tuple[int, ...]]:
    """What may be committed after a proposal, and two things that no loop would commit."""
    ends = [(), drafted[:2], drafted, (*drafted, 5 % vocab_size, 6 % vocab_size)]
    wrong = [(*drafted[:at], (drafted[at] + 1) % vocab_size, 3 % vocab_size) for at in range(min(len(drafted), 2))]
    return [((anchor + 1) % vocab_size,), *((anchor, *end) for end in [*ends, *wrong])]
