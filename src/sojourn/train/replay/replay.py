"""Training in virtual time: a schedule replayed on a problem under a server rule."""

import math
import os
import time
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import ArrayLike

from sojourn.errors import InvalidInput
from sojourn.history import History
from sojourn.progress import Advance, progress_bar
from sojourn.provenance import provenance
from sojourn.rules import Arrival, Rule, check_rule, local_learning_rate, rule_to_table
from sojourn.rules.memory import check_memory
from sojourn.rules.weighting import task_ordinals
from sojourn.train.replay.batches import check_seed
from sojourn.train.replay.checkpoint import Checkpoint, CheckpointFile, digest, problem_digest
from sojourn.train.replay.gradients import (
    LARGEST_STACK,
    LONGEST_RUN,
    BatchedTasks,
    PlainTasks,
    Result,
    Task,
    Workers,
    stacked_gradients,
)
from sojourn.train.replay.leaps import Leaps, measure_of
from sojourn.train.replay.problem import Measures, Problem
from sojourn.train.replay.shares import shares_and_divisors
from sojourn.train.replay.spacing import evaluation_spacing
from sojourn.train.replay.state import Between, Position, Rows, Sums, Version, last_uses, run_end

if TYPE_CHECKING:
    from sojourn.simulation.schedule import Schedule

SECONDS_PER_PROGRESS = 0.1


def replay(
    schedule: "Schedule",
    problem: Problem,
    rule: Rule,
    *,
    learning_rate: float,
    seed: int,
    evaluate_every: int | None = None,
    evaluate_at: ArrayLike | None = None,
    refine: bool = False,
    stop_at: float | None = None,
    client_weights: ArrayLike | None = None,
    batched: bool | None = None,
    strategy: str | None = None,
    progress: bool | Advance = False,
    checkpoint: str | os.PathLike[str] | Checkpoint | None = None,
) -> History:
    r"""Learn as the schedule says: who finishes when, and which weights each task was sent with.

    At completion t the client's stochastic gradient :math:`g_{C_t}(w_{I_t})` (or its locally
    trained model) is computed at the weights its task was sent with, and ``rule`` makes the next
    weights of it. ``seed`` chooses the batches, which depend on ``(seed, client, ordinal)`` alone.

    ``evaluate_every`` is the number of rounds between rows; by default, as `evaluation_spacing`
    says. ``evaluate_at`` gives the times of the rows instead, so that strategies of different
    throughput are seen at the same times. With ``refine`` there are rows between these wherever the
    primary measure leaps to a new best (see `Leaps`), so that the time to a target hardly depends
    on where rows were asked for. ``stop_at`` ends the run at the first row that reaches this value
    of the primary measure. ``client_weights`` say how much every client's loss counts, of mean 1
    (or any scale); by default all count the same.

    ``batched`` computes independent gradients together (``True``), one by one (``False``), or
    whichever is faster on the first runs (``None``): the same up to rounding, and the choice is
    kept in the provenance. ``progress`` shows a bar on a terminal, or is called with the rounds
    done and in all. ``checkpoint`` is a file to keep the run in, and to go on from if it exists: a
    run that was killed and resumed gives the same history to the bit, on the same machine with the
    same number of threads.

    A loss that is not finite ends the run: ``diverged_at`` says in which round.
    Cost: one gradient per task; at most m + 1 versions of the weights are alive.
    Paper: Algorithms 1 and 2.
    """
    _check(schedule, problem, rule, learning_rate, evaluate_every)
    learning_rate = float(learning_rate)
    run = Replay(
        schedule,
        problem,
        rule,
        learning_rate=learning_rate,
        seed=check_seed(seed),
        client_weights=client_weights,
    )
    run.evaluate(every=evaluate_every, at=evaluate_at, refine=refine, stop_at=stop_at)
    about = _about(run)
    file = _checkpoint_file(checkpoint, run, batched)
    position = (file.read() if file else None) or run.beginning(batched)
    name = strategy or rule.name
    bar = progress_bar(name) if progress is True else nullcontext(progress or None)
    with bar as advance:
        run.run(position, file, advance)
    return run.history(position, name, provenance(**about, batched=bool(position.batched)))


class Replay:
    """One schedule, problem, rule, learning rate and seed; `run` takes a position to its end."""

    def __init__(
        self,
        schedule: "Schedule",
        problem: Problem,
        rule: Rule,
        *,
        learning_rate: float,
        seed: int,
        client_weights: ArrayLike | None = None,
    ) -> None:
        self.schedule, self.problem, self.rule = schedule, problem, rule
        self.learning_rate, self.seed = learning_rate, seed
        self._rounds = schedule.rounds
        self._local_rate = local_learning_rate(rule, learning_rate)
        self.evaluate()
        self._dispatched = np.asarray(schedule.dispatched)
        self._ordinals = task_ordinals(np.asarray(schedule.client))
        self._last_uses = last_uses(self._dispatched)
        self._shares, self._divisors = shares_and_divisors(schedule, rule, client_weights)
        self._client_weights = client_weights

    def evaluate(
        self,
        *,
        every: int | None = None,
        at: ArrayLike | None = None,
        refine: bool = False,
        stop_at: float | None = None,
    ) -> None:
        """Evaluate after every so many rounds (and at both ends), or at these times.

        With ``refine`` also in between where there is a leap; ``stop_at`` ends the run there.
        """
        if at is not None:
            times = np.unique(np.asarray(at, dtype=np.float64))
            rounds = np.searchsorted(self.schedule.time, times, side="right")
            self.spacing: int | str = digest(times)
        else:
            samples = self.problem.batch_size * self.rule.local_steps
            tests = len(self.problem.test_set[1])
            spacing = every or evaluation_spacing(self._rounds, tests, samples)
            rounds = np.append(np.arange(0, self._rounds, spacing), self._rounds)
            times = np.concatenate([[0.0], np.asarray(self.schedule.time)])[rounds]
            self.spacing = spacing
        self._marks: dict[int, list[float]] = {}
        for done, when in zip(rounds.tolist(), times.tolist(), strict=True):
            self._marks.setdefault(done, []).append(when)
        self._leaps = Leaps(self.problem, sorted(self._marks)) if refine else None
        self._stop_at = stop_at

    def beginning(self, batched: bool | None) -> Position:
        """The position before the first completion."""
        position = self._start(batched)
        if 0 in self._marks:
            self._evaluate(position)
        return position

    def history(self, position: Position, strategy: str, origin: dict[str, Any]) -> History:
        """What the run is so far."""
        return History(
            strategy=strategy,
            seed=self.seed,
            learning_rate=self.learning_rate,
            clock="virtual",
            **position.rows.columns,
            metrics=position.rows.metrics,
            primary=self.problem.primary,
            diverged_at=position.diverged_at,
            weights=position.state.weights,
            provenance=origin,
        )

    def together_pays(self) -> bool:
        """Whether to compute gradients together: measured on a few rounds, which are thrown away."""
        position = self._start(None)
        workers, limit = self.workers(None), self.longest_run
        self._marks, self._leaps = {}, None
        last = self._rounds - 1
        while workers.batched is None and position.round < last and position.diverged_at is None:
            end = self.next_end(position, workers.longest_run(limit))
            self.apply(position, end, workers.results(self.tasks(position, end)))
        return bool(workers.batched)

    def identity(self) -> dict[str, str]:
        """What a run depends on, each with a digest."""
        schedule = self.schedule
        return {
            "schedule": digest(
                np.asarray(schedule.client),
                self._dispatched,
                np.asarray(schedule.time),
                schedule.network.client_routing,
                schedule.network.concurrency,
            ),
            "problem": problem_digest(self.problem),
            "rule": digest(rule_to_table(self.rule)),
            "learning rate": digest(float(self.learning_rate)),
            "seed": digest(self.seed),
            "spacing of evaluations": digest(self.spacing, self._leaps is not None),
            "target to stop at": digest(self._stop_at),
            "client weights": digest(
                None if self._client_weights is None else np.asarray(self._client_weights)
            ),
        }

    def run(
        self,
        position: Position,
        file: CheckpointFile | None,
        advance: Advance | None,
        *,
        until: int | None = None,
    ) -> None:
        """Take ``position`` to the end of the schedule (or ``until``), or to where the run diverges."""
        workers = self.workers(position.batched)
        limit = self.longest_run
        begun, rounds = position.round, self._rounds
        last = rounds if until is None else min(until, rounds)
        next_progress = 0.0
        while position.round < last and not position.over:
            end = self.next_end(position, workers.longest_run(limit), last)
            settled = position.batched is not None
            self.apply(position, end, workers.results(self.tasks(position, end)))
            position.batched = workers.batched
            if file and position.batched is not None and (file.due or not settled):
                file.write(position)
            if advance and time.monotonic() >= next_progress:
                advance(position.round, rounds)
                next_progress = time.monotonic() + SECONDS_PER_PROGRESS
        if file and position.round > begun:
            file.write(position)
        if advance:
            advance(position.round, rounds)

    def _start(self, batched: bool | None) -> Position:
        weights = self.problem.initial_weights().numpy()
        check_memory(self.rule, self.problem.clients, weights)
        state = self.rule.begin(weights, self.problem.clients)
        return Position(state, {0: Version(state.weights, 0)}, batched=batched)

    def next_end(self, position: Position, limit: int, until: int | None = None) -> int:
        """Where the run of independent tasks that is next ends, of at most ``limit`` tasks."""
        end = run_end(self._dispatched, position.round, limit)
        return end if until is None else min(end, until)

    def tasks(self, position: Position, end: int) -> list[Task]:
        """The tasks from ``position`` up to completion ``end``, with the weights they were sent with."""
        span = slice(position.round, end)
        return [
            Task(client, ordinal, position.live[sent_at].weights, self._local_rate)
            for client, ordinal, sent_at in zip(
                self.schedule.client[span].tolist(),
                self._ordinals[span].tolist(),
                self._dispatched[span].tolist(),
                strict=True,
            )
        ]

    def apply(self, position: Position, end: int, results: Iterable[Result]) -> None:
        """Apply the results of the tasks up to completion ``end``, in order."""
        start = position.round
        clients = self.schedule.client[start:end].tolist()
        sent_at = self._dispatched[start:end].tolist()
        releases = (self._last_uses[self._dispatched[start:end]] == np.arange(start, end)).tolist()
        needed = (self._last_uses[start + 1 : end + 1] >= 0).tolist()
        shares = self._shares[start:end].tolist()
        divisors = self._divisors[start:end].tolist()
        sent = [position.live[d] for d in sent_at]
        rule, rows, live, state = self.rule, position.rows, position.live, position.state
        options: dict[str, Any] = {
            "learning_rate": self.learning_rate,
            "clients": self.problem.clients,
            "concurrency": self.schedule.in_flight,
        }
        for i, (loss, update) in enumerate(results):
            (weights, number), client = sent[i], clients[i]
            staleness = state.version - number
            position.round = done = start + i + 1
            if not math.isfinite(loss):
                position.diverged_at = done
                return
            arrival = Arrival(
                update,
                weights,
                client=client,
                staleness=staleness,
                share=shares[i],
                divisor=divisors[i],
                round=done - 1,
                progress=self._progress(done - 1),
            )
            state, used = rule.apply(state, arrival, **options)
            rows.tasks += 1
            rows.loss += loss
            if used:
                rows.used += 1
                rows.staleness += staleness
            position.state = state
            if needed[i]:
                live[done] = Version(state.weights, state.version)
            if releases[i]:
                del live[sent_at[i]]
            if done in self._marks:
                self._evaluate(position)
                if position.over:
                    return
            elif self._leaps is not None and done in self._leaps.rounds:
                kept = Between(state.weights, done, state.version, rows.sums)
                position.between.append(kept)

    def _progress(self, done: int) -> float:
        """The fraction of the run that is over after ``done`` rounds, in time if that was given."""
        horizon = self.schedule.horizon
        if horizon is None:
            return done / self._rounds
        return min(1.0, float(self.schedule.time[done]) / horizon)

    def _evaluate(self, position: Position) -> None:
        """Close the rows of this round: those between the last and this one first, if it leaps."""
        done, rows, before = position.round, position.rows, Sums()
        found = self.problem.measures(position.state.weights)
        if not math.isfinite(found.loss):
            position.diverged_at = done
            return
        if self._leaps is not None:
            for kept, seen in self._leaps.between(position, found):
                when = [float(self.schedule.time[kept.round - 1])]
                self._add(rows, kept.round, kept.version, when, kept.sums.since(before), seen)
                before = kept.sums
        version, whens = position.state.version, self._marks[done]
        self._add(rows, done, version, whens, rows.sums.since(before), found)
        position.between.clear()
        rows.begin_anew()
        if self._stop_at is not None:
            position.stopped = self._reached(rows)

    def _add(
        self,
        rows: Rows,
        done: int,
        version: int,
        whens: Sequence[float],
        sums: Sums,
        found: Measures,
    ) -> None:
        for when in whens:
            rows.add(
                sums,
                found.metrics,
                round=done,
                time=when,
                test_loss=found.loss,
                test_accuracy=found.accuracy,
                gradients=done * self.rule.local_steps,
                updates=version,
            )
            sums = Sums()

    def _reached(self, rows: Rows) -> bool:
        """Whether the target has been reached by any row; rows after the first such are dropped."""
        assert self._stop_at is not None
        measure = measure_of(self.problem)
        column = rows.metrics.get(measure.name) or rows.columns[f"test_{measure.name}"]
        first = next((k for k, v in enumerate(column) if measure.reaches(v, self._stop_at)), None)
        if first is None:
            return False
        for values in (*rows.columns.values(), *rows.metrics.values()):
            del values[first + 1 :]
        return True

    def workers(self, batched: bool | None) -> Workers:
        """Who computes the results of tasks: together (``True``), one by one, or as is faster."""
        parts = self.problem, self.rule, self.seed
        gradients = None if batched is False else stacked_gradients(self.problem)
        if batched and gradients is None:
            raise InvalidInput(
                "batched=True, but this model's tasks cannot be computed together: it draws random "
                "numbers (dropout), or torch.func.vmap cannot run it. Leave out batched."
            )
        together = None if gradients is None else BatchedTasks(*parts, gradients)
        return Workers(PlainTasks(*parts), together, batched)

    @property
    def longest_run(self) -> int:
        """How many tasks are worth computing together."""
        x, _ = self.problem.test_set
        inputs = self.problem.batch_size * x[0].numel()
        return max(1, min(LONGEST_RUN, LARGEST_STACK // (self.problem.dimension + inputs)))


def _check(
    schedule: "Schedule",
    problem: Problem,
    rule: Rule,
    learning_rate: float,
    evaluate_every: int | None,
) -> None:
    if problem.clients != schedule.network.size:
        raise InvalidInput(
            f"the problem has data for {problem.clients} clients, but the schedule is of "
            f"{schedule.network.size}: share the data among as many clients as the fleet has"
        )
    check_rule(rule)
    if not schedule.rounds:
        raise InvalidInput("the schedule is empty: no task completes in its time. Give it longer.")
    number = isinstance(learning_rate, int | float | np.number)
    if not (number and 0 < learning_rate < math.inf):
        raise InvalidInput(f"learning_rate must be positive and finite; it is {learning_rate!r}")
    if evaluate_every is not None and not (
        isinstance(evaluate_every, int | np.integer) and evaluate_every >= 1
    ):
        raise InvalidInput(
            f"evaluate_every must be a whole number of rounds, at least 1; it is {evaluate_every!r}"
        )
    work = schedule.scenario.work
    if work != rule.local_steps:
        raise InvalidInput(
            f"the rule takes {rule.local_steps} local steps per task, but the schedule counts "
            f"{work:g} service times for one: simulate with work={rule.local_steps}"
        )


def _about(run: Replay) -> dict[str, Any]:
    """What the provenance of a run says, as far as it is known before it begins."""
    schedule = run.schedule
    return {
        "rule": rule_to_table(run.rule),
        "learning_rate": run.learning_rate,
        "seed": run.seed,
        "rounds": schedule.rounds,
        "concurrency": schedule.network.concurrency,
        "law": schedule.scenario.law,
        "policy": schedule.scenario.policy.name,
        "start": schedule.scenario.start_name,
        "schedule_seed": str(schedule.seed),
        "work": schedule.scenario.work,
        "batch_size": run.problem.batch_size,
        "evaluate_every": run.spacing,
        "threads": torch.get_num_threads(),
    }


def _checkpoint_file(
    checkpoint: str | os.PathLike[str] | Checkpoint | None, run: Replay, batched: bool | None
) -> CheckpointFile | None:
    if checkpoint is None:
        return None
    settings = checkpoint if isinstance(checkpoint, Checkpoint) else Checkpoint(checkpoint)
    return CheckpointFile(settings, {**run.identity(), "batched": digest(batched)})
