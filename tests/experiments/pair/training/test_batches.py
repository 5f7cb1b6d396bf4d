"""Batches: what a step's draws depend on, windows and anchors, and the figure of held-out text."""

import math
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from omegaconf import DictConfig, OmegaConf

from experiments.pair.training.batches import (
    BlockSampler,
    WindowSampler,
    evaluation_windows,
    load_tokens,
    own_rows,
    sample_anchors,
)
from experiments.pair.training.evaluation import bits_per_byte, read_bytes_per_token
from spec.errors import UserError
from tests.experiments.pair.training.toys import (
    BYTES_PER_TOKEN,
    CLASSES,
    LENGTH,
    VOCABULARY,
    toy_sampler,
    toy_text,
    write_generations,
    write_tokens,
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokens(tmp_path_factory.mktemp("tokens"))


def test_a_batch_depends_on_seed_and_step_alone() -> None:
    first, again = toy_sampler(), toy_sampler()
    again.batch(3)
    for step in (0, 7, 1):
        assert np.array_equal(first.batch(step), again.batch(step))
    assert not np.array_equal(first.batch(0), first.batch(1))
    assert not np.array_equal(first.batch(0), toy_sampler(seed=1).batch(0))


def test_windows_are_whole_and_classes_come_by_their_shares() -> None:
    tokens = {"a": np.arange(30, dtype=np.uint16), "b": np.arange(100, 130, dtype=np.uint16), "c": np.arange(3)}
    sampler = WindowSampler(tokens, {"a": 3, "b": 1, "c": 0}, 64, 10, 0)
    batches = np.concatenate([sampler.batch(step) for step in range(10)])
    assert (np.diff(batches, axis=1) == 1).all()
    assert {int(start) for start in batches[:, 0]} == {*range(21), *range(100, 121)}
    assert (batches[:, 0] < 100).mean() == pytest.approx(0.75, abs=0.06)
    with pytest.raises(ValueError, match="10 tokens a class or more, got fewer or none of c, d"):
        WindowSampler(tokens, {"a": 1, "c": 1, "d": 1}, 64, 10, 0)


@pytest.mark.parametrize(("count", "batch_size"), [(48, 2), (72, 2), (240, 3), (251, 4)])
def test_evaluation_scores_every_token_but_the_first_once(count: int, batch_size: int) -> None:
    scored = []
    for windows, tail in evaluation_windows(np.arange(count, dtype=np.uint16), 48, batch_size):
        assert windows.shape[0] <= batch_size
        assert windows.shape[1] == 48
        assert (np.diff(windows, axis=1) == 1).all()
        scored += windows[:, -tail:].flatten().tolist()
        assert tail == 24 or windows[0, 0] == 0
    whole = 48 + (count - 48) // 24 * 24  # what is left over is no half window
    assert sorted(scored) == list(range(1, whole))


def test_evaluation_can_be_limited_and_needs_a_whole_window() -> None:
    tokens = np.arange(500, dtype=np.uint16)
    assert sum(len(windows) for windows, _ in evaluation_windows(tokens, 48, 4, limit=6)) == 6
    assert not list(evaluation_windows(tokens[:47], 48, 4))


def test_token_files_hold_the_classes_and_other_things(data: Path, tmp_path: Path) -> None:
    assert load_tokens(data / "train.npz").keys() == set(CLASSES)
    assert read_bytes_per_token(data / "summary.json", "valid") == BYTES_PER_TOKEN
    with pytest.raises(FileNotFoundError, match=r"python -m experiments\.pair\.tokens"):
        load_tokens(tmp_path / "none.npz")


def test_bits_per_byte_of_a_uniform_model() -> None:
    tokens = {"prose": toy_text(96, 0), "code_gen": toy_text(192, 1), "short": toy_text(20, 2)}
    rates = BYTES_PER_TOKEN | {"short": 1.0}
    found = bits_per_byte(lambda inputs: mx.zeros((*inputs.shape, VOCABULARY)), tokens, rates, length=48, batch_size=2)
    bits = math.log2(VOCABULARY)
    assert found.keys() == {"prose", "code_gen", "all"}
    assert found["prose"] == pytest.approx(bits / 3)
    assert found["code_gen"] == pytest.approx(bits / 2)
    assert found["all"] == pytest.approx(bits * (95 + 191) / (95 * 3 + 191 * 2))


def test_bits_per_byte_reads_the_token_after_each_position() -> None:
    """A model that knows the next token of counting text needs no bits; one that is off by one needs many."""
    text = {"a": np.arange(60, dtype=np.uint16)}

    def ahead(step: int, inputs: mx.array) -> mx.array:
        return 50.0 * (mx.expand_dims(inputs + step, -1) == mx.arange(64))

    assert bits_per_byte(partial(ahead, 1), text, {"a": 1.0}, length=20, batch_size=2)["all"] == pytest.approx(0)
    assert bits_per_byte(partial(ahead, 0), text, {"a": 1.0}, length=20, batch_size=2)["all"] > 50


def test_anchors_leave_room_for_a_context_and_a_block() -> None:
    anchors = np.array(sample_anchors((50, 40), 12, 4, (1, 2)))
    assert anchors.dtype == np.int32
    assert sorted(set(anchors.flatten().tolist())) == list(range(1, 8))  # 7 + 4 = 11, the last token
    assert np.array_equal(anchors, np.array(sample_anchors((50, 40), 12, 4, (1, 2))))
    assert not np.array_equal(anchors, np.array(sample_anchors((50, 40), 12, 4, (1, 3))))


def test_rank_0_draws_what_a_process_alone_draws_and_the_others_other_windows() -> None:
    """Rank 0's are those of a seed without a rank, so that a run that was begun without one goes on."""
    alone, ranks = toy_sampler(), [toy_sampler(rank=rank) for rank in range(3)]
    assert np.array_equal(alone.batch(5), ranks[0].batch(5))
    generator = np.random.default_rng((0, 5))
    first = alone.tokens[alone.classes[generator.choice(2, size=2, p=[0.5, 0.5])[0]]]
    start = generator.integers(0, len(first) - LENGTH + 1)
    assert np.array_equal(alone.batch(5)[0], first[start : start + LENGTH])
    batches = [sampler.batch(5).tobytes() for sampler in ranks]
    assert len(set(batches)) == 3
    assert batches[2] == toy_sampler(rank=2).batch(5).tobytes()


# --- the target's own generations ---


def test_own_rows_come_by_class_and_by_temperature(tmp_path: Path) -> None:
    first = write_generations(tmp_path / "a.npz")
    write_generations(tmp_path / "b.npz", count=6)
    rows, prompt_length = own_rows(str(tmp_path / "*.npz"))
    assert prompt_length == 10
    assert {name: array.shape for name, array in rows.items()} == {"prose": (9, 24), "code_gen": (9, 24)}
    assert (rows["prose"][0] == np.load(first)["tokens"][0]).all()
    greedy, _ = own_rows([first], greedy=True)
    assert {name: len(array) for name, array in greedy.items()} == {"prose": 4, "code_gen": 4}
    assert (greedy["code_gen"] == np.load(first)["tokens"][[1, 3, 7, 9]]).all()


def block_config(data: Path, generations: Path | None, **changes: Any) -> DictConfig:
    sizes = {"batch_size": 2, "length": LENGTH, "anchors": 3, "generated_batch_size": 5, "generated_anchors": 6}
    files = {"train": str(data / "train.npz"), "generations": generations and str(generations)}
    shares = {"shares": {"prose": 0.75, "code_gen": 0.25}, "generated_share": 0.4}
    return OmegaConf.create({"seed": 2, "data": files | shares} | sizes | changes)


def test_blocks_of_generations_stand_in_the_generated_part_alone(data: Path, tmp_path: Path) -> None:
    file = write_generations(tmp_path / "own.npz")
    sampler = BlockSampler.from_config(block_config(data, file, generated_anchors=40), gamma=4)
    known = {row.tobytes() for row in np.load(file)["tokens"].astype(np.int32)}
    seen, kinds = set(), []
    for step in range(60):
        tokens, anchors = map(np.array, sampler.batch(step))
        kinds.append(sampler.is_generated(step))
        assert sampler.tokens(step) == tokens.size
        if kinds[-1]:
            assert tokens.shape == (5, 24)
            assert anchors.shape == (5, 40)
            assert {row.tobytes() for row in tokens} <= known  # whole rows, from their beginning
            seen |= set(anchors.flatten().tolist())
        else:
            assert tokens.shape == (2, LENGTH)
            assert anchors.shape == (2, 3)
    # 10 given tokens: the block of anchor 9 begins with the first own token, that of 19 ends with the last of 24
    assert sorted(seen) == list(range(9, 20))
    assert np.mean(kinds) == pytest.approx(0.4, abs=0.2)


def test_all_ranks_take_the_same_kind_of_step_with_their_own_rows(data: Path, tmp_path: Path) -> None:
    config = block_config(data, write_generations(tmp_path / "own.npz", count=60))
    first, again, other = (BlockSampler.from_config(config, 4, rank) for rank in (0, 0, 1))
    steps = range(20)
    assert [first.is_generated(step) for step in steps] == [other.is_generated(step) for step in steps]
    for step in (3, 1, 8):
        for ours, theirs, others in zip(first.batch(step), again.batch(step), other.batch(step), strict=True):
            assert mx.array_equal(ours, theirs)
            assert not mx.array_equal(ours, others)


def test_without_generations_a_step_is_the_windows_and_anchors_that_it_was(data: Path) -> None:
    sampler = BlockSampler.from_config(block_config(data, None), gamma=4)
    assert not any(sampler.is_generated(step) for step in range(50))
    tokens, anchors = sampler.batch(7)
    config = block_config(data, None)
    windows = WindowSampler(load_tokens(data / "train.npz"), config.data.shares, 2, LENGTH, config.seed)
    assert np.array_equal(np.array(tokens), windows.batch(7))
    assert np.array_equal(np.array(anchors), np.array(sample_anchors((2, 3), LENGTH, 4, (config.seed, 11, 7))))


@pytest.mark.parametrize(
    ("made", "gamma", "message"),
    [
        ({"prompt_length": 21}, 4, "room for a block of 4 after it, got 24 tokens with a prompt of 21"),
        ({"prompt_length": 1}, 4, "a prompt of 2 tokens or more"),
        ({"classes": ("prose",)}, 4, "every class with a share, got none of code_gen"),
    ],
)
def test_generations_that_do_not_serve_are_refused(
    data: Path, tmp_path: Path, made: dict[str, Any], gamma: int, message: str
) -> None:
    file = write_generations(tmp_path / "own.npz", **made)
    with pytest.raises(UserError, match=message):
        BlockSampler.from_config(block_config(data, file), gamma)
    with pytest.raises(UserError, match=r"python -m experiments\.pair\.generate"):
        BlockSampler.from_config(block_config(data, tmp_path / "none*.npz"), gamma)
