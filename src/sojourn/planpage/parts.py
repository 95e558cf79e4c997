"""The parts of a plan's page that say why: the map, the frontier, what clients are worth, timelines."""

import math
from collections.abc import Callable, Mapping

import numpy as np

from sojourn.dispatch import NeverQueue
from sojourn.errors import Unreachable
from sojourn.figure import Figure, Series, Table, View
from sojourn.jackson import Analysis
from sojourn.jackson.classes import NEVER, NOW, PLAN, left_out, shown_classes
from sojourn.network import Fleet, Network
from sojourn.optimize import NoiseRate, Objective, group_clients
from sojourn.optimize.exponent import exponent_map
from sojourn.planning import Plan, Sensitivity, frontier, sensitivity
from sojourn.report.heatmap import Heatmap
from sojourn.report.sections import Drawing, Section
from sojourn.report.timeline import timeline_section
from sojourn.simulation.beginnings import beginnings
from sojourn.simulation.scenario import Scenario

MOST_TRACED = 200
"""Classes beyond which map and frontier are of a grouped fleet."""
EXPONENTS = np.linspace(-0.5, 1.5, 21)
LEVELS = 13
"""Numbers of tasks in flight on the map."""
_WORDS = {
    "noise-rate": "noise rate",
    "throughput": "throughput",
    "time-to-accuracy": "time to the accuracy",
    "time-budget": "bound after the time budget",
    "per-time": "bound per unit of time (H)",
    "per-round": "bound after the rounds (G)",
    "energy": "energy to the accuracy",
    "time-and-energy": "weighed time and energy",
}

Step = Callable[[str], None]


def in_words(objective: Objective) -> str:
    """What an objective is called in a sentence."""
    return _WORDS.get(objective.name, objective.name)


def value_at(plan: Plan, network: Network) -> float:
    try:
        return plan.objective.evaluate(network).value
    except Unreachable:
        return math.nan


def map_section(plan: Plan) -> Section:
    fleet = _traced(plan.fleet)
    drawn, best = _map(plan, fleet)
    words = in_words(plan.objective)
    alt = (
        f"The best {words} on the map has the routing proportional to speed to the power "
        f"{best[0]:.2g} with {best[1]:.0f} tasks in flight."
    )
    return Section(
        anchor="map",
        title="The map",
        kicker=f"{words}, over routing and tasks in flight",
        lead="Each cell is a routing proportional to a power of speed (0: everybody alike; 1: as "
        "fast as they are) with a number of tasks in flight; the stronger the better. The plan is "
        "drawn at the power nearest to its routing.",
        drawings=(
            Drawing(
                "map",
                f"How far from the best {words}",
                alt,
                drawn.to_svg(styled=False, words=alt),
                drawn.to_svg(words=alt),
                alt,
            ),
        ),
    )


def _map(plan: Plan, fleet: Fleet) -> tuple[Heatmap, tuple[float, float]]:
    """The objective over exponents and tasks in flight, and where on it the best is."""
    most = max(2 * fleet.size, plan.concurrency)
    tasks = np.unique(np.append(np.geomspace(1, most, LEVELS).round(), plan.concurrency))
    rate = plan.network.server_rate
    values = exponent_map(fleet, plan.objective, EXPONENTS, tasks, server_rate=rate)
    best = float(np.nanmax(values) if plan.objective.maximize else np.nanmin(values))
    never = None
    if isinstance(plan.objective, NoiseRate):
        found = [plan.never_queue(int(m)) for m in tasks.tolist()]
        noise = [own.noise_rate for own in found if own is not None]
        if len(noise) == tasks.size:
            best = min(best, *noise)
            never = np.array(noise) / best
    times = best / values if plan.objective.maximize else values / best
    row, column = np.unravel_index(int(np.nanargmin(times)), times.shape)
    place = float(EXPONENTS[column]), float(tasks[row])
    marks = {NOW: (0.0, float(plan.concurrency)), PLAN: (_exponent(plan), float(plan.concurrency))}
    return (
        Heatmap(
            EXPONENTS,
            tasks,
            np.where(np.isnan(times), math.inf, times),
            "routing proportional to speed to this power",
            "tasks in flight",
            [(0.0, "0\nuniform"), (0.5, "½\nroot"), (1.0, "1\nbalanced")],
            {**marks, "best routed": place},
            None if never is None else (NEVER, never),
        ),
        place,
    )


def _exponent(plan: Plan) -> float:
    """The power of speed nearest to the plan's routing, by least squares over clients."""
    fleet = plan.network.fleet
    speed, p = np.log(fleet.service_rates), np.log(plan.network.routing)
    centred = speed - fleet.counts @ speed / fleet.size
    square = float(fleet.counts @ centred**2)
    if square <= 0.0:
        return 0.0
    slope = float((fleet.counts * centred) @ p) / square
    return float(np.clip(slope, EXPONENTS[0], EXPONENTS[-1]))


def _traced(fleet: Fleet) -> Fleet:
    return fleet if fleet.classes <= MOST_TRACED else group_clients(fleet, tolerance=0.05).fleet


def frontier_section(plan: Plan, step: Step) -> Section:
    curve = frontier(
        _traced(plan.fleet),
        plan.concurrency,
        penalty="staleness" if plan.concurrency > 1 else "routing",
        server_rate=plan.network.server_rate,
        plan=plan,
        progress=step,
    )
    return Section(
        anchor="frontier",
        title="What can be had with queues",
        kicker="Throughput against staleness",
        lead="More updates per unit of time mean staler ones: no routing lies below the line. Uniform, "
        "balanced and square-root routing are marked beside the plan.",
        figures=(curve.plot(),),
    )


def worth_section(plan: Plan, step: Step) -> Section:
    fleet, classes = plan.fleet, shown_classes(plan.fleet)
    found = sensitivity(plan, classes=classes, progress=step)
    words = in_words(plan.objective)
    names = tuple(fleet.label(k) for k in classes)
    changes = {
        "one client fewer": [_change(row, row.without_one) for row in found],
        "one client twice as fast": [_change(row, row.one_twice_as_fast) for row in found],
    }
    view = View(
        "clients, slowest first",
        f"change of {words}, %",
        tuple(
            Series(name, np.arange(len(classes)), values, kind="bars")
            for name, values in changes.items()
        ),
        categories=names,
    )
    sense = "more" if plan.objective.maximize else "less"
    rows = tuple(
        (name, *(_percent(values[k]) for values in changes.values()))
        for k, name in enumerate(names)
    )
    alt = "; ".join(
        f"{name}: {fewer} with one client fewer, {faster} with one twice as fast"
        for name, fewer, faster in rows
    )
    return Section(
        anchor="worth",
        title="What a client of each class is worth",
        kicker="Sensitivity",
        lead=f"The {words} if one client were gone, or twice as fast, with the routing planned anew: "
        f"{sense} is better. A client that goes takes its data along, which is not counted here.",
        figures=(Figure("worth", f"Change of the {words}", alt + ".", (view,)),),
        tables=(
            Table(
                ("class", *changes),
                rows,
                title=f"Change of the {words}",
                note=f"Now {plan.value:.4g}." + left_out(fleet, classes),
            ),
        ),
    )


def _change(row: Sensitivity, value: float | None) -> float:
    return math.nan if value is None else 100.0 * (value / row.now - 1.0)


def _percent(change: float) -> str:
    return "–" if math.isnan(change) else f"{change:+.2g}%"


def timelines(plan: Plan, before: Network, sides: Mapping[str, Analysis]) -> Section:
    ways = {NOW: (before, Scenario()), PLAN: (plan.network, Scenario())}
    if NEVER in sides:
        m = min(plan.concurrency, plan.fleet.size)
        ways[NEVER] = (
            Network(plan.fleet, before.routing, m, server_rate=before.server_rate),
            Scenario(policy=NeverQueue()),
        )
    return timeline_section(1, "From a fresh start", beginnings(ways))
