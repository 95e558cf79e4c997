"""Claim 1: the staleness term of G for two clients, against the routing of the slow one."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize_scalar

from reproduction.checks import holds
from reproduction.claims import Judged
from reproduction.parameters import take_numbers
from sojourn._support.configuration import Table
from sojourn.figures.figure import Figure, Series, Table as ReportTable, View
from sojourn.fleet import Fleet, Network
from sojourn.theory.bounds import per_round_bound
from sojourn.theory.constants import LearningConstants
from sojourn.types import FloatArray

GRID = np.linspace(0.02, 0.99, 195)


@dataclass(frozen=True, eq=False)
class ThirdTerm:
    """The term on the grid for every pair of speeds, and where it is least."""

    almost_all: float
    curves: Mapping[str, FloatArray]
    minima: Mapping[str, tuple[float, float]]


def compute(parameters: Table) -> ThirdTerm:
    """The term on a grid of probabilities, and its minimum, for every pair of speeds."""
    constants = LearningConstants.from_table(parameters)
    concurrency = parameters.take("concurrency", int)
    learning_rate = parameters.take("learning-rate", float)
    slow = parameters.take("slow", float)
    almost_all = parameters.take("almost-all", float)
    fleets = {
        f"{slow:g} and {fast:g}": Fleet([slow, fast]) for fast in take_numbers(parameters, "fast")
    }
    parameters.close()

    def term(fleet: Fleet, probability: float) -> float:
        network = Network(fleet, [probability, 1.0 - probability], concurrency)
        return _staleness(network, constants, learning_rate)

    curves = {name: np.array([term(fleet, p) for p in GRID]) for name, fleet in fleets.items()}
    minima = {}
    for name, fleet in fleets.items():
        best = float(GRID[np.argmin(curves[name])])
        bounds = (best - 0.01, min(best + 0.01, 0.9999))
        found = minimize_scalar(
            lambda p, fleet=fleet: term(fleet, p), bounds=bounds, method="bounded"
        )
        minima[name] = (float(found.x), float(found.fun))
    return ThirdTerm(almost_all, curves, minima)


def judge(results: ThirdTerm) -> dict[str, Judged]:
    """Whether every curve falls and rises, and whether its minimum is at the slow client."""
    both_ways = all(
        bool((np.diff(curve) < 0).any() and (np.diff(curve) > 0).any())
        for curve in results.curves.values()
    )
    where = [probability for probability, _ in results.minima.values()]
    found = ", ".join(f"{p:.1%} for speeds {name}" for name, (p, _) in results.minima.items())
    return {
        "non-monotonic": Judged(
            "It both falls and rises, for every pair of speeds."
            if both_ways
            else "It is monotonic for some pair of speeds.",
            holds(both_ways),
        ),
        "slow": Judged(f"Least at {found}.", holds(min(where) >= results.almost_all)),
    }


def figures(results: ThirdTerm) -> tuple[Figure, ...]:
    """The paper's Figure 1."""
    curves = [Series(f"speeds {name}", GRID, curve) for name, curve in results.curves.items()]
    lowest = Series(
        "minimum",
        [p for p, _ in results.minima.values()],
        [value for _, value in results.minima.values()],
        kind="points",
        label="minimum",
    )
    view = View("probability of the slow client", "third term of G", (*curves, lowest), log_y=True)
    places = ", ".join(f"{p:.0%} ({name})" for name, (p, _) in results.minima.items())
    turns = [turning_points(curve) for curve in results.curves.values()]
    alt = (
        f"The curves turn between falling and rising {_count(min(turns), max(turns))}; their lowest "
        f"points are where the slow client gets this share of the tasks: {places}."
    )
    return (Figure("claim-1-third-term", "Third term of G", alt, (view,), wide=True),)


def turning_points(curve: FloatArray) -> int:
    """How often a curve changes between falling and rising.

    >>> turning_points(np.array([3.0, 1.0, 1.0, 2.0, 0.0]))
    2
    """
    signs = np.sign(np.diff(curve))
    signs = signs[signs != 0]
    return int((signs[1:] != signs[:-1]).sum())


def tables(results: ThirdTerm) -> tuple[ReportTable, ...]:
    """The minima."""
    rows = tuple((name, f"{p:.4f}", f"{value:.4f}") for name, (p, value) in results.minima.items())
    columns = ("speeds", "best probability of the slow client", "third term there")
    return (ReportTable(columns, rows, title="Minima"),)


def _count(least: int, most: int) -> str:
    if least == most:
        return "once" if least == 1 else f"{least} times"
    return f"{least} to {most} times"


def _staleness(network: Network, constants: LearningConstants, learning_rate: float) -> float:
    bound = per_round_bound(network, constants, learning_rate=learning_rate, rounds=0)
    return bound.terms["staleness"]
