"""Training in virtual time: a schedule replayed on a problem under a rule, or several runs at once."""

import os
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import torch
from numpy.typing import ArrayLike

from sojourn.checks import check_positive, check_seed, check_whole
from sojourn.errors import InvalidInput
from sojourn.history import History
from sojourn.progress import Advance, progress_bar
from sojourn.provenance import provenance
from sojourn.rules import Rule, check_rule, rule_to_table
from sojourn.train.replay.checkpoint import Checkpoint, CheckpointFile, digest
from sojourn.train.replay.gradients import SHORTEST_RUN, BatchedTasks, Workers
from sojourn.train.replay.loop import SECONDS_PER_PROGRESS, Replay
from sojourn.train.replay.problem import Problem
from sojourn.train.replay.state import ReplayState

if TYPE_CHECKING:
    from sojourn.simulation.schedule import Schedule


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
    of the primary measure. ``client_weights`` say how much every client's loss counts,
    on any scale, such as ``problem.train_sizes``; by default as the fleet's ``weight`` says, and without
    one all count the same.

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
    run = prepared(
        schedule,
        problem,
        rule,
        learning_rate=learning_rate,
        seed=seed,
        evaluate_every=evaluate_every,
        evaluate_at=evaluate_at,
        refine=refine,
        stop_at=stop_at,
        client_weights=client_weights,
    )
    about = _about(run)
    file = _checkpoint_file(checkpoint, [run], batched)
    position = (file.read() if file else None) or run.beginning(batched)
    name = strategy or rule.name
    bar = progress_bar(name) if progress is True else nullcontext(progress or None)
    with bar as advance:
        run.run(position, file, advance)
    return run.history(position, name, provenance(**about, batched=bool(position.batched)))


def prepared(
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
) -> Replay:
    """The run that `replay` makes of these, checked and not begun."""
    _check(schedule, problem, rule, learning_rate, evaluate_every)
    run = Replay(
        schedule,
        problem,
        rule,
        learning_rate=float(learning_rate),
        seed=check_seed(seed),
        client_weights=client_weights,
    )
    run.evaluate(every=evaluate_every, at=evaluate_at, refine=refine, stop_at=stop_at)
    return run


def replay_abreast(
    runs: Sequence[Replay],
    strategies: Sequence[str],
    *,
    advance: Callable[[int], None] | None = None,
) -> list[History]:
    """The histories of runs of ``strategies``, computed together as `Abreast` does.

    The same as each alone with ``batched=True``, up to rounding. ``advance`` hears of every gradient.
    """
    positions = [run.beginning(True) for run in runs]
    Abreast(runs).run(positions, advance=advance)
    return [
        run.history(position, name, provenance(**_about(run), batched=True))
        for run, position, name in zip(runs, positions, strategies, strict=True)
    ]


def replay_together(
    schedule: "Schedule",
    problem: Problem,
    rule: Rule,
    *,
    learning_rates: Sequence[float],
    seed: int,
    batched: bool,
    strategy: str | None = None,
    progress: Advance | None = None,
    checkpoint: str | os.PathLike[str] | Checkpoint | None = None,
    **evaluation: Any,
) -> list[History]:
    """What `replay` gives at every one of ``learning_rates``, trained in lockstep.

    With ``batched`` the gradients of all are one stacked computation: the same up to rounding, which
    may depend on who else is in the stack; without, they are those of `replay` to the bit.
    ``checkpoint`` keeps all runs in one file, so that they go on from the same round; ``evaluation`` is
    what else `prepared` takes.
    """
    runs = [
        prepared(schedule, problem, rule, learning_rate=rate, seed=seed, **evaluation)
        for rate in learning_rates
    ]
    file = _checkpoint_file(checkpoint, runs, batched)
    positions = file.read_all() if file else []
    positions = positions or [run.beginning(batched) for run in runs]
    Lockstep(runs).run(positions, batched=batched, file=file, advance=progress)
    return [
        run.history(position, strategy or rule.name, provenance(**_about(run), batched=batched))
        for run, position in zip(runs, positions, strict=True)
    ]


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
    check_positive("learning_rate", learning_rate)
    if evaluate_every is not None:
        check_whole("evaluate_every", evaluate_every)
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
    checkpoint: str | os.PathLike[str] | Checkpoint | None,
    runs: Sequence[Replay],
    batched: bool | None,
) -> CheckpointFile | None:
    if checkpoint is None:
        return None
    settings = checkpoint if isinstance(checkpoint, Checkpoint) else Checkpoint(checkpoint)
    identity = {**runs[0].identity(), "batched": digest(batched)}
    rates = [run.learning_rate for run in runs]
    if len(rates) > 1:
        identity["learning rate"] = digest(rates)
    return CheckpointFile(settings, identity, rates)


MOST_TOGETHER = 64
"""Gradients in a stack; beyond that nothing is gained, and evaluations come late."""


class Lockstep:
    """Members that advance together, each with a position of its own.

    They must share schedule, problem and seed, and their rules what clients send: a gradient or a
    difference, after equally many local steps with the same pull; local rates may differ. Results equal those of solo
    runs up to rounding, and to the bit where gradients are computed one by one.
    """

    def __init__(self, members: Sequence[Replay]) -> None:
        if not members:
            raise InvalidInput("there is nothing to run in lockstep: no members")
        first = members[0]
        for other in members[1:]:
            same = other.schedule is first.schedule and other.problem is first.problem
            if not (same and other.seed == first.seed and work_of(other) == work_of(first)):
                raise InvalidInput(
                    "members of a lockstep must share schedule, problem, seed, and what clients "
                    "send; run the others by themselves"
                )
        self.members = tuple(members)

    def run(
        self,
        positions: Sequence[ReplayState],
        *,
        until: int | None = None,
        batched: bool | None = None,
        file: CheckpointFile | None = None,
        advance: Advance | None = None,
    ) -> bool | None:
        """Take all positions, which stand at the same round, to round ``until`` (or the end).

        Members that diverge stay where they did. ``advance`` hears of rounds, those done and all.
        Returns whether gradients were computed together, once that is settled.
        """
        lead = self.members[0]
        last = lead.last_round(until)
        workers = lead.workers(batched)
        active = [i for i, p in enumerate(positions) if not p.over and p.round < last]
        if len({positions[i].round for i in active}) > 1:
            raise InvalidInput("members of a lockstep must stand at the same round")
        moved, next_progress = bool(active), 0.0
        while active:
            self._step(
                [self.members[i] for i in active], [positions[i] for i in active], workers, last
            )
            active = [i for i in active if not positions[i].over and positions[i].round < last]
            if file and active and file.due:
                file.write(*positions)
            if advance and time.monotonic() >= next_progress:
                advance(max(p.round for p in positions), last)
                next_progress = time.monotonic() + SECONDS_PER_PROGRESS
        if file and moved:
            file.write(*positions)
        if advance:
            advance(last, last)
        return workers.batched

    @staticmethod
    def _step(
        members: Sequence[Replay], positions: Sequence[ReplayState], workers: Workers, last: int
    ) -> None:
        """One run of independent tasks, for all."""
        lead, copies = members[0], len(members)
        limit = max(1, min(lead.longest_run, MOST_TOGETHER) // copies)
        end = lead.next_end(positions[0], limit, last)
        each = [m.tasks(p, end) for m, p in zip(members, positions, strict=True)]
        tasks = [task for same in zip(*each, strict=True) for task in same]
        results = list(workers.results(tasks, copies))
        for place, (member, position) in enumerate(zip(members, positions, strict=True)):
            member.apply(position, end, results[place::copies])


class Abreast:
    """Members that advance together, each along a schedule of its own.

    Their problems must have one model and batches of one size, and their rules must agree on what clients
    send; data, seeds and first weights may differ. Whatever tasks of any of them do not wait for one
    another are computed in one stack, which saves small models most of what calling costs. Results equal
    those of solo runs up to rounding.
    """

    def __init__(self, members: Sequence[Replay]) -> None:
        first = members[0]
        for other in members[1:]:
            same = other.problem is first.problem or _kind(other.problem) == _kind(first.problem)
            if not (same and work_of(other) == work_of(first)):
                raise InvalidInput(
                    "runs abreast must share model, loss, batch size, and what clients send; run the "
                    "others by themselves"
                )
        self.members = tuple(members)

    def run(
        self,
        positions: Sequence[ReplayState],
        *,
        until: int | None = None,
        advance: Callable[[int], None] | None = None,
    ) -> None:
        """Take every position to the end of its schedule (or to round ``until``).

        Members that diverge stay where they did. ``advance`` hears of every gradient.
        """
        together = self._together()
        stack, room = together[0], self.members[0].longest_run
        # Those who share a source of batches stand side by side, and draw theirs in one call.
        going = sorted(
            zip(self.members, positions, together, strict=True),
            key=lambda entry: together.index(entry[2]),
        )
        while going := [
            (member, position, source)
            for member, position, source in going
            if not position.over and position.round < member.last_round(until)
        ]:
            limit = max(SHORTEST_RUN, room // len(going))
            ends = [m.next_end(p, limit, m.last_round(until)) for m, p, _ in going]
            each = [m.tasks(p, end) for (m, p, _), end in zip(going, ends, strict=True)]
            sources = [source for _, _, source in going]
            parts = [
                (source, [task for _, own in group for task in own])
                for source, group in groupby(zip(sources, each, strict=True), key=itemgetter(0))
            ]
            results = list(stack.results_of(parts))
            begin = 0
            for (member, position, _), end, own in zip(going, ends, each, strict=True):
                member.apply(position, end, results[begin : begin + len(own)])
                begin += len(own)
            if advance is not None:
                advance(begin)

    def _together(self) -> list[BatchedTasks]:
        """Who computes for every member; those of one problem and seed share theirs."""
        known: dict[tuple[int, int], BatchedTasks] = {}
        for member in self.members:
            key = id(member.problem), member.seed
            if key not in known:
                known[key] = member.together()
        return [known[id(member.problem), member.seed] for member in self.members]


def _kind(problem: Problem) -> tuple[Any, ...]:
    """What problems must agree in for their gradients to be computed in one stack."""
    shapes = tuple(problem.parameter_shapes.items())
    return (
        str(problem.model),
        shapes,
        problem.loss,
        problem.batch_size,
        problem.initial_weights().dtype,
    )


def work_of(run: Replay) -> tuple[Any, ...]:
    """What clients do for a run: runs that are alike in this can go in lockstep."""
    rule = run.rule
    return rule.sends, rule.local_steps, rule.proximal
