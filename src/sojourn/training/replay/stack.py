"""Runs that advance together: tasks that do not wait for one another are computed in one stack."""

import time
from collections.abc import Iterator, Sequence
from itertools import groupby, islice

from sojourn._support.progress import Advance
from sojourn.errors import InvalidInput
from sojourn.rules.state import LocalSteps, client_part
from sojourn.training.problem.generators import generators_put_back
from sojourn.training.problem.gradients import (
    SHORTEST_RUN,
    ClientWork,
    Result,
    Task,
    Workers,
    longest_row,
    longest_run,
)
from sojourn.training.problem.problem import Problem
from sojourn.training.replay.checkpoint import CheckpointFile
from sojourn.training.replay.run import Replay
from sojourn.training.replay.state import ReplayState

SECONDS_PER_PROGRESS = 0.1


class Stack:
    """One or several runs that advance together, each with a position of its own.

    Their problems must have one model and batches of one size, and their rules must agree in what
    clients send: a gradient or a difference, after equally many local steps with the same pull.
    Data, seeds, schedules, first weights and learning rates may differ. Runs that share schedule,
    problem and seed stand at the same round and share their batches, too.

    Results equal those of each run alone: to the bit where gradients are computed one by one, and
    up to rounding where they are stacked, which may depend on what else is in the stack.
    """

    def __init__(self, runs: Sequence[Replay]) -> None:
        if not runs:
            raise InvalidInput("there is nothing to run: no runs are given")
        first = runs[0]
        for other in runs[1:]:
            alike = other.problem is first.problem or _kind(other.problem) == _kind(first.problem)
            if not (alike and work_of(other) == work_of(first)):
                raise InvalidInput(
                    "runs that are computed together must share model, loss, batch size, and what "
                    "clients send; run the others by themselves"
                )
        self.runs = tuple(runs)
        self._shares_schedule = all(
            run.schedule is first.schedule
            and run.problem is first.problem
            and run.seed == first.seed
            for run in runs
        )

    @generators_put_back()
    def run(
        self,
        positions: Sequence[ReplayState],
        *,
        until: int | None = None,
        batched: bool | None = None,
        only_settle: bool = False,
        file: CheckpointFile | None = None,
        advance: Advance | None = None,
    ) -> bool | None:
        """Take every position to the end of its schedule (or to round ``until``).

        Runs that diverge stay where they did. ``batched`` says whether gradients are stacked; by
        default whichever is faster on the first tasks, and with ``only_settle`` nothing more is run
        than that takes. ``file`` saves all positions; ``advance`` is called with the rounds done and
        in all. Returns whether gradients are stacked, once that is settled.
        """
        if any(client_part(run.rule) for run in self.runs):
            batched = False  # What stays with a client goes from one of its tasks to the next.
        problem = self.runs[0].problem
        workers = Workers(problem, batched)
        stack = longest_run(problem)
        row = max(stack, longest_row(problem)) if len(self.runs) == 1 else stack
        lasts = [run.last_round(until) for run in self.runs]
        begun, next_progress = sum(position.round for position in positions), 0.0
        # Runs that share a problem and seed stand side by side, and draw their batches in one call.
        sources = [_source(run) for run in self.runs]
        order = sorted(range(len(sources)), key=lambda i: sources.index(sources[i]))
        while going := [
            i for i in order if not positions[i].over and positions[i].round < lasts[i]
        ]:
            settled = workers.batched is not None
            if settled and only_settle:
                break
            longest = row if workers.batched is False else stack
            self._step(going, positions, lasts, workers, longest)
            for position in positions:
                position.batched = workers.batched
            if file and workers.batched is not None and (file.due or not settled):
                file.write(*positions)
            if advance and time.monotonic() >= next_progress:
                advance(sum(position.round for position in positions), sum(lasts))
                next_progress = time.monotonic() + SECONDS_PER_PROGRESS
        done = sum(position.round for position in positions)
        if file and done > begun:
            file.write(*positions)
        if advance:
            advance(done, sum(lasts))
        return workers.batched

    def _step(
        self,
        going: Sequence[int],
        positions: Sequence[ReplayState],
        lasts: Sequence[int],
        workers: Workers,
        longest: int,
    ) -> None:
        """One run of at most ``longest`` independent tasks of every run that goes on."""
        runs = [self.runs[i] for i in going]
        limit = workers.longest_run(longest) // len(runs)
        limit = max(1 if self._shares_schedule else SHORTEST_RUN, limit)
        if self._shares_schedule and len({positions[i].round for i in going}) > 1:
            raise InvalidInput("runs that share a schedule must stand at the same round")
        ends = [
            run.next_end(positions[i], limit, lasts[i]) for run, i in zip(runs, going, strict=True)
        ]
        tasks = [
            run.tasks(positions[i], end) for run, i, end in zip(runs, going, ends, strict=True)
        ]
        for run, i, end, results in zip(
            runs, going, ends, self._results(runs, tasks, workers), strict=True
        ):
            run.apply(positions[i], end, results)

    def _results(
        self, runs: Sequence[Replay], tasks: Sequence[list[Task]], workers: Workers
    ) -> Iterator[Iterator[Result] | list[Result]]:
        """The results of the tasks of every run."""
        if len(runs) == 1:  # Computed one by one as they are asked for: none after a divergence.
            yield workers.results([(runs[0].work, tasks[0])])
        elif self._shares_schedule:
            copies = len(runs)
            mixed = [task for same in zip(*tasks, strict=True) for task in same]
            results = list(workers.results([(runs[0].work, mixed)], copies))
            yield from (results[place::copies] for place in range(copies))
        else:
            groups: list[tuple[ClientWork, list[Task]]] = []
            owned = zip(runs, tasks, strict=True)
            for _, members in groupby(owned, key=lambda entry: _source(entry[0])):
                entries = list(members)
                groups.append((entries[0][0].work, [task for _, own in entries for task in own]))
            found = workers.results(groups)
            yield from [list(islice(found, len(own))) for own in tasks]


def _source(run: Replay) -> tuple[int, int]:
    return id(run.problem), run.seed


def _kind(problem: Problem) -> tuple[object, ...]:
    """What problems must agree in for their gradients to be computed in one stack."""
    shapes = tuple(problem.parameter_shapes.items())
    kind = problem.initial_weights().dtype
    return str(problem.model), shapes, problem.loss, problem.batch_size, kind


def work_of(run: Replay) -> tuple[str, LocalSteps, float]:
    """What clients do for a run: runs that are alike in this can be computed together."""
    rule = run.rule
    return rule.sends, rule.local_steps, rule.proximal
