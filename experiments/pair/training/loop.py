"""The optimization loop: AdamW on float32 weights, bfloat16 arithmetic, resumable, logged a line at a time.

With several processes each takes its own batch of a step; gradients and auxiliary values are averaged over them, so
that all hold the same weights to the bit. Rank 0 alone evaluates, logs and writes; meanwhile the others wait in the
next step's sum, which has no time limit.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.optimizers as optim
from mlx.utils import tree_flatten, tree_unflatten
from rich.progress import track

from experiments.pair.training.flat import FlatLayout, Tree
from experiments.pair.training.parallel import Group, first_says, mean_over_processes, rank_of, values_of_all
from models.deepseek_v4.names import FLOAT32_NAMES, checkpoint_names
from spec.errors import UserError

LossFunction = Callable[..., tuple[mx.array, dict[str, Any]]]


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """How long and how fast to train.

    Attributes:
        steps: optimization steps in all. learning_rate: its peak.
        warmup_steps: linear rise to it; a cosine then falls to ``final_fraction`` of it.
        weight_decay: of matrices; not of embeddings, norms, gates, bases. clip_norm: largest gradient norm.
        dtype: of the arithmetic; weights and optimizer stay float32.
        log_every, evaluate_every, checkpoint_every: steps between lines, evaluations, checkpoints.
    """

    steps: int
    learning_rate: float
    warmup_steps: int
    final_fraction: float = 0.05
    weight_decay: float = 0.1
    clip_norm: float = 1.0
    dtype: str = "bfloat16"
    log_every: int = 20
    evaluate_every: int = 500
    checkpoint_every: int = 500

    def schedule(self) -> Callable[[mx.array], mx.array]:
        """Learning rate by step."""
        rise = optim.linear_schedule(self.learning_rate / self.warmup_steps, self.learning_rate, self.warmup_steps)
        fall = optim.cosine_decay(
            self.learning_rate, max(self.steps - self.warmup_steps, 1), self.learning_rate * self.final_fraction
        )
        return optim.join_schedules([rise, fall], [self.warmup_steps])


def is_decayed(name: str, weight: mx.array) -> bool:
    """Whether weight decay applies: to matrices other than embeddings and hyper-connections."""
    return weight.ndim >= 2 and "embed" not in name and "markov_w1" not in name and not name.endswith((".fn", "ape"))


def is_kept_float32(name: str) -> bool:
    """Whether V4 computes with this parameter in float32 whatever the arithmetic's dtype."""
    return any(FLOAT32_NAMES.search(stored) for stored, _ in checkpoint_names(name, (1,)))


def group_of(name: str, weight: mx.array) -> str:
    """The vector that a parameter belongs to: by weight decay and by dtype of the arithmetic."""
    return f"{'decayed' if is_decayed(name, weight) else 'plain'}_{'float32' if is_kept_float32(name) else 'cast'}"


class Trainer:
    """Trains one tree of parameters.

    Args:
        parameters: float32 weights to start from.
        loss_function: ``(parameters in arithmetic dtypes, phase, *batch) -> (scalar loss, auxiliary arrays)``.
        plan: how long and how fast.
        folder: where ``log.jsonl`` and ``state.safetensors`` go; an existing state is resumed.
        extra: arrays by name that change in training without being parameters; saved and restored in place.
        group: the processes that train together, all with the same other arguments; None for one alone.
    """

    def __init__(
        self,
        parameters: Tree,
        loss_function: LossFunction,
        plan: TrainingPlan,
        folder: Path,
        extra: dict[str, mx.array] | None = None,
        group: Group | None = None,
    ) -> None:
        self.layout = FlatLayout(parameters, group_of)
        self.vectors = self.layout.pack(parameters)
        self.plan = plan
        self.folder = folder
        self.extra = {} if extra is None else extra
        self.group = group
        self.processes = 1 if group is None else group.size()
        self.is_first = rank_of(group) == 0
        self.step = 0
        schedule = plan.schedule()
        make = [
            optim.AdamW(schedule, betas=[0.9, 0.95], weight_decay=decay, bias_correction=True)
            for decay in (plan.weight_decay, 0.0)
        ]
        self.optimizer = optim.MultiOptimizer(make, [lambda group, _: group.startswith("decayed")])
        self.optimizer.init(self.vectors)

        def loss(parameters: Tree, phase: Any, *batch: Any) -> tuple[mx.array, dict[str, Any]]:
            return loss_function(parameters, phase, *batch)

        self._value_and_gradients = mx.value_and_grad(loss)
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def parameters(self) -> Tree:
        """The float32 weights."""
        return self.layout.unpack(self.vectors)

    def arithmetic_parameters(self) -> Tree:
        """The weights in the dtypes that the arithmetic uses."""
        dtype = getattr(mx, self.plan.dtype)
        cast = {
            group: vector.astype(dtype) if group.endswith("_cast") else vector for group, vector in self.vectors.items()
        }
        return self.layout.unpack(cast)

    def _step(self, phase: Any, *batch: Any) -> tuple[mx.array, dict[str, Any]]:
        """One optimization step, unevaluated: the loss and the auxiliary arrays, means over the processes."""
        (value, auxiliary), gradients = self._value_and_gradients(self.arithmetic_parameters(), phase, *batch)
        vectors = {group: vector.astype(mx.float32) for group, vector in self.layout.pack(gradients).items()}
        vectors, value, auxiliary = mean_over_processes((vectors, value, auxiliary), self.group)
        vectors, norm = optim.clip_grad_norm(vectors, self.plan.clip_norm)
        self.vectors = self.optimizer.apply_gradients(vectors, self.vectors)
        return value, {**auxiliary, "gradient_norm": norm}

    def run(
        self,
        batch: Callable[[int], tuple[Any, ...]],
        *,
        phase: Callable[[int], Any] = lambda step: None,
        after_step: Callable[[dict[str, Any]], None] = lambda auxiliary: None,
        evaluate: Callable[[Tree], dict[str, float]] | None = None,
        tokens_per_step: int | Callable[[int], int] = 0,
        max_seconds: float | None = None,
    ) -> bool:
        """Trains from the current step.

        Args:
            batch: arrays (or trees of them) of a step, this process's own. phase: hashable argument of the loss at a
                step, the same in all processes.
            after_step: sees the auxiliary arrays of each step.
            evaluate: figures for the log, from parameters in arithmetic dtypes; called in rank 0 alone.
            tokens_per_step: tokens of this process's batch, of every step or by step; the throughput in the log counts
                all processes.
            max_seconds: stop in good order after this long, with a checkpoint; None for no limit. Rank 0's clock
                decides for all; several processes look at it every ``log_every`` steps.

        Returns:
            Whether all steps are done.

        Raises:
            UserError: the processes are not at the same step.
        """
        self.resume()
        steps = values_of_all(self.step, self.group)
        if min(steps) != max(steps):
            found = ", ".join(f"{step:.0f}" for step in steps)
            raise UserError(f"the processes stand at steps {found}: start all with one folder that all can read")
        begun = mark = time.perf_counter()
        tokens = 0
        previous = mx.array(0.0)
        for _ in track(
            range(self.step, self.plan.steps),
            description="steps",
            total=self.plan.steps,
            completed=self.step,
            transient=True,
            disable=not self.is_first,
        ):
            value, auxiliary = self._step(phase(self.step), *batch(self.step))
            after_step(auxiliary)
            mx.async_eval(self.vectors, self.optimizer.state, value, auxiliary)
            mx.eval(previous)  # at most one step runs while the host prepares the next: bounds memory
            previous = value
            tokens += self.processes * (tokens_per_step(self.step) if callable(tokens_per_step) else tokens_per_step)
            self.step += 1
            is_last = self.step == self.plan.steps
            is_marked = self.step % self.plan.log_every == 0
            if self.is_first and (is_marked or is_last):
                line = {"step": self.step, "loss": value.item()}
                line |= {name: array.item() for name, array in auxiliary.items() if _is_scalar(array)}
                now = time.perf_counter()
                line["tokens_per_s"] = tokens / (now - mark)
                mark, tokens = now, 0
                self._log(line)
            if self.is_first and evaluate is not None and (self.step % self.plan.evaluate_every == 0 or is_last):
                self._log({"step": self.step, "evaluation": evaluate(self.arithmetic_parameters())})
                mark = time.perf_counter()
            is_over = False
            if max_seconds is not None and (is_marked or self.group is None):
                is_over = first_says(time.perf_counter() - begun > max_seconds, self.group)
            if self.is_first and (self.step % self.plan.checkpoint_every == 0 or is_last or is_over):
                self.save()
                mark = time.perf_counter()
            if is_over:
                break
        mx.eval(self.vectors, self.extra)  # before a process may end, it has done its part of the last sum
        return self.step >= self.plan.steps

    def _log(self, line: dict[str, Any]) -> None:
        with (self.folder / "log.jsonl").open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(line) + "\n")

    def save(self) -> None:
        """Writes weights, optimizer and step; if killed meanwhile, the older state remains."""
        fresh = self.folder / "state.tmp.safetensors"
        arrays = {f"parameters.{name}": array for name, array in self.vectors.items()}
        arrays |= {f"optimizer.{name}": array for name, array in tree_flatten(self.optimizer.state)}
        arrays |= {f"extra.{name}": array for name, array in self.extra.items()}
        mx.save_safetensors(str(fresh), arrays, {"step": str(self.step)})
        fresh.rename(self.folder / "state.safetensors")

    def resume(self) -> None:
        """Continues from the folder's state, if there is one.

        Raises:
            UserError: the state is that of other parameters.
        """
        file = self.folder / "state.safetensors"
        if not file.is_file():
            return
        arrays, metadata = mx.load(str(file), return_metadata=True)
        trees: dict[str, list[tuple[str, mx.array]]] = {"parameters": [], "optimizer": [], "extra": []}
        for name, array in arrays.items():
            kind, rest = name.split(".", 1)
            trees[kind].append((rest, array))
        held = {name: array.shape for name, array in trees["parameters"]}
        if held != {name: array.shape for name, array in self.vectors.items()}:
            raise UserError(f"{file} is the state of a model of other sizes: remove it or set folder to another one")
        self.vectors = dict(trees["parameters"])
        self.optimizer.state = tree_unflatten(trees["optimizer"])
        self.extra.update(trees["extra"])
        self.step = int(metadata["step"])


def _is_scalar(array: Any) -> bool:
    return isinstance(array, mx.array) and array.size == 1
