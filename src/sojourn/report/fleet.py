"""The fleet of a run, where its strategies send tasks, and what theory said beside what happened."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from sojourn.estimate import Estimate
from sojourn.figure import Figure, Series, Table, View
from sojourn.jackson import Analysis
from sojourn.jackson.occupancy import link_times
from sojourn.network import Fleet, Network
from sojourn.palette import inks
from sojourn.report.outcomes import by_strategy
from sojourn.report.sections import Section, seen_staleness
from sojourn.runfolder import Run
from sojourn.types import FloatArray, IntArray

FEW_CLASSES = 6
BESIDE = 0.05
"""How far right of the theory a simulation is drawn, so that both are seen."""
UNKNOWN_TO_THEORY = {"hours", "drift"}
"""Keys of an experiment that only simulations take into account."""


@dataclass(frozen=True)
class Predicted:
    """What a simulation with the start and the length of the run says, over some seeds."""

    throughput: Estimate
    staleness: Estimate


@dataclass(frozen=True, eq=False)
class Simulated:
    """What simulations of the strategies said, to be drawn beside theory and beside the run.

    ``staleness`` is the mean over the tasks sent to the clients of each distinct service rate,
    slowest first (see `classes_by_rate`), in ``rounds`` rounds from a stationary start. ``shares``
    tell which part of all tasks each client of ``fleet`` gets in the long run, also where no routing
    decides.
    """

    rounds: int
    staleness: Mapping[str, FloatArray]
    predicted: Mapping[str, Predicted] = field(default_factory=dict)
    shares: Mapping[str, FloatArray] = field(default_factory=dict)
    fleet: Fleet | None = None


def fleet_section(
    run: Run, index: int, theory: Mapping[str, Analysis], simulated: Simulated | None = None
) -> Section:
    """Who the clients are, who is sent how much, and theory against what was seen.

    ``theory`` is the steady state of every network of the run.
    """
    networks = run.networks
    fleets = [network.fleet for network in networks.values()]
    if simulated is not None and simulated.fleet is not None:
        fleets.insert(0, simulated.fleet)
    fleet = fleets[0]
    names = names_by_rate(fleets)
    slow, fast = fleet.service_rates.min(), fleet.service_rates.max()
    lead = (
        f"{fleet.size} clients, which finish from {slow:.4g} to {fast:.4g} tasks per unit of time."
    )
    lead = " ".join([lead, *conditions(fleet, run.experiment)])
    given = {} if simulated is None else dict(simulated.shares)
    given |= {name: network.client_routing for name, network in networks.items()}
    ordered = [name for name in by_strategy(run.histories) if name in given]
    figures = [
        routing_figure(f"routing-{index}", fleet, {name: given[name] for name in ordered}, names)
    ]
    tables = [seen_table(run, theory, simulated)]
    if networks:
        figure = staleness_figure(f"staleness-{index}", theory, simulated, names)
        if UNKNOWN_TO_THEORY & run.experiment.keys():
            caption = f"{figure.caption} The steady state is that without {_left_out(run)}."
            figure = replace(figure, caption=caption)
        figures.append(figure)
        tables.insert(0, plans_table(networks, names))
    return Section(
        anchor=f"fleet-{index}",
        title="The fleet, where tasks go, theory against what was seen",
        kicker=run.name,
        lead=lead,
        figures=tuple(
            replace(figure, palette=inks(by_strategy(run.histories))) for figure in figures
        ),
        tables=tuple(tables),
    )


def conditions(fleet: Fleet, experiment: Mapping[str, Any]) -> list[str]:
    """What is to be known of the clients beside their speeds, in sentences.

    >>> conditions(Fleet([1.0, 2.0], uplink=[0.5, 3.0], mean_up=[9.0, 1.0], mean_down=[1.0, 0.0]), {})
    ['A task takes 0.5 to 3 units of time on the links of its client.', 'Clients come and go: they are \
there 90% to 100% of the time.']
    """
    found = []
    links = link_times(fleet)
    if links is not None:
        low, high = float(links.min()), float(links.max())
        span = f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"
        found.append(f"A task takes {span} units of time on the links of its client.")
    if fleet.comes_and_goes:
        low, high = float(fleet.availability.min()), float(fleet.availability.max())
        span = f"{100 * low:.3g}" if low == high else f"{100 * low:.3g}% to {100 * high:.3g}"
        found.append(f"Clients come and go: they are there {span}% of the time.")
    if "hours" in experiment:
        found.append("They keep hours.")
    if "drift" in experiment:
        found.append("Their speeds drift.")
    if "server-rate" in experiment:
        found.append(f"The server makes {experiment['server-rate']:g} updates per unit of time.")
    if "offline" in experiment:
        found.append("What a client has when it goes is lost and sent anew.")
    return found


def _left_out(run: Run) -> str:
    return " and ".join(sorted(UNKNOWN_TO_THEORY & run.experiment.keys()))


def names_by_rate(fleets: Iterable[Fleet]) -> dict[float, str]:
    """What to call the clients of each service rate: the names of their classes, if they have any."""
    found: dict[float, list[str]] = {}
    for fleet in fleets:
        for k, rate in enumerate(fleet.service_rates.tolist()):
            own = found.setdefault(rate, [])
            name = "" if fleet.names is None else fleet.names[k]
            if name and name not in own:
                own.append(name)
        if all(found.values()):
            break
    return {rate: ", ".join(own) or f"rate {rate:.3g}" for rate, own in sorted(found.items())}


def classes_by_rate(network: Network) -> tuple[FloatArray, IntArray]:
    """Distinct service rates, rising, and for every class of the network which of them it has."""
    rates, where = np.unique(network.fleet.service_rates, return_inverse=True)
    return rates, np.asarray(where, dtype=np.int64)


def routing_figure(
    name: str, fleet: Fleet, shares: Mapping[str, FloatArray], names: Mapping[float, str]
) -> Figure:
    """Where tasks go: bars per class of speed, or a curve over clients when there are many.

    ``shares`` are parts of all tasks for every client.
    """
    rates, where = np.unique(fleet.expand(fleet.service_rates), return_inverse=True)
    by_rate = {strategy: sums(where, own, rates.size) for strategy, own in shares.items()}
    words = [f"{strategy} {own[0]:.1%}" for strategy, own in by_rate.items()]
    alt = "Share of all tasks sent to the slowest clients: " + "; ".join(words) + "."
    if rates.size <= FEW_CLASSES:
        series = tuple(
            Series(strategy, np.arange(rates.size), own, kind="bars")
            for strategy, own in by_rate.items()
        )
        view = View(
            "clients",
            "share of all tasks",
            series,
            percent=True,
            categories=tuple(names[rate] for rate in rates.tolist()),
        )
    else:
        series = tuple(
            Series(strategy, np.arange(1, own.size + 1), np.sort(own)[::-1])
            for strategy, own in shares.items()
        )
        view = View("client, most tasks first", "share of all tasks", series, log_y=True)
    return Figure(name, "Where tasks go", alt, (view,))


def staleness_figure(
    name: str,
    theory: Mapping[str, Analysis],
    simulated: Simulated | None,
    names: Mapping[float, str],
) -> Figure:
    """Rounds that a task waits, per class of speed: theory, and a simulation beside it."""
    series = []
    alt = []
    rates: FloatArray = np.empty(0)
    places, seen = [], []
    for k, (strategy, analysis) in enumerate(theory.items()):
        rates, expected = staleness_by_rate(analysis)
        shift = (k - (len(theory) - 1) / 2) * 0.72 / len(theory)
        place = np.arange(rates.size) + shift
        series.append(Series(strategy, place, expected, kind="points"))
        if simulated is not None:
            places.append(place + BESIDE)
            seen.append(simulated.staleness[strategy])
        alt.append(
            f"{strategy} {expected[0]:,.0f} for the slowest, {expected[-1]:,.0f} for the fastest"
        )
    if seen:
        series.append(
            Series("simulation", np.concatenate(places), np.concatenate(seen), kind="points")
        )
    view = View(
        "clients",
        "staleness of their gradients, rounds",
        tuple(series),
        log_y=True,
        categories=tuple(names[rate] for rate in rates.tolist()),
    )
    exact = all(analysis.is_exact for analysis in theory.values())
    caption = f"Symbols: {'exact' if exact else 'approximate'} steady state."
    if simulated is not None:
        caption += (
            f" Crosses: one simulation of {simulated.rounds:,} rounds from a stationary start."
        )
    words = "Mean staleness in rounds by theory: " + "; ".join(alt) + "."
    title = "Staleness: theory" + ("" if simulated is None else " and simulation")
    return Figure(name, title, words, (view,), caption)


def staleness_by_rate(theory: Analysis) -> tuple[FloatArray, FloatArray]:
    """Distinct rates, and by theory the mean staleness of the tasks that are sent there."""
    network = theory.network
    rates, where = classes_by_rate(network)
    weight = network.fleet.counts * network.routing
    return rates, sums(where, weight * theory.staleness) / sums(where, weight)


def plans_table(networks: Mapping[str, Network], names: Mapping[float, str]) -> Table:
    """Per class of speed: how many clients, and the probability of each under every strategy."""
    first = next(iter(networks.values()))
    rates, where = classes_by_rate(first)
    counts = np.bincount(where, weights=first.fleet.counts)
    rows = []
    for k, rate in enumerate(rates.tolist()):
        row = [names[rate], f"{rate:.4g}", f"{counts[k]:.0f}"]
        for network in networks.values():
            chosen = network.routing[network.fleet.service_rates == rate]
            low, high = float(chosen.min()), float(chosen.max())
            row.append(f"{low:.4g}" if high <= low * 1.0001 else f"{low:.4g} to {high:.4g}")
        rows.append(tuple(row))
    columns = ("clients", "tasks per unit of time", "how many", *networks)
    return Table(columns, tuple(rows), title="Probability of each client")


def seen_table(
    run: Run, theory: Mapping[str, Analysis], simulated: Simulated | None = None
) -> Table:
    """Throughput and staleness: what was predicted for this run, what it saw, and the steady state."""
    predicted = {} if simulated is None else simulated.predicted
    rows = []
    for strategy, runs in by_strategy(run.histories).items():
        steady = theory.get(strategy)
        if steady is None and strategy not in predicted:
            continue
        spans = [max(float(h.time[-1]), run.horizon or 0.0) for h in runs if h.rows]
        ends = [int(h.round[-1]) for h in runs if h.rows]
        speeds = [end / span for end, span in zip(ends, spans, strict=True) if span > 0]
        waits = [wait for h in runs if math.isfinite(wait := seen_staleness(h))]
        every_task_counts = all(h.rows and h.updates[-1] == h.round[-1] for h in runs)
        before = predicted.get(strategy)
        rows.append(
            (
                strategy,
                "–" if before is None else f"{before.throughput:.3g}",
                _seen(speeds),
                "–" if steady is None else f"{steady.throughput:.3g}",
                "–" if before is None or not every_task_counts else f"{before.staleness:.3g}",
                _seen(waits),
                "–" if steady is None else str(steady.network.concurrency - 1),
            )
        )
    return Table(
        (
            "strategy",
            "rounds per unit of time, predicted for this run",
            "seen",
            "in steady state",
            "mean staleness in updates, predicted for this run",
            "seen in completed tasks",
            "in steady state ",
        ),
        tuple(rows),
        title="Predicted and seen",
        note="Predicted for this run: simulated with its start and its length, and other seeds. The "
        "steady state is what a long run comes to; a run begins with fresh tasks spread over the "
        "clients and ends while some are still waiting, so short runs are faster and less stale. "
        "Where a rule gathers several gradients for an update, staleness is counted in updates and "
        "not predicted here.",
    )


def sums(groups: IntArray, values: FloatArray | IntArray, size: int = 0) -> FloatArray:
    """The sum of the values of every group; at least ``size`` groups."""
    return np.asarray(np.bincount(groups, weights=values, minlength=size), dtype=np.float64)


def _seen(values: list[float]) -> str:
    return f"{Estimate.from_samples(values):.3g}" if values else "–"
