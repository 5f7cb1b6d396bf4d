"""Blocks at every position, and walks over recordings, against the loop that they stand for."""

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from experiments.evaluation.blocks import BlocksDrafter, DraftedBlocks, accepted_drafts, draft_everywhere
from experiments.evaluation.continuations import Continuation, batches
from experiments.evaluation.coupling import RecordedBatch
from experiments.evaluation.drafters import Features
from experiments.evaluation.walk import walk
from models import Model, load, load_dspark, load_model
from models.dspark import DSparkConfig, DSparkNetwork
from models.quantization import dequantize
from spec import (
    DSparkDrafter,
    NgramDrafter,
    OracleDrafter,
    RandomStream,
    Request,
    Round,
    SampleMatchVerifier,
    Sampling,
    collect,
)
from spec.measure.summary import acceptance
from spec.prompts import encode, load_prompts
from spec.protocols import Drafter
from tests.random_models import fill_randomly, random_tokens
from tests.spec.doubles import PlannedDrafter, context_at, make_loop, prefilled, scripted_target, session

VOCABULARY = 10_000  # above every id
FIXTURES = Path(__file__).parents[2] / "fixtures"


def recorded(tokens: list[int], start: int, temperature: float = 0.0) -> Continuation:
    return Continuation(
        tokens=np.array(tokens, dtype=np.int32), start=start, prompt_class="x", temperature=temperature, origin=""
    )


def facts(rounds: list[Round]) -> list[tuple]:
    """All of a round but its times and what a recording cannot know."""
    return [
        (item.index, item.position, item.gamma, item.proposed, item.accepted, item.tokens, item.kind, item.outcome)
        for item in rounds
    ]


@pytest.fixture(scope="module")
def target() -> Model:
    return load_model(FIXTURES / "target" / "flashlike")


@pytest.fixture(scope="module")
def network(target: Model) -> DSparkNetwork:
    return load_dspark(FIXTURES / "dspark" / "flashlike", target=target)


@pytest.fixture(scope="module")
def bare(target: Model) -> DSparkNetwork:
    """Without context features and Markov head."""
    values = {"dspark_target_layer_ids": [], "dspark_markov_rank": 0, "dspark_block_size": 3}
    config = DSparkConfig.from_dict(values | {"dspark_noise_token_id": 95}, target.args, 2)
    made = DSparkNetwork(config, target)
    fill_randomly(made, config.block, 4)
    return made


@pytest.mark.parametrize("name", ["network", "bare"])
def test_every_block_is_the_drafter_s_own(target: Model, name: str, request: pytest.FixtureRequest) -> None:
    """Sequences of different lengths, padded into one batch; anchors before and after the window is full."""
    network: DSparkNetwork = request.getfixturevalue(name)
    texts = [random_tokens(length, vocab_size=96, seed=length)[0].tolist() for length in (31, 44)]
    (batch,) = batches([recorded(text, 3) for text in texts])
    features = Features(target, batch.tokens).at(network.tapped_layers)
    spans = [range(1, 30), range(7, 43)]
    found = draft_everywhere(network, batch.tokens, features, spans)
    for text, span, blocks in zip(texts, spans, found, strict=True):
        drafter, decoding = DSparkDrafter(network), session(target, DSparkDrafter(network))
        seen = prefilled(decoding, text)
        for at in span:
            drafter.reset(0)
            drafter.observe(text[:at], None if seen is None else seen[:at])
            proposal = drafter.propose(context_at(text[at], at, RandomStream()), network.block_size)
            assert blocks.first == span.start
            assert tuple(blocks.drafts[at - span.start].tolist()) == proposal.tokens
            sure = 1 / (1 + np.exp(-blocks.confidence_logits[at - span.start]))
            assert sure == pytest.approx(proposal.confidence, abs=1e-5)


def test_sampled_blocks_meet_the_target_s_rows_of_their_own_positions(target: Model, network: DSparkNetwork) -> None:
    """Chances against the target's logits after the very tokens, two sequences in one batch."""
    texts = [random_tokens(length, vocab_size=96, seed=length)[0].tolist() for length in (31, 44)]
    (batch,) = batches([recorded(text, 3, 1.0) for text in texts])
    logits, features = target(batch.tokens, tapped_layers=network.tapped_layers)
    spans = [range(1, 26), range(7, 39)]
    key = mx.random.key(3)
    found = draft_everywhere(
        network, batch.tokens, features, spans, RecordedBatch(logits=logits, temperature=2.0, key=key)
    )
    rows = network.context_rows(features)
    stood = 0
    for number, (text, span, blocks) in enumerate(zip(texts, spans, found, strict=True)):
        accepted, chances = blocks.coupled
        for at in span:
            drafts = blocks.drafts[at - span.start].tolist()
            replay = iter(drafts)
            context = [part[number, max(0, at - network.window) : at][None] for part in rows]
            drafted = network.draft(mx.array([text[at]]), at, context, choose=lambda _, it=replay: mx.array([next(it)]))
            assert np.allclose(blocks.confidence_logits[at - span.start], drafted.confidence_logits[0], atol=1e-4)
            count = int(accepted[at - span.start])
            assert drafts[:count] == text[at + 1 : at + 1 + count]
            stood += count
            q = mx.softmax(drafted.logits[0] / 2.0, axis=-1)
            p = mx.softmax(target(mx.array([text[: at + network.block_size]]))[0, at:] / 2.0, axis=-1)
            reached = slice(0, count + 1)
            wanted = np.array(mx.minimum(p, q).sum(axis=-1))[reached]
            assert chances[at - span.start][reached] == pytest.approx(wanted, abs=1e-4)
    assert stood > 10


@pytest.mark.parametrize("quant", ["q4", "mxfp4"])
def test_dequantized_weights_draft_as_quantized_ones(quant: str) -> None:
    model = load_model("models/pretrained/tiny", "float32")
    quantized, plain = (load_dspark(target=model, quant=quant) for _ in range(2))
    dequantize(plain, mx.float32)
    context = [mx.random.normal((2, 9, model.args.head_dim), key=mx.random.key(1))] * quantized.num_stages
    anchors = mx.array([40, 900])
    ours, theirs = plain.draft(anchors, 9, context, 2), quantized.draft(anchors, 9, context, 2)
    # Token tables of the mxfp formats give bfloat16, in which the quantized Markov product then rounds.
    assert mx.allclose(ours.logits, theirs.logits, atol=1e-3 if quant == "q4" else 0.3)
    assert not mx.allclose(ours.logits, load_dspark(target=model).draft(anchors, 9, context, 2).logits, atol=0.5)


def test_the_shipped_pair_s_walk_is_its_loop() -> None:
    """Greedy, float32: the same drafts, rounds and tau as `FoldedLoop` with `DSparkDrafter` on the same prompts."""
    model, tokenizer = load("models/pretrained/tiny", "float32")
    network = load_dspark(target=model)
    drafter = DSparkDrafter(network)
    loop = make_loop(session(model, drafter, network.block_size), drafter, network.block_size)
    sequences, looped = [], []
    for name in ("json_repetitive", "prose"):
        (prompt,) = load_prompts([f"prompts/{name}.jsonl"], name=name, limit=1)
        prompt = encode(prompt, tokenizer)[-24:]
        done = collect(loop.rounds(Request(prompt=prompt, max_tokens=16)))
        sequences.append(recorded([*prompt, *done.tokens], len(prompt)))
        looped.append(list(done.rounds))
    (batch,) = batches(sequences)
    assert batch.numbers == (0, 1)
    features = Features(model, batch.tokens).at(network.tapped_layers)
    spans = [range(one.start, len(one.tokens) - 1) for one in sequences]
    found = draft_everywhere(network, batch.tokens, features, spans)
    walked = [
        walk(one, BlocksDrafter(blocks), None, network.block_size, VOCABULARY)
        for one, blocks in zip(sequences, found, strict=True)
    ]
    for ours, theirs, blocks, one in zip(walked, looped, found, sequences, strict=True):
        assert facts(ours) == facts(theirs)
        everywhere = accepted_drafts(blocks, one.tokens)
        for item in theirs:
            if item.gamma == network.block_size:
                assert everywhere[item.position - one.start] == item.accepted
    pooled = [[item for rounds in side for item in rounds] for side in (walked, looped)]
    assert acceptance(pooled[0]) == acceptance(pooled[1])
    assert acceptance(pooled[0])["tau"] > 1


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("make", [lambda: OracleDrafter(accept_rate=0.6), lambda: NgramDrafter(n_max=3, n_min=1)])
def test_any_drafter_walks_as_it_loops(target: Model, temperature: float, make) -> None:
    """At temperature 1 the loop's verifier draws the recorded tokens: sample matching under the recording's seed."""
    prompt = random_tokens(9, vocab_size=96, seed=4)[0].tolist()
    verifier = SampleMatchVerifier(sampling=Sampling(temperature=temperature))
    plain = collect(make_loop(session(target), verifier=verifier).rounds(Request(prompt=prompt, max_tokens=30))).tokens
    drafter = make()
    loop = make_loop(session(target, drafter), drafter, 4, verifier=verifier)
    done = collect(loop.rounds(Request(prompt=prompt, max_tokens=30, reference=plain)))
    assert done.tokens == plain
    walked = walk(recorded([*prompt, *plain], len(prompt), temperature), drafter, None, 4, VOCABULARY)
    assert facts(walked) == facts(done.rounds)


def test_a_drafter_sees_every_token_once_and_features_beside_it(target: Model, network: DSparkNetwork) -> None:
    script = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]
    drafter = PlannedDrafter(script, wrong=frozenset({6}))
    rounds = walk(recorded(script, 2), drafter, None, 3, VOCABULARY)
    assert drafter.seen == script[:-1]  # the last token is a next token: no round follows it
    looped = collect(make_loop(scripted_target(script), drafter, 3).rounds(Request(prompt=script[:2], max_tokens=9)))
    assert facts(rounds) == facts(looped.rounds)
    assert [item.accepted for item in rounds] == [3, 3]

    text = random_tokens(30, vocab_size=96, seed=1)[0].tolist()
    features = prefilled(session(target, DSparkDrafter(network)), text)
    dspark: Drafter = DSparkDrafter(network)
    rounds = walk(recorded(text, 20), dspark, features, 5, VOCABULARY)
    assert sum(len(item.tokens) for item in rounds) == 9


def test_accepted_drafts_by_hand() -> None:
    tokens = np.array([9, 1, 2, 3, 4, 5], dtype=np.int32)
    drafts = np.array([[2, 3, 4], [3, 0, 5], [0, 5, 0], [5, 7, 7]], dtype=np.int32)
    blocks = DraftedBlocks(first=1, drafts=drafts, confidence_logits=np.zeros((4, 3), dtype=np.float32))
    assert accepted_drafts(blocks, tokens).tolist() == [3, 1]  # a whole block follows the first two anchors only
    assert accepted_drafts(blocks, tokens, count=1).tolist() == [3]
    assert accepted_drafts(blocks, tokens[:3]).tolist() == []
