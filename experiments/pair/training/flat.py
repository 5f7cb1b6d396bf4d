"""A tree of parameters as a few long vectors.

An optimizer step launches a few dozen kernels for each tensor; over the hundreds of small tensors of a model that is
most of a training step on a GPU. On a few long vectors it is negligible.
"""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_unflatten

Tree = dict[str, Any]


ALIGNMENT = 64  # entries; matrix products on CUDA want their operands to start at multiples of 16 bytes


def _padded(vector: mx.array) -> mx.array:
    """The vector with zeros up to a multiple of `ALIGNMENT`."""
    missing = -vector.size % ALIGNMENT
    return mx.pad(vector, (0, missing)) if missing else vector


class FlatLayout:
    """Which parameter lies where in which vector.

    Args:
        parameters: float32 tree that fixes names and shapes.
        group_of: name and weight -> name of the vector that holds it.
    """

    def __init__(self, parameters: Tree, group_of: Callable[[str, mx.array], str]) -> None:
        self.members: dict[str, list[tuple[str, tuple[int, ...]]]] = {}
        for name, array in sorted(tree_flatten(parameters)):
            self.members.setdefault(group_of(name, array), []).append((name, array.shape))

    def pack(self, tree: Tree) -> dict[str, mx.array]:
        """Vectors by group, from a tree of the layout's names."""
        arrays = dict(tree_flatten(tree))
        return {
            group: mx.concatenate([_padded(arrays[name].reshape(-1)) for name, _ in members])
            for group, members in self.members.items()
        }

    def unpack(self, vectors: dict[str, mx.array]) -> Tree:
        """The tree back from its vectors."""
        return tree_unflatten(self.leaves(vectors))

    def leaves(self, vectors: dict[str, mx.array]) -> list[tuple[str, mx.array]]:
        """The tree's arrays by name."""
        leaves = []
        for group, members in self.members.items():
            start = 0
            for name, shape in members:
                size = 1
                for extent in shape:
                    size *= extent
                leaves.append((name, vectors[group][start : start + size].reshape(shape)))
                start += -(-size // ALIGNMENT) * ALIGNMENT
        return leaves
