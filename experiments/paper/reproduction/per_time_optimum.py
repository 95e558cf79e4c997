"""Claim 5: the routing that minimises H for three clusters, and the rounds it completes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from reproduction.checks import close, holds
from reproduction.claims import Judged
from reproduction.palette import label
from reproduction.parameters import take_numbers
from reproduction.verdict import Outcome
from sojourn._support.configuration import Table
from sojourn.figures.figure import Figure, Series, Table as ReportTable, View
from sojourn.fleet import (
    Network,
    balanced_routing,
    built_in_fleet,
    square_root_routing,
    uniform_routing,
)
from sojourn.planning.objectives import PerRound, PerTime, Throughput
from sojourn.planning.search.descent import adam, lbfgs
from sojourn.planning.search.routing import optimize_routing
from sojourn.simulation.simulate import simulate
from sojourn.theory.bounds import per_round_bound, per_time_bound
from sojourn.theory.constants import LearningConstants
from sojourn.theory.jackson import analyze
from sojourn.types import FloatArray

LEAST = 0.01
ONE_ORDER = 10.0


@dataclass(frozen=True, eq=False)
class Entry:
    """One routing: its classes' probabilities, bounds, and rounds by theory and simulation."""

    routing: FloatArray
    per_round: float
    per_time: float
    steady_rounds: float
    simulated_rounds: float


@dataclass(frozen=True, eq=False)
class PerTimeOptimum:
    """All routings by name, the path of the paper's descent, and what the paper says."""

    entries: Mapping[str, Entry]
    path: FloatArray
    nearest_step: int
    distance: float
    said: Mapping[str, float]
    tolerance: float
    printed_sum: float


def compute(parameters: Table) -> PerTimeOptimum:
    """Optimise, follow the paper's descent, count rounds."""
    constants = LearningConstants.from_table(parameters)
    fleet = built_in_fleet(parameters.take("fleet", str))
    m = parameters.take("concurrency", int)
    learning_rate = parameters.take("learning-rate", float)
    time = parameters.take("time", float)
    replicates = parameters.take("replicates", int)
    printed = np.array(take_numbers(parameters, "printed"))
    steps = parameters.take("adam-steps", int)
    tolerance = parameters.take("tolerance", float)
    keys = ("balanced", "uniform", "printed", "per-round")
    said = {key: parameters.take(f"rounds-{key}", float) for key in keys}
    parameters.close()

    per_time = PerTime(constants, learning_rate=learning_rate, rounds=0)
    per_round = PerRound(constants, learning_rate=learning_rate, rounds=0)
    uniform = Network(fleet, uniform_routing(fleet), m)
    networks = {
        "uniform": uniform,
        "balanced": Network(fleet, balanced_routing(fleet), m),
        "square-root": Network(fleet, square_root_routing(fleet), m),
        "h-printed": Network(fleet, printed / (fleet.counts @ printed), m),
        "h-optimal, symmetric": lbfgs(uniform, per_time).network,
        "h-optimal": optimize_routing(fleet, m, per_time).network,
        "g-optimal, symmetric": lbfgs(uniform, per_round).network,
        "g-optimal": optimize_routing(fleet, m, per_round).network,
        "most throughput": optimize_routing(fleet, m, Throughput()).network,
    }
    given = {"learning_rate": learning_rate, "rounds": 0}
    entries = {
        name: Entry(
            routing=network.routing,
            per_round=per_round_bound(network, constants, **given).value,
            per_time=per_time_bound(network, constants, **given).value,
            steady_rounds=time * analyze(network).throughput,
            simulated_rounds=mean_rounds_within(network, time, replicates),
        )
        for name, network in networks.items()
    }
    descent = adam(uniform, per_time, steps=steps)
    nearest = int(np.argmin(np.abs(descent.path - entries["h-printed"].per_time)))
    there = adam(uniform, per_time, steps=max(nearest, 1)).network.routing
    distance = float(np.abs(there / networks["h-printed"].routing - 1.0).max())
    return PerTimeOptimum(
        entries,
        descent.path,
        nearest,
        distance,
        said,
        tolerance,
        printed_sum=float(fleet.counts @ printed),
    )


def mean_rounds_within(network: Network, time: float, replicates: int) -> float:
    """Mean number of rounds within ``time`` from m/n tasks per client."""
    counts = [simulate(network, time=time, seed=seed).rounds for seed in range(replicates)]
    return float(np.mean(counts))


def judge(results: PerTimeOptimum) -> dict[str, Judged]:
    """The six statements."""
    entries, tolerance = results.entries, results.tolerance
    printed, best = entries["h-printed"], entries["h-optimal"]
    symmetric = entries["h-optimal, symmetric"]
    slow, medium, fast = (float(p) for p in symmetric.routing)
    per_round = entries["g-optimal"], entries["g-optimal, symmetric"]
    return {
        "minimum": Judged(
            f"H is {printed.per_time:.1f} at the printed vector, which sums to {results.printed_sum:.3f} and is "
            f"rescaled to 1, and {best.per_time:.4f} at the best "
            f"found ({symmetric.per_time:.2f} if equal clients are treated equally). A descent like "
            f"the paper's passes within {results.distance:.1%} of the printed vector at step "
            f"{results.nearest_step:,} and goes on: a possible explanation, not a fact.",
            holds(printed.per_time <= (1 + LEAST) * best.per_time),
        ),
        "order": Judged(
            f"{slow:.5f}, {medium:.5f} and {fast:.5f} per slow, medium and fast client.",
            holds(slow < medium < fast <= ONE_ORDER * medium),
        ),
        **{
            name: Judged(
                _rounds(entries[name]),
                close(entries[name].steady_rounds, results.said[name], relative=tolerance),
            )
            for name in ("balanced", "uniform")
        },
        "printed": Judged(
            f"{_rounds(printed)} The true optimum of H: {_rounds(best)}",
            _any_close(_both(printed), results.said["printed"], tolerance),
        ),
        "per-round": Judged(
            f"Best minimum: {_rounds(per_round[0])} Symmetric point: {_rounds(per_round[1])}",
            _any_close(
                [*_both(per_round[0]), *_both(per_round[1])], results.said["per-round"], tolerance
            ),
        ),
    }


def figures(results: PerTimeOptimum) -> tuple[Figure, ...]:
    """The path of the descent with the printed vector on it, and the rounds."""
    printed, best = results.entries["h-printed"].per_time, results.entries["h-optimal"].per_time
    steps = np.arange(results.path.size, dtype=np.float64)
    shown = np.unique(np.linspace(0, steps.size - 1, 400).astype(int))
    path = View(
        "steps of Adam from uniform routing",
        "H",
        (
            Series("the paper's descent", steps[shown], results.path[shown]),
            Series("lowest H found", [0, steps[-1]], [best, best]),
            Series(
                "printed vector",
                [results.nearest_step],
                [printed],
                kind="points",
                text=("printed p*H",),
            ),
        ),
        log_y=True,
    )
    compared = [("uniform", "uniform"), ("balanced", "balanced"), ("h-printed", "printed")]
    compared.append(("g-optimal", "per-round"))
    place = np.arange(len(compared))
    rounds = View(
        "routing",
        "rounds in 3 000 time units",
        (
            Series("paper", place, [results.said[key] for _, key in compared], kind="bars"),
            Series(
                "exact, steady state",
                place,
                [results.entries[name].steady_rounds for name, _ in compared],
                kind="bars",
            ),
            Series(
                "simulated from one task per client",
                place,
                [results.entries[name].simulated_rounds for name, _ in compared],
                kind="bars",
            ),
        ),
        log_y=True,
        categories=tuple(label(name) for name, _ in compared),
    )
    return (
        Figure(
            "claim-5-descent",
            "H along the paper's descent",
            f"H goes from {results.path[0]:.0f} to {results.path[-1]:.0f} in "
            f"{results.path.size - 1:,} steps. The printed vector has H = {printed:.0f}, as the path at "
            f"step {results.nearest_step:,}, whose probabilities differ from it by at most "
            f"{results.distance:.1%}. The lowest H found is {best:.1f}.",
            (path,),
        ),
        Figure(
            "claim-5-rounds",
            "Rounds within 3 000 time units",
            "; ".join(
                f"{label(name)}: the paper {results.said[key]:,.0f}, steady state "
                f"{results.entries[name].steady_rounds:,.0f}"
                for name, key in compared
            )
            + ".",
            (rounds,),
        ),
    )


def tables(results: PerTimeOptimum) -> tuple[ReportTable, ...]:
    """Every routing with its bounds and rounds."""
    rows = tuple(
        (
            label(name),
            _distinct(entry.routing),
            f"{entry.per_time:.8g}",
            f"{entry.per_round:.8g}",
            f"{entry.steady_rounds:,.0f}",
            f"{entry.simulated_rounds:,.0f}",
        )
        for name, entry in results.entries.items()
    )
    columns = ("routing", "probabilities", "H", "G", "rounds, steady state", "rounds, simulated")
    balanced, most = results.entries["balanced"], results.entries["most throughput"]
    note = (
        "Simulated from one task per client, mean of many runs. The paper calls balanced routing a "
        "common heuristic to maximise throughput: it completes "
        f"{balanced.steady_rounds:,.0f} rounds in steady state, the fastest routing found "
        f"{most.steady_rounds:,.0f}, {most.steady_rounds / balanced.steady_rounds:.2f} times as many, but with a probability of "
        f"{most.routing.min():.0e} for a slow client: no alternative for learning. The printed p*H sums to "
        f"{results.printed_sum:.3f} and is rescaled to 1."
    )
    return (ReportTable(columns, rows, title="Routings", note=note),)


def _distinct(routing: FloatArray) -> str:
    return " / ".join(f"{p:.4g}" for p in routing)


def _rounds(entry: Entry) -> str:
    return f"{entry.steady_rounds:,.0f} in steady state, {entry.simulated_rounds:,.0f} simulated."


def _both(entry: Entry) -> tuple[float, float]:
    return entry.steady_rounds, entry.simulated_rounds


def _any_close(found: Sequence[float], said: float, tolerance: float) -> Outcome:
    return holds(any(close(value, said, relative=tolerance) == "reproduces" for value in found))
