"""One of several processes that train a toy target together: ``python -m`` of this module with a folder."""

import sys
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from experiments.pair import train_target
from experiments.pair.training.balancing import Balancer
from experiments.pair.training.loop import Trainer
from experiments.pair.training.parallel import Group, process_group, rank_of, wait_for_all
from tests.experiments.pair.training.toys import STEPS, toy_model, toy_plan, toy_sampler


def train(folder: Path, group: Group | None, ranks: tuple[int, ...], max_seconds: float | None = None) -> Trainer:
    """Trains the toy on the windows that the given ranks draw, side by side in one batch."""
    model = toy_model()
    samplers = [toy_sampler(rank=rank) for rank in ranks]
    biases = {str(layer): model.layers[layer].ffn.gate.bias for layer in (1, 2)}
    balancer = Balancer(biases, 0.001)
    plan = toy_plan(steps=STEPS, log_every=2, evaluate_every=STEPS, checkpoint_every=4)
    loss = partial(train_target.loss_function, model)
    trainer = Trainer(model.trainable_parameters(), loss, plan, folder, balancer.biases, group)

    def batch(step: int) -> tuple[mx.array, dict[str, mx.array]]:
        return mx.concatenate([mx.array(sampler.batch(step)) for sampler in samplers]), balancer.biases

    def evaluate(parameters: dict[str, Any]) -> dict[str, float]:
        return {"rank": float(rank_of(group)), "weights": float(len(tree_flatten(parameters)))}

    trainer.run(
        batch,
        phase=lambda step: step < 3,
        after_step=balancer.after_step,
        evaluate=evaluate,
        tokens_per_step=100,
        max_seconds=max_seconds,
    )
    return trainer


def main(folder: Path) -> None:
    """Stops for time after two steps, goes on to the end, and leaves this rank's state in ``rank<n>.safetensors``."""
    group = process_group()
    rank = rank_of(group)
    stopped = train(folder / "run", group, (rank,), max_seconds=0 if rank == 0 else 1e9)
    wait_for_all(group)
    trainer = train(folder / "run", group, (rank,))
    arrays = {f"parameters.{name}": array for name, array in trainer.vectors.items()}
    arrays |= {f"extra.{name}": array for name, array in trainer.extra.items()}
    mx.save_safetensors(str(folder / f"rank{rank}.safetensors"), arrays, {"stopped": str(stopped.step)})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
