"""Data-parallel training, one process for each GPU: the group, and the collectives over it.

A process alone has no group (None), and nothing here then communicates. The only collective is ``all_sum``, called in
the same order by every process; a process that waits in one waits without limit.
"""

import os
from typing import Any

import mlx.core as mx
from mlx.utils import tree_map, tree_map_with_path

from experiments.pair.training.flat import FlatLayout
from spec.errors import UserError

Group = mx.distributed.Group


def process_group() -> Group | None:
    """The group that this process was started in, as ``mlx.launch`` says it in the environment; None if alone.

    NCCL where ``NCCL_HOST_IP`` is set (`mlx.launch --backend nccl`, which gives each process its own GPU through
    ``CUDA_VISIBLE_DEVICES``), else the ring (TCP sockets; `mlx.launch --backend ring`).

    Raises:
        UserError: the environment names a group that cannot be joined.
    """
    if "MLX_RANK" not in os.environ:
        return None
    backend = "nccl" if "NCCL_HOST_IP" in os.environ else "ring"
    try:
        group = mx.distributed.init(strict=True, backend=backend)
    except RuntimeError as error:
        raise UserError(
            f"MLX_RANK is set, but the {backend} group cannot be joined ({error}): start the processes with "
            "mlx.launch, or unset MLX_RANK"
        ) from error
    return group if group.size() > 1 else None


def rank_of(group: Group | None) -> int:
    """This process's number in its group; 0 if alone."""
    return 0 if group is None else group.rank()


def mean_over_processes(tree: Any, group: Group | None) -> Any:
    """Means of every array of a tree over the processes, the same to the bit in all of them.

    One collective for the whole tree: its arrays travel as one float32 vector.

    Args:
        tree: arrays of the same names and shapes in every process.
        group: None returns the tree as it is.
    """
    if group is None:
        return tree
    tree = tree_map(lambda array: array.astype(mx.float32), tree)
    layout = FlatLayout(tree, lambda name, array: "all")
    summed = mx.distributed.all_sum(layout.pack(tree)["all"], group=group)
    means = dict(layout.leaves({"all": summed / group.size()}))
    return tree_map_with_path(lambda name, _: means[name], tree)


def first_says(is_so: bool, group: Group | None) -> bool:
    """Rank 0's value, in every process; waits for the others."""
    if group is None:
        return is_so
    word = mx.array(float(is_so and group.rank() == 0))
    return mx.distributed.all_sum(word, group=group).item() > 0


def values_of_all(value: float, group: Group | None) -> list[float]:
    """Every process's value, by rank; waits for the others."""
    if group is None:
        return [value]
    own = mx.where(mx.arange(group.size()) == group.rank(), float(value), 0.0)
    return mx.distributed.all_sum(own, group=group).tolist()


def wait_for_all(group: Group | None) -> None:
    """Returns when every process has called it."""
    values_of_all(0.0, group)
