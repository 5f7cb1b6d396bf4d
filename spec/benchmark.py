"""The measuring itself: baseline and speculative runs on the same prompts, interleaved, on one clock."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from spec.generation import Generation, collect
from spec.measure.records import Mode, RunFolder, run_record
from spec.measure.state import StateCheck
from spec.protocols import Loop, Round
from spec.sampling import RandomStream
from spec.text import StopStrings, decode


@dataclass(frozen=True, kw_only=True)
class Job:
    """One prompt, ready to run."""

    prompt_id: str
    prompt_class: str
    tokens: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One prompt and repeat: the speculative run, and the baseline beside it if there is one."""

    job: Job
    repeat: int
    baseline: Generation | None
    speculative: Generation

    @property
    def baseline_ms(self) -> float | None:
        """Milliseconds a token of plain decoding on this prompt; 0 if it decoded no token, None without a baseline."""
        if self.baseline is None:
            return None
        speed = self.baseline.tokens_per_s
        return 1000 / speed if speed else 0.0


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """Runs prompts through two loops.

    Attributes:
        speculative: the loop that is measured.
        baseline: plain decoding through the same code, or None.
        tokenizer: mlx-lm's wrapper, for end-of-sequence ids and text.
        max_tokens: tokens a run.
        stop: stop strings.
        seed: of the random draws; each prompt has its own stream of them.
        is_prefill_timed: False on a virtual clock, which prices no prompt.
        state: compares cache rows with plain decoding's after every round of the first repeat; None does not.
    """

    speculative: Loop
    baseline: Loop | None
    tokenizer: Any
    max_tokens: int
    stop: tuple[str, ...] = ()
    seed: int = 0
    is_prefill_timed: bool = True
    state: StateCheck | None = None

    def warm_up(self, job: Job, max_tokens: int) -> None:
        """Runs both loops once, unrecorded, so that no first use is timed."""
        for _ in self._pair(job, min(max_tokens, self.max_tokens), lambda mode, item: None):
            pass

    def run(
        self, jobs: Sequence[Job], repeats: int, folder: RunFolder, progress: Callable[[str], None]
    ) -> list[Measured]:
        """Runs every prompt ``repeats`` times, the baseline before each speculative run, and writes the records.

        Args:
            jobs: the prompts.
            repeats: times each is run.
            folder: gets a line a round and a line a run as they end.
            progress: told what has ended, between runs and never inside one.
        """
        measured = []
        for repeat in range(repeats):
            for job in jobs:
                done = self._measure(job, repeat, folder)
                measured.append(done)
                progress(job.prompt_id)
        return measured

    def _measure(self, job: Job, repeat: int, folder: RunFolder) -> Measured:
        def on_round(mode: Mode, item: Round) -> None:
            if mode != "speculative":
                return
            if self.state is not None and repeat == 0:  # repeats have the same seed: the first tells all
                if item.outcome == "prefill":
                    self.state.begin(job.prompt_id, job.tokens)
                self.state.after(item)
            if item.outcome != "prefill":
                folder.write_round(job.prompt_id, repeat, item)

        generations: dict[Mode, Generation] = {}
        for mode, generation in self._pair(job, self.max_tokens, on_round):
            generations[mode] = generation
            folder.write_run(
                run_record(
                    prompt_id=job.prompt_id,
                    prompt_class=job.prompt_class,
                    repeat=repeat,
                    mode=mode,
                    generation=generation,
                    text=decode(generation.tokens, self.tokenizer, self.stop),
                    prompt_tokens=len(job.tokens),
                    peak_memory_gb=mx.get_peak_memory() / 1e9,
                    is_prefill_timed=self.is_prefill_timed,
                )
            )
        return Measured(
            job=job,
            repeat=repeat,
            baseline=generations.get("baseline"),
            speculative=generations["speculative"],
        )

    def _pair(
        self, job: Job, max_tokens: int, on_round: Callable[[Mode, Round], None]
    ) -> Iterator[tuple[Mode, Generation]]:
        """Runs the baseline, if any, then the speculative loop; memory's peak is of the run that was yielded last."""
        reference: tuple[int, ...] | None = None
        loops: list[tuple[Mode, Loop | None]] = [("baseline", self.baseline), ("speculative", self.speculative)]
        for mode, loop in loops:
            if loop is None:
                continue
            mx.reset_peak_memory()
            rounds = []
            for item in loop.rounds(
                job.tokens,
                max_tokens=max_tokens,
                eos=frozenset(self.tokenizer.eos_token_ids),
                stop=StopStrings(self.tokenizer, self.stop) if self.stop else None,
                draws=RandomStream(seed=self.seed, stream=job.prompt_id),
                reference=reference,
            ):
                on_round(mode, item)  # between rounds: outside their clock
                rounds.append(item)
            generation = collect(rounds)
            reference = generation.tokens
            yield mode, generation
