"""Several processes that train together: means over them, who decides and writes, and the same weights in all."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from experiments.pair.training import curves, parallel
from experiments.pair.training.flat import FlatLayout
from experiments.pair.training.loop import Trainer, group_of
from models import load_dspark, load_model
from spec.errors import UserError
from tests.experiments.pair.training.parallel_worker import train
from tests.experiments.pair.training.toys import (
    CLASSES,
    STEPS,
    overrides_of,
    toy_model,
    toy_plan,
    write_checkpoint,
    write_generations,
    write_tokens,
)

ROOT = Path(__file__).parents[2]


class OtherProcess:
    """A group of two in one process: the other's part of each sum is given."""

    def __init__(self, rank: int, monkeypatch: pytest.MonkeyPatch, *parts: list[float]) -> None:
        self.parts, self.number = list(parts), rank
        monkeypatch.setattr(mx.distributed, "all_sum", self.all_sum)

    def all_sum(self, array: mx.array, *, group: "OtherProcess") -> mx.array:
        assert group is self
        other = mx.array(self.parts.pop(0))
        return array + mx.pad(other, (0, array.size - other.size)) if array.ndim else array + other

    def rank(self) -> int:
        return self.number

    def size(self) -> int:
        return 2


def test_a_process_alone_has_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLX_RANK", raising=False)
    assert parallel.process_group() is None
    tree = {"a": mx.array([1.0])}
    assert parallel.mean_over_processes(tree, None) is tree
    assert parallel.first_says(True, None)
    assert parallel.values_of_all(3.0, None) == [3.0]
    parallel.wait_for_all(None)


def test_a_group_that_cannot_be_joined_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLX_RANK", "0")
    monkeypatch.delenv("MLX_HOSTFILE", raising=False)
    monkeypatch.delenv("NCCL_HOST_IP", raising=False)
    with pytest.raises(UserError, match=r"the ring group cannot be joined .*mlx\.launch, or unset MLX_RANK"):
        parallel.process_group()


def test_means_keep_the_tree_and_its_numbered_names(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = ({"w": mx.array([[1.0, 2.0]])}, mx.array(4.0), {"load": {"1": mx.array([6.0, 8.0]), "2": mx.zeros(3)}})
    other = np.zeros(4 * 64, np.float32)  # leaves in the order of their names, each padded to 64 entries
    other[:2], other[64], other[128:130], other[192:195] = (3.0, 0.0), 2.0, (0.0, 4.0), (1.0, 2.0, 3.0)
    weights, loss, auxiliary = parallel.mean_over_processes(tree, OtherProcess(0, monkeypatch, other.tolist()))
    assert weights["w"].tolist() == [[2.0, 1.0]]
    assert loss.item() == 3.0
    assert {name: load.tolist() for name, load in auxiliary["load"].items()} == {"1": [3.0, 6.0], "2": [0.5, 1.0, 1.5]}


@pytest.mark.parametrize(
    ("rank", "own", "other", "expected"), [(0, True, 0.0, True), (1, True, 0.0, False), (1, False, 1.0, True)]
)
def test_rank_0_decides(rank: int, own: bool, other: float, expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    assert parallel.first_says(own, OtherProcess(rank, monkeypatch, other)) == expected


def test_processes_at_other_steps_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = OtherProcess(0, monkeypatch, [0.0, 4.0])
    trainer = Trainer({"w": mx.zeros(2)}, lambda *_: None, toy_plan(), tmp_path, group=group)
    with pytest.raises(UserError, match="the processes stand at steps 0, 4: start all with one folder"):
        trainer.run(lambda step: ())


# --- real processes, over the ring ---


def run_together(arguments: list[str], folder: Path, processes: int = 2) -> None:
    """Runs ``python -m ...`` in several processes that know of one another, as mlx.launch starts them."""
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(processes)]
    hosts = [[f"127.0.0.1:{listener.getsockname()[1]}"] for listener in listeners]
    for listener in listeners:
        listener.close()
    (folder / "hosts.json").write_text(json.dumps(hosts))
    running = []
    for rank in range(processes):
        environment = os.environ | {"MLX_RANK": str(rank), "MLX_HOSTFILE": str(folder / "hosts.json")}
        with (folder / f"out{rank}.txt").open("w") as output:
            command = [sys.executable, "-m", *arguments]
            running.append(subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=output))
    try:
        codes = [process.wait(timeout=120) for process in running]
    finally:
        for process in running:
            process.kill()
    assert codes == [0] * processes, [(folder / f"out{rank}.txt").read_text() for rank in range(processes)]


@pytest.mark.slow
def test_two_processes_train_as_one_that_sees_both_batches(tmp_path: Path) -> None:
    run_together(["tests.experiments.pair.training.parallel_worker", str(tmp_path)], tmp_path)
    (first, metadata), (second, _) = (
        mx.load(str(tmp_path / f"rank{rank}.safetensors"), return_metadata=True) for rank in (0, 1)
    )
    assert metadata["stopped"] == "2"  # rank 0's limit stopped both in the first place where they ask
    assert any(name.startswith("extra.") for name in first)
    assert all(mx.array_equal(first[name], second[name]) for name in first)
    alone = train(tmp_path / "alone", None, (0, 1))
    start = toy_model().trainable_parameters()
    for name, vector in FlatLayout(start, group_of).pack(start).items():
        # Adam makes a whole step of any gradient's sign, so entries whose gradient is rounding alone may differ.
        difference = mx.linalg.norm(first[f"parameters.{name}"] - alone.vectors[name])
        assert difference < 0.01 * mx.linalg.norm(alone.vectors[name] - vector), name
    for name, bias in alone.extra.items():
        np.testing.assert_allclose(first[f"extra.{name}"], bias, atol=1e-7)
    together, expected = (curves.read_log(tmp_path / name) for name in ("run", "alone"))
    assert [line["step"] for line in together] == [line["step"] for line in expected] == [2, 4, STEPS, STEPS]
    for line, wanted in zip(together[:3], expected[:3], strict=True):
        for name in ("loss", "cross_entropy", "alignment", "gradient_norm", "worst_overload"):
            assert line[name] == pytest.approx(wanted[name], rel=1e-3), name
    assert together[3]["evaluation"]["rank"] == 0
    lines = (tmp_path / "run" / "log.jsonl").read_text().splitlines()
    assert len(lines) == 4  # no line twice


@pytest.mark.slow
def test_the_drafter_s_program_runs_in_two_processes(tmp_path: Path) -> None:
    """With own generations, as it is called, resumed after it was stopped for time; each file has one writer."""
    data, target = write_tokens(tmp_path), write_checkpoint(tmp_path / "target")
    changes = {"target": target, "plan.log_every": 2, "data.generated_share": 0.5, "generated_batch_size": 3}
    for name in ("generations", "held_out_generations"):
        changes[f"data.{name}"] = write_generations(tmp_path / f"{name}.npz")
    arguments = overrides_of("train_dspark", data, tmp_path, **changes)
    run_together(["experiments.pair.train_dspark", *arguments, "max_seconds=0"], tmp_path)
    assert "stopped for time at step 2" in (tmp_path / "out0.txt").read_text()
    run_together(["experiments.pair.train_dspark", *arguments, "max_seconds=null"], tmp_path)
    assert (tmp_path / "out0.txt").read_text().count("finished at step 6") == 1
    assert "step" not in (tmp_path / "out1.txt").read_text()
    lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "loss" in line] == [2, 4, 6]
    figures = [line["evaluation"] for line in lines if "evaluation" in line][-1]
    assert figures.keys() >= {f"own_{name}" for name in CLASSES} | set(CLASSES)
    assert {path.name for path in (tmp_path / "run" / "hydra").iterdir()} == {"0", "1"}
    network = load_dspark(tmp_path / "checkpoint", target=load_model(target))
    assert network.block_size == 4
