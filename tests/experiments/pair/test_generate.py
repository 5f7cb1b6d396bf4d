"""The target's own generations: exact, resumable, the same from any number of shards, and read back checked."""

import json
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from experiments import pair
from experiments.pair import generate
from experiments.pair.data.beginnings import Beginnings, WindowBeginnings
from experiments.pair.data.generations import Generations, load_generations, write_generations
from experiments.pair.generate import continue_rows, draw, prefill
from experiments.settings import parse_shard
from models import Model
from models.deepseek_v4.moe import evaluate_every_expert
from spec import UserError
from tests.random_models import TINY, random_model, random_tokens

PROMPT, NEW, BATCH = 9, 14, 6  # 23 tokens: past the window of 12, five windows of the CSA layer, the indexer chooses


def beginnings(lengths: list[int], temperatures: list[float], seed: int = 0) -> Beginnings:
    tokens = np.array(random_tokens(max(lengths), batch=len(lengths), seed=seed)).astype(np.int32)
    for row, length in zip(tokens, lengths, strict=True):
        row[length:] = 0
    return Beginnings(
        tokens=tokens,
        lengths=np.array(lengths, dtype=np.int32),
        classes=np.zeros(len(lengths), dtype=np.uint8),
        temperatures=np.array(temperatures, dtype=np.float32),
        origins=np.array([str(number) for number in range(len(lengths))]),
    )


def decode_alone(model: Model, tokens: list[int], length: int) -> list[int]:
    """Plain greedy decoding of one sequence."""
    cache, inputs = model.make_cache(), mx.array([tokens])
    while len(tokens) < length:
        token = mx.argmax(model(inputs, cache=cache)[0, -1]).item()
        tokens, inputs = [*tokens, token], mx.array([[token]])
    return tokens


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Token files as `experiments.pair.tokens` writes them, and prompts."""
    generator = np.random.default_rng(0)
    arrays = {name: generator.integers(0, 96, 200).astype(np.uint16) for name in ("prose", "chat")}
    sizes = {f"{name}_bytes": np.array(500, dtype=np.int64) for name in arrays}
    np.savez(tmp_path / "train.npz", **arrays, **sizes)
    (tmp_path / "prompts").mkdir()
    for name, texts in {"prose": ["it was a dark night", "once"], "chat": ["why is the sky so blue today"]}.items():
        rows = [{"id": f"{name}-{number}", "prompt": text} for number, text in enumerate(texts)]
        (tmp_path / "prompts" / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return tmp_path


@pytest.fixture
def configure(data: Path, checkpoint: Path) -> Callable[..., DictConfig]:
    def configured(**changes: object) -> DictConfig:
        with initialize_config_dir(str(Path(pair.__file__).parent / "configs"), version_base=None):
            config = compose("generate")
        toy = {
            "target": str(checkpoint),
            "output": str(data / "out"),
            "tokens": str(data / "train.npz"),
            "shares": dict.fromkeys(config.shares, 0) | {"prose": 3, "chat": 1},
            "prompt_length": PROMPT,
            "new_tokens": NEW,
            "batch_size": BATCH,
            "batches": 3,
        }
        return OmegaConf.merge(config, toy, changes)

    return configured


@pytest.mark.parametrize("lengths", [[9, 9, 9], [1, 2, 14], [15, 4, 9]])
def test_greedy_rows_are_what_each_decodes_alone(tiny_model: Model, lengths: list[int]) -> None:
    given = beginnings(lengths, [0, 0, 0])
    rows = continue_rows(tiny_model, given, 28, mx.random.key(0))
    for row, tokens, length in zip(rows.tolist(), given.tokens.tolist(), lengths, strict=True):
        assert row == decode_alone(tiny_model, tokens[:length], 28)


def test_a_batch_may_be_prefilled_in_groups(tiny_model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    given = beginnings([20] * 5, [0] * 5)
    whole = prefill(tiny_model, mx.array(given.tokens))
    monkeypatch.setattr(generate, "PREFILL_TOKENS", 40)
    parts = prefill(tiny_model, mx.array(given.tokens))
    for one, other in zip(whole, parts, strict=True):
        assert (one.offset, one.written) == (other.offset, other.written) == (20, 20)
        for name, rows in one.reachable_rows().items():
            assert mx.array_equal(rows, other.reachable_rows()[name]), name
    rows = continue_rows(tiny_model, given, 28, mx.random.key(0))
    assert rows[4].tolist() == decode_alone(tiny_model, given.tokens[4].tolist(), 28)


def test_a_gpu_s_way_through_the_experts_makes_the_same_rows(tiny_model: Model) -> None:
    model = evaluate_every_expert(random_model())
    given = beginnings([9, 3], [0, 0])
    rows = [continue_rows(one, given, 28, mx.random.key(0)).tolist() for one in (tiny_model, model)]
    assert rows[0] == rows[1]
    model.set_dtype(mx.bfloat16)  # other roundings, perhaps other tokens: the path itself is what is tried
    row = continue_rows(model, given, 28, mx.random.key(0))[0]
    assert row[:9].tolist() == given.tokens[0].tolist()
    assert row.max() < TINY["vocab_size"]


def test_sampled_rows_leave_greedy_ones_alone_and_depend_on_the_key(tiny_model: Model) -> None:
    def made(seed: int, *temperatures: float) -> list[list[int]]:
        return continue_rows(tiny_model, beginnings([9, 9], list(temperatures)), 28, mx.random.key(seed)).tolist()

    greedy, mixed = made(0, 0, 0), made(0, 0, 1)
    assert mixed[0] == greedy[0]
    assert mixed[1][:9] == greedy[1][:9]
    assert mixed[1] != greedy[1]
    assert made(0, 0, 1) == mixed
    assert made(1, 0, 1)[1] != mixed[1]


def test_draws_follow_the_softmax_at_the_row_s_temperature() -> None:
    logits, count = mx.array([1.0, 0.0, -1.0, 2.0]), 20000
    for temperature in (0.5, 1.0):
        rows = mx.broadcast_to(logits, (count, 4))
        drawn = np.array(draw(rows, mx.full((count, 1), temperature), mx.random.key(1)))
        expected = np.array(mx.softmax(logits / temperature)) * count
        chi_square = ((np.bincount(drawn, minlength=4) - expected) ** 2 / expected).sum()
        assert chi_square < 16.3  # 0.999 quantile of 3 degrees of freedom


def test_greedy_rows_survive_a_gumbel_of_minus_infinity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mx.random, "gumbel", lambda shape, key: mx.full(shape, -mx.inf))
    logits = mx.array([[0.0, 2.0, 1.0]])
    assert draw(logits, mx.zeros((1, 1)), mx.random.key(0)).tolist() == [1]


def test_windows_have_the_shares_and_temperatures_asked_for(data: Path) -> None:
    tokens = {name: np.arange(100, dtype=np.uint16) + 100 * number for number, name in enumerate(("prose", "chat"))}
    batch = WindowBeginnings(tokens, {"prose": 3, "chat": 1}, [0, 0, 1], 10, 600, 1, seed=0).batch(0)
    assert np.bincount(batch.classes) / 600 == pytest.approx([0.75, 0.25], abs=0.05)
    assert (batch.temperatures == 0).sum() == 400
    for row, index, origin in zip(batch.tokens, batch.classes, batch.origins, strict=True):
        name, start = origin.split("@")
        assert name == ("prose", "chat")[index]
        assert row.tolist() == tokens[name][int(start) : int(start) + 10].tolist()


def test_a_run_writes_what_the_interface_says(configure: Callable[..., DictConfig], data: Path) -> None:
    generate.main(configure())
    files = sorted((data / "out").glob("*.npz"))
    assert len(files) == 3
    with np.load(files[0]) as arrays:
        assert (arrays["tokens"].shape, arrays["tokens"].dtype) == ((BATCH, PROMPT + NEW), np.uint16)
        assert (arrays["classes"].shape, arrays["classes"].dtype) == ((BATCH,), np.uint8)
        assert arrays["temperatures"].dtype == np.float32
        assert arrays["class_names"].tolist() == ["prose", "chat"]
        assert arrays["prompt_length"].shape == ()
        assert arrays["prompt_length"] == PROMPT
    rows = load_generations(data / "out")
    assert len(rows) == 3 * BATCH
    assert rows.prompt_lengths.tolist() == [PROMPT] * len(rows)
    with np.load(data / "train.npz") as corpus:
        for row, origin in zip(rows.tokens, rows.origins, strict=True):
            name, start = origin.split("@")
            assert row[:PROMPT].tolist() == corpus[name][int(start) : int(start) + PROMPT].tolist()
    summary = json.loads((data / "out" / "summary-0-of-1.json").read_text(encoding="utf-8"))
    assert summary["own_tokens"] == rows.num_own == 3 * BATCH * NEW
    assert summary["settings"]["seed"] == 3
    assert set(summary["sha256"]) == {file.name for file in files}
    assert sum(sum(counts.values()) for counts in summary["rows_by_class"].values()) == len(rows)
    assert sum(figure["rows"] for figure in summary["greedy"].values()) == (rows.temperatures == 0).sum()
    assert all(0 <= figure["repeated_4grams"] <= 1 for figure in summary["greedy"].values())


def test_shards_and_stops_change_nothing(configure: Callable[..., DictConfig], data: Path) -> None:
    generate.main(configure())
    whole = load_generations(data / "out")
    parts = str(data / "parts")
    generate.main(configure(output=parts, shard="1/2"))
    assert [file.name for file in Path(parts).glob("*.npz")] == ["batch-000001.npz"]
    generate.main(configure(output=parts, shard="0/2", max_seconds=0))
    assert len(list(Path(parts).glob("*.npz"))) == 2
    before = (Path(parts) / "batch-000000.npz").stat().st_mtime_ns
    (Path(parts) / "batch-000002.partial").write_bytes(b"what a kill leaves")
    generate.main(configure(output=parts, shard="0/2"))
    assert (Path(parts) / "batch-000000.npz").stat().st_mtime_ns == before
    assert np.array_equal(load_generations(parts).tokens, whole.tokens)
    summary = json.loads((Path(parts) / "summary-0-of-2.json").read_text(encoding="utf-8"))
    assert (summary["batches"], summary["this_run"]["own_tokens"]) == (2, BATCH * NEW)
    generate.main(configure(output=str(data / "other"), seed=4, batches=1))
    assert not np.array_equal(load_generations(data / "other").tokens, whole.tokens[:BATCH])


def test_other_settings_do_not_mix_in_one_folder(configure: Callable[..., DictConfig]) -> None:
    generate.main(configure(batches=1))
    with pytest.raises(UserError, match=r"was made with seed=3: remove .* or set output"):
        generate.main(configure(seed=5))


@pytest.mark.parametrize("longest", [100, 6])
def test_prompts_are_continued_whole_at_every_temperature(
    configure: Callable[..., DictConfig], data: Path, checkpoint: Path, longest: int
) -> None:
    changes = {"prompts": str(data / "prompts"), "temperatures": [0, 1], "batch_size": 4, "prompt_length": longest}
    generate.main(configure(**changes))
    rows = load_generations(data / "out")
    assert len(rows) == 2 * 3
    model, tokenizer = generate.load(checkpoint, "float32")
    texts = {"prose-0": "it was a dark night", "prose-1": "once", "chat-0": "why is the sky so blue today"}
    assert rows.prompt_length == min(longest, len(texts["chat-0"]))
    for name, text in texts.items():
        given = tokenizer.encode(text)[-longest:]
        first, second = np.flatnonzero(rows.origins == name)
        assert {rows.temperatures[first], rows.temperatures[second]} == {0, 1}
        for row in (first, second):
            assert rows.class_names[rows.classes[row]] == name.split("-")[0]
            assert rows.tokens[row, : rows.prompt_lengths[row]].tolist() == given
            assert len(rows.own(row)) >= NEW
        greedy = first if rows.temperatures[first] == 0 else second
        assert rows.tokens[greedy].tolist() == decode_alone(model, given, rows.tokens.shape[1])


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"shard": "4/4"}, "shard: wanted i/n"),
        ({"shard": "3/4"}, "has nothing to do: there are 3 batches"),
        ({"new_tokens": 0}, "new_tokens: wanted an integer of 1 or more, got 0"),
        ({"batch_size": 2.5}, "batch_size: wanted an integer"),
        ({"temperatures": []}, "temperatures: wanted a list"),
        ({"temperatures": [-1.0]}, "temperatures: wanted a list"),
        ({"shares": {"prose": 0, "chat": 0}}, "shares: wanted numbers of 0 or more, not all 0"),
        ({"shares": {"prose": -1}}, "shares: wanted numbers"),
        ({"shares": {"code_gen": 1}}, "fewer or none of code_gen"),
        ({"prompt_length": 201}, "wanted at least 201 tokens a class"),
    ],
)
def test_what_cannot_be_met_is_said(configure: Callable[..., DictConfig], changes: dict, told: str) -> None:
    with pytest.raises(UserError, match=told):
        generate.main(configure(**changes))


def test_tokens_of_another_tokenizer_are_refused(configure: Callable[..., DictConfig], data: Path) -> None:
    np.savez(data / "train.npz", prose=np.full(50, 96, dtype=np.uint16), chat=np.zeros(50, dtype=np.uint16))
    with pytest.raises(UserError, match="has token 96, the target a vocabulary of 96"):
        generate.main(configure())


def test_shards() -> None:
    assert parse_shard("2/4") == (2, 4)
    for text in ("", "1", "a/b", "-1/2", "0/0", "1/2/3"):
        with pytest.raises(UserError):
            parse_shard(text)


def made_up(**changes: object) -> Generations:
    values = {
        "tokens": np.arange(20, dtype=np.uint16).reshape(2, 10),
        "classes": np.array([0, 1], dtype=np.uint8),
        "class_names": ("prose", "chat"),
        "temperatures": np.array([0, 1], dtype=np.float32),
        "prompt_lengths": np.array([4, 3], dtype=np.int32),
        "prompt_length": 4,
        "origins": np.array(["a", "longer"]),
        "settings": {"target": "x"},
    }
    return Generations(**(values | changes))


def test_generations_come_back_as_they_were(tmp_path: Path) -> None:
    write_generations(tmp_path / "b.npz", made_up(origins=np.array(["p", "q"])))
    write_generations(tmp_path / "a.npz", made_up())
    for paths in (tmp_path, str(tmp_path / "*.npz"), [tmp_path / "a.npz", tmp_path]):
        rows = load_generations(paths)
        assert rows.origins.tolist() == ["a", "longer", "p", "q"]
        assert rows.tokens.dtype == np.uint16
        assert rows.own(1).tolist() == [13, 14, 15, 16, 17, 18, 19]
        assert rows.num_own == 2 * (6 + 7)
        assert rows.of("chat").tolist() == [1, 3]
        assert rows.of("chat", 0.0).tolist() == []
        assert rows.settings == {"target": "x"}


def test_the_agreed_arrays_alone_suffice(tmp_path: Path) -> None:
    rows = made_up()
    names = ("tokens", "classes", "class_names", "temperatures", "prompt_length")
    np.savez(tmp_path / "a.npz", **{name: getattr(rows, name) for name in names})
    read = load_generations(tmp_path / "a.npz")
    assert read.prompt_lengths.tolist() == [4, 4]
    assert read.settings == {}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"tokens": np.zeros((2, 9), dtype=np.uint16)}, "wanted the row length of .*, 10, got 9"),
        ({"prompt_length": 5}, "prompt_length of .*, 4, got 5"),
        ({"class_names": ("chat", "prose")}, "class_names"),
        ({"settings": {"target": "y"}}, "target of .*, x, got y"),
        ({"tokens": np.zeros((2, 10), dtype=np.int32)}, "uint16"),
        ({"prompt_length": 10}, r"wanted prompt lengths in 1\.\.10 of rows of 10 tokens"),
        ({"classes": np.array([0], dtype=np.uint8)}, "each of 2 rows"),
        ({"classes": np.array([0, 2], dtype=np.uint8)}, "classes below 2, got 2"),
    ],
)
def test_generations_that_do_not_fit_are_refused(tmp_path: Path, changes: dict, told: str) -> None:
    write_generations(tmp_path / "a.npz", made_up())
    write_generations(tmp_path / "b.npz", made_up(**changes))
    with pytest.raises(UserError, match=told):
        load_generations(tmp_path)


def test_files_that_are_none_of_generations_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"python -m experiments\.pair\.generate"):
        load_generations(tmp_path)
    np.savez(tmp_path / "a.npz", tokens=np.zeros((2, 10), dtype=np.uint16))
    with pytest.raises(UserError, match="lacks classes, class_names, temperatures, prompt_length"):
        load_generations(tmp_path)
    (tmp_path / "a.npz").write_bytes(b"PK half a file")
    with pytest.raises(UserError, match="remove it and make it again"):
        load_generations(tmp_path)


def test_the_toy_model_reaches_what_it_is_to_test() -> None:
    assert TINY["sliding_window"] < PROMPT + NEW
    assert TINY["index_topk"] < (PROMPT + NEW) // 4
