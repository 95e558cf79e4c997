"""A plan: routing, concurrency and learning rate, with what theory predicts for them."""

import contextlib
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
from numpy.typing import ArrayLike

from sojourn._support.configuration import Table
from sojourn._support.files import write_text
from sojourn._support.provenance import provenance
from sojourn.dispatch import NeverQueue, Policy, Routed, policy_to_table
from sojourn.errors import InvalidFile, InvalidInput, Unreachable, reading
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
from sojourn.planning.objectives import (
    Energy,
    Evaluation,
    Objective,
    TimeBudget,
    TimeToAccuracy,
    form_of,
    is_guaranteed,
    objective_from_table,
    objective_to_table,
    usual_concurrency,
)
from sojourn.planning.search.concurrency import optimize
from sojourn.theory.bounds import max_learning_rate, penalties, per_round
from sojourn.theory.constants import LearningConstants
from sojourn.theory.energy import energy_per_round, has_powers
from sojourn.theory.jackson import analyze
from sojourn.theory.jackson.classes import NEVER, PLAN, UNIFORM, class_figure, shown_classes
from sojourn.types import FloatArray, Step
from sojourn.version import __version__

SAME_RATE = 1e-9
"""Relative difference up to which a learning rate is the objective's best."""


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What theory says of one network.

    ``value`` is the objective's, ``inf`` where it is out of reach, at ``learning_rate``: the best
    one for this network if the objective leaves it free. ``per_round`` (G) and ``per_time`` (H) are
    taken at that learning rate, after as many rounds as the plan's, or for a time budget as many as
    this network completes in it. ``noise_rate`` and ``staleness_time`` (mean over clients of the time
    that a task spends with them) compare any two policies without constants. Objectives are about
    routed tasks, so that the ``value`` of never queueing is ``None``.
    """

    value: float | None = None
    learning_rate: float | None = None
    throughput: float
    mean_staleness: float
    worst_staleness: float
    noise_rate: float
    staleness_time: float
    per_round: float | None = None
    per_time: float | None = None
    time_to_accuracy: float | None = None
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
        return is_guaranteed(self.objective, self.network, self.learning_rate)

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
        known of never-queue there), and for objectives about energy, which the routing is optimised
        for.
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
        if not has_powers(network.fleet):
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
        """Theory's figures for never queueing, with as many tasks as the plan unless given.

        ``None`` where a server takes time, for which they are not known.
        """
        m = self.concurrency if concurrency is None else concurrency
        network = self._with(uniform_routing(self.fleet), m)
        analysis = NeverQueue().analysis(network)
        if analysis is None:
            return None
        return Prediction(
            throughput=analysis.throughput,
            mean_staleness=NeverQueue().in_flight(network) - 1.0,
            worst_staleness=float(analysis.staleness.max()),
            noise_rate=analysis.noise_rate,
            staleness_time=analysis.mean_staleness_time,
        )

    def write(self, path: str | os.PathLike[str], policy: Policy | None = None) -> None:
        """Write the plan, atomically, as TOML that a person can read and edit, a line per class.

        The file also says which strategy to run: the recommended one, or the given ``policy``.
        """
        prediction = self.predict()
        chosen = self.recommended_policy if policy is None else policy
        tail: dict[str, object] = {
            "strategy": {"policy": policy_to_table(chosen)},
            "objective": objective_to_table(self.objective),
        }
        if self.objective.constants is not None:
            constants = asdict(self.objective.constants)
            tail["constants"] = {key.replace("_", "-"): value for key, value in constants.items()}
        tail["predicted"] = {
            "value": self.value,
            "throughput": prediction.throughput,
            "mean-staleness": prediction.mean_staleness,
            "worst-staleness": prediction.worst_staleness,
        }
        tail["provenance"] = self.provenance
        names = self.fleet.names if self.network.is_split else None
        text = "\n".join(
            [
                f"# A plan by sojourn {__version__}: the best routing by theory, and the strategy to run.",
                "# Edit it as you like: it is checked when it is read, and [predicted], which is about the",
                "# routing, computed anew.",
                "",
                *network_lines(self.network, self.learning_rate, names),
                "",
                tomli_w.dumps(tail),
            ]
        )
        write_text(path, text)

    @classmethod
    def read(cls, path: str | os.PathLike[str], folder: Path | None = None) -> "Plan":
        """Read a plan back; a missing, misspelt or impossible entry raises ``InvalidFile``.

        A learning rate other than the objective's best counts as given. An objective of one's own is
        looked for in ``folder``, by default that of the file.
        """
        table = Table.read(os.fspath(path))
        beside = Path(path).parent if folder is None else folder
        learning_rate, network, fleet, objective = take_network(table, beside)
        # What to run is for `sojourn.strategy` to read.
        for other in ("strategy", "predicted"):
            table.take(other, dict, default=None)
        origin = table.take("provenance", dict, default={})
        evidence = table.take("evidence", dict, default=None)
        table.close()
        if objective is None or evidence is not None:
            raise InvalidFile(
                f"{path}: a strategy, not a plan: it has no [objective]. Read it with Strategy.read."
            )
        with reading(path):
            objective, evaluation = _at_learning_rate(objective, learning_rate, network)
        return cls(
            fleet=fleet,
            objective=objective,
            network=network,
            learning_rate=evaluation.learning_rate,
            value=evaluation.value,
            provenance=origin,
        )

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
    progress: Step | None = None,
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
    solution = optimize(
        fleet,
        wanted,
        concurrency=concurrency,
        routing=routing,
        server_rate=server_rate,
        progress=progress,
    )
    found = Plan(
        fleet=fleet,
        objective=wanted,
        network=solution.network,
        learning_rate=solution.learning_rate,
        value=solution.value,
        provenance=provenance(
            concurrency=concurrency,
            learning_rate=learning_rate,
            routing=routing if isinstance(routing, str) else None,
            server_rate=server_rate,
            interrupted=True if solution.interrupted else None,
        ),
    )
    if getattr(wanted, "guaranteed", False) and not found.is_guarantee:
        assert wanted.constants is not None
        largest = max_learning_rate(found.network, wanted.constants, form_of(wanted))
        raise InvalidInput(
            f"a guarantee was asked for, but the bound is proven for learning rates up to "
            f"{largest:.3g} here, and {found.learning_rate:g} was given: leave one of the two out"
        )
    return found


def network_lines(
    network: Network, learning_rate: float | None, names: Sequence[str] | None = None
) -> list[str]:
    """The lines of a file that hold a network, one per class, and the learning rate.

    ``names`` are those of the whole fleet's classes, where the network has split them.
    """
    table = network.to_table()
    head: dict[str, object] = {key: value for key, value in table.items() if key != "classes"}
    if learning_rate is not None:
        head["learning-rate"] = learning_rate
    if names is not None:
        head["fleet-names"] = list(names)
    rows = [", ".join(_item(key, value) for key, value in row.items()) for row in table["classes"]]
    return [
        tomli_w.dumps(head).rstrip(),
        "",
        "# routing is the probability of each single client of a class.",
        "classes = [",
        *(f"  {{ {row} }}," for row in rows),
        "]",
    ]


def take_network(
    table: Table, folder: Path
) -> tuple[float | None, Network, Fleet, Objective | None]:
    """What a plan or strategy file says of learning rate, network, whole fleet and, if any, objective.

    These are the lines of `network_lines` and a plan's ``[constants]`` and ``[objective]``; other
    keys are left to the caller.
    """
    rate = table.take("learning-rate", float, default=None)
    names = table.take("fleet-names", list, default=None)
    network = Network.from_table(table)
    with reading(table.where):
        fleet = network.whole_fleet(names)
    constants = None
    if (inner := table.optional_table("constants")) is not None:
        constants = LearningConstants.from_table(inner)
        inner.close()
    inner = table.optional_table("objective")
    objective = None if inner is None else objective_from_table(inner, constants, folder)
    return rate, network, fleet, objective


def _at_learning_rate(
    objective: Objective, learning_rate: float | None, network: Network
) -> tuple[Objective, Evaluation]:
    if learning_rate is None:
        return objective, objective.evaluate(network)
    fixed = objective.with_learning_rate(learning_rate)
    if objective.learning_rate is None:
        with contextlib.suppress(InvalidInput, Unreachable):
            best = objective.evaluate(network)
            if math.isclose(best.learning_rate or 0.0, learning_rate, rel_tol=SAME_RATE):
                return objective, best
    return fixed, fixed.evaluate(network)


def _item(key: str, value: object) -> str:
    return tomli_w.dumps({key: value}).strip()
