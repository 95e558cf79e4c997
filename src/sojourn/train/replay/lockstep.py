"""Several runs of one schedule, problem and seed at once: rules and learning rates side by side.

Members differ in what the server does with a result, or in how long clients' own steps are. Who
finishes when, and on which samples, is the same for all, so that their gradients are one stacked
computation: many small products become few large ones.
"""

from collections.abc import Callable, Sequence
from typing import Any

from sojourn.errors import InvalidInput
from sojourn.train.replay.gradients import Workers
from sojourn.train.replay.replay import Replay
from sojourn.train.replay.state import Position

MOST_TOGETHER = 64
"""Gradients in a stack; beyond that nothing is gained, and evaluations come late."""


class Lockstep:
    """Members that advance together, each with a position of its own.

    They must share schedule, problem and seed, and their rules what clients send: a gradient, or
    the difference after equally many local steps with the same pull. Results equal those of solo
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
        positions: Sequence[Position],
        *,
        until: int | None = None,
        batched: bool | None = None,
        advance: Callable[[int], None] | None = None,
    ) -> bool | None:
        """Take all positions, which stand at the same round, to round ``until`` (or the end).

        Members that diverge stay where they did. ``advance`` hears of every gradient. Returns
        whether gradients were computed together, once that is settled.
        """
        lead = self.members[0]
        last = lead.schedule.rounds if until is None else min(until, lead.schedule.rounds)
        workers = lead.workers(batched)
        active = [i for i, p in enumerate(positions) if not p.over and p.round < last]
        if len({positions[i].round for i in active}) > 1:
            raise InvalidInput("members of a lockstep must stand at the same round")
        while active:
            done = self._step(
                [self.members[i] for i in active], [positions[i] for i in active], workers, last
            )
            if advance is not None:
                advance(done)
            active = [
                i for i in active if not positions[i].over and positions[i].round < last
            ]
        return workers.batched

    @staticmethod
    def _step(
        members: Sequence[Replay], positions: Sequence[Position], workers: Workers, last: int
    ) -> int:
        """One run of independent tasks, for all; how many gradients that were."""
        lead, copies = members[0], len(members)
        limit = max(1, min(lead.longest_run, MOST_TOGETHER) // copies)
        end = lead.next_end(positions[0], limit, last)
        each = [m.tasks(p, end) for m, p in zip(members, positions, strict=True)]
        tasks = [task for same in zip(*each, strict=True) for task in same]
        results = list(workers.results(tasks, copies))
        for place, (member, position) in enumerate(zip(members, positions, strict=True)):
            member.apply(position, end, results[place::copies])
        return len(tasks)


def work_of(run: Replay) -> tuple[Any, ...]:
    """What clients do for a run: runs that are alike in this can go in lockstep."""
    rule = run.rule
    return rule.sends, rule.local_steps, rule.proximal
