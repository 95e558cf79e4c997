"""Whether to compute independent gradients together: measured on the first runs."""

import time
from collections.abc import Iterator, Sequence
from statistics import median

from sojourn.train.tasks import BatchedTasks, PlainTasks, Result, Task

LONGEST_RUN = 64
SHORTEST_RUN = 4
LARGEST_STACK = 2**22
"""Numbers in the stacked weights and inputs of a run: beyond what a cache holds, stacking loses."""

TRIAL_RUN = 16
TRIAL_ROUNDS = 5
LONGEST_TRIAL = 500
WORTHWHILE = 0.85
HEAVY_TASK = 0.003
"""Seconds. What stacking saves is the cost of calling, a fraction of a millisecond per task."""


class Workers:
    """Hands every run of tasks to the plain loop or to the batched computation.

    ``batched`` is ``True`` or ``False`` once that is settled. While it is ``None``, runs go to
    either in turn and are timed, by this thread's processor time, so that other work on the machine
    does not decide; the batched computation must then have taken less than
    ``WORTHWHILE`` times as long per task. The first run of each is left out, as something may have
    to be compiled. Heavy tasks have nothing to gain and are never tried together. Runs too short to
    gain anything are always computed plainly; if the first ``LONGEST_TRIAL`` tasks have hardly any
    others, so are all.
    """

    def __init__(
        self, plain: PlainTasks, together: BatchedTasks | None, batched: bool | None
    ) -> None:
        self._plain, self._together = plain, together
        self.batched = False if together is None else batched
        self._seconds: tuple[list[float], list[float]] = ([], [])
        self._tried = 0

    def longest_run(self, limit: int) -> int:
        """How many tasks the next run may have."""
        return min(limit, TRIAL_RUN) if self.batched is None else limit

    def results(self, tasks: Sequence[Task]) -> Iterator[Result]:
        """Mean loss and update of each task, in order."""
        self._tried += len(tasks)
        if self.batched is None and self._tried > LONGEST_TRIAL:
            self.batched = False
        if self.batched is None and len(tasks) >= SHORTEST_RUN:
            return self._timed(tasks)
        if self.batched and self._together is not None and len(tasks) >= SHORTEST_RUN:
            return self._together.results(tasks)
        return self._plain.results(tasks)

    def _timed(self, tasks: Sequence[Task]) -> Iterator[Result]:
        plain, together = self._seconds
        turn = len(together) < len(plain) - 1
        way = self._together if turn and self._together is not None else self._plain
        begin = time.thread_time()
        results = list(way.results(tasks))
        (together if turn else plain).append((time.thread_time() - begin) / len(tasks))
        if min(plain[1:], default=0.0) > HEAVY_TASK:
            self.batched = False
        elif len(together) > TRIAL_ROUNDS:
            self.batched = median(together[1:]) < WORTHWHILE * median(plain[1:])
        return iter(results)
