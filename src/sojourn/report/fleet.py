"""The fleet of a run, where its strategies send tasks, and what theory said beside what happened."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sojourn.estimate import Estimate
from sojourn.jackson import analyze
from sojourn.network import Network
from sojourn.report.figure import Figure, Series, Table, View
from sojourn.report.sections import Section, seen_staleness
from sojourn.runfolder import Run
from sojourn.types import FloatArray, IntArray

FEW_CLASSES = 6


@dataclass(frozen=True, eq=False)
class Simulated:
    """What a simulation of each strategy's network said, to be drawn beside theory.

    ``staleness`` is the mean over the tasks sent to the clients of each distinct service rate,
    slowest first (see `classes_by_rate`).
    """

    rounds: int
    staleness: Mapping[str, FloatArray]


def fleet_section(run: Run, index: int, simulated: Simulated | None = None) -> Section:
    """Who the clients are, who is sent how much, and theory against what was seen."""
    networks = run.networks
    fleet = next(iter(networks.values())).fleet
    lead = (
        f"{fleet.size} clients, from {fleet.service_rates.min():.4g} to "
        f"{fleet.service_rates.max():.4g} tasks per unit of time."
    )
    return Section(
        anchor=f"fleet-{index}",
        title="The fleet, the routings, theory against what was seen",
        kicker=run.name,
        lead=lead,
        figures=(
            routing_figure(f"routing-{index}", networks),
            staleness_figure(f"staleness-{index}", networks, simulated),
        ),
        tables=(plans_table(networks), seen_table(networks, run)),
    )


def classes_by_rate(network: Network) -> tuple[FloatArray, IntArray]:
    """Distinct service rates, rising, and for every class of the network which of them it has."""
    rates, where = np.unique(network.fleet.service_rates, return_inverse=True)
    return rates, np.asarray(where, dtype=np.int64)


def shares(network: Network) -> tuple[FloatArray, FloatArray]:
    """Distinct service rates, rising, and the share of all tasks that clients of each receive."""
    rates, where = classes_by_rate(network)
    return rates, sums(where, network.fleet.counts * network.routing)


def routing_figure(name: str, networks: Mapping[str, Network]) -> Figure:
    """Where tasks go: bars per class of speed, or a curve over clients when there are many."""
    first = next(iter(networks.values()))
    rates, _ = shares(first)
    words = []
    for strategy, network in networks.items():
        slowest = shares(network)[1][0]
        words.append(f"{strategy} {slowest:.1%}")
    alt = "Share of all tasks sent to the slowest clients: " + "; ".join(words) + "."
    if rates.size <= FEW_CLASSES:
        series = tuple(
            Series(strategy, np.arange(rates.size), shares(network)[1], kind="bars")
            for strategy, network in networks.items()
        )
        categories = tuple(f"rate {rate:.3g}" for rate in rates)
        view = View("clients", "share of tasks", series, percent=True, categories=categories)
    else:
        series = tuple(
            Series(strategy, np.arange(1, network.size + 1), np.sort(network.client_routing)[::-1])
            for strategy, network in networks.items()
        )
        view = View("client, most tasks first", "probability", series, log_y=True)
    return Figure(name, "Where tasks go", alt, (view,))


def staleness_figure(
    name: str, networks: Mapping[str, Network], simulated: Simulated | None
) -> Figure:
    """Rounds that a task waits, per class of speed: exact theory as bars, simulation as points."""
    series = []
    alt = []
    rates: FloatArray = np.empty(0)
    for k, (strategy, network) in enumerate(networks.items()):
        rates, theory = staleness_by_rate(network)
        place = np.arange(rates.size, dtype=np.float64)
        series.append(Series(strategy, place, theory, kind="bars", label=strategy))
        if simulated is not None:
            shift = (k - (len(networks) - 1) / 2) * 0.72 / len(networks)
            seen = simulated.staleness[strategy]
            series.append(Series("simulation", place + shift, seen, kind="points"))
        alt.append(
            f"{strategy} {theory[0]:,.0f} for the slowest, {theory[-1]:,.0f} for the fastest"
        )
    view = View(
        "clients",
        "rounds a task waits",
        tuple(series),
        log_y=True,
        categories=tuple(f"rate {rate:.3g}" for rate in rates),
    )
    caption = "Bars: exact steady state."
    if simulated is not None:
        caption += (
            f" Diamonds: one simulation of {simulated.rounds:,} rounds from a stationary start."
        )
    words = "Mean staleness in rounds by theory: " + "; ".join(alt) + "."
    title = "Staleness: theory" + ("" if simulated is None else " and simulation")
    return Figure(name, title, words, (view,), caption)


def staleness_by_rate(network: Network) -> tuple[FloatArray, FloatArray]:
    """Distinct rates, and by theory the mean staleness of the tasks that are sent there."""
    rates, where = classes_by_rate(network)
    weight = network.fleet.counts * network.routing
    return rates, sums(where, weight * analyze(network).staleness) / sums(where, weight)


def plans_table(networks: Mapping[str, Network]) -> Table:
    """Per class of speed: how many clients, and the probability of each under every strategy."""
    first = next(iter(networks.values()))
    rates, where = classes_by_rate(first)
    counts = np.bincount(where, weights=first.fleet.counts)
    rows = []
    for k, rate in enumerate(rates):
        row = [f"{rate:.4g}", f"{counts[k]:.0f}"]
        for network in networks.values():
            chosen = network.routing[network.fleet.service_rates == rate]
            low, high = float(chosen.min()), float(chosen.max())
            row.append(f"{low:.4g}" if high <= low * 1.0001 else f"{low:.4g} to {high:.4g}")
        rows.append(tuple(row))
    columns = ("service rate", "clients", *networks)
    return Table(columns, tuple(rows), title="Probability of each client")


def seen_table(networks: Mapping[str, Network], run: Run) -> Table:
    """Throughput and staleness: the steady state of theory beside what the run saw."""
    rows = []
    for strategy, network in networks.items():
        runs = [history for history in run.histories if history.strategy == strategy]
        speeds = [float(h.round[-1] / h.time[-1]) for h in runs if h.rows and h.time[-1] > 0]
        waits = [wait for h in runs if math.isfinite(wait := seen_staleness(h))]
        rows.append(
            (
                strategy,
                str(network.concurrency),
                f"{analyze(network).throughput:.4g}",
                _seen(speeds),
                str(network.concurrency - 1),
                _seen(waits),
            )
        )
    return Table(
        (
            "strategy",
            "tasks in flight",
            "rounds per time, theory",
            "seen",
            "mean staleness, theory",
            "seen in completed tasks",
        ),
        tuple(rows),
        title="Theory against this run",
        note="Theory is the steady state; a run begins with fresh tasks spread over the clients and "
        "ends while some are still waiting, so short runs are faster and less stale.",
    )


def sums(groups: IntArray, values: FloatArray | IntArray, size: int = 0) -> FloatArray:
    """The sum of the values of every group; at least ``size`` groups."""
    return np.asarray(np.bincount(groups, weights=values, minlength=size), dtype=np.float64)


def _seen(values: list[float]) -> str:
    return f"{Estimate.from_samples(values):.4g}" if values else "–"
