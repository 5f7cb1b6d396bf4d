"""Runs plain decoding and one or more speculative loops on the same prompts, in rotation, with one clock."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from spec.measure.generation import Generation, collect
from spec.measure.records import Mode, RunFolder, run_record
from spec.measure.state import StateCheck
from spec.protocols import Loop
from spec.randomness import RandomStream
from spec.rounds import Request, Round
from spec.sampling import Sampling
from spec.text import StopStrings, decode


@dataclass(frozen=True, kw_only=True)
class EncodedPrompt:
    """One prompt, ready to run."""

    prompt_id: str
    prompt_class: str
    tokens: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class PairedRun:
    """One prompt and repeat: the speculative run, and the baseline of the same rotation if there is one."""

    prompt: EncodedPrompt
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
class Contender:
    """One speculative loop of a rotation, and where its records go.

    Attributes:
        loop: what is measured.
        folder: gets a line a round and a line a run as they end.
        state: compares cache rows with plain decoding's after every round of the first repeat; None does not.
    """

    loop: Loop
    folder: RunFolder
    state: StateCheck | None = None


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """Runs prompts through plain decoding and through every contender, prompt by prompt in rotation.

    Attributes:
        contenders: at least one.
        baseline: plain decoding through the same code, or None.
        tokenizer: mlx-lm's wrapper, for end-of-sequence ids and text.
        sampling: of the runs, for the records.
        max_tokens: tokens a run.
        stop: stop strings.
        seed: of the random draws; each prompt has its own stream of them.
        is_prefill_timed: False on a virtual clock, which prices no prompt.
    """

    contenders: Sequence[Contender]
    baseline: Loop | None
    tokenizer: Any
    sampling: Sampling
    max_tokens: int
    stop: tuple[str, ...] = ()
    seed: int = 0
    is_prefill_timed: bool = True

    def warm_up(self, prompt: EncodedPrompt, max_tokens: int) -> None:
        """Runs every loop once without recording it, so that first-use costs are not timed."""
        for _ in self._rotate(prompt, min(max_tokens, self.max_tokens), lambda at, item: None):
            pass

    def run(
        self, prompts: Sequence[EncodedPrompt], repeats: int, on_run: Callable[[str, Generation], None]
    ) -> list[list[PairedRun]]:
        """Runs every prompt ``repeats`` times and writes the records.

        Args:
            prompts: what to run.
            repeats: times each is run.
            on_run: told of every run that has ended, between runs and never inside one.

        Returns:
            By contender.
        """
        results: list[list[PairedRun]] = [[] for _ in self.contenders]
        for repeat in range(repeats):
            for prompt in prompts:
                self._measure(prompt, repeat, results, on_run)
        return results

    def _measure(
        self,
        prompt: EncodedPrompt,
        repeat: int,
        results: list[list[PairedRun]],
        on_run: Callable[[str, Generation], None],
    ) -> None:
        def on_round(at: int | None, item: Round) -> None:
            if at is None:
                return
            contender = self.contenders[at]
            if contender.state is not None and repeat == 0:  # repeats have the same seed: the first tells all
                if item.outcome == "prefill":
                    contender.state.begin(prompt.prompt_id, prompt.tokens)
                contender.state.after(item)
            if item.outcome != "prefill":
                contender.folder.write_round(prompt.prompt_id, repeat, item)

        baseline: Generation | None = None
        for at, generation in self._rotate(prompt, self.max_tokens, on_round):
            record = self._record(prompt, repeat, "baseline" if at is None else "speculative", generation)
            if at is None:
                baseline = generation
                for contender in self.contenders:
                    contender.folder.write_run(record)
            else:
                self.contenders[at].folder.write_run(record)
                results[at].append(PairedRun(prompt=prompt, repeat=repeat, baseline=baseline, speculative=generation))
            on_run(prompt.prompt_id, generation)

    def _record(self, prompt: EncodedPrompt, repeat: int, mode: Mode, generation: Generation) -> dict[str, Any]:
        return run_record(
            prompt_id=prompt.prompt_id,
            prompt_class=prompt.prompt_class,
            repeat=repeat,
            mode=mode,
            generation=generation,
            text=decode(generation.tokens, self.tokenizer, self.stop),
            prompt=prompt.tokens,
            sampling=self.sampling,
            seed=self.seed,
            peak_memory_gb=mx.get_peak_memory() / 1e9,
            is_prefill_timed=self.is_prefill_timed,
        )

    def _rotate(
        self, prompt: EncodedPrompt, max_tokens: int, on_round: Callable[[int | None, Round], None]
    ) -> Iterator[tuple[int | None, Generation]]:
        """Runs the baseline (None), if any, then each contender; memory's peak is of the run that was yielded last."""
        reference: tuple[int, ...] | None = None
        loops: list[tuple[int | None, Loop]] = [] if self.baseline is None else [(None, self.baseline)]
        for at, loop in [*loops, *((at, contender.loop) for at, contender in enumerate(self.contenders))]:
            mx.reset_peak_memory()
            request = Request(
                prompt=prompt.tokens,
                max_tokens=max_tokens,
                eos=frozenset(self.tokenizer.eos_token_ids),
                stop=StopStrings(self.tokenizer, self.stop) if self.stop else None,
                random=RandomStream(seed=self.seed, stream=prompt.prompt_id),
                reference=reference,
            )
            rounds = []
            for item in loop.rounds(request):
                on_round(at, item)  # between rounds: outside their clock
                rounds.append(item)
            generation = collect(rounds)
            reference = generation.tokens if at is None else reference
            yield at, generation
