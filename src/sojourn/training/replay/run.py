"""One run: a schedule, problem, rule, learning rate and seed; tasks out, results in, rows collected."""

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from sojourn._support.checks import check_positive, check_seed, check_whole
from sojourn.errors import InvalidInput
from sojourn.rules import Arrival, Rule, begin_state, check_rule, local_learning_rate, rule_to_table
from sojourn.rules.arrays import joined
from sojourn.rules.privacy import EPSILON, Privacy
from sojourn.rules.registry import check_pair
from sojourn.rules.state import (
    check_local_steps,
    check_memory,
    client_part,
    client_steps,
    sent_with,
)
from sojourn.rules.weighting import task_ordinals
from sojourn.runs.history import History
from sojourn.training.problem.evaluation import Measures, evaluation_spacing
from sojourn.training.problem.gradients import ClientWork, Result, Task
from sojourn.training.problem.problem import Problem
from sojourn.training.replay.checkpoint import digest, problem_digest
from sojourn.training.replay.state import (
    Between,
    RefinedEvaluations,
    ReplayState,
    Rows,
    Sums,
    Version,
    last_uses,
    relative_weights,
    run_end,
    shares_and_divisors,
)
from sojourn.types import Vector

if TYPE_CHECKING:
    from sojourn.simulation.schedule import Schedule

NOISE_STREAM = 7
"""Which of the streams of a seed is the noise of private updates."""


class Replay:
    r"""One schedule replayed on one problem with one rule, learning rate and seed.

    Evaluations are after every ``evaluate_every`` rounds (and at both ends), or at the times
    ``evaluate_at``; the other arguments are those of `replay`. `Stack` takes a position from
    `beginning` to the end of the schedule.
    """

    def __init__(
        self,
        schedule: "Schedule",
        problem: Problem,
        rule: Rule,
        *,
        learning_rate: float,
        seed: int,
        client_weights: ArrayLike | None = None,
        evaluate_every: int | None = None,
        evaluate_at: ArrayLike | None = None,
        refine: bool = False,
        stop_at: float | None = None,
    ) -> None:
        _check(schedule, problem, rule, learning_rate, evaluate_every)
        self.schedule, self.problem, self.rule = schedule, problem, rule
        self.learning_rate, self.seed = float(learning_rate), check_seed(seed)
        self.work = ClientWork(problem, rule, self.seed)
        self._rounds = schedule.rounds
        self._steps = client_steps(rule, problem.clients)
        self._local_rate = local_learning_rate(rule, learning_rate)
        self._dispatched = np.asarray(schedule.dispatched)
        self._ordinals = task_ordinals(np.asarray(schedule.client))
        self._last_uses = last_uses(self._dispatched)
        self._shares, self._divisors = shares_and_divisors(schedule, rule)
        self._cut = frozenset(() if schedule.cut is None else schedule.cut.tolist())
        self._privacy: Privacy | None = getattr(rule, "privacy", None)
        self._hears_of_cuts = bool(getattr(rule, "hears_of_cuts", False))
        fleet = schedule.network.fleet
        if client_weights is None and fleet.weight is not None:
            client_weights = fleet.expand(fleet.relative_weights)
        self._client_weights = (
            None
            if client_weights is None
            else relative_weights(client_weights, problem.clients).tolist()
        )
        self._plain = problem.takes_plain_steps
        self._stateful = problem.stateful or client_part(rule) is not None
        self._own_sent = hasattr(rule, "sent")
        self._kind = problem.initial_weights().numpy().dtype
        self._marks = self._evaluation_rounds(evaluate_every, evaluate_at)
        self._refined = RefinedEvaluations(problem, sorted(self._marks)) if refine else None
        self._stop_at = stop_at

    def _evaluation_rounds(self, every: int | None, at: ArrayLike | None) -> dict[int, list[float]]:
        """The times of the rows by the round after which they are made."""
        if at is not None:
            times = np.unique(np.asarray(at, dtype=np.float64))
            rounds = np.searchsorted(self.schedule.time, times, side="right")
            self.spacing: int | str = digest(times)
        else:
            samples = self.problem.batch_size * round(float(self._steps.mean()))
            tests = self.problem.test_size
            self.spacing = every or evaluation_spacing(self._rounds, tests, samples)
            rounds = np.append(np.arange(0, self._rounds, self.spacing), self._rounds)
            times = np.concatenate([[0.0], np.asarray(self.schedule.time)])[rounds]
            times[-1] = self.schedule.duration
        marks: dict[int, list[float]] = {}
        for done, when in zip(rounds.tolist(), times.tolist(), strict=True):
            marks.setdefault(done, []).append(when)
        return marks

    def beginning(self, batched: bool | None) -> ReplayState:
        """The position before the first completion."""
        weights = self.problem.initial_weights().numpy()
        if self.problem.optimizer is not None:
            # Differences are exact in double precision: with one client, its steps are not rounded.
            weights = weights.astype(np.float64)
        check_memory(self.rule, self.problem.clients, weights)
        layout = [(name, tuple(shape)) for name, shape in self.problem.parameter_shapes.items()]
        state = begin_state(self.rule, weights, self.problem.clients, layout)
        position = ReplayState(state, {}, batched=batched)
        if self.problem.sends_buffers:
            position.buffers = self.problem.initial_buffers()
        position.live[0] = Version(self._sent(position), 0)
        if 0 in self._marks:
            self._evaluate(position)
        return position

    def history(self, position: ReplayState, strategy: str, origin: dict[str, object]) -> History:
        """What the run is so far."""
        return History(
            strategy=strategy,
            seed=self.seed,
            learning_rate=self.learning_rate,
            clock="virtual",
            **position.rows.columns,
            metrics=position.rows.metrics,
            primary=self.problem.measure,
            diverged_at=position.diverged_at,
            weights=self._model(position),
            provenance=origin,
        )

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
            "spacing of evaluations": digest(self.spacing, self._refined is not None),
            "target to stop at": digest(self._stop_at),
            "client weights": digest(self._client_weights),
        }

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
        tasks = [
            Task(client, ordinal, live[sent_at].weights, rate)
            for client, ordinal, sent_at in zip(
                self.schedule.client[span].tolist(),
                self._ordinals[span].tolist(),
                self._dispatched[span].tolist(),
                strict=True,
            )
        ]
        if not self._stateful:
            return tasks
        states = position.clients
        return [  # A task that is cut short leaves its client as it was.
            task._replace(
                state=dict(states.get(task.client, {}))
                if done in self._cut
                else states.setdefault(task.client, {})
            )
            for done, task in enumerate(tasks, position.round)
        ]

    def _sent(self, position: ReplayState) -> Vector:
        """What a task is sent with: weights in the model's precision, and buffers behind them."""
        weights = position.state.weights
        if self._own_sent:
            weights = sent_with(self.rule, position.state)
        if self._plain:
            return weights
        if position.buffers is not None:
            return joined(weights, position.buffers, self._kind)
        return weights.astype(self._kind, copy=False)

    def _model(self, position: ReplayState) -> Vector:
        """What is evaluated: the rule's model, and buffers behind it."""
        model, buffers = position.state.model, position.buffers
        if self._plain:
            return model
        own = [state["buffers"] for state in position.clients.values() if "buffers" in state]
        if own:
            buffers = own[0] if len(own) == 1 else np.mean(own, axis=0, dtype=self._kind)
        return model if buffers is None else np.concatenate([model, buffers])

    def _merge_buffers(self, position: ReplayState, sent: Vector, end: Vector, client: int) -> None:
        """Average what a task did to the buffers that it was sent, over the tasks in flight.

        Counters, such as the batches that a normalisation has seen, take the largest value.
        """
        before = position.buffers
        assert before is not None
        counts = self._client_weights
        share = (1.0 if counts is None else counts[client]) / max(1, self.schedule.in_flight)
        if share == 1.0 and np.array_equal(before, sent):
            position.buffers = end.astype(self._kind)
            return
        moved = (before + share * (end - sent)).astype(self._kind)
        largest = np.maximum(before, end).astype(self._kind)
        position.buffers = np.where(self.problem.counters, largest, moved)

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
        rows, live, state = position.rows, position.live, position.state
        apply, cuts, marks, counts = self.rule.apply, self._cut, self._marks, self._client_weights
        sends_buffers, dimension = self.problem.sends_buffers, self.problem.dimension
        privacy, sends_weights = self._privacy, self._plain and not self._own_sent
        held = 0 if position.buffers is None else len(position.buffers)
        steps = self._steps[self.schedule.client[start:end]].tolist()
        between = frozenset() if self._refined is None else self._refined.rounds
        options: dict[str, Any] = {
            "learning_rate": self.learning_rate,
            "clients": self.problem.clients,
            "concurrency": self.schedule.in_flight,
        }
        i = -1
        for loss, update in results:  # `enumerate` would hold an update while the next is computed.
            i += 1
            (weights, number), client = live[sent_at[i]], clients[i]
            buffers = None
            if sends_buffers:
                buffers = weights[-held:], update[dimension:]
                weights, update = weights[:-held], update[:dimension]
            staleness = state.version - number
            position.round = done = start + i + 1
            cut = done - 1 in cuts
            if cut:
                loss, update = 0.0, np.zeros_like(update)
            elif not math.isfinite(loss):
                position.diverged_at = done
                return
            elif privacy is not None:
                update = privacy.apply(update, self._noise(done))
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
                math.nan if cut else loss,
                steps[i],
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
                    if buffers is not None:
                        self._merge_buffers(position, *buffers, client)
            position.state = state
            if needed[i]:
                weights = state.weights if sends_weights else self._sent(position)
                live[done] = Version(weights, state.version)
            if releases[i]:
                del live[sent_at[i]]
            if done in marks:
                self._evaluate(position)
                if position.over:
                    return
            elif done in between:
                position.between.append(
                    Between(self._model(position), done, state.version, rows.sums)
                )
            del update, arrival, weights  # So that their memory can be used by the next task.

    def _noise(self, done: int) -> np.random.Generator:
        """What the noise of an update is drawn from, the same however the run was divided."""
        return np.random.default_rng([self.seed, NOISE_STREAM, done])

    def _epsilon(self, privacy: Privacy, done: int) -> float:
        """The privacy spent after so many rounds on the client that has answered most often."""
        answered = np.asarray(self.schedule.client[:done])
        if self._cut:
            answered = np.delete(answered, [cut for cut in self._cut if cut < done])
        return privacy.epsilon(int(np.bincount(answered).max()) if answered.size else 0)

    def _progress(self, start: int, end: int) -> list[float]:
        """The fraction of the run that is over before each round, in time if that was given."""
        horizon = self.schedule.horizon
        if horizon is None:
            return [done / self._rounds for done in range(start, end)]
        fractions: list[float] = np.minimum(1.0, self.schedule.time[start:end] / horizon).tolist()
        return fractions

    def _evaluate(self, position: ReplayState) -> None:
        """Close the rows of this round; before it come refined ones, where the measure has jumped."""
        done, rows, before = position.round, position.rows, Sums()
        found = self.problem.measures(self._model(position))
        if not math.isfinite(found.loss):
            position.diverged_at = done
            return
        if self._refined is not None:
            for saved, seen in self._refined.between(position, found):
                when = [float(self.schedule.time[saved.round - 1])]
                self._add(rows, saved.round, saved.version, when, saved.sums.since(before), seen)
                before = saved.sums
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
        metrics = found.metrics
        if self._privacy is not None:
            metrics = {**metrics, EPSILON: self._epsilon(self._privacy, done)}
        for when in whens:
            rows.add(
                sums,
                metrics,
                round=done,
                time=when,
                test_loss=found.loss,
                test_accuracy=found.accuracy,
                gradients=self._gradients(done),
                updates=version,
            )
            sums = Sums()

    def _gradients(self, done: int) -> int:
        """How many gradients clients have computed in the first ``done`` tasks."""
        steps = self.rule.local_steps
        if not isinstance(steps, tuple):
            return done * steps
        tasks = np.bincount(np.asarray(self.schedule.client[:done]), minlength=len(steps))
        return int(tasks @ self._steps)

    def _reached(self, rows: Rows) -> bool:
        """Whether the target has been reached by any row; rows after the first such are dropped."""
        assert self._stop_at is not None
        measure = self.problem.measure
        first = measure.first(rows.column(measure), self._stop_at)
        if first is None:
            return False
        for values in (*rows.columns.values(), *rows.metrics.values()):
            del values[first + 1 :]
        return True


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
    check_pair(rule, schedule.scenario.policy, problem.clients)
    if not schedule.rounds:
        raise InvalidInput("the schedule is empty: no task completes in its time. Give it longer.")
    check_positive("learning_rate", learning_rate)
    if evaluate_every is not None:
        check_whole("evaluate_every", evaluate_every)
    check_local_steps(rule, problem.clients)
    work = schedule.scenario.client_work(schedule.network)
    if not np.array_equal(work, client_steps(rule, problem.clients)):
        raise InvalidInput(
            f"the rule takes {rule.local_steps} local steps per task, but the schedule counts "
            f"{schedule.scenario.work} service times for one: simulate with work={rule.local_steps}"
        )
