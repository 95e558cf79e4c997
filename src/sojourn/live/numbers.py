"""What theory says of settings and what it recommends instead, as the explorer shows it.

Every number is from the package's own functions.
"""

import shlex
from dataclasses import replace
from functools import lru_cache
from typing import TypeAlias

import numpy as np

from sojourn._support.numbers import number
from sojourn.dispatch import NeverQueue
from sojourn.errors import Unreachable
from sojourn.figures.heatmap import level_text, levels, shade
from sojourn.figures.timeline import Timeline
from sojourn.fleet import Fleet, Network, uniform_routing
from sojourn.live.settings import NAMED, Settings, Wanted, planned
from sojourn.planning.objectives import NoiseRate
from sojourn.planning.search.exponent import exponent_map
from sojourn.rules import Weighting
from sojourn.simulation.scenario import Scenario
from sojourn.simulation.simulate import previews
from sojourn.theory.constants import DEFAULT_CONSTANTS
from sojourn.theory.floor import noise_floor
from sojourn.theory.jackson import Analysis
from sojourn.theory.stability import largest_stable_step
from sojourn.types import FloatArray, IntArray

EXPONENTS = np.linspace(-0.25, 1.5, 15)
"""Of the map, from more tasks for the slow to more than balanced for the fast."""
MAP_ROWS = 15
MOST_DRAWN = 1200
"""Tasks in the timeline: beyond that bars are hairs."""
TASKS_SHOWN = 6.0
"""Mean service times of the median client that the timeline lasts."""
MOST_PAIRED = 5000
"""Clients up to which each has a stream of service times of its own: 100,000 streams take 4 s."""
SEED = 1
ROUNDING = 1e-9
"""Part of a client's tasks below which a difference is a rounding error."""
SAME = 0.005
"""Relative difference up to which two settings are called equally good."""
SAFE = 0.5
"""Part of the largest stable learning rate that is recommended."""
_Found: TypeAlias = tuple[str, str, Settings, bool]
"""Title and text, the better settings, and whether the present ones are as good."""


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
    """Time units to the target by the bound, at its best learning rate.

    Infinite where it is out of reach; ``None`` where the bound says nothing.
    """
    if isinstance(settings.objective, NoiseRate) or not settings.policy.routes:
        return None
    try:
        return settings.objective.evaluate(settings.network).value
    except Unreachable:
        return float("inf")


def summary(settings: Settings, curvature: float | None) -> dict[str, object]:
    """The numbers of one setting, for tiles and for comparisons."""
    analysis = settings.analysis
    fleet = analysis.network.fleet
    floor = noise_floor(settings.fleet, settings.concurrency)
    worst = int(np.argmax(analysis.staleness))
    waiting = fleet.counts @ waiting_tasks(analysis)
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


def waiting_tasks(analysis: Analysis) -> FloatArray:
    """Tasks that wait at a client of each class; rounding errors are no tasks."""
    waiting = analysis.mean_tasks_full - analysis.utilization
    return np.where(waiting > ROUNDING * analysis.mean_tasks_full, waiting, 0.0)


def class_rows(settings: Settings) -> list[dict[str, object]]:
    """Who works, who waits, what an update weighs: a row per class."""
    analysis = settings.analysis
    fleet, heavy = analysis.network.fleet, weights(settings, analysis)
    waiting = waiting_tasks(analysis)
    return [
        {
            "name": fleet.label(k),
            "count": int(fleet.counts[k]),
            "rate": float(fleet.service_rates[k]),
            "share": float(fleet.counts[k] * analysis.shares[k]),
            "busy": float(analysis.utilization[k]),
            "waiting": float(waiting[k]),
            "staleness": float(analysis.staleness[k]),
            "staleness_time": float(analysis.staleness_time[k]),
            "weight": float(heavy[k]),
        }
        for k in range(fleet.classes)
    ]


def landscape(settings: Settings) -> dict[str, object]:
    """The map of the goal over (exponent, m), as on a plan's page: in times of the best.

    ``never`` is the column of never queueing, where theory knows it; ``best`` the best routing.
    """
    tasks, values, never = _landscape(settings.fleet, settings.objective)
    row, column = np.unravel_index(int(np.nanargmin(values)), values.shape)
    least = min([float(np.nanmin(values)), *([] if never is None else never.tolist())])
    shades = levels(values / least)
    beside = None if never is None else levels(never / least)
    used = {*shades.ravel().tolist(), *([] if beside is None else beside.tolist())}
    return {
        "exponents": EXPONENTS.tolist(),
        "tasks": tasks.tolist(),
        "values": values.tolist(),
        "shades": [[shade(level) for level in line] for line in shades.tolist()],
        "never": None
        if never is None or beside is None
        else {"values": never.tolist(), "shades": [shade(level) for level in beside.tolist()]},
        "legend": [
            [shade(level), level_text(level)]
            for level in sorted(used, key=lambda level: level % 99)
        ],
        "best": {
            "exponent": float(EXPONENTS[column]),
            "tasks": int(tasks[row]),
            "value": float(values[row, column]),
        },
    }


@lru_cache(maxsize=32)
def _landscape(fleet: Fleet, goal: Wanted) -> tuple[IntArray, FloatArray, FloatArray | None]:
    """Numbers of tasks, the goal over them and the exponents, and the goal of never queueing."""
    most = max(2, 3 * fleet.size)
    tasks = np.unique(np.geomspace(1, most, MAP_ROWS).round().astype(np.int64))
    values = exponent_map(fleet, goal, EXPONENTS, tasks)
    if not isinstance(goal, NoiseRate):
        return tasks, values, None
    uniform = uniform_routing(fleet)
    analyses = [NeverQueue().analysis(Network(fleet, uniform, int(m))) for m in tasks.tolist()]
    noise = [analysis.noise_rate for analysis in analyses if analysis is not None]
    return tasks, values, np.array(noise) if len(noise) == tasks.size else None


def timeline(settings: Settings) -> Timeline:
    """Who computes what when in the beginning, over a time that depends on the fleet alone."""
    fleet = settings.fleet
    until = TASKS_SHOWN * float(np.median(fleet.expand(1.0 / fleet.service_rates)))
    until = min(until, MOST_DRAWN / settings.analysis.throughput)
    # Times of each client's own keep its bars where they are when settings change.
    paired = fleet.size <= MOST_PAIRED
    scenario = Scenario.of(settings.network, policy=settings.policy, paired=paired)
    runs = {"now": (settings.network, scenario)}
    return previews(runs, until=until, seed=SEED)["now"]


def command(settings: Settings, source: str, base: Fleet) -> dict[str, object]:
    """The command that tells the same numbers, and which files it needs saved first."""
    same = settings.fleet == base
    name, m = shlex.quote(source) if same else "fleet.csv", settings.concurrency
    needs = [] if same else ["fleet.csv"]
    if settings.choice.planned:
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
        line, needs = "sojourn simulate strategy.toml", ["strategy.toml"]
    return {"line": line, "needs": needs}


def advice(settings: Settings, curvature: float | None = None) -> dict[str, object]:
    """The recommended plan with what it gains, and the settings that "use this" brings.

    The learning rate it brings is at most half of the largest stable one, at the ``curvature`` that a
    pilot has measured or else at the assumed one.
    """
    title, text, better, is_best = (
        _least_noise(settings) if isinstance(settings.objective, NoiseRate) else _soonest(settings)
    )
    best = planned(settings.fleet, settings.objective, None)
    fleet, p = best.network.fleet, best.network.routing
    use: dict[str, object] = {"dispatch": better.dispatch, "concurrency": better.concurrency}
    stable = stable_rate(better, better.analysis, curvature or DEFAULT_CONSTANTS.smoothness)
    use["learning_rate"] = float(f"{min(settings.learning_rate, SAFE * stable):.2g}")
    return {
        "title": title,
        "text": text,
        "is_best": is_best,
        "use": use,
        "summary": summary(better, curvature),
        "plan": {
            "objective": best.objective.name,
            "value": best.value,
            "concurrency": best.concurrency,
            "learning_rate": best.learning_rate,
            "classes": [
                {
                    "name": fleet.label(k),
                    "routing": float(p[k]),
                    "share": float(p[k] * fleet.counts[k]),
                }
                for k in range(fleet.classes)
            ],
        },
    }


def _least_noise(settings: Settings) -> _Found:
    size = settings.fleet.size
    best = planned(settings.fleet, settings.objective, None)
    never = replace(settings, dispatch=NeverQueue.name, concurrency=size)
    routed = replace(settings, dispatch="planned", concurrency=best.concurrency)
    # Without links never queueing is at the floor; with links one task each may leave clients idle.
    better = min((never, routed), key=lambda way: way.analysis.noise_rate)
    now, then = settings.analysis, better.analysis
    less, more = now.noise_rate / then.noise_rate, then.throughput / now.throughput
    way = "Never queue" if better is never else "Route as planned"
    if less < 1.0 + SAME:
        title = "Nothing brings less noise than this"
        text = (
            f"With {settings.concurrency} tasks in flight the noise rate is {number(now.noise_rate)}, and "
            f"a task takes {number(now.mean_staleness_time)} time units on average. What is left to "
            "choose is how much an update of a slow client counts: try it below."
        )
    else:
        title = f"{way}: noise {number(less)} times lower, {number(more)} times as many updates"
        text = (
            f"{better.concurrency} tasks in flight{', one each' if better is never else ''}: noise "
            f"rate {number(then.noise_rate)} instead of {number(now.noise_rate)}, "
            f"{number(then.throughput)} updates per time unit instead of {number(now.throughput)}, and a task "
            f"takes {number(then.mean_staleness_time)} time units on average instead of "
            f"{number(now.mean_staleness_time)}."
        )
    return title, text, better, less < 1.0 + SAME


def _soonest(settings: Settings) -> _Found:
    best = planned(settings.fleet, settings.objective, None)
    better = replace(settings, dispatch="planned", concurrency=best.concurrency)
    shares = ", ".join(f"{row['share']:.0%} to {row['name']}" for row in class_rows(better))
    now = time_to_target(settings)
    gain = None if now is None else now / best.value
    is_best = gain is not None and gain < 1.0 + SAME
    tasks = f"{best.concurrency} task{'s' if best.concurrency > 1 else ''} in flight"
    if gain is None:
        title = f"The target after {best.value:.3g} time units: {tasks}"
        text = f"{shares}. The bound speaks of routed tasks only, so it cannot rank never queueing."
    elif is_best:
        title = "By the bound nothing reaches the target sooner"
        text = f"{best.value:.3g} time units, with {tasks}: {shares}."
    else:
        ahead = "The target comes in reach" if gain == float("inf") else f"{gain:.3g} times sooner"
        title = f"{ahead}: {tasks} instead of {settings.concurrency}"
        text = f"{best.value:.3g} time units to the target. {shares}."
    text += (
        " Constants are assumed (L = 10, σ = 1, M = 1, A = 2.3): sojourn calibrate measures them."
    )
    return title, text, better, is_best
