"""The jobs of one command: validate, load, warm up, measure in rotation, check, record."""

import functools
import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from omegaconf import DictConfig, ListConfig
from pydantic import Field
from rich.console import Console

from spec.blocks import FixedPolicy
from spec.drafters import NoneDrafter
from spec.errors import UserError
from spec.loop import PrefixCommit, Stopwatch
from spec.measure.benchmark import Benchmark, Contender, EncodedPrompt, PairedRun
from spec.measure.environment import describe
from spec.measure.exactness import Exactness, check
from spec.measure.records import SUMMARY, RunFolder, read_summary
from spec.measure.state import StateCheck
from spec.measure.summary import summarize
from spec.programs.parts import Parts, as_yaml, check_complete, load_drafter, load_target
from spec.programs.progress import RunProgress
from spec.prompts import Prompt, encode, load_prompts
from spec.protocols import Drafter, Loop
from spec.rounds import Guarantee
from spec.targets import TargetSession
from spec.values import checked


@checked("")
class Settings:
    """The plain keys of ``configs/config.yaml``."""

    name: str
    seed: int
    max_tokens: Annotated[int, Field(ge=1)]
    context: int | None
    prefill_chunk: Annotated[int, Field(ge=1)]
    repeats: Annotated[int, Field(ge=1)]
    clock: Literal["wall", "virtual"]
    baseline: bool
    exactness: bool
    state_check: bool
    warmup_tokens: Annotated[int, Field(ge=0)]


@dataclass(frozen=True, kw_only=True)
class Job:
    """One configuration to run.

    Attributes:
        config: composed from ``configs/``.
        output: folder for the records.
        overrides: of the command line, as Hydra was given them.
        choices: of the configuration groups, by group.
    """

    config: DictConfig
    output: Path
    overrides: tuple[str, ...] = ()
    choices: Mapping[str, str] = field(default_factory=dict)

    @functools.cached_property
    def config_hash(self) -> str:
        """SHA-256 of the resolved configuration: what makes one job of a sweep the same as an earlier one."""
        return hashlib.sha256(as_yaml(self.config).encode()).hexdigest()

    def finished_summary(self) -> dict[str, Any] | None:
        """The summary of this very job, if the folder holds one; None if it was never run there, or not to its end."""
        if not (self.output / SUMMARY).is_file():
            return None
        summary = read_summary(self.output)
        return summary if summary.get("config_hash") == self.config_hash else None


@dataclass(frozen=True, kw_only=True)
class PreparedJob:
    """A job whose values are known to be possible; nothing is loaded yet."""

    job: Job
    settings: Settings
    parts: Parts
    prompts: tuple[Prompt, ...]

    @classmethod
    def of(cls, job: Job) -> "PreparedJob":
        """Checks a job's values.

        Raises:
            UserError: something is wanted that cannot be done.
        """
        config = job.config
        check_complete(config)
        settings = Settings(**{item.name: config[item.name] for item in fields(Settings)})
        paths, limit = _texts(config.prompts.paths), config.prompts.limit
        return cls(
            job=job,
            settings=settings,
            parts=Parts(config),
            prompts=tuple(load_prompts(paths, name=config.prompts.name, limit=limit)),
        )

    @property
    def rotation_key(self) -> str:
        """Jobs with the same key are measured in one rotation, with one baseline."""
        config, settings = self.job.config, self.settings
        # A block policy may weigh costs at will; only virtual time makes two baselines differ by them.
        costs = self.parts.costs if settings.clock == "virtual" else None
        shared = [as_yaml(config[group]) for group in ("target", "prompts", "sampling")]
        plain = [getattr(settings, item.name) for item in fields(Settings) if item.name != "name"]
        return repr((shared, plain, _texts(config.stop), costs))


Outcome = dict[str, Any] | UserError
"""What came of a job: its summary, or why it could not run."""


def run_jobs(jobs: Sequence[Job], console: Console, on_done: Callable[[Job, Outcome], None]) -> None:
    """Runs jobs; those that share prompts, target, sampling and seed are measured in one rotation.

    So their speeds compare, which is not so for runs minutes apart on a machine with other work.

    Args:
        jobs: at least one.
        console: gets progress and what is run.
        on_done: told of each job as it ends, in an order of the rotations.
    """
    rotations: dict[str, list[PreparedJob]] = defaultdict(list)
    for job in jobs:
        try:
            prepared = PreparedJob.of(job)
            rotations[prepared.rotation_key].append(prepared)
        except UserError as error:  # the other jobs of a sweep go on
            on_done(job, error)
    for rotation in rotations.values():
        _run_rotation(rotation, console, on_done)


@dataclass(frozen=True, kw_only=True)
class _Runner:
    """A prepared job with its loop and its folder."""

    prepared: PreparedJob
    contender: Contender
    plain: TargetSession


def _run_rotation(rotation: Sequence[PreparedJob], console: Console, on_done: Callable[[Job, Outcome], None]) -> None:
    first = rotation[0]
    settings, config = first.settings, first.job.config
    try:
        model, tokenizer = load_target(as_yaml(config.target))
        session = functools.partial(
            TargetSession,
            model,
            # All caches get the same headroom: another ring size could change the order of sums, and so the last bit.
            max_rollback=max(prepared.parts.block.max_gamma for prepared in rotation) + 1,
            context_length=settings.context,
            prefill_chunk=settings.prefill_chunk,
        )
        plain = session()
        prompts = encode_all(first.prompts, tokenizer, plain.context_length)
    except UserError as error:
        for prepared in rotation:
            on_done(prepared.job, error)
        return
    stopwatch = Stopwatch(first.parts.costs) if settings.clock == "virtual" else Stopwatch()
    runners: list[_Runner] = []
    drafters: dict[str, Drafter] = {}  # jobs with the same drafter share it
    for prepared in rotation:
        try:
            runners.append(_runner(prepared, session, stopwatch, plain, drafters))
        except UserError as error:
            on_done(prepared.job, error)
    if not runners:
        return
    _announce(runners, len(prompts), console)
    try:
        _measure(runners, prompts, tokenizer, model, stopwatch, console, on_done)
    except UserError as error:
        for runner in runners:
            on_done(runner.prepared.job, error)
    finally:
        for runner in runners:
            runner.contender.folder.close()


def _runner(
    prepared: PreparedJob,
    session: Callable[..., TargetSession],
    stopwatch: Stopwatch,
    plain: TargetSession,
    drafters: dict[str, Drafter],
) -> _Runner:
    config, parts = prepared.job.config, prepared.parts
    if config.drafter.get("_target_", "").endswith("OracleDrafter") and not prepared.settings.baseline:
        raise UserError(
            "drafter=oracle plays back the baseline's output, got baseline=false: run it with baseline=true"
        )
    key = as_yaml(config.drafter)
    if key not in drafters:
        drafters[key] = load_drafter(key, as_yaml(config.target))
    drafter = drafters[key]
    target = session(tapped_layers=drafter.tapped_layers)
    loop = parts.loop(
        target=target,
        drafter=drafter,
        verifier=parts.verifier,
        commit=parts.commit,
        block=parts.block,
        stopwatch=stopwatch,
    )
    state = StateCheck(target, session()) if prepared.settings.state_check else None
    contender = Contender(loop=loop, folder=RunFolder(prepared.job.output), state=state)
    return _Runner(prepared=prepared, contender=contender, plain=plain)


def make_baseline(prepared: PreparedJob, target: TargetSession, stopwatch: Stopwatch) -> Loop:
    """Plain decoding through the code of a job's loop.

    Args:
        prepared: the job. target: a session for this alone. stopwatch: that of the job's loop.
    """
    return prepared.parts.loop(
        target=target,
        drafter=NoneDrafter(),
        verifier=prepared.parts.verifier,
        commit=PrefixCommit(),
        block=FixedPolicy(gamma=0),
        stopwatch=stopwatch,
    )


def _measure(
    runners: Sequence[_Runner],
    prompts: Sequence[EncodedPrompt],
    tokenizer: Any,
    model: Any,
    stopwatch: Stopwatch,
    console: Console,
    on_done: Callable[[Job, Outcome], None],
) -> None:
    first = runners[0].prepared
    settings, plain = first.settings, runners[0].plain
    # A verifier that promises the very tokens of plain decoding is the one whose baseline they are compared with.
    by_tokens = [one.prepared for one in runners if one.prepared.parts.verifier.guarantee == "tokens"]
    benchmark = Benchmark(
        contenders=[runner.contender for runner in runners],
        baseline=make_baseline((by_tokens or [first])[0], plain, stopwatch) if settings.baseline else None,
        tokenizer=tokenizer,
        sampling=first.parts.sampling,
        max_tokens=settings.max_tokens,
        stop=_texts(first.job.config.stop),
        seed=settings.seed,
        is_prefill_timed=settings.clock == "wall",
    )
    modes = len(runners) + settings.baseline
    with RunProgress(console, settings.repeats * len(prompts) * modes) as progress:
        if settings.warmup_tokens:
            benchmark.warm_up(prompts[0], settings.warmup_tokens)
        results = benchmark.run(prompts, settings.repeats, progress.advance)
        progress.say("exactness")
        for runner, runs in zip(runners, results, strict=True):
            summary = _summary(runner, runs, plain if settings.exactness else None, model)
            runner.contender.folder.write_summary(summary)
            on_done(runner.prepared.job, summary)


def _summary(runner: _Runner, runs: Sequence[PairedRun], forced: TargetSession | None, model: Any) -> dict[str, Any]:
    prepared = runner.prepared
    job, config, parts = prepared.job, prepared.job.config, prepared.parts
    takes_argmax = parts.sampling.is_greedy and not parts.sampling.changes_logits
    environment = describe(
        seed=prepared.settings.seed,
        dtype=config.target.get("dtype"),
        checkpoints={"target": model.path, "drafter": config.drafter.get("path")},
    )
    return summarize(
        experiment=prepared.settings.name,
        prompt_class=config.prompts.name,
        runs=runs,
        exactness=check_all(runs, forced, takes_argmax, parts.guarantee),
        state=runner.contender.state,
        overrides=job.overrides,
        choices=job.choices,
        config_hash=job.config_hash,
        environment=environment
        | {"clock": prepared.settings.clock, "costs": None if parts.costs is None else parts.costs.to_json()},
    )


def _announce(runners: Sequence[_Runner], num_prompts: int, console: Console) -> None:
    """Says what is about to run: the parts of a job, or the overrides of each job of a rotation."""
    first = runners[0].prepared
    settings = first.settings
    modes = "speculative and baseline" if settings.baseline else "speculative"
    amount = f"{num_prompts} prompts x {settings.repeats} repeats, {modes}"
    if len(runners) == 1:
        groups = ("target", "drafter", "verifier", "loop", "commit", "block")
        parts = [f"{group}={first.job.choices[group]}" for group in groups if group in first.job.choices]
        lines = [f"{settings.name}: {' '.join(parts)} (gamma up to {first.parts.block.max_gamma}), {amount}"]
    else:
        lines = [f"{settings.name}: {len(runners)} jobs in rotation, {amount}"]
        lines += [f"  {' '.join(runner.prepared.job.overrides)}" for runner in runners]
    for line in lines:
        console.print(line, style="dim", highlight=False, markup=False, soft_wrap=True)


def encode_all(prompts: Sequence[Prompt], tokenizer: Any, context_length: int) -> list[EncodedPrompt]:
    """Token ids of the prompts.

    Args:
        prompts: at least one.
        tokenizer: mlx-lm's wrapper.
        context_length: tokens that a sequence may hold.

    Raises:
        UserError: a prompt has no tokens, or leaves no room in the context.
    """
    encoded = []
    for prompt in prompts:
        tokens = tuple(encode(prompt, tokenizer))
        if not tokens:
            raise UserError(f"prompt {prompt.prompt_id} has no tokens: wanted at least one")
        if len(tokens) >= context_length:
            raise UserError(
                f"prompt {prompt.prompt_id} has {len(tokens)} tokens, the context holds {context_length} with at least "
                "one token of output: shorten it, or take a target with a longer context"
            )
        encoded.append(EncodedPrompt(prompt_id=prompt.prompt_id, prompt_class=prompt.prompt_class, tokens=tokens))
    return encoded


def check_all(
    runs: Iterable[PairedRun], session: TargetSession | None, is_greedy: bool, guarantee: Guarantee
) -> dict[str, Exactness]:
    """Exactness by prompt, outside every clock. Repeats have the same seed, so the first is checked.

    Args:
        runs: of one job.
        session: for teacher forcing; None compares with the baseline only.
        is_greedy: whether tokens should be argmaxes of the target's own logits.
        guarantee: what the runs keep.
    """
    return {
        item.prompt.prompt_id: check(
            prompt_id=item.prompt.prompt_id,
            prompt=item.prompt.tokens,
            generation=item.speculative,
            baseline=None if item.baseline is None else item.baseline.tokens,
            target=session,
            is_greedy=is_greedy,
            guarantee=guarantee,
        )
        for item in runs
        if item.repeat == 0
    }


def _texts(value: Any) -> tuple[str, ...]:
    """A list of texts; one text counts as a list of it."""
    if not isinstance(value, str | list | tuple | ListConfig | None):
        raise UserError(f"wanted a text or a list of texts, got {value!r}")
    return (value,) if isinstance(value, str) else tuple(map(str, value or ()))
