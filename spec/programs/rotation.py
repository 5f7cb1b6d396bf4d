"""The jobs of one command: load, warm up, measure in rotation, check, record."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from rich.console import Console

from spec.blocks import FixedPolicy
from spec.drafters import NoneDrafter
from spec.errors import UserError
from spec.loop import PrefixCommit, Stopwatch
from spec.measure.benchmark import Benchmark, Contender, PairedRun
from spec.measure.environment import describe
from spec.measure.exactness import Exactness, check
from spec.measure.records import RunFolder
from spec.measure.state import StateCheck
from spec.measure.summary import summarize
from spec.programs.job import Job, PreparedJob, encode_all, texts
from spec.programs.parts import as_yaml, build_drafter, load_target
from spec.programs.progress import RunProgress
from spec.protocols import Drafter, Loop
from spec.rounds import Guarantee
from spec.targets import TargetSession

Outcome = dict[str, Any] | UserError
"""What came of a job: its summary, or why it could not run."""

OnDone = Callable[[Job, Outcome], None]
"""Told of each job as it ends."""


def run_jobs(jobs: Sequence[Job], console: Console, on_done: OnDone) -> None:
    """Runs jobs; those that share prompts, target, sampling and seed are measured in one rotation.

    So their speeds compare, which is not so for runs minutes apart on a machine with other work.

    Args:
        jobs: at least one.
        console: gets progress and what is run.
        on_done: told of each job, rotation by rotation.
    """
    rotations: dict[str, list[PreparedJob]] = defaultdict(list)
    for job in jobs:
        try:
            prepared = PreparedJob.of(job)
            rotations[prepared.rotation_key].append(prepared)
        except UserError as error:  # the other jobs of a sweep go on
            on_done(job, error)
    for rotation in rotations.values():
        try:
            Rotation(rotation, console, on_done).run()
        except UserError as error:
            for prepared in rotation:
                on_done(prepared.job, error)


class Rotation:
    """Jobs that are measured together: on every prompt plain decoding first, then each job.

    Args:
        jobs: with the same `PreparedJob.rotation_key`; at least one.
        console: gets progress and what is run.
        on_done: told of each job as it ends.

    Raises:
        UserError: the target or a prompt cannot be loaded.
    """

    def __init__(self, jobs: Sequence[PreparedJob], console: Console, on_done: OnDone) -> None:
        self.jobs, self.console, self.on_done = jobs, console, on_done
        self.first, self.settings = jobs[0], jobs[0].settings
        self.model, self.tokenizer = load_target(as_yaml(self.first.job.config.target))
        self.plain = self.session()
        self.prompts = encode_all(self.first.prompts, self.tokenizer, self.plain.context_length)
        is_virtual = self.settings.clock == "virtual"
        self.stopwatch = Stopwatch(self.first.parts.costs) if is_virtual else Stopwatch()

    def session(self, tapped_layers: Sequence[int] = ()) -> TargetSession:
        """A session of the target. All get the same headroom: another ring size could change the last bit of a sum."""
        return TargetSession(
            self.model,
            tapped_layers=tapped_layers,
            max_rollback=max(prepared.parts.block.max_gamma for prepared in self.jobs) + 1,
            context_length=self.settings.context,
            prefill_chunk=self.settings.prefill_chunk,
        )

    def run(self) -> None:
        """Measures, checks and records; a job whose parts do not fit together is told of, and the others run."""
        contenders: list[tuple[PreparedJob, Contender]] = []
        drafters: dict[str, Drafter] = {}  # jobs with the same drafter share it
        for prepared in self.jobs:
            try:
                contenders.append((prepared, self._contender(prepared, drafters)))
            except UserError as error:
                self.on_done(prepared.job, error)
        if not contenders:
            return
        self._announce([prepared for prepared, _ in contenders])
        try:
            self._measure(contenders)
        finally:
            for _, contender in contenders:
                contender.folder.close()

    def _contender(self, prepared: PreparedJob, drafters: dict[str, Drafter]) -> Contender:
        key = as_yaml(prepared.job.config.drafter)
        if key not in drafters:
            drafters[key] = build_drafter(prepared.job.config.drafter, self.model)
        drafter, parts = drafters[key], prepared.parts
        target = self.session(drafter.tapped_layers)
        loop = parts.loop(
            target=target,
            drafter=drafter,
            verifier=parts.verifier,
            commit=parts.commit,
            block=parts.block,
            stopwatch=self.stopwatch,
        )
        state = StateCheck(target, self.session()) if prepared.settings.state_check else None
        return Contender(loop=loop, folder=RunFolder(prepared.job.output), state=state)

    def _baseline(self) -> Loop | None:
        """Plain decoding, by a verifier that promises its very tokens if a job has one."""
        if not self.settings.baseline:
            return None
        by_tokens = [prepared for prepared in self.jobs if prepared.parts.verifier.guarantee == "tokens"]
        return make_baseline((by_tokens or self.jobs)[0], self.plain, self.stopwatch)

    def _measure(self, contenders: Sequence[tuple[PreparedJob, Contender]]) -> None:
        settings = self.settings
        benchmark = Benchmark(
            contenders=[contender for _, contender in contenders],
            baseline=self._baseline(),
            tokenizer=self.tokenizer,
            sampling=self.first.parts.sampling,
            max_tokens=settings.max_tokens,
            stop=texts(self.first.job.config.stop),
            seed=settings.seed,
            is_prefill_timed=settings.clock == "wall",
        )
        total = settings.repeats * len(self.prompts) * (len(contenders) + settings.baseline)
        with RunProgress(self.console, total) as progress:
            if settings.warmup_tokens:
                benchmark.warm_up(self.prompts[0], settings.warmup_tokens)
            results = benchmark.run(self.prompts, settings.repeats, progress.advance)
            progress.say("exactness")
            for (prepared, contender), runs in zip(contenders, results, strict=True):
                summary = self._summary(prepared, contender, runs)
                contender.folder.write_summary(summary)
                self.on_done(prepared.job, summary)

    def _summary(self, prepared: PreparedJob, contender: Contender, runs: Sequence[PairedRun]) -> dict[str, Any]:
        job, config, parts = prepared.job, prepared.job.config, prepared.parts
        takes_argmax = parts.sampling.is_greedy and not parts.sampling.changes_logits
        forced = self.plain if self.settings.exactness else None
        environment = describe(
            seed=self.settings.seed,
            dtype=config.target.get("dtype"),
            checkpoints={"target": self.model.path, "drafter": config.drafter.get("path")},
        )
        costs = None if parts.costs is None else parts.costs.to_json()
        return summarize(
            experiment=prepared.settings.name,
            prompt_class=config.prompts.name,
            runs=runs,
            exactness=check_all(runs, forced, takes_argmax, parts.guarantee),
            state=contender.state,
            overrides=job.overrides,
            choices=job.choices,
            config_hash=job.config_hash,
            environment=environment | {"clock": self.settings.clock, "costs": costs},
        )

    def _announce(self, running: Sequence[PreparedJob]) -> None:
        """Says what is about to run: the parts of a job, or the overrides of each job of a rotation."""
        name, settings = running[0].settings.name, self.settings
        modes = "speculative and baseline" if settings.baseline else "speculative"
        amount = f"{len(self.prompts)} prompts x {settings.repeats} repeats, {modes}"
        if len(running) == 1:
            choices, longest = running[0].job.choices, running[0].parts.block.max_gamma
            groups = ("target", "drafter", "verifier", "loop", "commit", "block")
            parts = " ".join(f"{group}={choices[group]}" for group in groups if group in choices)
            lines = [f"{name}: {parts} (gamma up to {longest}), {amount}"]
        else:
            lines = [f"{name}: {len(running)} jobs in rotation, {amount}"]
            lines += [f"  {' '.join(prepared.job.overrides)}" for prepared in running]
        for line in lines:
            self.console.print(line, style="dim", highlight=False, markup=False, soft_wrap=True)


def make_baseline(prepared: PreparedJob, target: TargetSession, stopwatch: Stopwatch) -> Loop:
    """Plain decoding through the code of a job's loop.

    Args:
        prepared: the job.
        target: a session for this alone.
        stopwatch: that of the job's loop.
    """
    return prepared.parts.loop(
        target=target,
        drafter=NoneDrafter(),
        verifier=prepared.parts.verifier,
        commit=PrefixCommit(),
        block=FixedPolicy(gamma=0),
        stopwatch=stopwatch,
    )


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
