"""Several runs at once, whose gradients are computed together: along one schedule, or along several."""

from collections.abc import Callable, Sequence
from typing import Any

from sojourn.errors import InvalidInput
from sojourn.train.replay.gradients import SHORTEST_RUN, Workers
from sojourn.train.replay.loop import Replay
from sojourn.train.replay.state import Position

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
        last = lead.last_round(until)
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
            active = [i for i in active if not positions[i].over and positions[i].round < last]
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


class Abreast:
    """Members that advance together, each along a schedule of its own.

    They must share problem and seed, and their rules what clients send. Whatever tasks of any of them
    do not wait for one another are computed in one stack, which saves small models most of what
    calling costs. Results equal those of solo runs up to rounding.
    """

    def __init__(self, members: Sequence[Replay]) -> None:
        first = members[0]
        for other in members[1:]:
            same = other.problem is first.problem and other.seed == first.seed
            if not (same and work_of(other) == work_of(first)):
                raise InvalidInput(
                    "runs abreast must share problem, seed, and what clients send; run the others "
                    "by themselves"
                )
        self.members = tuple(members)

    def run(
        self,
        positions: Sequence[Position],
        *,
        until: int | None = None,
        advance: Callable[[int], None] | None = None,
    ) -> None:
        """Take every position to the end of its schedule (or to round ``until``).

        Members that diverge stay where they did. ``advance`` hears of every gradient.
        """
        lead = self.members[0]
        workers, room = lead.workers(True), lead.longest_run
        going = list(zip(self.members, positions, strict=True))
        while going := [
            (member, position)
            for member, position in going
            if not position.over and position.round < member.last_round(until)
        ]:
            limit = max(SHORTEST_RUN, room // len(going))
            ends = [m.next_end(p, limit, m.last_round(until)) for m, p in going]
            each = [m.tasks(p, end) for (m, p), end in zip(going, ends, strict=True)]
            tasks = [task for own in each for task in own]
            results = list(workers.results(tasks))
            begin = 0
            for (member, position), end, own in zip(going, ends, each, strict=True):
                member.apply(position, end, results[begin : begin + len(own)])
                begin += len(own)
            if advance is not None:
                advance(len(tasks))


def work_of(run: Replay) -> tuple[Any, ...]:
    """What clients do for a run: runs that are alike in this can go in lockstep."""
    rule = run.rule
    return rule.sends, rule.local_steps, rule.proximal
