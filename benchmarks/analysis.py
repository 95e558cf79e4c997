"""Exact analysis of large fleets, beside LINE: ``python benchmarks/analysis.py [--quick | --links]``.

Sojourn computes the bound per time unit *and its gradient*, which takes every mean and, for every
client, one weighted sum of its covariances. LINE's ``pfqn_mva`` computes the means alone, its
``pfqn_sens`` the whole matrix of covariances, from which that sum can be had.
No two clients are alike, so that nobody gains from classes. The two take turns, and a ratio is the
median over the turns, except for the covariances, which run once. What links cost is measured
against the same fleet without them, and with ``--links`` nothing else. Exit code 1 if a claim fails.
"""

import argparse
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from math import isnan, nan
from pathlib import Path
from statistics import median

import numpy as np
from peers import PeerFailed, call, environment, machine, seconds

import sojourn as sj
from sojourn.theory.jackson import steady_state

LINE = "line-solver==3.0.8.0"
TIMEOUT = 300.0
MEMORY = 8 * 2**30
CONSTANTS = sj.LearningConstants(
    initial_gap=15.0, smoothness=1.0, gradient_noise=3.0, heterogeneity=10.0
)
AGREEMENT = 1e-10
"""Largest difference from LINE that passes: of values relative, of covariances to the largest."""
LINKS_RATIO = 1.5
"""How much longer value and gradient may take when every client has links."""


@dataclass(frozen=True)
class Row:
    """Seconds of both sides at one size and their differences; ``nan`` where nothing was measured."""

    sojourn: float
    values: float = nan
    values_ratio: float = nan
    values_difference: float = nan
    covariances: float = nan
    covariances_difference: float = nan
    failure: str = ""

    @property
    def covariances_ratio(self) -> float:
        return self.covariances / self.sojourn


def line_values(loads: list[float], tasks: int) -> tuple[float, list[float]]:
    """In LINE's environment: seconds, and throughput followed by the mean tasks of each client."""
    import numpy as np
    from line_solver.api.pfqn import pfqn_mva
    from peers import seconds

    demands, population = np.array(loads)[:, None], np.array([tasks])
    throughput, _, mean, *_ = pfqn_mva(demands, population)
    elapsed = seconds(lambda: pfqn_mva(demands, population))
    return elapsed, [*throughput[:, 0].tolist(), *mean[:, 0].tolist()]


def line_covariances(
    loads: list[float], tasks: int, weights: list[float]
) -> tuple[float, list[float]]:
    """In LINE's environment: seconds, and the weighted sum of each client's covariances."""
    import time

    import numpy as np
    from line_solver.api.pfqn import pfqn_sens

    demands, population = np.array(loads)[:, None], np.array([tasks])
    begun = time.perf_counter()
    result = pfqn_sens(demands, population)
    elapsed = time.perf_counter() - begun
    return elapsed, (np.array(weights) @ result.QCov[:, 0, :, 0]).tolist()


def network_of(clients: int, tasks: int) -> sj.Network:
    """Clients of as many speeds, the fastest a hundred times the slowest."""
    fleet = sj.Fleet(np.geomspace(0.01, 1.0, clients))
    return sj.Network(fleet, sj.square_root_routing(fleet), tasks)


def sojourn_seconds(network: sj.Network) -> float:
    """Value and gradient from the routing on: what one step of an optimizer costs."""

    def value_and_gradient() -> sj.Bound:
        step = sj.Network(network.fleet, network.routing, network.concurrency)
        return sj.per_time_bound(step, CONSTANTS, learning_rate=0.01, rounds=0)

    return seconds(value_and_gradient)


def links_ratio(network: sj.Network, *, turns: int) -> float:
    """Seconds with a downlink and an uplink at every client over those without, turn by turn."""
    times = np.geomspace(5.0, 0.5, network.fleet.classes)
    fleet = replace(network.fleet, downlink=times, uplink=times[::-1])
    linked = replace(network, fleet=fleet)
    return median(sojourn_seconds(linked) / sojourn_seconds(network) for _ in range(turns))


def links_claim(*, turns: int) -> tuple[bool, str]:
    """Whether links cost little enough, and what was measured."""
    ratio = links_ratio(network_of(1000, 1000), turns=turns)
    return (
        ratio <= LINKS_RATIO,
        f"1,000 clients with links, 1,000 tasks: at most {LINKS_RATIO:g} times the time without "
        f"({ratio:.2f} times)",
    )


def compare_values(python: Path, network: sj.Network, *, turns: int) -> Row:
    """Both sides in turn, and the largest relative difference where LINE's values are finite."""
    loads, tasks = network.loads.tolist(), network.concurrency
    sojourn, line = [], []
    for _ in range(turns):
        sojourn.append(sojourn_seconds(network))
        elapsed, values = call(
            python, line_values, timeout=TIMEOUT, memory=MEMORY, loads=loads, tasks=tasks
        )
        line.append(elapsed)
    analysis = sj.analyze(network)
    relative = np.array(values) / np.append(analysis.throughput, analysis.mean_tasks_full) - 1.0
    finite = np.isfinite(relative)
    return Row(
        sojourn=median(sojourn),
        values=median(line),
        values_ratio=median(theirs / ours for theirs, ours in zip(line, sojourn, strict=True)),
        values_difference=float(np.abs(relative[finite]).max()) if finite.any() else nan,
    )


def compare_covariances(python: Path, network: sj.Network, row: Row) -> Row:
    """``row`` with LINE's covariances, at the population that the gradient sees: one task fewer."""
    weights = 1.0 / (network.size * network.routing) ** 2
    loads, tasks = network.loads, network.concurrency
    try:
        elapsed, sums = call(
            python,
            line_covariances,
            timeout=TIMEOUT,
            memory=MEMORY,
            loads=loads.tolist(),
            tasks=tasks - 1,
            weights=weights.tolist(),
        )
    except PeerFailed as failure:
        return replace(row, failure=str(failure))
    ours = steady_state(loads, network.fleet.counts, tasks, weights).weighted_covariance
    difference = np.abs(np.array(sums) - ours).max() / np.abs(ours).max()
    return replace(row, covariances=elapsed, covariances_difference=float(difference))


def claims(rows: Mapping[tuple[int, int], Row]) -> Iterator[tuple[bool | None, str]]:
    """Whether each claim holds (``None``: not measured), and what was measured."""
    thousand, million = rows[1000, 1000], rows[10**6, 10**6]
    yield (
        thousand.values_ratio >= 1.0,
        "1,000 clients, 1,000 tasks: value and gradient no slower than LINE's values alone "
        f"({thousand.values_ratio:.1f} times as fast)",
    )
    covariances = "there at least 10,000 times as fast as LINE's covariances"
    if thousand.failure or not isnan(thousand.covariances):
        ratio = thousand.covariances_ratio
        yield ratio >= 10_000, f"{covariances} ({ratio:,.0f} times)"
    else:
        yield None, covariances
    yield (
        million.sojourn <= 3.0,
        f"a million clients with a million tasks within 3 s ({million.sojourn:.2f} s)",
    )
    differences = [
        difference
        for row in rows.values()
        for difference in (row.values_difference, row.covariances_difference)
        if not isnan(difference)
    ]
    worst = max(differences, default=nan)
    yield (
        worst <= AGREEMENT,
        f"agrees with LINE's values and covariances to {AGREEMENT:g} ({worst:.1g})",
    )


def print_table(rows: Mapping[tuple[int, int], Row]) -> None:
    """The table, in Markdown, and below it why LINE gave no covariances where it gave none."""

    def cell(value: float, form: str) -> str:
        return "-" if isnan(value) else format(value, form)

    print(
        "| clients | tasks | Sojourn: value and gradient, ms | LINE: values, ms | ratio "
        "| difference | LINE: covariances, ms | ratio | difference |"
    )
    print("|" + " ---: |" * 9)
    for (clients, tasks), row in rows.items():
        cells = (
            f"{clients:,}",
            f"{tasks:,}",
            cell(row.sojourn * 1e3, ",.3f"),
            cell(row.values * 1e3, ",.3f"),
            cell(row.values_ratio, ",.1f"),
            cell(row.values_difference, ".0e"),
            cell(row.covariances * 1e3, ",.0f"),
            cell(row.covariances_ratio, ",.0f"),
            cell(row.covariances_difference, ".0e"),
        )
        print(f"| {' | '.join(cells)} |")
    print()
    for (clients, tasks), row in rows.items():
        if row.failure:
            print(f"LINE, covariances of {clients:,} clients with {tasks:,} tasks: {row.failure}")


def main() -> int:
    parser = argparse.ArgumentParser(description="Exact analysis of large fleets, beside LINE.")
    parser.add_argument(
        "--quick", action="store_true", help="one turn each, covariances of 30 clients only"
    )
    parser.add_argument("--links", action="store_true", help="only what links cost; no peer")
    arguments = parser.parse_args()
    quick, turns = arguments.quick, 1 if arguments.quick else 5
    if arguments.links:
        print(f"{machine()}; one thread")
        return report([links_claim(turns=turns)])
    python = environment(LINE)
    libraries = ", ".join(f"{name} {version(name)}" for name in ("sojourn", "numpy", "numba"))
    print(f"{machine()}; {libraries}; {LINE}; one thread each")
    print(f"LINE is given {TIMEOUT:g} s and {MEMORY / 2**30:g} GiB for each call.\n")

    rows = {}
    for size in ((30, 30), (1000, 1000), (1000, 10_000)):
        network = network_of(*size)
        row = compare_values(python, network, turns=turns)
        if size == (30, 30) or not quick:
            row = compare_covariances(python, network, row)
        rows[size] = row
    million = (10**6, 10**6)
    rows[million] = Row(sojourn_seconds(network_of(*million)))

    print_table(rows)
    return report([*claims(rows), links_claim(turns=turns)])


def report(verdicts: list[tuple[bool | None, str]]) -> int:
    """Print the verdicts; 1 if a claim fails."""
    for holds, claim in verdicts:
        print({True: "holds", False: "FAILS", None: "not measured"}[holds], claim, sep=": ")
    return int(any(holds is False for holds, _ in verdicts))


if __name__ == "__main__":
    sys.exit(main())
