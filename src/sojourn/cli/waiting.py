"""A progress line that appears only when something takes longer than a second."""

import time
from types import TracebackType

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

PATIENCE = 1.0


class Waiting:
    """Call it with the name of each step; it shows on a terminal once ``PATIENCE`` seconds passed."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._console = Console(stderr=True)
        self._began = time.monotonic()
        self._steps = 0
        self._progress: Progress | None = None

    def __enter__(self) -> "Waiting":
        return self

    def __call__(self, step: str) -> None:
        self._steps += 1
        if not self._console.is_terminal or time.monotonic() - self._began < PATIENCE:
            return
        if self._progress is None:
            self._progress = Progress(
                SpinnerColumn(),
                TextColumn("{task.description}"),
                TimeElapsedColumn(),
                console=self._console,
                transient=True,
            )
            self._progress.start()
            self._progress.add_task("")
        text = f"{self._what}: step {self._steps}, {step}"
        self._progress.update(self._progress.task_ids[0], description=text)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._progress is not None:
            self._progress.stop()
