"""Which living client gets the next task: a dispatch policy followed in real time."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sojourn.dispatch import Chooser, Policy
from sojourn.errors import InvalidInput
from sojourn.floor import target_rates
from sojourn.network import Fleet
from sojourn.rules import Weighting
from sojourn.types import FloatArray


def check_policy(policy: Policy) -> Policy:
    """``policy``, unless the dispatcher cannot follow it."""
    chooser = policy.chooser(np.random.default_rng(0)) if policy.deployable else None
    if chooser is None or type(chooser).stops is not Chooser.stops:
        raise InvalidInput(
            f"the policy '{policy.name}' waits for whole cohorts or stops tasks, which the dispatcher "
            "does not do. Choose a rule or a policy that sends one task at a time and lets it "
            "complete, such as 'never-queue'."
        )
    return policy


class Router:
    """What the policy sees of a deployment (a `sojourn.dispatch.View`), and its choices.

    ``routing`` is p over all n clients, ``rates`` their service rates as they are known by now, and
    ``client_weights`` how much each counts (all the same by default); only the living are chosen. ``tasks(client)`` says how many tasks a client has.
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
    ) -> None:
        self.policy = check_policy(policy)
        self.living: list[int] = []
        self.concurrency = concurrency
        self.now = 0.0
        self.tasks = tasks
        self.routing = _checked(routing)
        self.rates = np.array(rates, dtype=np.float64)
        self.client_weights = np.ones(self.rates.size) if client_weights is None else client_weights
        self._chooser = policy.chooser(random)
        self._share: dict[int, float] = {}

    @property
    def under_way(self) -> int:
        """How many tasks are with the living clients now."""
        return sum(self.tasks(client) for client in self.living)

    def change(self, routing: FloatArray, now: float) -> None:
        """Use another p from now on."""
        self.routing = _checked(routing, self.routing.size)
        self._changed(now)

    def speeds(self, rates: FloatArray, now: float) -> None:
        """Clients are as fast as this, it now seems."""
        self.rates = np.array(rates, dtype=np.float64)
        self._changed(now)

    def restrict(self, living: list[int], now: float) -> None:
        """Only these clients are chosen from now on."""
        self.living = list(living)
        self._changed(now)

    def share(self, client: int) -> float:
        """The share of the tasks that a living client gets in the long run, over the living.

        It is p where the routing decides; r over the sum of all r where clients are kept busy; and
        even where nothing is known.
        """
        return self._share[client]

    def divisor(self, client: int, weighting: Weighting) -> float:
        """What an update of a living client is divided by if its task is sent now."""
        needs_all = 0.0 < weighting.debias < 1.0
        shares = np.array([self._share[i] for i in self.living]) if needs_all else np.ones(0)
        return weighting.divisor(self._share[client], len(self.living), weighting.mean(shares))

    def choose(self, finisher: int | None, now: float) -> int | None:
        """The client of the next task; ``None`` if it must wait."""
        self.now = now
        return self._chooser.choose(self, finisher) if self.living else None

    def sent(self, client: int) -> None:
        """A task has gone to ``client``."""
        self._chooser.sent(client)

    def record(self) -> dict[str, Any]:
        """What has to be remembered beside routing and rates, as JSON values."""
        return self._chooser.record()

    def restore(self, record: Mapping[str, Any]) -> None:
        """Take up what `record` gave."""
        self._chooser.restore(record)

    def _changed(self, now: float) -> None:
        self.now, living = now, self.living
        self._share = {}
        if not living:
            return
        if self.policy.routes:
            weights = self.routing[living]
        elif self.policy.one_task_each:
            fleet = Fleet(self.rates[living], weight=self.client_weights[living])
            weights = target_rates(fleet, self.concurrency)
        else:
            weights = np.ones(len(living))
        self._share = dict(zip(living, (weights / weights.sum()).tolist(), strict=True))
        self._chooser.changed(self)


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
