"""A language model as drafter: the contract, and what is its own, a cache that is trimmed and a common vocabulary."""

import json
from functools import cache
from pathlib import Path

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from mlx_lm.models import llama
from mlx_lm.models.cache import ArraysCache, CacheList, KVCache, RotatingKVCache
from mlx_lm.tokenizer_utils import TokenizerWrapper

from models import Model, load
from models.deepseek_v4 import LayerCache
from spec import LanguageModelDrafter, RandomStream, Request, UserError, collect
from spec.testing import DrafterContract
from tests.models.cache_rows import reachable_rows
from tests.random_models import random_model, random_tokens, tiny_config
from tests.spec.doubles import context_at, make_loop, session
from tests.spec.tiny_text import make_tokenizer, save_tokenizer

DRAWS = RandomStream()
PROMPT = random_tokens(21, seed=6)[0].tolist()
LENGTH = 64
LLAMA = {
    "model_type": "llama",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "rms_norm_eps": 1e-5,
}


@cache
def make_target() -> Model:
    return random_model()


@cache
def near_model() -> Model:
    """The target with a disturbed head and attention, so that some of its tokens are accepted."""
    near, far = random_model(), random_model(seed=1)
    near.head.weight = near.head.weight + 0.3 * far.head.weight
    near.layers[1].attn.wkv.weight = near.layers[1].attn.wkv.weight + 0.3 * far.layers[1].attn.wkv.weight
    return near


@cache
def random_llama(vocab_size: int) -> llama.Model:
    """Random, with mlx-lm's plain KV cache."""
    mx.random.seed(4)
    model = llama.Model(llama.ModelArgs(vocab_size=vocab_size, **LLAMA))
    mx.eval(model.parameters())
    return model


class TestOfANearModel(DrafterContract):
    prompt = PROMPT

    def model(self) -> Model:
        return make_target()

    def make(self, target: Model) -> LanguageModelDrafter:
        return LanguageModelDrafter(near_model())

    def memory(self, drafter: LanguageModelDrafter) -> list[mx.array]:
        """Every row that a later pass can read, once what was drafted ahead is taken back."""
        drafter.observe([], None)
        cache = drafter.cache
        assert len({entry.offset for entry in cache}) == 1
        if isinstance(cache[0], LayerCache):
            return [mx.array(rows) for rows in reachable_rows(cache, drafter.model.args).values()]
        return [entry.keys[:, :, : entry.offset] for entry in cache if entry.offset]


class TestOfAnotherArchitecture(TestOfANearModel):
    def make(self, target: Model) -> LanguageModelDrafter:
        return LanguageModelDrafter(random_llama(48))


@pytest.mark.parametrize(
    ("model", "gamma"),
    [("tiny_model", 1), ("tiny_model", 5), ("other_tiny_model", 3), ("near_model", 4), ("random_llama", 4)],
)
def test_the_cache_holds_the_committed_tokens_after_every_round(
    tiny_model: Model, model: str, gamma: int, request: pytest.FixtureRequest
) -> None:
    made = {"near_model": near_model, "random_llama": lambda: random_llama(48)}
    drafter = LanguageModelDrafter(made[model]() if model in made else request.getfixturevalue(model))
    target, text, outcomes = session(tiny_model, drafter, gamma), list(PROMPT), set()
    for item in make_loop(target, drafter, gamma).rounds(Request(prompt=PROMPT, max_tokens=LENGTH)):
        text += item.tokens
        outcomes.add(item.outcome)
        assert {entry.offset for entry in drafter.cache} == {target.offset}
    plain = collect(make_loop(session(tiny_model)).rounds(Request(prompt=PROMPT, max_tokens=LENGTH))).tokens
    assert tuple(text[len(PROMPT) :]) == plain
    fresh, memory = LanguageModelDrafter(drafter.model), TestOfANearModel().memory
    fresh.observe(text[: target.offset], None)
    assert all(mx.allclose(*rows, atol=1e-5) for rows in zip(memory(drafter), memory(fresh), strict=True))
    if model == "near_model":
        assert {"full", "partial", "miss_first"} <= outcomes  # near enough to be right at times
    if model == "tiny_model":
        assert outcomes <= {"prefill", "full", "no_room"}


def test_the_target_as_its_own_drafter_is_always_right(tiny_model: Model) -> None:
    drafter = LanguageModelDrafter(tiny_model)
    done = collect(
        make_loop(session(tiny_model, drafter, 3), drafter, 3).rounds(Request(prompt=PROMPT, max_tokens=1 + 4 * 15))
    )
    assert [item.accepted for item in done.rounds] == [3] * 15
    assert sum(len(item.tokens) for item in done.rounds) / len(done.rounds) == 4  # tau = gamma + 1


def test_drafts_are_point_masses(tiny_model: Model) -> None:
    drafter = LanguageModelDrafter(tiny_model)
    drafter.observe(PROMPT, None)
    proposal = drafter.propose(context_at(7, 21, DRAWS), 5)
    assert (proposal.draft_probs, proposal.confidence) == (None, None)


def test_the_longest_block_is_what_the_caches_take_back(tiny_model: Model) -> None:
    """The contract takes back a block of that length."""
    drafter = LanguageModelDrafter(tiny_model)
    assert drafter.max_gamma == 31
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
