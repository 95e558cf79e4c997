"""One schedule, problem, rule, learning rate and seed: tasks out, results in, rows kept."""

import math
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from sojourn.errors import InvalidInput
from sojourn.history import History
from sojourn.progress import Advance
from sojourn.rules import Arrival, Rule, local_learning_rate, rule_to_table
from sojourn.rules.memory import check_memory
from sojourn.rules.pairing import check_pair
from sojourn.rules.weighting import task_ordinals
from sojourn.train.replay.checkpoint import CheckpointFile, digest, problem_digest
from sojourn.train.replay.gradients import (
    BatchedTasks,
    PlainTasks,
    Result,
    Task,
    Workers,
    longest_run,
    stacked_gradients,
)
from sojourn.train.replay.problem import Measures, Problem
from sojourn.train.replay.state import (
    Between,
    Leaps,
    ReplayState,
    Rows,
    Sums,
    Version,
    evaluation_spacing,
    last_uses,
    measure_of,
    relative_weights,
    run_end,
    shares_and_divisors,
)

if TYPE_CHECKING:
    from sojourn.simulation.schedule import Schedule

SECONDS_PER_PROGRESS = 0.1
CANNOT_BE_STACKED = (
    "batched=True, but this model's tasks cannot be computed together: it draws random "
    "numbers (dropout), or torch.func.vmap cannot run it. Leave out batched."
)


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
        check_pair(rule, schedule.scenario.policy, problem.clients)
        self.schedule, self.problem, self.rule = schedule, problem, rule
        self.learning_rate, self.seed = learning_rate, seed
        self._rounds = schedule.rounds
        self._local_rate = local_learning_rate(rule, learning_rate)
        self.evaluate()
        self._dispatched = np.asarray(schedule.dispatched)
        self._ordinals = task_ordinals(np.asarray(schedule.client))
        self._last_uses = last_uses(self._dispatched)
        self._shares, self._divisors = shares_and_divisors(schedule, rule)
        self._cut = frozenset(() if schedule.cut is None else schedule.cut.tolist())
        self._hears_of_cuts = bool(getattr(rule, "hears_of_cuts", False))
        fleet = schedule.network.fleet
        if client_weights is None and fleet.weight is not None:
            client_weights = fleet.expand(fleet.relative_weights)
        self._client_weights = (
            None
            if client_weights is None
            else relative_weights(client_weights, problem.clients).tolist()
        )

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
            times[-1] = self.schedule.duration
            self.spacing = spacing
        self._marks: dict[int, list[float]] = {}
        for done, when in zip(rounds.tolist(), times.tolist(), strict=True):
            self._marks.setdefault(done, []).append(when)
        self._leaps = Leaps(self.problem, sorted(self._marks)) if refine else None
        self._stop_at = stop_at

    def beginning(self, batched: bool | None) -> ReplayState:
        """The position before the first completion."""
        position = self._start(batched)
        if 0 in self._marks:
            self._evaluate(position)
        return position

    def history(self, position: ReplayState, strategy: str, origin: dict[str, Any]) -> History:
        """What the run is so far."""
        return History(
            strategy=strategy,
            seed=self.seed,
            learning_rate=self.learning_rate,
            clock="virtual",
            **position.rows.columns,
            metrics=position.rows.metrics,
            primary=measure_of(self.problem),
            diverged_at=position.diverged_at,
            weights=position.state.model,
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
                *([] if schedule.cut is None else [np.asarray(schedule.cut)]),
            ),
            "problem": problem_digest(self.problem),
            "rule": digest(rule_to_table(self.rule)),
            "learning rate": digest(float(self.learning_rate)),
            "seed": digest(self.seed),
            "spacing of evaluations": digest(self.spacing, self._leaps is not None),
            "target to stop at": digest(self._stop_at),
            "client weights": digest(self._client_weights),
        }

    def run(
        self,
        position: ReplayState,
        file: CheckpointFile | None,
        advance: Advance | None,
        *,
        until: int | None = None,
    ) -> None:
        """Take ``position`` to the end of the schedule (or ``until``), or to where the run diverges."""
        workers = self.workers(position.batched)
        limit = self.longest_run
        begun, rounds = position.round, self._rounds
        last = self.last_round(until)
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

    def _start(self, batched: bool | None) -> ReplayState:
        weights = self.problem.initial_weights().numpy()
        check_memory(self.rule, self.problem.clients, weights)
        state = self.rule.begin(weights, self.problem.clients)
        return ReplayState(state, {0: Version(state.weights, 0)}, batched=batched)

    def last_round(self, until: int | None = None) -> int:
        """Where a run that is to go ``until`` some round ends."""
        return self._rounds if until is None else min(until, self._rounds)

    def next_end(self, position: ReplayState, limit: int, until: int | None = None) -> int:
        """Where the run of independent tasks that is next ends, of at most ``limit`` tasks."""
        end = run_end(self._dispatched, position.round, limit)
        return end if until is None else min(end, until)

    def tasks(self, position: ReplayState, end: int) -> list[Task]:
        """The tasks from ``position`` up to completion ``end``, with the weights they were sent with."""
        span, live, rate = slice(position.round, end), position.live, self._local_rate
        return [
            Task(client, ordinal, live[sent_at].weights, rate)
            for client, ordinal, sent_at in zip(
                self.schedule.client[span].tolist(),
                self._ordinals[span].tolist(),
                self._dispatched[span].tolist(),
                strict=True,
            )
        ]

    def apply(self, position: ReplayState, end: int, results: Iterable[Result]) -> None:
        """Apply the results of the tasks up to completion ``end``, in order."""
        start = position.round
        clients = self.schedule.client[start:end].tolist()
        sent_at = self._dispatched[start:end].tolist()
        releases = (self._last_uses[self._dispatched[start:end]] == np.arange(start, end)).tolist()
        needed = (self._last_uses[start + 1 : end + 1] >= 0).tolist()
        shares = self._shares[start:end].tolist()
        divisors = self._divisors[start:end].tolist()
        progress = self._progress(start, end)
        sent = [position.live[d] for d in sent_at]
        rows, live, state = position.rows, position.live, position.state
        apply, cuts, marks, counts = self.rule.apply, self._cut, self._marks, self._client_weights
        between = frozenset() if self._leaps is None else self._leaps.rounds
        options: dict[str, Any] = {
            "learning_rate": self.learning_rate,
            "clients": self.problem.clients,
            "concurrency": self.schedule.in_flight,
        }
        for i, (loss, update) in enumerate(results):
            (weights, number), client = sent[i], clients[i]
            staleness = state.version - number
            position.round = done = start + i + 1
            cut = done - 1 in cuts
            if cut:
                loss, update = 0.0, np.zeros_like(update)
            elif not math.isfinite(loss):
                position.diverged_at = done
                return
            if counts is not None:
                update = update * counts[client]
            # By place: this is made for every gradient, and names would cost more than the server.
            arrival = Arrival(
                update,
                weights,
                client,
                staleness,
                shares[i],
                divisors[i],
                done - 1,
                progress[i],
                cut,
            )
            used = not cut or self._hears_of_cuts
            if used:
                state, used = apply(state, arrival, **options)
            if not cut:
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
            if done in marks:
                self._evaluate(position)
                if position.over:
                    return
            elif done in between:
                kept = Between(state.model, done, state.version, rows.sums)
                position.between.append(kept)

    def _progress(self, start: int, end: int) -> list[float]:
        """The fraction of the run that is over before each round, in time if that was given."""
        horizon = self.schedule.horizon
        if horizon is None:
            return [done / self._rounds for done in range(start, end)]
        fractions: list[float] = np.minimum(1.0, self.schedule.time[start:end] / horizon).tolist()
        return fractions

    def _evaluate(self, position: ReplayState) -> None:
        """Close the rows of this round: those between the last and this one first, if it leaps."""
        done, rows, before = position.round, position.rows, Sums()
        found = self.problem.measures(position.state.model)
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
        together = None if batched is False else self._together()
        if batched and together is None:
            raise InvalidInput(CANNOT_BE_STACKED)
        return Workers(PlainTasks(*parts), together, batched)

    def together(self) -> BatchedTasks:
        """Who computes the results of tasks together."""
        together = self._together()
        if together is None:
            raise InvalidInput(CANNOT_BE_STACKED)
        return together

    def _together(self) -> BatchedTasks | None:
        gradients = stacked_gradients(self.problem)
        parts = self.problem, self.rule, self.seed
        return None if gradients is None else BatchedTasks(*parts, gradients)

    @property
    def longest_run(self) -> int:
        """How many tasks are worth computing together."""
        return longest_run(self.problem)
