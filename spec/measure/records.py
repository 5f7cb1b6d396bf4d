"""The files of a run. Other programs rely on the names of these fields."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TextIO

from spec.errors import UserError
from spec.loop.stopwatch import PARTS
from spec.measure.account import check_round
from spec.measure.generation import Generation
from spec.rounds import Round
from spec.sampling import Sampling

Mode = Literal["baseline", "speculative"]
ROUNDS, RUNS, SUMMARY = "rounds.jsonl", "runs.jsonl", "summary.json"


def round_record(prompt_id: str, repeat: int, item: Round) -> dict[str, Any]:
    """A line of ``rounds.jsonl``. ``position`` is the anchor's; ``round`` counts from 1 after the prefill.

    Raises:
        IdentityError: the round contradicts itself, for example with more tokens accepted than emitted.
    """
    check_round(item)
    return {
        "prompt_id": prompt_id,
        "repeat": repeat,
        "round": item.index,
        "position": item.position,
        "gamma": item.gamma,
        "proposed": len(item.proposed),
        "accepted": item.accepted,
        "kind": item.kind,
        "confidence": None if item.confidence is None else list(item.confidence),
        "outcome": item.outcome,
        "reason": item.reason,
        "skip": item.skip,
        "commit": item.commit_kind,
        "verify_rows": item.verify_rows,
        **{f"{part}_ms": milliseconds(getattr(item, f"{part}_s")) for part in PARTS},
        "replayed_tokens": item.replayed_tokens,
    }


def milliseconds(seconds: float) -> float:
    """Seconds as milliseconds, rounded to the nanosecond."""
    return round(1000 * seconds, 6)


def run_record(
    *,
    prompt_id: str,
    prompt_class: str,
    repeat: int,
    mode: Mode,
    generation: Generation,
    text: str,
    prompt: Sequence[int],
    sampling: Sampling,
    seed: int,
    peak_memory_gb: float,
    is_prefill_timed: bool = True,
) -> dict[str, Any]:
    """A line of ``runs.jsonl``: all that is needed to run it again, and what came of it.

    ``tokens_per_s`` is of decoding after the first token, which the prefill yields; ``is_prefill_timed`` is False on a
    virtual clock, whose table prices no prompt.
    """
    return {
        "prompt_id": prompt_id,
        "class": prompt_class,
        "repeat": repeat,
        "mode": mode,
        "prompt": list(prompt),
        "sampling": sampling.to_json() | {"seed": seed},
        "tokens": list(generation.tokens),
        "text": text,
        "finish_reason": generation.finish_reason,
        "tokens_per_s": generation.tokens_per_s,
        "prefill_tokens_per_s": len(prompt) / generation.prefill.duration_s
        if is_prefill_timed and generation.prefill.duration_s
        else None,
        "peak_memory_gb": peak_memory_gb,
    }


class RunFolder:
    """Writes a run's records, a flushed line at a time, so that a killed run keeps its rounds.

    A summary that an earlier run left in the folder is removed first: there is one only where a run has ended.

    Args:
        path: the folder, made if needed.

    Raises:
        UserError: the folder cannot be made or written to.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            (self.path / SUMMARY).unlink(missing_ok=True)
            self._rounds: TextIO = (self.path / ROUNDS).open("w", encoding="utf-8")
            self._runs: TextIO = (self.path / RUNS).open("w", encoding="utf-8")
        except OSError as error:
            raise UserError(
                f"the output folder {self.path} cannot be written ({error.strerror}): set hydra.run.dir to one that can"
            ) from error

    def __enter__(self) -> "RunFolder":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the files; all that was written is on disk already."""
        self._rounds.close()
        self._runs.close()

    def write_round(self, prompt_id: str, repeat: int, item: Round) -> None:
        """Writes one line of ``rounds.jsonl``."""
        _write_line(self._rounds, round_record(prompt_id, repeat, item))

    def write_run(self, record: Mapping[str, Any]) -> None:
        """Writes one line of ``runs.jsonl``."""
        _write_line(self._runs, record)

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Writes ``summary.json``, in one piece or not at all."""
        partial = self.path / f"{SUMMARY}.part"
        partial.write_text(json.dumps(summary, indent=2, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")
        partial.replace(self.path / SUMMARY)


def _write_line(file: TextIO, record: Mapping[str, Any]) -> None:
    file.write(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n")
    file.flush()


def read_lines(path: str | Path) -> Iterator[dict[str, Any]]:
    """The objects of a JSONL file. A last line that a killed run left unfinished is dropped."""
    lines = Path(path).read_text(encoding="utf-8").split("\n")
    for line in lines[:-1]:
        yield json.loads(line)


def read_summary(folder: str | Path) -> dict[str, Any]:
    """The summary of a run's folder.

    Raises:
        UserError: there is none.
    """
    path = Path(folder) / SUMMARY
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(
            f"{path} cannot be read ({error.strerror}): wanted the output folder of a finished run"
        ) from error
    except ValueError as error:
        raise UserError(f"{path} is not valid JSON: {error}") from error
