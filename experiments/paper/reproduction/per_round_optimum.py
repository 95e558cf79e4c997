"""Claim 2: the routing that minimises G for 20 clients and 100 tasks, and what it costs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from reproduction.checks import holds
from reproduction.claims import Judged
from reproduction.palette import label
from reproduction.parameters import take_numbers
from sojourn._support.configuration import Table
from sojourn.figures.figure import Figure, Series, Table as ReportTable, View
from sojourn.fleet import Fleet, Network, balanced_routing, built_in_fleet, uniform_routing
from sojourn.planning.objectives import PerRound
from sojourn.planning.search.routing import optimize_routing
from sojourn.simulation.simulate import simulate
from sojourn.theory.bounds import Bound, per_round_bound
from sojourn.theory.constants import LearningConstants
from sojourn.theory.jackson import analyze
from sojourn.types import FloatArray

NEAR_UNIFORM = 0.10
ONE_MAGNITUDE = 2.0


@dataclass(frozen=True, eq=False)
class PerRoundOptimum:
    """Routings, bounds and speeds of the three strategies, and how the optimum and G move with m."""

    routings: Mapping[str, FloatArray]
    bounds: Mapping[str, Bound]
    throughputs: Mapping[str, float]
    times: Mapping[str, float]
    shares: Mapping[int, float]
    by_tasks: Mapping[str, FloatArray]
    clients: int
    share_said: float
    slowdown_said: Sequence[float]

    @property
    def slowdowns(self) -> tuple[float, float]:
        """How much longer the optimum takes than uniform and balanced routing, simulated."""
        best = self.times["g-optimal"]
        return best / self.times["uniform"], best / self.times["balanced"]


def compute(parameters: Table) -> PerRoundOptimum:
    """Optimise, evaluate, simulate."""
    constants = LearningConstants.from_table(parameters)
    fleet = built_in_fleet(parameters.take("fleet", str))
    concurrency = parameters.take("concurrency", int)
    learning_rate = parameters.take("learning-rate", float)
    rounds = parameters.take("rounds", int)
    replicates = parameters.take("replicates", int)
    concurrencies = [int(m) for m in take_numbers(parameters, "concurrencies")]
    share_said = parameters.take("share-of-slowest", float)
    slowdown_said = take_numbers(parameters, "slowdown")
    parameters.close()

    objective = PerRound(constants, learning_rate=learning_rate, rounds=0)
    optima = {
        m: optimize_routing(fleet, m, objective).network for m in {*concurrencies, concurrency}
    }
    networks = {
        "uniform": Network(fleet, uniform_routing(fleet), concurrency),
        "balanced": Network(fleet, balanced_routing(fleet), concurrency),
        "g-optimal": optima[concurrency],
    }
    return PerRoundOptimum(
        routings={name: network.client_routing for name, network in networks.items()},
        bounds={
            name: per_round_bound(network, constants, learning_rate=learning_rate, rounds=0)
            for name, network in networks.items()
        },
        throughputs={name: analyze(network).throughput for name, network in networks.items()},
        times={
            name: mean_time_of(network, rounds, replicates) for name, network in networks.items()
        },
        shares={m: share_of_slowest(fleet, optima[m]) for m in sorted(optima)},
        by_tasks={
            name: np.array(
                [
                    per_round_bound(
                        Network(network.fleet, network.routing, m),
                        constants,
                        learning_rate=learning_rate,
                        rounds=0,
                    ).value
                    for m in range(1, max(optima) + 1)
                ]
            )
            for name, network in networks.items()
        },
        clients=fleet.size,
        share_said=share_said,
        slowdown_said=slowdown_said,
    )


def mean_time_of(network: Network, rounds: int, replicates: int) -> float:
    """Mean virtual time of the first ``rounds`` rounds from m/n tasks per client."""
    return float(
        np.mean([simulate(network, rounds=rounds, seed=s).time[-1] for s in range(replicates)])
    )


def share_of_slowest(fleet: Fleet, network: Network) -> float:
    """The routing probability of the slowest client."""
    return float(network.routing[np.argmin(network.fleet.service_rates)])


def judge(results: PerRoundOptimum) -> dict[str, Judged]:
    """The five statements."""
    routing = results.routings["g-optimal"]
    slowest, others = float(routing[0]), routing[1:]
    falls = bool((np.diff(others) < 0).all())
    spread = float(others.max() / others.min())
    shares = list(results.shares.values())
    least = min(results.shares)
    near = abs(results.shares[least] * results.clients - 1.0)
    rising = all(bool((np.diff(values) > 0).all()) for values in results.by_tasks.values())
    low, high = min(results.slowdowns), max(results.slowdowns)
    said_low, said_high = results.slowdown_said
    steady = results.throughputs["uniform"] / results.throughputs["g-optimal"]
    return {
        "slowest": Judged(
            f"{slowest:.2%} to the slowest client.", holds(slowest > results.share_said)
        ),
        "shape": Judged(
            f"From {others[0]:.4f} down to {others[-1]:.4f}, "
            f"{'falling' if falls else 'not falling'} with speed.",
            holds(falls and spread <= ONE_MAGNITUDE),
        ),
        "skew": Judged(
            f"{shares[0]:.2%} for {least} tasks (1/n is {1 / results.clients:.0%}), rising to "
            f"{shares[-1]:.1%} for {max(results.shares)}.",
            holds(near <= NEAR_UNIFORM and bool((np.diff(shares) > 0).all())),
        ),
        "tasks": Judged(
            "From 1 task to "
            f"{max(results.shares)} G goes "
            + ", ".join(
                f"from {values[0]:.2f} to {values[-1]:.2f} ({label(name)})"
                for name, values in results.by_tasks.items()
            )
            + f"; it {'rises' if rising else 'does not rise'} at every step.",
            holds(rising),
        ),
        "slowdown": Judged(
            f"{low:.1f} to {high:.1f} times longer; {steady:.1f} times in steady state.",
            holds(round(low) >= said_low and round(high) <= said_high),
        ),
    }


def figures(results: PerRoundOptimum) -> tuple[Figure, ...]:
    """The routings over clients, and the slowest client's share against concurrency."""
    clients = np.arange(1, results.clients + 1)
    routing = View(
        "client, slowest first",
        "routing probability",
        tuple(Series(k, clients, p, label=label(k)) for k, p in results.routings.items()),
        log_y=True,
    )
    shares = View(
        "tasks in flight",
        "share of the slowest client",
        (Series("g-optimal", list(results.shares), list(results.shares.values()), label="p*G"),),
        log_x=True,
        percent=True,
    )
    best = results.routings["g-optimal"]
    others = best[1:]
    way = "falling with speed" if (np.diff(others) < 0).all() else "not falling throughout"
    plain = {name: results.routings[name] for name in ("uniform", "balanced")}
    spans = " and ".join(f"{k} from {p.min():.2%} to {p.max():.2%}" for k, p in plain.items())
    tasks, shares_of_slowest = list(results.shares), list(results.shares.values())
    rising = (
        "rising at every step" if (np.diff(shares_of_slowest) > 0).all() else "not always rising"
    )
    return (
        Figure(
            "claim-2-routing",
            "Where tasks go",
            f"The optimum of G sends {best[0]:.1%} to the slowest client and {others.min():.2%} to "
            f"{others.max():.2%} to each of the others, {way}; {spans}.",
            (routing,),
        ),
        Figure(
            "claim-2-share",
            "Share of the slowest client under the optimum of G",
            f"{shares_of_slowest[0]:.1%} with {tasks[0]} tasks in flight, {shares_of_slowest[-1]:.1%} "
            f"with {tasks[-1]}, {rising}.",
            (shares,),
        ),
    )


def tables(results: PerRoundOptimum) -> tuple[ReportTable, ...]:
    """G by terms, throughput, and the time of the rounds."""
    rows = tuple(
        (
            label(name),
            f"{bound.value:.3f}",
            *(f"{term:.3f}" for term in bound.terms.values()),
            f"{results.throughputs[name]:.3f}",
            f"{results.times[name]:.1f}",
        )
        for name, bound in results.bounds.items()
    )
    names = next(iter(results.bounds.values())).terms
    columns = ("routing", "G", *names, "rounds per time", "time of the rounds, simulated")
    return (ReportTable(columns, rows, title="G and speed"),)
