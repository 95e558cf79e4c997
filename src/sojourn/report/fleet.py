"""The fleet of a run, where its strategies send tasks, and what theory said beside what happened."""

import math
from collections.abc import Mapping

import numpy as np

import sojourn as sj
from sojourn.estimate import Estimate
from sojourn.network import Network
from sojourn.report.figure import Figure, Series, Table, View
from sojourn.report.sections import Section, seen_staleness
from sojourn.runfolder import Run
from sojourn.types import FloatArray, IntArray

FEW_CLASSES = 6
SIMULATED_ROUNDS = 200_000


def fleet_section(run: Run, index: int) -> Section:
    """Who the clients are, who is sent how much, and theory against simulation."""
    networks = run.networks
    fleet = next(iter(networks.values())).fleet
    lead = (
        f"{fleet.size} clients, from {fleet.service_rates.min():.4g} to "
        f"{fleet.service_rates.max():.4g} tasks per unit of time."
    )
    return Section(
        anchor=f"fleet-{index}",
        title="The fleet, the routings, theory against simulation",
        kicker=run.name,
        lead=lead,
        figures=(
            routing_figure(f"routing-{index}", networks),
            staleness_figure(f"staleness-{index}", networks),
        ),
        tables=(plans_table(networks), seen_table(networks, run)),
    )


def shares(network: Network) -> tuple[FloatArray, FloatArray]:
    """Distinct service rates, rising, and the share of all tasks that clients of each receive."""
    rates, where = np.unique(network.fleet.service_rates, return_inverse=True)
    return rates, _sums(where, network.fleet.counts * network.routing)


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


def staleness_figure(name: str, networks: Mapping[str, Network]) -> Figure:
    """Rounds that a task waits, per class of speed: exact theory as bars, simulation as points."""
    series = []
    alt = []
    rates: FloatArray = np.empty(0)
    for k, (strategy, network) in enumerate(networks.items()):
        rates, theory, simulated = staleness_by_rate(network)
        place = np.arange(rates.size, dtype=np.float64)
        series.append(Series(strategy, place, theory, kind="bars", label=strategy))
        shift = (k - (len(networks) - 1) / 2) * 0.72 / len(networks)
        series.append(Series("simulation", place + shift, simulated, kind="points"))
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
    caption = (
        "Bars: exact steady state. Diamonds: one simulation of "
        f"{SIMULATED_ROUNDS:,} rounds from a stationary start."
    )
    words = "Mean staleness in rounds by theory: " + "; ".join(alt) + "."
    return Figure(name, "Staleness: theory and simulation", words, (view,), caption)


def staleness_by_rate(network: Network, seed: int = 0) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Distinct rates, and the mean staleness of tasks sent there by theory and by simulation."""
    rates, where = np.unique(network.fleet.service_rates, return_inverse=True)
    weight = network.fleet.counts * network.routing
    theory = _sums(where, weight * sj.analyze(network).staleness) / _sums(where, weight)
    schedule = sj.simulate(network, rounds=SIMULATED_ROUNDS, start="stationary", seed=seed)
    of_client = np.repeat(where, network.fleet.counts)[schedule.client]
    waited = _sums(of_client, schedule.relative_delay, rates.size)
    seen = _sums(of_client, np.ones(schedule.rounds), rates.size)
    simulated = np.full(rates.size, math.nan)
    np.divide(waited, seen, out=simulated, where=seen > 0)
    return rates, theory, simulated


def plans_table(networks: Mapping[str, Network]) -> Table:
    """Per class of speed: how many clients, and the probability of each under every strategy."""
    first = next(iter(networks.values()))
    rates, where = np.unique(first.fleet.service_rates, return_inverse=True)
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
                f"{sj.analyze(network).throughput:.4g}",
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


def _sums(groups: IntArray, values: FloatArray | IntArray, size: int = 0) -> FloatArray:
    return np.asarray(np.bincount(groups, weights=values, minlength=size), dtype=np.float64)


def _seen(values: list[float]) -> str:
    return f"{Estimate.from_samples(values):.4g}" if values else "–"
