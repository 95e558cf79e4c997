"""What theory says of settings, as the explorer shows it: every number from the package's own functions."""

import shlex
from functools import lru_cache
from typing import Any

import numpy as np

from sojourn.errors import Unreachable
from sojourn.floor import noise_floor
from sojourn.inputs import DEFAULT_CONSTANTS
from sojourn.jackson import Analysis
from sojourn.live.settings import NAMED, FleetKey, Settings, Wanted
from sojourn.network import Fleet
from sojourn.optimize import NoiseRate
from sojourn.optimize.exponent import exponent_map
from sojourn.rules import Weighting
from sojourn.simulation.beginnings import beginnings
from sojourn.simulation.scenario import Scenario
from sojourn.stability import largest_stable_step
from sojourn.timeline import Timeline
from sojourn.types import FloatArray

EXPONENTS = np.linspace(-0.25, 1.5, 15)
"""Of the map, from more tasks for the slow to more than balanced for the fast."""
MAP_ROWS = 15
MOST_DRAWN = 1200
"""Tasks in the timeline: beyond that bars are hairs."""
TASKS_SHOWN = 6.0
"""Mean service times of the median client that the timeline lasts."""
SEED = 1


def weights(settings: Settings, analysis: Analysis) -> FloatArray:
    """What an update of a client of each class counts, by the rule's debias; the mean is 1."""
    fleet = analysis.network.fleet
    divisors = Weighting(debias=settings.debias).divisors(fleet.expand(analysis.shares))
    firsts = np.cumsum(fleet.counts) - fleet.counts
    return np.asarray(fleet.relative_weights / divisors[firsts])


def weight_square(settings: Settings, analysis: Analysis) -> float:
    """Mean over rounds of the squared weight; ``Analysis.weight_square`` if unbiased."""
    if settings.debias == 1.0:
        return analysis.weight_square
    fleet = analysis.network.fleet
    return float(fleet.counts @ (analysis.shares * weights(settings, analysis) ** 2))


def stable_rate(settings: Settings, analysis: Analysis, curvature: float) -> float:
    """The largest learning rate that delayed steps bear at this curvature."""
    tasks = settings.policy.in_flight(settings.network)
    return largest_stable_step(tasks, max(1.0, weight_square(settings, analysis))) / curvature


def time_to_target(settings: Settings) -> float | None:
    """Units of time to the target by the bound, at its best learning rate.

    Infinite where it is out of reach; ``None`` where the bound says nothing.
    """
    if isinstance(settings.objective, NoiseRate) or not settings.policy.routes:
        return None
    try:
        return settings.objective.evaluate(settings.network).value
    except Unreachable:
        return float("inf")


def summary(settings: Settings, curvature: float | None) -> dict[str, Any]:
    """The numbers of one setting, for tiles and for comparisons."""
    analysis = settings.analysis
    fleet = analysis.network.fleet
    floor = noise_floor(settings.fleet, settings.concurrency)
    worst = int(np.argmax(analysis.staleness))
    waiting = fleet.counts @ (analysis.mean_tasks_full - analysis.utilization)
    return {
        "words": settings.in_words(),
        "settings": settings.to_table(),
        "throughput": analysis.throughput,
        "noise_rate": analysis.noise_rate,
        "noise_floor": floor,
        "noise_over_floor": analysis.noise_rate / floor,
        "worst_staleness": float(analysis.staleness[worst]),
        "worst_class": fleet.label(worst),
        "mean_staleness_time": analysis.mean_staleness_time,
        "waiting": float(waiting),
        "busy": float(fleet.counts @ analysis.utilization) / fleet.size,
        "stable_step": stable_rate(settings, analysis, 1.0),
        "stable_rate": stable_rate(settings, analysis, curvature or DEFAULT_CONSTANTS.smoothness),
        "curvature": curvature or DEFAULT_CONSTANTS.smoothness,
        "curvature_measured": curvature is not None,
        "time_to_target": time_to_target(settings),
        "in_flight": settings.policy.in_flight(settings.network),
    }


def class_rows(settings: Settings) -> list[dict[str, Any]]:
    """Who works, who waits, what an update weighs: a row per class."""
    analysis = settings.analysis
    fleet, heavy = analysis.network.fleet, weights(settings, analysis)
    return [
        {
            "name": fleet.label(k),
            "count": int(fleet.counts[k]),
            "rate": float(fleet.service_rates[k]),
            "share": float(fleet.counts[k] * analysis.shares[k]),
            "busy": float(analysis.utilization[k]),
            "waiting": float(analysis.mean_tasks_full[k] - analysis.utilization[k]),
            "staleness": float(analysis.staleness[k]),
            "staleness_time": float(analysis.staleness_time[k]),
            "weight": float(heavy[k]),
        }
        for k in range(fleet.classes)
    ]


def landscape(settings: Settings) -> dict[str, Any]:
    """The map of the goal over (exponent, m), with the best of its cells; darker is better."""
    fleet, goal = settings.fleet, settings.objective
    tasks, values = _landscape(FleetKey(fleet), goal)
    logs = np.log(values)
    low, high = np.nanmin(logs), np.nanmax(logs)
    shade = np.nan_to_num((high - logs) / max(high - low, 1e-12), nan=-1.0)
    row, column = np.unravel_index(int(np.nanargmin(logs)), values.shape)
    return {
        "exponents": EXPONENTS.tolist(),
        "tasks": tasks.tolist(),
        "values": values.tolist(),
        "shades": shade.round(4).tolist(),
        "best": {
            "exponent": float(EXPONENTS[column]),
            "tasks": int(tasks[row]),
            "value": float(values[row, column]),
        },
    }


@lru_cache(maxsize=32)
def _landscape(of: FleetKey, goal: Wanted) -> tuple[Any, FloatArray]:
    most = max(2, 3 * of.fleet.size)
    tasks = np.unique(np.geomspace(1, most, MAP_ROWS).round().astype(np.int64))
    return tasks, exponent_map(of.fleet, goal, EXPONENTS, tasks)


def timeline(settings: Settings) -> Timeline:
    """Who computes what when in the beginning, over a time that depends on the fleet alone."""
    fleet = settings.fleet
    until = TASKS_SHOWN * float(np.median(fleet.expand(1.0 / fleet.service_rates)))
    until = min(until, MOST_DRAWN / settings.analysis.throughput)
    scenario = Scenario.of(settings.network, policy=settings.policy, paired=True)
    runs = {"now": (settings.network, scenario)}
    return beginnings(runs, until=until, seed=SEED)["now"]


def command(settings: Settings, source: str, base: Fleet) -> dict[str, Any]:
    """The command that tells the same numbers, and which files it needs saved first."""
    same = settings.fleet == base
    name, m = shlex.quote(source) if same else "fleet.csv", settings.concurrency
    needs = [] if same else ["fleet.csv"]
    if settings.way.planned:
        line = f"sojourn plan {name} --concurrency {m}"
        if not isinstance(settings.objective, NoiseRate):
            line += (
                f" --constants default --squared-gradient-norm {settings.squared_gradient_norm:g}"
            )
    elif not settings.policy.routes:
        line = f"sojourn analyze {name} --concurrency {m} --policy {settings.policy.name}"
    elif settings.exponent in NAMED:
        line = f"sojourn analyze {name} --concurrency {m} --routing {NAMED[settings.exponent]}"
    else:
        line, needs = "sojourn simulate plan.toml", ["plan.toml"]
    return {"line": line, "needs": needs}
