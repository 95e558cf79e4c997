"""A plan: routing, concurrency and learning rate, with what theory predicts for them."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from sojourn._support.provenance import provenance
from sojourn.dispatch import NeverQueue, Policy, Routed
from sojourn.errors import InvalidInput, Unreachable
from sojourn.figures.figure import Figure
from sojourn.figures.notebook import table_html
from sojourn.fleet import (
    ROUTINGS,
    Fleet,
    Network,
    check_concurrency,
    named_routing,
    uniform_routing,
)
from sojourn.planning.objectives.base import (
    Objective,
    TimeBudget,
    TimeToAccuracy,
    form_of,
    usual_concurrency,
)
from sojourn.planning.objectives.energy import Energy
from sojourn.planning.search.concurrency import optimize_concurrency
from sojourn.planning.search.routing import Progress, optimize_routing
from sojourn.theory.bounds import max_learning_rate, penalties, per_round
from sojourn.theory.energy import POWERS, energy_per_round
from sojourn.theory.jackson import analyze
from sojourn.theory.jackson.classes import NEVER, PLAN, UNIFORM, class_figure, shown_classes
from sojourn.types import FloatArray


@dataclass(frozen=True)
class Prediction:
    """What theory says of one network.

    ``value`` is the objective's, ``inf`` where it is out of reach, at ``learning_rate``: the best
    one for this network if the objective leaves it free. ``per_round`` (G) and ``per_time`` (H) are
    taken at that learning rate, after as many rounds as the plan's, or for a time budget as many as
    this network completes in it. ``noise_rate`` and ``staleness_time`` (mean over clients of the time
    that a task spends with them) compare any two policies without constants. Objectives are about
    routed tasks, so that the ``value`` of never queueing is ``None``.
    """

    value: float | None
    learning_rate: float | None
    throughput: float
    mean_staleness: float
    worst_staleness: float
    noise_rate: float
    staleness_time: float
    per_round: float | None
    per_time: float | None
    time_to_accuracy: float | None
    energy_per_round: float | None = None


@dataclass(frozen=True, eq=False)
class Plan:
    """What to do with a fleet: which client gets how many tasks, how many at once, how fast to learn.

    ``network`` may have more classes than ``fleet``: the best routing may single out clients of a
    class, whose parts then stand beside each other, so that both number the clients alike.
    ``learning_rate`` is ``None`` only when the objective says nothing about learning. What to run
    is a strategy: `sojourn.strategy.Strategy.of_plan` makes one of the plan.
    """

    fleet: Fleet
    objective: Objective
    network: Network
    learning_rate: float | None
    value: float
    provenance: Mapping[str, Any]

    def __post_init__(self) -> None:
        whole = self.network.whole_fleet()
        same = np.array_equal(whole.service_rates, self.fleet.service_rates)
        if not same or not np.array_equal(whole.counts, self.fleet.counts):
            raise InvalidInput(
                f"a plan's network must be one of its fleet: the fleet is {self.fleet}, the network "
                f"is of {whole}"
            )

    @property
    def concurrency(self) -> int:
        return self.network.concurrency

    @property
    def is_guarantee(self) -> bool | None:
        """Whether the learning rate is within ``max_learning_rate``; ``None`` without constants."""
        constants = self.objective.constants
        if constants is None or self.learning_rate is None:
            return None
        return self.learning_rate <= max_learning_rate(
            self.network, constants, form_of(self.objective)
        )

    @property
    def rounds(self) -> float | None:
        """The number of rounds that the objective speaks of; ``None`` if it speaks of none."""
        return self.objective.rounds_at(self.network)

    @property
    def client_routing(self) -> FloatArray:
        """The probability of every client of ``fleet``, shape ``(n,)``."""
        return self.network.client_routing

    def predict(self, network: Network | None = None) -> Prediction:
        """Theory's figures for the plan, or for another network under the same objective."""
        network = self.network if network is None else network
        analysis, constants = analyze(network), self.objective.constants
        value, learning_rate = self._evaluate(network)
        rounds, g = self.rounds, None
        if isinstance(self.objective, TimeBudget):
            rounds = self.objective.time * analysis.throughput
        if constants is not None and learning_rate is not None and rounds is not None:
            s = penalties(network, form_of(self.objective))
            g = per_round(s, constants, learning_rate=learning_rate, rounds=rounds).value
        return Prediction(
            value=value,
            learning_rate=learning_rate,
            throughput=analysis.throughput,
            mean_staleness=network.concurrency - 1.0,
            worst_staleness=float(analysis.staleness.max()),
            noise_rate=analysis.noise_rate,
            staleness_time=analysis.mean_staleness_time,
            per_round=g,
            per_time=None if g is None else g / analysis.throughput,
            time_to_accuracy=value if isinstance(self.objective, TimeToAccuracy) else None,
            energy_per_round=self._energy(network),
        )

    @property
    def unrouted_network(self) -> Network:
        """The network of a policy that does not route: the whole fleet, as many tasks in flight."""
        return self._with(uniform_routing(self.fleet), self.concurrency)

    @property
    def recommended_policy(self) -> Policy:
        """Who should get the next task: never-queue, wherever theory knows that it is better.

        It has the least noise of any policy that lets tasks finish, and the least staleness. Random
        routing is for servers that may not know who is idle, for servers that take time (nothing is
        known of never-queue there), and for objectives about energy, which the routing is optimised for.
        """
        return (
            Routed()
            if isinstance(self.objective, Energy) or self.never_queue() is None
            else NeverQueue()
        )

    def _with(self, routing: FloatArray, concurrency: int) -> Network:
        return Network(self.fleet, routing, concurrency, server_rate=self.network.server_rate)

    def _evaluate(self, network: Network) -> tuple[float, float | None]:
        try:
            evaluation = self.objective.evaluate(network)
        except Unreachable:
            return math.inf, self.learning_rate
        return evaluation.value, evaluation.learning_rate

    def _energy(self, network: Network) -> float | None:
        if not any(name in network.fleet.columns for name in POWERS):
            return None
        power = getattr(self.objective, "server_power", 0.0)
        return energy_per_round(network, server_power=power).value

    def comparison(self) -> dict[str, Prediction]:
        """The plan beside three simple routings and never queueing, at the same concurrency.

        Each routing has its own best learning rate, unless the objective fixes one.
        """
        rows = {
            name: self.predict(self._with(named_routing(self.fleet, name), self.concurrency))
            for name in ROUTINGS
        }
        never = self.never_queue()
        return {**({"never-queue": never} if never else {}), "plan": self.predict(), **rows}

    def never_queue(self, concurrency: int | None = None) -> Prediction | None:
        """Theory's figures for never queueing, with as many tasks as the plan unless told.

        ``None`` where a server takes time, for which they are not known.
        """
        m = self.concurrency if concurrency is None else concurrency
        network = self._with(uniform_routing(self.fleet), m)
        analysis = NeverQueue().analysis(network)
        if analysis is None:
            return None
        return Prediction(
            value=None,
            learning_rate=None,
            throughput=analysis.throughput,
            mean_staleness=NeverQueue().in_flight(network) - 1.0,
            worst_staleness=float(analysis.staleness.max()),
            noise_rate=analysis.noise_rate,
            staleness_time=analysis.mean_staleness_time,
            per_round=None,
            per_time=None,
            time_to_accuracy=None,
        )

    def write(self, path: str | os.PathLike[str], policy: Policy | None = None) -> None:
        """Write the plan as TOML that a person can read and edit.

        The file also says which strategy to run: the recommended one, or the given ``policy``.
        """
        from sojourn.planning.file import write_plan

        write_plan(self, path, policy)

    @classmethod
    def read(cls, path: str | os.PathLike[str], folder: Path | None = None) -> "Plan":
        """Read a plan back; a missing, misspelt or impossible entry raises ``InvalidFile``.

        An objective of one's own is sought in ``folder``, by default that of the file.
        """
        from sojourn.planning.file import read_plan

        return read_plan(path, folder)

    def __repr__(self) -> str:
        rate = "" if self.learning_rate is None else f", learning rate {self.learning_rate:.4g}"
        return (
            f"Plan({self.fleet.size} clients, concurrency {self.concurrency}{rate}: "
            f"{self.objective.name} {self.value:.6g})"
        )

    def plot(self) -> Figure:
        """Share, load, wait and weight of every class, beside uniform routing and never queueing."""
        before = self._with(uniform_routing(self.fleet), self.concurrency)
        sides = {UNIFORM: Routed().analysis(before), NEVER: NeverQueue().analysis(before)}
        sides |= {PLAN: Routed().analysis(self.network)}
        known = {name: analysis for name, analysis in sides.items() if analysis is not None}
        return class_figure(self.fleet, shown_classes(self.fleet), known)

    def _repr_html_(self) -> str:
        rows = [
            (
                name,
                f"{row.throughput:.3g}",
                f"{row.noise_rate:.3g}",
                f"{row.staleness_time:.3g}",
            )
            for name, row in self.comparison().items()
        ]
        columns = ("policy or routing", "updates per time unit", "noise rate", "time a task takes")
        return table_html(repr(self), columns, rows)


def plan(
    fleet: Fleet,
    objective: Objective,
    *,
    concurrency: int | None = None,
    learning_rate: float | None = None,
    routing: ArrayLike | str | None = None,
    server_rate: float | None = None,
    progress: Progress | None = None,
) -> Plan:
    """The best way to drive ``fleet``: whatever is left ``None`` is optimised, jointly.

    ``routing`` may be a closed-form name or a probability per client of each class; ``server_rate``
    is the network's. A learning rate
    given here goes before the objective's; one above ``max_learning_rate`` is refused if the
    objective asks for a guarantee. For a fleet of many distinct speeds see ``group_clients``. An
    interrupted search (Ctrl-C) gives the best plan until then and says so in ``provenance``.

    >>> from sojourn.theory.constants import LearningConstants
    >>> from sojourn.fleet import built_in_fleet
    >>> constants = LearningConstants(initial_gap=2.3, smoothness=10, gradient_noise=1, heterogeneity=1)
    >>> plan(built_in_fleet("three-clusters"), TimeToAccuracy(constants, squared_gradient_norm=0.5))
    Plan(30 clients, concurrency 7, learning rate 0.0002036: time-to-accuracy 538736)
    """
    wanted = objective if learning_rate is None else objective.with_learning_rate(learning_rate)
    if concurrency is None:
        concurrency = usual_concurrency(wanted, fleet)
    if concurrency is not None:
        concurrency = check_concurrency(concurrency)
    interrupted = False
    if routing is not None and concurrency is not None:
        vector = named_routing(fleet, routing) if isinstance(routing, str) else routing
        network = Network(fleet, vector, concurrency, server_rate=server_rate)
    else:
        if concurrency is not None:
            solution = optimize_routing(
                fleet, concurrency, wanted, server_rate=server_rate, progress=progress
            )
        else:
            solution = optimize_concurrency(
                fleet, wanted, routing=routing, server_rate=server_rate, progress=progress
            )
        network, interrupted = solution.network, solution.interrupted
    evaluation = wanted.evaluate(network)
    found = Plan(
        fleet=fleet,
        objective=wanted,
        network=network,
        learning_rate=evaluation.learning_rate,
        value=evaluation.value,
        provenance=provenance(
            concurrency=concurrency,
            learning_rate=learning_rate,
            routing=routing if isinstance(routing, str) else None,
            server_rate=server_rate,
            interrupted=True if interrupted else None,
        ),
    )
    if getattr(wanted, "guaranteed", False) and not found.is_guarantee:
        assert wanted.constants is not None
        largest = max_learning_rate(network, wanted.constants, form_of(wanted))
        raise InvalidInput(
            f"a guarantee was asked for, but the bound is proven for learning rates up to "
            f"{largest:.3g} here, and {found.learning_rate:g} was given: leave one of the two out"
        )
    return found
