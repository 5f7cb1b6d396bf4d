"""Speculation keeps the law of the output: by enumeration of the real code, then by draws through the loop."""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from models import Model, load_dspark, load_model
from spec import (
    BlockVerifier,
    DraftSampler,
    DSparkDrafter,
    FixedPolicy,
    FoldedLoop,
    GreedyVerifier,
    PrefixCommit,
    Proposal,
    RandomStream,
    RejectionVerifier,
    Request,
    SampleMatchVerifier,
    Sampling,
    SeparateLoop,
    TokenReplay,
    Verdict,
    collect,
)
from spec.testing.law import (
    KeyUsedTwiceError,
    Law,
    Tree,
    TreeDrafter,
    completed,
    distance,
    law_of,
    proposals,
    round_law,
    target_law,
)
from spec.verifiers.block import log_weights
from spec.verifiers.rejection import acceptance, bonus, correction, log_ratios, residual
from tests.random_models import random_model, tiny_config
from tests.spec.doubles import NosyPolicy, make_loop, session

PROMPT = (1, 0, 2, 1)
TOLERANCE = 1e-6
VERIFIERS = [RejectionVerifier, BlockVerifier, SampleMatchVerifier]

SETTINGS = {
    "temperature 1": {"temperature": 1.0},
    "temperature 0.5": {"temperature": 0.5},
    "top-k": {"temperature": 0.9, "top_k": 2},
    "top-p": {"temperature": 1.0, "top_p": 0.8},
    "min-p": {"temperature": 1.3, "min_p": 0.2},
    "repetition": {"temperature": 0.8, "repetition_penalty": 1.7},
    "presence": {"temperature": 1.0, "presence_penalty": 1.1, "penalty_context": 2},
    "frequency": {"temperature": 1.0, "frequency_penalty": 0.9, "penalty_context": 0},
    "bias": {"temperature": 1.0, "logit_bias": {0: 2.0, 3: -np.inf}},
    "all": {
        "temperature": 0.7,
        "top_p": 0.95,
        "min_p": 0.02,
        "top_k": 3,
        "repetition_penalty": 1.3,
        "presence_penalty": 0.4,
        "frequency_penalty": 0.6,
        "penalty_context": 3,
        "logit_bias": {1: 0.5},
    },
    "temperature 0": {},
    "temperature 0, penalties": {"repetition_penalty": 1.5, "frequency_penalty": 1.0},
}

# How a proposal is drawn: an argmax chain, or one sampled by a drafter's own processed distribution.
KINDS: dict[str, Sampling | None] = {
    "argmax": None,
    "sampled": Sampling(temperature=1.0),
    "sampled, cold and cut": Sampling(temperature=0.6, top_k=3),
}
SIZES = [(4, 2), (8, 1)]  # vocabulary, gamma
LARGER = [
    ("temperature 1", 5, 3),
    ("temperature 0.5", 4, 3),
    ("top-k", 6, 3),
    ("top-p", 8, 2),
    ("min-p", 4, 3),
    ("repetition", 4, 3),
    ("presence", 6, 2),
    ("all", 4, 4),
]


def drafting(name: str) -> Callable[[RandomStream, int], DraftSampler | None]:
    sampling = KINDS[name]
    return lambda draws, position: None if sampling is None else DraftSampler(draws, position, sampling)


@cache
def drafted(kind: str, vocab_size: int, gamma: int) -> list[tuple[Proposal, float]]:
    return proposals(Tree(vocab_size, 2), drafting(kind), PROMPT, gamma)


@cache
def wanted(setting: str, vocab_size: int, length: int) -> Law:
    return target_law(Tree(vocab_size, 1), Sampling(**SETTINGS[setting]), PROMPT, length)


def error(verifier, setting: str, kind: str, vocab_size: int, gamma: int) -> float:
    """The largest error of a probability in the law of the next gamma + 1 tokens after one round."""
    target, sampling = Tree(vocab_size, 1), Sampling(**SETTINGS[setting])
    law = round_law(verifier, target, drafted(kind, vocab_size, gamma), PROMPT)
    assert sum(law.values()) == pytest.approx(1, abs=1e-9)
    return distance(completed(law, target, sampling, PROMPT, gamma + 1), wanted(setting, vocab_size, gamma + 1))


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_law_of_a_round_is_the_targets(setting: str, kind: str) -> None:
    sampling = Sampling(**SETTINGS[setting])
    verifiers = [verifier(sampling=sampling) for verifier in VERIFIERS]
    if sampling.is_greedy:
        verifiers.append(GreedyVerifier(sampling=sampling))
    for vocab_size, gamma in SIZES:
        for verifier in verifiers:
            found = error(verifier, setting, kind, vocab_size, gamma)
            assert found < TOLERANCE, (verifier, vocab_size, gamma)


@pytest.mark.parametrize(("setting", "vocab_size", "gamma"), LARGER)
@pytest.mark.parametrize("verifier", VERIFIERS)
def test_the_law_of_longer_blocks_and_more_tokens(verifier, setting: str, vocab_size: int, gamma: int) -> None:
    for kind in ("argmax", "sampled"):
        assert error(verifier(sampling=Sampling(**SETTINGS[setting])), setting, kind, vocab_size, gamma) < TOLERANCE


def test_block_verification_accepts_no_less_than_rejection() -> None:
    """Its claim, exactly: more accepted in expectation under sampled drafts, as many under point masses."""

    def mean_accepted(verifier, kind: str) -> float:
        law = round_law(verifier(sampling=Sampling(temperature=1.0)), Tree(4, 1), drafted(kind, 4, 3), PROMPT)
        return sum((len(text) - 1) * mass for text, mass in law.items())

    assert mean_accepted(BlockVerifier, "sampled") > mean_accepted(RejectionVerifier, "sampled") + 0.01
    for verifier in (RejectionVerifier, SampleMatchVerifier):
        assert mean_accepted(BlockVerifier, "argmax") == pytest.approx(mean_accepted(verifier, "argmax"), abs=1e-6)


def cut_blocks(keep: Callable[[Proposal], int]) -> list[tuple[Proposal, float]]:
    """Sampled proposals of 3 of which a rule keeps a part; those that look alike afterwards stay apart."""
    cut = []
    for proposal, mass in drafted("sampled", 4, 3):
        count = keep(proposal)
        part = Proposal.sampled(proposal.sampler[:count]) if count else Proposal(reason="refused")
        cut.append((part, mass))
    return cut


def lawful(proposal: Proposal) -> int:
    """Goes on after an even token only: whether token k is kept depends on the one before it."""
    odd = [at for at, token in enumerate(proposal.tokens) if token % 2]
    return 1 + min([*odd, 2])


def retrospective(proposal: Proposal) -> int:
    """Keeps even tokens only: whether token k is kept depends on itself (``dspark.md`` d.1)."""
    return lawful(proposal) - proposal.tokens[lawful(proposal) - 1] % 2


@pytest.mark.parametrize("verifier", VERIFIERS)
def test_a_block_may_be_cut_from_the_left_and_not_in_retrospect(verifier) -> None:
    target, sampling = Tree(4, 1), Sampling(temperature=1.0)

    def found(keep: Callable[[Proposal], int]) -> float:
        law = round_law(verifier(sampling=sampling), target, cut_blocks(keep), PROMPT)
        return distance(completed(law, target, sampling, PROMPT, 4), wanted("temperature 1", 4, 4))

    assert found(lawful) < TOLERANCE
    # Sample and match draws y whatever was drafted, so that it forgives even that.
    assert (found(retrospective) < TOLERANCE) == (verifier is SampleMatchVerifier)


# --- several rounds: the real loop, all its draws enumerated ---


def loop_law(loop: type, verifier, sampling: Sampling | None, block, length: int) -> Law:
    """The law of a generation's first tokens; raises if two of its draws could meet."""
    made = loop(
        target=Tree(3, 1).target(),
        drafter=TreeDrafter(Tree(3, 2), sampling),
        verifier=verifier,
        commit=PrefixCommit(),
        replay=TokenReplay(),
        block=block,
    )
    return law_of(lambda random: collect(made.rounds(Request(prompt=PROMPT, max_tokens=length, random=random))).tokens)


@pytest.mark.parametrize(("kind", "block"), [("argmax", FixedPolicy(gamma=2)), ("sampled", NosyPolicy())])
@pytest.mark.parametrize("verifier", VERIFIERS)
@pytest.mark.parametrize("loop", [FoldedLoop, SeparateLoop])
def test_the_law_of_a_generation_is_the_targets(loop: type, verifier, kind: str, block) -> None:
    sampling = Sampling(temperature=0.9, frequency_penalty=0.5)
    law = loop_law(loop, verifier(sampling=sampling), KINDS[kind], block, 3)
    assert distance(law, target_law(Tree(3, 1), sampling, PROMPT, 3)) < TOLERANCE


@pytest.mark.parametrize("verifier", [BlockVerifier, RejectionVerifier])
def test_draws_that_may_meet_again_are_noticed(monkeypatch: pytest.MonkeyPatch, verifier) -> None:
    """Were they not tied to their round, a discarded draft's draw would be made again after it had a say."""
    monkeypatch.setattr(RandomStream, "in_round", lambda self, start: self)
    with pytest.raises(KeyUsedTwiceError):
        loop_law(FoldedLoop, verifier(sampling=Sampling(temperature=1.0)), KINDS["sampled"], FixedPolicy(gamma=2), 4)


# --- wrong rules, which these tests must tell from right ones ---


class DisguisedSampler(DraftSampler):
    """The published fault: takes the argmax, and hands over the softmax. Only a subclass can."""

    def draw(self, logits: mx.array) -> mx.array:
        token = mx.argmax(logits).astype(mx.int32)
        self._tokens.append(token)
        self._logprobs.append(self._sampling.logprobs(logits))
        return token


def disguised(draws: RandomStream, position: int) -> DraftSampler:
    return DisguisedSampler(draws, position, Sampling(temperature=3.0))


class Wrong:
    """A verifier made of the real functions, put together wrongly."""

    def __init__(self, sampling: Sampling) -> None:
        self.sampling = sampling


class UntruncatedRatio(Wrong):
    """The ratio asks the whole distribution, the residual the truncated one."""

    def accept(self, proposal, logits, context) -> Verdict:
        target = self.sampling.logprobs(logits, context.tokens, proposal.tokens)
        whole = Sampling(temperature=self.sampling.temperature).logprobs(logits)
        draft = proposal.draft_logprobs(target.shape[1])
        for accepted, probability in enumerate(acceptance(whole[:-1], draft, proposal.tokens)):
            if not context.random.accepts(probability, context.position + 1 + accepted):
                excess = residual(target[accepted], draft[accepted])
                return correction(accepted, target[accepted], excess, context)
        return bonus(len(proposal.tokens), target, context)


class BlindPenalties(Wrong):
    """Penalties see the committed tokens and not the drafts before a row."""

    def accept(self, proposal, logits, context) -> Verdict:
        rows = [self.sampling.process(row[None], context.tokens) for row in logits]
        plain = Sampling(temperature=self.sampling.temperature)
        return RejectionVerifier(sampling=plain).accept(proposal, mx.concatenate(rows), context)


class SecondDraw(Wrong):
    """Sample and match that draws again after the mismatch."""

    def accept(self, proposal, logits, context) -> Verdict:
        verdict = SampleMatchVerifier(sampling=self.sampling).accept(proposal, logits, context)
        if verdict.accepted == len(proposal.tokens):
            return verdict
        target = self.sampling.logprobs(logits)[verdict.accepted]
        return correction(verdict.accepted, target, target, context)


class BlockOfTokens(Wrong):
    """Block weights, but stopping at the first test that fails."""

    def accept(self, proposal, logits, context) -> Verdict:
        target = self.sampling.logprobs(logits)
        draft = proposal.draft_logprobs(target.shape[1])
        weights = log_weights(log_ratios(target[:-1], draft, proposal.tokens))
        for accepted, weight in enumerate(mx.exp(weights[1:]).tolist()):
            if not context.random.accepts(weight, context.position + 1 + accepted):
                excess = residual(weights[accepted] + target[accepted], draft[accepted])
                return correction(accepted, target[accepted], excess, context)
        return bonus(len(proposal.tokens), target, context)


@pytest.mark.parametrize(
    ("verifier", "setting", "kind"),
    [
        (UntruncatedRatio, "top-p", "sampled"),
        (UntruncatedRatio, "top-k", "argmax"),
        (BlindPenalties, "frequency", "sampled"),
        (BlindPenalties, "presence", "argmax"),
        (SecondDraw, "temperature 1", "argmax"),
        (BlockOfTokens, "temperature 1", "sampled"),
    ],
)
def test_wrong_rules_are_detected(verifier, setting: str, kind: str) -> None:
    assert error(verifier(Sampling(**SETTINGS[setting])), setting, kind, 4, 3) > 100 * TOLERANCE


@pytest.mark.parametrize("verifier", [RejectionVerifier, BlockVerifier])
@pytest.mark.parametrize("gamma", [1, 2, 3])
def test_argmax_drafts_judged_with_a_softmax_q_are_detected(verifier, gamma: int) -> None:
    target, sampling = Tree(4, 1), Sampling(temperature=1.0)
    law = round_law(verifier(sampling=sampling), target, proposals(Tree(4, 2), disguised, PROMPT, gamma), PROMPT)
    whole = completed(law, target, sampling, PROMPT, gamma + 1)
    assert distance(whole, wanted("temperature 1", 4, gamma + 1)) > 1e-2


# --- keyed draws through the real loop ---


LENGTH = 100
SMALL = 8
CELLS = 4
# Of 15 degrees of freedom (pairs in 4 x 4 cells) and 9 (ten cells): the 99.9th percentiles.
PAIRS_LIMIT, CELLS_LIMIT = 37.70, 27.88


@pytest.fixture(scope="module")
def small_model() -> Model:
    return random_model(tiny_config(vocab_size=SMALL, num_hidden_layers=1, compress_ratios=(4,)), seed=3)


def places_of(
    model: Model, prompt: Sequence[int], tokens: Sequence[int], sampling: Sampling, leaning: np.ndarray
) -> np.ndarray:
    """Each token's place in the target's distribution, spread evenly: independent and uniform under the right law.

    The order within a distribution is that of ``leaning`` (T, V), large first, for example log q: a law that leans to
    the drafts leans to 0.
    """
    logits = model(mx.array([[*prompt, *tokens[:-1]]], dtype=mx.int32))[0, len(prompt) - 1 :]
    probs = np.exp(np.array(sampling.logprobs(logits, prompt, tokens), dtype=np.float64))
    order = np.argsort(-leaning, axis=1)
    spread = np.random.default_rng(7).uniform(size=len(tokens))
    places = np.empty(len(tokens))
    for at, token in enumerate(tokens):
        earlier = order[at][: int(np.flatnonzero(order[at] == token)[0])]
        places[at] = (probs[at, earlier].sum() + spread[at] * probs[at, token]) / probs[at].sum()
    return places


def statistics(places: np.ndarray) -> tuple[float, float]:
    """Chi-square of single places in ten cells, and of neighboring ones in 4 x 4."""
    single = np.histogram(places, 10, (0, 1))[0]
    pairs = np.histogram2d(places[0::2], places[1::2], CELLS, [(0, 1), (0, 1)])[0].ravel()
    return tuple(float(((count - count.mean()) ** 2 / count.mean()).sum()) for count in (single, pairs))


def through_the_loop(model: Model, verifier, sampling: Sampling, draft: Sampling | None, runs: int = 2):
    """Places of all tokens of some generations, and how many drafts stood."""
    drafter = NoisyDrafter(Tree(SMALL, 2), draft)
    loop = make_loop(session(model, drafter, 3), drafter, 3, verifier=verifier)
    places, accepted = [], 0
    for run in range(runs):
        done = collect(
            loop.rounds(Request(prompt=PROMPT, max_tokens=LENGTH, random=RandomStream(seed=11, stream=f"run {run}")))
        )
        leaning = drafter.tree.rows([(*PROMPT, *done.tokens[:at]) for at in range(LENGTH)])
        places.append(places_of(model, PROMPT, done.tokens, sampling, np.array(leaning)))
        accepted += sum(item.accepted for item in done.rounds)
    return statistics(np.concatenate(places)), accepted


class NoisyDrafter(TreeDrafter):
    """Sampled proposals of a tree; in disguise where `disguise` is set."""

    disguise = False

    def propose(self, context, gamma, admits=None) -> Proposal:
        if not self.disguise:
            return super().propose(context, gamma)
        sampler = disguised(context.random, context.position)
        tokens: list[int] = []
        for _ in range(gamma):
            tokens.append(int(sampler.draw(self.tree.logits((*context.tokens, *tokens)))))
        return Proposal.sampled(sampler)


@pytest.mark.parametrize(
    ("verifier", "kind", "setting"),
    [
        (RejectionVerifier, "sampled", "temperature 1"),
        (RejectionVerifier, "argmax", "all"),
        (BlockVerifier, "sampled", "all"),
        (SampleMatchVerifier, "argmax", "temperature 1"),
    ],
)
def test_tokens_from_the_loop_have_the_targets_law(small_model: Model, verifier, kind: str, setting: str) -> None:
    sampling = Sampling(**SETTINGS[setting])
    (single, pairs), accepted = through_the_loop(small_model, verifier(sampling=sampling), sampling, KINDS[kind])
    assert single < CELLS_LIMIT
    assert pairs < PAIRS_LIMIT
    assert accepted > 15


@pytest.mark.parametrize("verifier", [RejectionVerifier, BlockVerifier])
def test_the_wrong_mix_is_detected_in_the_loop(small_model: Model, monkeypatch: pytest.MonkeyPatch, verifier) -> None:
    monkeypatch.setattr(NoisyDrafter, "disguise", True)
    sampling = Sampling(temperature=1.0)
    (single, pairs), _ = through_the_loop(small_model, verifier(sampling=sampling), sampling, None)
    assert single > CELLS_LIMIT
    assert pairs > PAIRS_LIMIT


@pytest.mark.parametrize("verifier_class", [RejectionVerifier, BlockVerifier])
def test_sampled_drafts_of_dspark_keep_the_targets_law(verifier_class) -> None:
    folder = Path(__file__).parents[1] / "fixtures"
    target = load_model(folder / "target" / "flashlike")
    network = load_dspark(folder / "dspark" / "flashlike", target=target)
    drafter = DSparkDrafter(network, proposal="sampled", temperature=0.8)
    sampling = Sampling(temperature=0.8, top_k=30)
    loop = make_loop(session(target, drafter, 5), drafter, 5, verifier=verifier_class(sampling=sampling))
    done = collect(loop.rounds(Request(prompt=PROMPT, max_tokens=60, random=RandomStream(seed=1))))
    logits = target(mx.array([[*PROMPT, *done.tokens[:-1]]], dtype=mx.int32))[0, len(PROMPT) - 1 :]
    single, pairs = statistics(places_of(target, PROMPT, done.tokens, sampling, np.array(logits)))
    assert single < CELLS_LIMIT
    assert pairs < PAIRS_LIMIT
    assert sum(item.accepted for item in done.rounds) > 5
