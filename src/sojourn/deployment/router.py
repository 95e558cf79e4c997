"""Which living client gets the next task: a dispatch policy followed in real time, and its p."""

from bisect import bisect_left
from collections.abc import Callable, Mapping

import numpy as np

from sojourn.dispatch import Policy, not_deployable
from sojourn.errors import InvalidInput
from sojourn.fleet import Fleet
from sojourn.rules import Weighting
from sojourn.theory.floor import target_rates
from sojourn.types import FloatArray

Replan = Callable[[FloatArray], FloatArray]
"""From the estimated service rates of all clients to a new routing."""


class Router:
    """What the policy sees of a deployment (a `sojourn.dispatch.View`), and its choices.

    ``routing`` is p over all n clients, ``rates`` their service rates as they are known by now, and
    ``client_weights`` how much each counts (all the same by default); only the living are chosen.
    ``tasks(client)`` says how many tasks a client has. p of clients after the first ``listed`` is
    not planned: it is such that they get the share that never-queue would give them.
    """

    def __init__(
        self,
        routing: FloatArray,
        rates: FloatArray,
        *,
        policy: Policy,
        concurrency: int,
        random: np.random.Generator,
        tasks: Callable[[int], int],
        client_weights: FloatArray | None = None,
        listed: int | None = None,
    ) -> None:
        reason = not_deployable(policy)
        if reason is not None:
            raise InvalidInput(reason)
        self.policy = policy
        self.living: list[int] = []
        self.concurrency = concurrency
        self.now = 0.0
        self.tasks = tasks
        self._routing = _checked(routing)
        self.listed = self._routing.size if listed is None else listed
        self.rates = np.array(rates, dtype=np.float64)
        self.client_weights = np.ones(self.rates.size) if client_weights is None else client_weights
        self._chooser = policy.chooser(random)
        self._share: dict[int, float] = {}
        self._unsettled_since: float | None = None

    @property
    def routing(self) -> FloatArray:
        """p over all clients."""
        self._settle()
        return self._routing

    @routing.setter
    def routing(self, routing: FloatArray) -> None:
        self._routing = routing

    @property
    def under_way(self) -> int:
        """How many tasks are with the living clients now."""
        return sum(self.tasks(client) for client in self.living)

    def change(self, routing: FloatArray, now: float) -> None:
        """Use another p from now on."""
        self._settle()
        self._routing = _checked(routing, self._routing.size)
        self._changed(now)

    def speeds(self, rates: FloatArray, now: float) -> None:
        """Clients are as fast as this, it now seems."""
        self._settle()
        self.rates = np.array(rates, dtype=np.float64)
        self._changed(now)

    def lives(self, client: int, alive: bool, now: float) -> None:
        """A client may be chosen from now on, or may not.

        What follows for the others is computed when it is next needed, so that n clients that join
        one after the other cost no more than n.
        """
        place = bisect_left(self.living, client)
        there = self.living[place : place + 1] == [client]
        if alive and not there:
            self.living.insert(place, client)
        elif there and not alive:
            del self.living[place]
        self._unsettled_since = now

    def share(self, client: int) -> float:
        """The share of the tasks that a living client gets in the long run, over the living.

        It is p where the routing decides; r over the sum of all r where clients are kept busy; and
        even where nothing is known.
        """
        self._settle()
        return self._share[client]

    def divisor(self, client: int, weighting: Weighting) -> float:
        """What an update of a living client is divided by if its task is sent now."""
        self._settle()
        needs_all = 0.0 < weighting.debias < 1.0
        shares = np.array([self._share[i] for i in self.living]) if needs_all else np.ones(0)
        return weighting.divisor(self._share[client], len(self.living), weighting.mean(shares))

    def choose(self, finisher: int | None, now: float) -> int | None:
        """The client of the next task; ``None`` if it must wait."""
        self._settle()
        self.now = now
        return self._chooser.choose(self, finisher) if self.living else None

    def sent(self, client: int) -> None:
        """A task has gone to ``client``."""
        self._settle()
        self._chooser.sent(client)

    def record(self) -> Mapping[str, object]:
        """What has to be remembered beside routing and rates, as JSON values."""
        self._settle()
        return self._chooser.record()

    def restore(self, record: Mapping[str, object]) -> None:
        """Take up what `record` gave."""
        self._settle()
        self._chooser.restore(record)

    def _settle(self) -> None:
        if self._unsettled_since is not None:
            since, self._unsettled_since = self._unsettled_since, None
            self._changed(since)

    def _changed(self, now: float) -> None:
        self.now, living = now, self.living
        self._share = {}
        if not living:
            return
        if self.policy.routes:
            if living[-1] >= self.listed:
                self._route_unlisted()
            weights = self._routing[living]
        elif self.policy.one_task_each:
            weights = self._never_queue()
        else:
            weights = np.ones(len(living))
        self._share = dict(zip(living, (weights / weights.sum()).tolist(), strict=True))
        self._chooser.changed(self)

    def _never_queue(self) -> FloatArray:
        """Tasks a second of the living under never-queue, at the speeds known by now."""
        living = self.living
        fleet = Fleet(self.rates[living], weight=self.client_weights[living])
        return target_rates(fleet, self.concurrency)

    def _route_unlisted(self) -> None:
        """Give the living that no plan knows their share; the others' shares keep their ratios."""
        rates = self._never_queue()
        shares, living = rates / rates.sum(), np.array(self.living)
        new = living >= self.listed
        planned = float(self._routing[living[~new]].sum())
        left = float(shares[~new].sum())
        self._routing[living[new]] = shares[new] * (planned / left if planned else 1.0)


def _checked(routing: FloatArray, size: int | None = None) -> FloatArray:
    p = np.array(routing, dtype=np.float64)
    if p.ndim != 1 or p.size == 0 or not np.all(np.isfinite(p) & (p > 0)):
        raise InvalidInput(
            "routing must be a positive probability for every client; "
            f"it is {np.array2string(p, threshold=8)}"
        )
    if size is not None and p.size != size:
        raise InvalidInput(f"routing must be over the {size} clients; it has {p.size} entries")
    return np.asarray(p / p.sum())
