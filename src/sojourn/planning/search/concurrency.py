"""The best number of tasks in flight, and of updates in a buffer: a bracket, then golden section."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache

from numpy.typing import ArrayLike
from threadpoolctl import threadpool_limits

from sojourn.errors import InvalidInput, Unreachable
from sojourn.fleet import MOST_TASKS, Fleet, Network, named_routing, square_root_routing
from sojourn.planning.objectives import Objective, form_of, usual_concurrency
from sojourn.planning.search.descent import descend
from sojourn.planning.search.routing import (
    SAME_VALUE,
    Solution,
    floor_of,
    optimize_routing,
)
from sojourn.types import Step

EXHAUSTIVE = 8
"""Width below which every whole number is tried."""
GOLDEN = (3.0 - 5.0**0.5) / 2.0
MOST_SEARCHES = 3
"""Searches through all starts, each at the concurrency that the last one led to."""
MOST_STEPS = 64
"""Concurrencies tried around one of them."""

FOLLOWING_TOLERANCE, FOLLOWING_STEPS = 1e-7, 200
"""When to end descents that only tell which concurrency is worth a search through all starts."""


def optimize_concurrency(
    fleet: Fleet,
    objective: Objective,
    *,
    routing: ArrayLike | str | None = None,
    server_rate: float | None = None,
    progress: Step | None = None,
) -> Solution:
    r"""The concurrency that makes ``objective`` best, with the routing given or optimised at each.

    ``routing`` is a vector per class, a closed-form name, or ``None`` for the best at every
    concurrency; ``server_rate`` is that of the networks tried. The objective is taken to have one
    valley in :math:`m`: doubling until it has risen twice brackets it, golden section and a scan of
    the last few values finish. An open routing follows with one descent at each concurrency, from
    that of the nearest (first from square-root routing); at the concurrency found all starts of
    ``optimize_routing`` are tried, the concurrencies around it follow from their best, and should
    one of these be better the same is done there. Interrupted (Ctrl-C), the search gives the best
    until then.

    Cost: at most some 110 evaluations of :math:`m`, typically 30, each one descent if the routing is
    open; then at most ``MOST_SEARCHES`` = 3 searches through all starts with ``MOST_STEPS`` = 64
    descents around each.

    >>> from sojourn.theory.constants import LearningConstants
    >>> from sojourn.fleet import built_in_fleet
    >>> from sojourn.planning.objectives import PerTime
    >>> constants = LearningConstants(initial_gap=15, smoothness=1, gradient_noise=3, heterogeneity=10)
    >>> found = optimize_concurrency(
    ...     built_in_fleet("fifty"), PerTime(constants, 0.05, 0), routing="uniform"
    ... )
    >>> found.concurrency, len(found.tried) < 40
    (18, True)
    """
    if objective.maximize or usual_concurrency(objective, fleet) is not None:
        raise InvalidInput(
            f"{objective.name} improves with every task in flight and has no best concurrency: give one"
        )
    search = _Search(fleet, objective, routing, progress, server_rate)
    with threadpool_limits(limits=1, user_api="blas"):
        try:
            return search.run()
        except KeyboardInterrupt:
            if not search.networks:
                raise
            return search.solution(interrupted=True)


def optimize(
    fleet: Fleet,
    objective: Objective,
    *,
    concurrency: int | None = None,
    routing: ArrayLike | str | None = None,
    server_rate: float | None = None,
    progress: Step | None = None,
) -> Solution:
    """The best of what is left open: the concurrency, the routing, both, or nothing."""
    if concurrency is None:
        return optimize_concurrency(
            fleet, objective, routing=routing, server_rate=server_rate, progress=progress
        )
    if routing is None:
        return optimize_routing(
            fleet, concurrency, objective, server_rate=server_rate, progress=progress
        )
    p = named_routing(fleet, routing) if isinstance(routing, str) else routing
    return Solution.at(Network(fleet, p, concurrency, server_rate=server_rate), objective)


def smallest_of_valley(value: Callable[[int], float]) -> int:
    """The whole number from 1 on at which ``value``, falling and then rising, is least.

    >>> smallest_of_valley(lambda m: (m - 1000) ** 2)
    1000
    """
    at, rises = 1, 0
    best = 1
    while rises < 2:
        at *= 2
        if at > MOST_TASKS:
            raise InvalidInput(
                f"the objective still improves at {MOST_TASKS} tasks in flight: give a concurrency"
            )
        if value(at) < value(best):
            best, rises = at, 0
        else:
            rises += 1
    low, high = max(1, best // 2), best * 2
    while high - low > EXHAUSTIVE:
        left = low + max(1, round(GOLDEN * (high - low)))
        right = high - max(1, round(GOLDEN * (high - low)))
        if value(left) <= value(right):
            high = right
        else:
            low = left
    return min(range(low, high + 1), key=value)


def walk(value: Callable[[int], float], at: int, *, most_steps: int) -> int:
    """The least whole number around ``at``: steps grow while they help and shrink when they do not.

    ``value`` is called at most ``most_steps`` times beside ``at`` itself.

    >>> walk(lambda m: (m - 1000) ** 2, 700, most_steps=64)
    1000
    """
    known = {at: value(at)}

    def look(m: int) -> float:
        if m not in known:
            known[m] = value(m) if 1 <= m <= MOST_TASKS and len(known) <= most_steps else math.inf
        return known[m]

    best, step = at, max(1, at // 8)
    while step:
        better = min((best - step, best + step), key=look)
        if look(better) < look(best):
            best, step = better, 2 * step
        else:
            step //= 2
    return best


class _Search:
    """The best network found at each concurrency so far."""

    def __init__(
        self,
        fleet: Fleet,
        objective: Objective,
        routing: ArrayLike | str | None,
        progress: Step | None,
        server_rate: float | None,
    ) -> None:
        self._server_rate = server_rate
        self._fleet, self._objective, self._progress = fleet, objective, progress
        self._open = routing is None
        self._routing = named_routing(fleet, routing) if isinstance(routing, str) else routing
        self.networks: dict[int, Network] = {}
        self._tried: dict[int, float] = {}
        self._full: dict[int, Solution] = {}
        self._unreachable: dict[int, Unreachable] = {}

    def run(self) -> Solution:
        best = smallest_of_valley(self._first_value)
        for _ in range(MOST_SEARCHES if self._open else 0):
            if self._search_all(best).interrupted:
                return self.solution(interrupted=True)
            moved = walk(self._value_near(best), best, most_steps=MOST_STEPS)
            if moved in self._full:
                break
            best = moved
        return self.solution()

    def solution(self, *, interrupted: bool = False) -> Solution:
        """The best of all concurrencies tried."""
        best = min(self._tried, key=lambda m: self._tried[m])
        if best not in self.networks:
            raise self._unreachable[best]
        evaluation = self._objective.evaluate(self.networks[best])
        found = self._full.get(best)
        return Solution(
            objective=self._objective,
            network=self.networks[best],
            value=evaluation.value,
            learning_rate=evaluation.learning_rate,
            tried=dict(sorted(self._tried.items())),
            attempts=() if found is None else found.attempts,
            interrupted=interrupted,
        )

    def _keep(self, network: Network, value: float) -> float:
        m = network.concurrency
        if value < self._tried.get(m, math.inf):
            self.networks[m], self._tried[m] = network, value
        return self._tried.setdefault(m, math.inf)

    def _first_value(self, m: int) -> float:
        if m not in self._tried:
            self._say(f"concurrency {m}")
            try:
                network = self._first_network(m)
                self._keep(network, self._objective.evaluate(network).value)
            except Unreachable as error:
                self._tried[m], self._unreachable[m] = math.inf, error
        return self._tried[m]

    def _first_network(self, m: int) -> Network:
        if not self._open:
            return self._network(self._routing, m)  # type: ignore[arg-type]
        if self.networks:
            nearest = min(self.networks, key=lambda other: abs(math.log(other / m)))
            return self._followed(self.networks[nearest], m)
        try:
            return self._followed(self._network(square_root_routing(self._fleet), m), m)
        except Unreachable:
            return self._all_starts(m).network

    def _network(self, routing: ArrayLike, m: int) -> Network:
        return Network(self._fleet, routing, m, server_rate=self._server_rate)

    def _all_starts(self, m: int) -> Solution:
        return optimize_routing(self._fleet, m, self._objective, server_rate=self._server_rate)

    def _followed(self, network: Network, m: int) -> Network:
        """One descent at ``m`` from a network's routing, or from what is least out of reach there."""
        start, floor = replace(network, concurrency=m), floor_of(self._objective)

        def followed(start: Network, objective: Objective) -> Network:
            tolerance, steps = FOLLOWING_TOLERANCE, FOLLOWING_STEPS
            ended = descend(start, objective, tolerance=tolerance, most_steps=steps)
            return replace(start, routing=ended.network.routing)

        try:
            return followed(start, self._objective)
        except Unreachable:
            if floor is None:
                raise
            return followed(followed(start, floor), self._objective)

    def _search_all(self, m: int) -> Solution:
        self._say(f"concurrency {m}, all starts")
        found = self._full[m] = self._all_starts(m)
        # Symmetry breaking shows here only; what was found on the way is kept if it is better.
        self._tried.setdefault(m, math.inf)
        if found.value <= self._tried[m] * (1 + SAME_VALUE):
            self.networks[m], self._tried[m] = found.network, found.value
        return found

    def _value_near(self, origin: int) -> Callable[[int], float]:
        """The values around a concurrency, followed from its best network."""
        network = self.networks[origin]

        def value(m: int) -> float:
            if m == origin or m in self._full:
                return self._tried[m]
            self._say(f"concurrency {m}")
            try:
                followed = self._followed(network, m)
                return self._keep(followed, self._objective.evaluate(followed).value)
            except Unreachable:
                return self._tried.setdefault(m, math.inf)

        return value

    def _say(self, text: str) -> None:
        if self._progress is not None:
            self._progress(text)


def optimize_buffer(
    fleet: Fleet,
    objective: Objective,
    *,
    concurrency: int | None = None,
    routing: ArrayLike | str | None = None,
    server_rate: float | None = None,
    progress: Step | None = None,
) -> Solution:
    r"""The buffer :math:`K` that makes ``objective`` best, with all that is left open best for each.

    The solution's objective has it in its ``form``. The objective is taken to have one valley in
    :math:`K`. With the best learning rate for every :math:`K` the least is at 1: what one update
    counts is then chosen freely, and updates that wait in a buffer are only staler. A learning rate
    that is given for the step of a whole buffer is divided by :math:`K` for each update, so where it
    is too large for one, a buffer helps. Cost: some ten plans.

    >>> from sojourn.theory.constants import LearningConstants
    >>> from sojourn.fleet import built_in_fleet
    >>> from sojourn.planning.objectives import PerRound
    >>> constants = LearningConstants(initial_gap=15, smoothness=1, gradient_noise=3, heterogeneity=10)
    >>> asked = {"concurrency": 20, "routing": "uniform"}
    >>> found = optimize_buffer(built_in_fleet("twenty"), PerRound(constants, 0.1, 1000), **asked)
    >>> found.objective.form.buffer
    29
    """
    if not hasattr(objective, "form"):
        raise InvalidInput(
            f"{objective.name} does not depend on how many updates the server collects: leave out "
            "the buffer"
        )
    form = form_of(objective)

    @cache
    def solved(buffer: int) -> Solution | Unreachable:
        wanted: Objective = replace(objective, form=replace(form, buffer=buffer))  # type: ignore[type-var]
        if progress is not None:
            progress(f"buffer {buffer}")
        try:
            return optimize(
                fleet, wanted, concurrency=concurrency, routing=routing, server_rate=server_rate
            )
        except Unreachable as error:
            return error

    def value(buffer: int) -> float:
        found = solved(buffer)
        return found.value if isinstance(found, Solution) else math.inf

    best = solved(smallest_of_valley(value))
    if not isinstance(best, Solution):
        raise best
    return best
