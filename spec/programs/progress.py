"""The progress bar of a run: time left, tokens a second and tau so far."""

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from spec.measure.generation import Generation


class RunProgress:
    """A bar that is drawn only between runs: a refreshing thread would take time from what is measured.

    Args:
        console: where to.
        total: runs to come.
    """

    def __init__(self, console: Console, total: int) -> None:
        self._bar = Progress(
            TextColumn("{task.description:<18}"),
            BarColumn(bar_width=16),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[figures]}"),
            console=console,
            auto_refresh=False,
            transient=True,
        )
        self._task = self._bar.add_task("warm-up", total=total, figures="")
        self._tokens = self._rounds = 0
        self._seconds = 0.0

    def __enter__(self) -> "RunProgress":
        self._bar.start()
        self._bar.refresh()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def advance(self, prompt_id: str, generation: Generation) -> None:
        """Counts a finished run; its figures are included if it proposed anything."""
        if any(item.proposed for item in generation.rounds):
            self._tokens += generation.num_decoded
            self._seconds += generation.decode_s
            self._rounds += len(generation.rounds)
        figures = ""
        if self._rounds and self._seconds:
            figures = f"{self._tokens / self._seconds:.1f} tokens/s, tau {self._tokens / self._rounds:.2f}"
        self._bar.update(self._task, advance=1, description=prompt_id, figures=figures)
        self._bar.refresh()

    def say(self, text: str) -> None:
        """Shows what is being done."""
        self._bar.update(self._task, description=text)
        self._bar.refresh()
