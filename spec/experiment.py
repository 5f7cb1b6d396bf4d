"""One job: validate, load, warm up, measure, check, record, report."""

import hashlib
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from spec.benchmark import Benchmark, Job, Measured
from spec.errors import UserError
from spec.measure.environment import describe
from spec.measure.exactness import Exactness, check
from spec.measure.records import SUMMARY, RunFolder, read_summary
from spec.measure.state import StateCheck
from spec.parts import Parts, as_yaml, check_complete, load_drafter, load_target
from spec.prompts import Prompt, encode, load_prompts
from spec.session import TargetSession
from spec.summary import summarize


def run_experiment(config: DictConfig, output: Path, console: Console) -> dict[str, Any]:
    """Runs the job of a configuration and returns its summary, which is also written to the output folder.

    Args:
        config: composed from ``configs/``.
        output: folder for the records.
        console: gets the progress bar.

    Raises:
        UserError: something is wanted that cannot be done; said before any work where it can be known.
    """
    check_complete(config)
    _check_scalars(config)
    with RunFolder(output) as folder:
        parts = Parts(config)
        prompts = load_prompts(_texts(config.prompts.paths), name=config.prompts.name, limit=config.prompts.limit)
        target_config = as_yaml(config.target)
        model, tokenizer = load_target(target_config)
        drafter = load_drafter(as_yaml(config.drafter), target_config)
        loops = parts.loops(model, drafter)
        jobs = prepare(prompts, tokenizer, loops.session.context)
        chunk = config.loop.prefill_chunk
        state = StateCheck(loops.session, loops.make_session(), chunk) if config.state_check else None
        benchmark = Benchmark(
            speculative=loops.speculative,
            baseline=loops.baseline if config.baseline else None,
            tokenizer=tokenizer,
            max_tokens=config.max_tokens,
            stop=_texts(config.stop),
            seed=config.seed,
            is_prefill_timed=config.clock == "wall",
            state=state,
        )
        with _progress_bar(console) as bar:
            # Drawn only between runs: a refreshing thread would take time from what is measured.
            task = bar.add_task("warm-up", total=config.repeats * len(jobs))
            bar.refresh()
            if config.warmup_tokens:
                benchmark.warm_up(jobs[0], config.warmup_tokens)

            def advance(prompt_id: str) -> None:
                bar.update(task, advance=1, description=prompt_id)
                bar.refresh()

            measured = benchmark.run(jobs, config.repeats, folder, advance)
            bar.update(task, description="exactness")
            bar.refresh()
            forced = loops.plain_session if config.exactness else None
            takes_argmax = parts.sampling.is_greedy and not parts.sampling.changes_logits
            exactness = check_all(measured, forced, takes_argmax, chunk)
        summary = summarize(
            experiment=config.name,
            prompt_class=config.prompts.name,
            measured=measured,
            exactness=exactness,
            environment=describe(
                seed=config.seed,
                dtype=config.target.get("dtype"),
                checkpoints={"target": model.path, "drafter": config.drafter.get("path")},
            )
            | {"clock": config.clock, "costs": None if parts.costs is None else parts.costs.to_json()},
        )
        summary["state"] = None if state is None else state.to_json()
        summary["config_hash"] = config_hash(config)
        folder.write_summary(summary)
    return summary


def config_hash(config: DictConfig) -> str:
    """SHA-256 of the resolved configuration: what makes one job of a sweep the same as an earlier one."""
    return hashlib.sha256(as_yaml(config).encode()).hexdigest()


def finished_summary(config: DictConfig, output: Path) -> dict[str, Any] | None:
    """The summary of this very job, if the folder holds one; None if it was never run there, or not to its end."""
    if not (output / SUMMARY).is_file():
        return None
    summary = read_summary(output)
    return summary if summary.get("config_hash") == config_hash(config) else None


def prepare(prompts: list[Prompt], tokenizer: Any, context: int) -> list[Job]:
    """Token ids of the prompts.

    Args:
        prompts: at least one.
        tokenizer: mlx-lm's wrapper.
        context: tokens that a sequence may hold.

    Raises:
        UserError: a prompt has no tokens, or leaves no room in the context.
    """
    jobs = []
    for prompt in prompts:
        tokens = tuple(encode(prompt, tokenizer))
        if not tokens:
            raise UserError(f"prompt {prompt.prompt_id} has no tokens: wanted at least one")
        if len(tokens) >= context:
            raise UserError(
                f"prompt {prompt.prompt_id} has {len(tokens)} tokens, the context holds {context} with at least one "
                "token of output: shorten it, or take a target with a longer context"
            )
        jobs.append(Job(prompt_id=prompt.prompt_id, prompt_class=prompt.prompt_class, tokens=tokens))
    return jobs


def check_all(
    measured: list[Measured], session: TargetSession | None, is_greedy: bool, chunk: int
) -> dict[str, Exactness]:
    """Exactness by prompt, outside every clock. Repeats have the same seed, so the first is checked.

    Args:
        measured: the runs.
        session: for teacher forcing; None compares with the baseline only.
        is_greedy: whether tokens should be argmaxes of the target's own logits.
        chunk: prompt tokens a pass, as in the loop.
    """
    return {
        item.job.prompt_id: check(
            prompt_id=item.job.prompt_id,
            prompt=item.job.tokens,
            generation=item.speculative,
            baseline=None if item.baseline is None else item.baseline.tokens,
            target=session,
            is_greedy=is_greedy,
            chunk=chunk,
        )
        for item in measured
        if item.repeat == 0
    }


def _check_scalars(config: DictConfig) -> None:
    for name, least in (("max_tokens", 1), ("repeats", 1), ("warmup_tokens", 0)):
        value = config[name]
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise UserError(f"{name} must be a whole number of {least} or more, got {value!r}")
    if config.clock not in ("wall", "virtual"):
        raise UserError(f"clock must be wall or virtual, got {config.clock!r}")
    for name in ("baseline", "exactness", "state_check"):
        if not isinstance(config[name], bool):
            raise UserError(f"{name} must be true or false, got {config[name]!r}")
    for name, value in (("seed", config.seed), ("context", config.context), ("prompts.limit", config.prompts.limit)):
        is_absent = value is None and name != "seed"
        if isinstance(value, bool) or not (isinstance(value, int) or is_absent):
            raise UserError(f"{name} must be a whole number, got {value!r}")


def _texts(value: Any) -> tuple[str, ...]:
    """A list of texts; one text stands for a list of it."""
    return (value,) if isinstance(value, str) else tuple(map(str, value or ()))


def _progress_bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description:<24}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        auto_refresh=False,
        transient=True,
    )
