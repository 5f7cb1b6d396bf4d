"""A language model as drafter: its cache holds the committed tokens, whatever was proposed, or it is refused."""

import json
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten
from mlx_lm.models import llama
from mlx_lm.models.cache import ArraysCache, CacheList, KVCache, RotatingKVCache
from mlx_lm.tokenizer_utils import TokenizerWrapper

from models import Model, load
from models.deepseek_v4 import LayerCache
from spec import (
    FixedPolicy,
    GreedyVerifier,
    LanguageModelDrafter,
    PrefixCommit,
    RandomStream,
    Request,
    Sampling,
    TokenReplay,
    UserError,
    collect,
)
from spec.loop.commit import RollbackCommit
from spec.loop.separate import SeparateLoop
from tests.models.cache_rows import reachable_rows
from tests.random_models import random_model, random_tokens, tiny_config
from tests.spec.doubles import context_at, make_loop, session
from tests.spec.tiny_text import make_tokenizer, save_tokenizer

DRAWS = RandomStream()
PROMPT = random_tokens(21, seed=6)[0].tolist()
LENGTH = 64


class FaultError(Exception):
    """What a broken part raises."""


@pytest.fixture(scope="module")
def plain(tiny_model: Model) -> tuple[int, ...]:
    return collect(make_loop(session(tiny_model)).rounds(Request(prompt=PROMPT, max_tokens=LENGTH))).tokens


@pytest.fixture(scope="module")
def near_model() -> Model:
    """The target with a disturbed head and attention, so that some of its tokens are accepted."""
    near, far = random_model(), random_model(seed=1)
    near.head.weight = near.head.weight + 0.3 * far.head.weight
    near.layers[1].attn.wkv.weight = near.layers[1].attn.wkv.weight + 0.3 * far.layers[1].attn.wkv.weight
    return near


@pytest.fixture(scope="module")
def llama_model() -> llama.Model:
    """Random, with mlx-lm's plain KV cache."""
    return random_llama(48)


LLAMA = {
    "model_type": "llama",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "rms_norm_eps": 1e-5,
}


def random_llama(vocab_size: int) -> llama.Model:
    mx.random.seed(4)
    model = llama.Model(llama.ModelArgs(vocab_size=vocab_size, **LLAMA))
    mx.eval(model.parameters())
    return model


@pytest.fixture
def model(request: pytest.FixtureRequest):
    """The model of the fixture that the test's parameter names."""
    return request.getfixturevalue(request.param)


each_kind = pytest.mark.parametrize("model", ["near_model", "llama_model"], indirect=True)


def held_rows(cache: list, model) -> dict[str, np.ndarray]:
    """What later passes read of a cache, by layer."""
    if isinstance(cache[0], LayerCache):
        return reachable_rows(cache, model.args)
    return {f"{layer}": np.array(entry.keys[:, :, : entry.offset]) for layer, entry in enumerate(cache)}


def assert_is_from_scratch(drafter: LanguageModelDrafter, committed: list[int]) -> None:
    """The cache holds what one made from the committed tokens alone, in one pass, does."""
    fresh = LanguageModelDrafter(drafter.model)
    fresh.observe(committed, None)
    assert_same_memory(drafter, fresh, len(committed))


def assert_same_memory(drafter: LanguageModelDrafter, fresh: LanguageModelDrafter, length: int) -> None:
    """Every row that a later pass can read is that of the other drafter."""
    assert {entry.offset for entry in drafter.context} == {length}
    ours, theirs = held_rows(drafter.context, drafter.model), held_rows(fresh.context, drafter.model)
    assert ours.keys() == theirs.keys()
    for name, rows in ours.items():
        np.testing.assert_allclose(rows, theirs[name], rtol=0, atol=1e-5, err_msg=name)


@pytest.mark.parametrize(
    ("model", "gamma"),
    [
        *[("near_model", 1), ("near_model", 3), ("near_model", 5), ("other_tiny_model", 3)],
        *[("tiny_model", 1), ("tiny_model", 5), ("llama_model", 1), ("llama_model", 5)],
    ],
    indirect=["model"],
)
def test_tokens_are_those_of_plain_decoding(tiny_model: Model, plain: tuple[int, ...], model, gamma: int) -> None:
    drafter = LanguageModelDrafter(model)
    target = session(tiny_model, drafter, gamma)
    emitted, outcomes = list(PROMPT), set()
    for item in make_loop(target, drafter, gamma).rounds(Request(prompt=PROMPT, max_tokens=LENGTH)):
        emitted += item.tokens
        outcomes.add(item.outcome)
        assert {entry.offset for entry in drafter.context} == {target.offset}
    assert tuple(emitted[len(PROMPT) :]) == plain
    assert_is_from_scratch(drafter, emitted[: target.offset])
    if model is tiny_model:
        assert outcomes <= {"prefill", "full", "no_room"}


def test_the_target_as_its_own_drafter_is_always_right(tiny_model: Model) -> None:
    drafter = LanguageModelDrafter(tiny_model)
    done = collect(
        make_loop(session(tiny_model, drafter, 3), drafter, 3).rounds(Request(prompt=PROMPT, max_tokens=1 + 4 * 15))
    )
    assert [item.accepted for item in done.rounds] == [3] * 15
    assert sum(len(item.tokens) for item in done.rounds) / len(done.rounds) == 4  # tau = gamma + 1


def test_a_near_model_is_accepted_in_part(tiny_model: Model, near_model: Model, plain: tuple[int, ...]) -> None:
    drafter = LanguageModelDrafter(near_model)
    target = session(tiny_model, drafter, 4)
    decoding, emitted, outcomes = LanguageModelDrafter(near_model), list(PROMPT), set()
    for item in make_loop(target, drafter, 4, commit=RollbackCommit()).rounds(Request(prompt=PROMPT, max_tokens=40)):
        for token in [*emitted, *item.tokens][decoding.context[0].offset : target.offset]:
            decoding.observe([token], None)
        emitted += item.tokens
        outcomes.add(item.outcome)
        assert_same_memory(drafter, decoding, target.offset)
    assert tuple(emitted[len(PROMPT) :]) == plain[:40]
    assert {"full", "partial", "miss_first"} <= outcomes


def test_the_separate_loop_leaves_the_same_memory(tiny_model: Model, near_model: Model, plain: tuple[int, ...]) -> None:
    drafter, target = LanguageModelDrafter(near_model), session(tiny_model, gamma=3)
    parts = {"verifier": GreedyVerifier(sampling=Sampling()), "commit": PrefixCommit(), "replay": TokenReplay()}
    loop = SeparateLoop(target=target, drafter=drafter, block=FixedPolicy(gamma=3), **parts)
    assert collect(loop.rounds(Request(prompt=PROMPT, max_tokens=30))).tokens == plain[:30]
    assert_is_from_scratch(drafter, [*PROMPT, *plain][: target.offset])


@pytest.mark.parametrize("chunk", [1, 5, 64])
def test_prompt_chunks_change_nothing(tiny_model: Model, llama_model: llama.Model, chunk: int) -> None:
    for model in (tiny_model, llama_model):
        drafter = LanguageModelDrafter(model)
        make_loop(session(tiny_model, prefill_chunk=chunk), drafter, 5).start(Request(prompt=PROMPT, max_tokens=4))
        assert_is_from_scratch(drafter, PROMPT)


def test_rounds_without_a_proposal_are_remembered_too(tiny_model: Model, plain: tuple[int, ...]) -> None:
    drafter = LanguageModelDrafter(tiny_model)
    assert (
        collect(make_loop(session(tiny_model), drafter, 0).rounds(Request(prompt=PROMPT, max_tokens=8))).tokens
        == plain[:8]
    )
    assert_is_from_scratch(drafter, [*PROMPT, *plain[:7]])


@each_kind
@pytest.mark.parametrize("shown", [0, 17])
def test_the_proposal_is_the_same_from_prefill_and_from_rounds(
    tiny_model: Model, plain: tuple[int, ...], model, shown: int
) -> None:
    drafter = LanguageModelDrafter(model)
    loop = make_loop(session(tiny_model), drafter, 5)
    progress, _ = loop.start(Request(prompt=[*PROMPT, *plain[:shown]], max_tokens=LENGTH - shown))
    while len(progress.emitted) < 20:
        loop.step(progress)
    at = len(progress.tokens) - len(PROMPT)
    fresh = LanguageModelDrafter(model)
    fresh.observe([*PROMPT, *plain[: at - 1]], None)
    expected = fresh.propose(context_at(plain[at - 1], len(progress.tokens) - 1, DRAWS), 5)
    assert drafter.propose(context_at(plain[at - 1], len(progress.tokens) - 1, DRAWS), 5) == expected
    assert (expected.draft_probs, expected.confidence) == (None, None)


@each_kind
def test_rows_are_kept_exactly_as_far_as_the_tokens_are_those_that_were_drafted(model) -> None:
    """Whatever is committed in place of the proposal, and however often is proposed before."""
    drafter = LanguageModelDrafter(model)
    drafter.observe(PROMPT, None)
    drafted = drafter.propose(context_at(7, 21, DRAWS), 4).tokens
    for committed in (
        [7],
        [8],
        [7, *drafted[:2]],
        [7, *drafted],
        [7, drafted[0], (drafted[1] + 1) % 48, 3],
        [7, *drafted, 5, 6],
        [],
    ):
        drafter = LanguageModelDrafter(model)
        drafter.observe(PROMPT, None)
        drafter.propose(context_at(9, 21, DRAWS), 3)
        assert drafter.propose(context_at(7, 21, DRAWS), 4).tokens == drafted
        drafter.observe(committed, None)
        assert_is_from_scratch(drafter, [*PROMPT, *committed])


def test_a_wide_gamma_can_be_taken_back(tiny_model: Model, llama_model: llama.Model) -> None:
    assert LanguageModelDrafter(tiny_model).max_gamma == 31
    for model in (tiny_model, llama_model):
        drafter = LanguageModelDrafter(model)
        drafter.observe(PROMPT, None)
        drafted = drafter.propose(context_at(7, 21, DRAWS), 31).tokens
        drafter.observe([7, (drafted[0] + 1) % 48], None)  # all but the anchor is rejected
        assert_is_from_scratch(drafter, [*PROMPT, 7, (drafted[0] + 1) % 48])
    with pytest.raises(UserError, match="at most 31 tokens"):
        make_loop(session(tiny_model, drafter, 32), drafter, 32)


class Cached:
    """A model of which only the cache is asked for."""

    def __init__(self, *entries) -> None:
        self.entries = entries

    def make_cache(self) -> list:
        return list(self.entries)


@pytest.mark.parametrize(
    "entry",
    [RotatingKVCache(max_size=8), CacheList(KVCache(), RotatingKVCache(max_size=8)), ArraysCache(2)],
    ids=["rotating", "nested", "recurrent"],
)
def test_caches_that_cannot_be_trimmed_are_refused(entry) -> None:
    with pytest.raises(UserError, match=r"cannot take back rejected tokens: take a model of full attention"):
        LanguageModelDrafter(Cached(KVCache(), entry))
    LanguageModelDrafter(Cached(KVCache(), CacheList(KVCache(), KVCache())))


def test_no_headroom_is_no_trimmable_cache(tiny_model: Model) -> None:
    with pytest.raises(UserError, match="LayerCache"):
        LanguageModelDrafter(Cached(*tiny_model.make_cache(max_rollback=0)))


def test_misuse_is_refused(tiny_model: Model) -> None:
    drafter = LanguageModelDrafter(tiny_model)
    drafter.observe(PROMPT, None)
    with pytest.raises(ValueError, match="anchor must stand at 21"):
        drafter.propose(context_at(7, 20, DRAWS), 5)


# --- loading ---


def load_drafter(checkpoint: Path, model, tokenizer) -> LanguageModelDrafter:
    """Through `load`, for the target of the checkpoint."""

    class Target:
        path, args = str(checkpoint), tiny_config(vocab_size=96)

    return LanguageModelDrafter.load(
        Target,
        load_model=lambda path: (model, tokenizer),
        load_tokenizer=lambda folder, vocab_size: load(checkpoint)[1],
        path="there",
        max_gamma=7,
    )


def test_a_model_of_the_same_tokens_is_taken(checkpoint: Path) -> None:
    drafter = load_drafter(checkpoint, *load(checkpoint))
    assert (drafter.max_gamma, drafter.tapped_layers) == (7, ())


def test_other_tokens_are_refused(checkpoint: Path) -> None:
    model, _ = load(checkpoint)
    longer = TokenizerWrapper(make_tokenizer(97))
    with pytest.raises(
        UserError, match=r"there has another tokenizer than the target: 1 tokens differ, .* is id 96 the"
    ):
        load_drafter(checkpoint, model, longer)

    class Swapped:
        def get_vocab(self) -> dict[str, int]:
            vocabulary = make_tokenizer(96).get_vocab()
            return vocabulary | {"a": vocabulary["b"], "b": vocabulary["a"]}

    with pytest.raises(UserError, match=r"2 tokens differ, 'a' is id 5 there and 4 for the target; take a model"):
        load_drafter(checkpoint, model, Swapped())


def test_fewer_ids_than_tokens_are_refused(checkpoint: Path, tiny_model: Model) -> None:
    with pytest.raises(UserError, match=r"there predicts 48 ids, the tokenizer has 96"):
        load_drafter(checkpoint, tiny_model, load(checkpoint)[1])


def test_a_target_from_no_folder_is_refused(tiny_model: Model) -> None:
    with pytest.raises(UserError, match="from no folder"):
        LanguageModelDrafter.load(tiny_model, load_model=None, load_tokenizer=None, path="there")


def test_the_main_program_runs_it(program, checkpoint: Path, tmp_path: Path, capsys) -> None:
    """The target as its own drafter: every proposal stands."""
    assert program("drafter=language_model", f"drafter.path={checkpoint}", "block.gamma=3", "max_tokens=9") == 0
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["acceptance_rate"] == 1.0
    capsys.readouterr()
    assert program("drafter=language_model") == 2
    assert "drafter.path" in capsys.readouterr().err


def test_the_main_program_runs_a_model_of_another_architecture(program, tmp_path: Path, capsys) -> None:
    folder = tmp_path / "llama"
    folder.mkdir()
    model = random_llama(96)
    mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(model.parameters())))
    (folder / "config.json").write_text(json.dumps(LLAMA | {"vocab_size": 96}))
    save_tokenizer(folder, size=96)
    arguments = ["drafter=language_model", f"drafter.path={folder}", "drafter.load_model._target_=mlx_lm.load"]
    assert program(*arguments) == 0
    capsys.readouterr()
    save_tokenizer(folder, size=95)
    assert program(*arguments) == 2
    assert "1 tokens differ" in capsys.readouterr().err
