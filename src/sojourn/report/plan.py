"""The page of a plan: what it gains over what is done now, by class, and why."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from sojourn._support.numbers import UNKNOWN, number
from sojourn.dispatch import NeverQueue, Policy
from sojourn.errors import Unreachable
from sojourn.figures.figure import Figure, Series, Table, View
from sojourn.figures.heatmap import Heatmap
from sojourn.fleet import Fleet, Network
from sojourn.planning import Plan, Sensitivity, sensitivity
from sojourn.planning.advice import warnings
from sojourn.planning.frontier import plan_frontier, traced_fleet
from sojourn.planning.objectives import NoiseRate
from sojourn.planning.search.exponent import exponent_map
from sojourn.report.page import Drawing, Report, Section
from sojourn.report.planned import (
    before_plan,
    done_now,
    in_words,
    objective_values,
    plan_sides,
    plan_verdict,
)
from sojourn.simulation.scenario import Scenario
from sojourn.simulation.simulate import previews
from sojourn.theory.jackson import Analysis, analyze
from sojourn.theory.jackson.classes import (
    NEVER,
    NOW,
    PALETTE,
    PLAN,
    UNIFORM,
    by_class,
    class_figure,
    left_out,
    shown_classes,
)
from sojourn.types import FloatArray

MOST_DRAWN = 2000
"""Clients beyond which no timeline is simulated."""
OPENING_ROWS = 15
"""Clients that each timeline shows at most."""
EXPONENTS = np.linspace(-0.5, 1.5, 21)
LEVELS = 13
"""Numbers of tasks in flight on the map."""
POWER = "best power of speed"
"""The best routing in which probabilities are a power of speed."""

Step = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class Traced:
    """The objective over powers of speed (columns) and tasks in flight, and of never queueing.

    ``nan`` where it is out of reach; ``never`` only for the noise rate, which is known of it.
    """

    tasks: FloatArray
    values: FloatArray
    never: FloatArray | None

    def best(self, maximize: bool) -> FloatArray:
        """The best power of speed for every number of tasks in flight."""
        worst = -math.inf if maximize else math.inf
        found = np.where(np.isnan(self.values), worst, self.values)
        best = found.max(axis=1) if maximize else found.min(axis=1)
        return np.where(np.isfinite(best), best, math.nan)


def plan_report(
    plan: Plan,
    *,
    policy: Policy | None = None,
    now: FloatArray | None = None,
    command: str = "",
    step: Step = lambda name: None,
) -> Report:
    """A report on ``plan`` beside the routing ``now``, uniform unless given, with as many tasks.

    ``policy`` is what will be run, by default what theory recommends. ``now`` has a probability per
    client of each class of ``plan.fleet``; ``command`` is the one to type next. ``step`` is called
    with the name of every part. Cost: a map of 273 networks, a frontier, two descents per class shown, three simulations.
    """
    before = before_plan(plan, now)
    step("verdict")
    sides = plan_sides(plan, before, now)
    verdict = plan_verdict(plan, policy=policy, now=now, command=command)
    step("map")
    found = _traced(plan)
    sections = [_opening(plan, before, sides, found)]
    if plan.fleet.size <= MOST_DRAWN:
        step("timelines")
        sections[0] = replace(sections[0], drawings=(_timelines(plan, before, sides),))
    sections.append(_classes_section(plan, sides))
    sections.append(_map_section(plan, found, sides))
    step("frontier")
    sections.append(_frontier_section(plan, step))
    step("what clients are worth")
    sections.append(_worth_section(plan, step))
    return Report(
        verdict.title,
        tuple(sections),
        because=verdict.because,
        command=verdict.next_command,
        origins={"The plan": plan.provenance},
    )


def _least(network: Network) -> str:
    """Where a task spends time on its way, one each is not the least noise."""
    return "" if network.has_delays else ", the least of any policy that lets as many tasks finish"


def _numbers(plan: Plan, before: Network, sides: Mapping[str, Analysis]) -> str:
    """What the title rests on."""
    how, theirs = done_now(sides)
    (value, best), words = objective_values(plan, before, sides), in_words(plan.objective)
    was = "out of reach" if math.isnan(value) else number(value)
    ours = sides[PLAN]
    rate = "" if plan.learning_rate is None else f" at learning rate {number(plan.learning_rate)}"
    text = (
        f"With {plan.concurrency:,} tasks in flight{rate} the best routing has a {words} of "
        f"{number(best)} ({how}: {was}) and makes {number(ours.throughput / theirs.throughput)} "
        "times as many updates per time unit."
    )
    never = sides.get(NEVER)
    if never is not None:
        text += (
            " Never queueing, where the next task goes to an idle client, has a noise rate of "
            f"{number(never.noise_rate)}{_least(before)}."
        )
    if not ours.is_exact:
        text += " These are approximations, since service times are not exponential or clients are intermittent."
    return text


def _opening(plan: Plan, before: Network, sides: Mapping[str, Analysis], found: Traced) -> Section:
    how, _ = done_now(sides)
    return Section(
        anchor="verdict",
        title="The plan",
        kicker="Plan",
        lead=f"{_numbers(plan, before, sides)} The noise rate says how fast gradient noise enters when "
        "the model moves at a given speed; smaller is better. Clients count equally: an update of a "
        "client that is chosen rarely weighs more.",
        notes=tuple(warnings(plan)),
        figures=(_curve(plan, before, how, found),),
        tables=(_ways_table(plan, before, sides),),
        opening=True,
    )


def _ways_table(plan: Plan, before: Network, sides: Mapping[str, Analysis]) -> Table:
    """The ways to send tasks, the best first: what they cost and what they bring."""
    objective = dict(zip(list(sides), objective_values(plan, before, sides), strict=False))
    words = in_words(plan.objective)
    other = plan.objective.name not in ("noise-rate", "throughput")
    rows = [
        (
            name,
            *([number(objective.get(name, math.nan))] if other else []),
            number(side.noise_rate),
            number(side.throughput),
            number(side.mean_staleness_time),
        )
        for name, side in reversed(list(sides.items()))
    ]
    return Table(
        (
            "policy or routing",
            *([words] if other else []),
            "noise rate",
            "updates per time unit",
            "time that a task takes",
        ),
        tuple(rows),
        title="What each brings",
    )


def _traced(plan: Plan) -> Traced:
    fleet = traced_fleet(plan.fleet)
    most = max(2 * fleet.size, plan.concurrency)
    tasks = np.unique(np.append(np.geomspace(1, most, LEVELS).round(), plan.concurrency))
    rate = plan.network.server_rate
    values = exponent_map(fleet, plan.objective, EXPONENTS, tasks, server_rate=rate)
    never = None
    if isinstance(plan.objective, NoiseRate):
        analyses = [plan.never_queue(int(m)) for m in tasks.tolist()]
        noise = [analysis.noise_rate for analysis in analyses if analysis is not None]
        if len(noise) == tasks.size:
            never = np.array(noise)
    return Traced(tasks, np.where(np.isfinite(values), values, math.nan), never)


def _curve(plan: Plan, before: Network, how: str, found: Traced) -> Figure:
    """The objective against tasks in flight: what is done now, the best power of speed, never queueing."""
    words = in_words(plan.objective)
    uniform = found.values[:, int(np.argmin(abs(EXPONENTS)))]
    first = UNIFORM
    if how != UNIFORM:
        first, uniform = NOW, np.array([_with_tasks(plan, before, int(m)) for m in found.tasks])
    curves = {first: uniform, POWER: found.best(plan.objective.maximize)}
    if found.never is not None:
        curves[NEVER] = found.never
    known = {name: np.isfinite(values) for name, values in curves.items()}
    pick = list(curves)[-1]
    series = tuple(
        Series(
            name,
            found.tasks[known[name]],
            values[known[name]],
            weight="pick" if name == pick else "strong",
        )
        for name, values in curves.items()
        if known[name].any()
    )
    here = found.tasks == plan.concurrency
    ends = "; ".join(
        f"{name} {number(float(values[here][0]))}"
        for name, values in curves.items()
        if known[name][here].any()
    )
    positive = all((one.y > 0).all() for one in series)
    view = View("tasks in flight", words, series, log_x=True, log_y=positive)
    return Figure(
        "tasks",
        f"{words[0].upper()}{words[1:]} by tasks in flight",
        f"The {words} with {plan.concurrency:,} tasks in flight: {ends}.",
        (view,),
        palette=PALETTE,
    )


def _with_tasks(plan: Plan, before: Network, tasks: int) -> float:
    network = Network(before.fleet, before.routing, tasks, server_rate=before.server_rate)
    try:
        return float(plan.objective.evaluate(network).value)
    except Unreachable:
        return math.nan


def _classes_section(plan: Plan, sides: Mapping[str, Analysis]) -> Section:
    classes = shown_classes(plan.fleet)
    return Section(
        anchor="classes-section",
        title="What each class gets",
        kicker="By class",
        figures=(class_figure(plan.fleet, classes, sides),),
        tables=(_class_table(plan.fleet, classes, sides),),
        folded=True,
    )


def _timelines(plan: Plan, before: Network, sides: Mapping[str, Analysis]) -> Drawing:
    first = next(iter(sides))
    ways = {PLAN: (plan.network, Scenario()), first: (before, Scenario())}
    if NEVER in sides:
        m = min(plan.concurrency, plan.fleet.size)
        network = Network(plan.fleet, before.routing, m, server_rate=before.server_rate)
        ways = {NEVER: (network, Scenario(policy=NeverQueue())), **ways}
    title = "Who computes what when, from a fresh start"
    return Drawing.of_timelines("timeline", title, previews(ways), OPENING_ROWS)


def _class_table(fleet: Fleet, classes: list[int], sides: Mapping[str, Analysis]) -> Table:
    by_side = {name: by_class(analysis) for name, analysis in sides.items()}
    rows = [
        (
            f"{fleet.label(k)}, {name}",
            f"{fleet.counts[k]:,}",
            f"{side.share[k]:.1%}",
            f"{side.busy[k]:.1%}",
            number(side.wait[k]),
            number(side.weight[k]),
            number(side.staleness[k]),
        )
        for k in classes
        for name, side in by_side.items()
    ]
    return Table(
        (
            "class",
            "clients",
            "share of tasks",
            "busy",
            "wait, time units",
            "weight of an update",
            "staleness, updates",
        ),
        tuple(rows),
        title="Class by class",
        note="Wait: time from when a task is sent until the client begins it. Weight: what an update "
        "counts so that all clients count equally, 1 on average." + left_out(fleet, classes),
    )


def _map_section(plan: Plan, found: Traced, sides: Mapping[str, Analysis]) -> Section:
    drawn, best = _map(plan, found, next(iter(sides)))
    words = in_words(plan.objective)
    alt = (
        f"The best {words} on the map has the routing proportional to speed to the power "
        f"{best[0]:.2g} with {best[1]:.0f} tasks in flight."
    )
    return Section(
        anchor="map",
        title="The map",
        kicker=f"{words}, over routing and tasks in flight",
        folded=True,
        lead="Each square is a routing proportional to a power of speed (0: all clients equal; 1: as "
        "fast as they are) with a number of tasks in flight; the stronger the better. The best routing "
        "is drawn at the power nearest to its routing.",
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


def _map(plan: Plan, found: Traced, now: str) -> tuple[Heatmap, tuple[float, float]]:
    """The objective over exponents and tasks in flight, and where on it the best is."""
    tasks, values = found.tasks, found.values
    best = float(np.nanmax(values) if plan.objective.maximize else np.nanmin(values))
    never = None
    if found.never is not None:
        best = min(best, *found.never.tolist())
        never = found.never / best
    times = best / values if plan.objective.maximize else values / best
    row, column = np.unravel_index(int(np.nanargmin(times)), times.shape)
    place = float(EXPONENTS[column]), float(tasks[row])
    marks = {now: (0.0, float(plan.concurrency)), PLAN: (_exponent(plan), float(plan.concurrency))}
    return (
        Heatmap(
            EXPONENTS,
            tasks,
            np.where(np.isnan(times), math.inf, times),
            "routing proportional to speed to this power",
            "tasks in flight",
            [(0.0, "0\nuniform"), (0.5, "½\nroot"), (1.0, "1\nbalanced")],
            {**marks, "best on the map": place},
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


def _frontier_section(plan: Plan, step: Step) -> Section:
    return Section(
        anchor="frontier",
        title="What can be had with queues",
        kicker="Updates per time unit against staleness",
        folded=True,
        lead="More updates per time unit mean staler ones: no routing lies below the line. Uniform, "
        "balanced and square-root routing are marked beside the best routing.",
        figures=(plan_frontier(plan, step).plot(),),
    )


def _worth_section(plan: Plan, step: Step) -> Section:
    fleet, classes = plan.fleet, shown_classes(plan.fleet)
    sensitivities = sensitivity(plan, classes=classes, progress=step)
    words = in_words(plan.objective)
    names = tuple(fleet.label(k) for k in classes)
    changes = {
        "one client fewer": [_change(row, row.without_one) for row in sensitivities],
        "one client twice as fast": [_change(row, row.one_twice_as_fast) for row in sensitivities],
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
        folded=True,
        lead=f"The {words} if one client were gone, or twice as fast, with the routing planned anew: "
        f"{sense} is better. A client that goes takes its data along, which is not counted here.",
        figures=(Figure("worth", f"Change of the {words}", alt + ".", (view,)),),
        tables=(
            Table(
                ("class", *changes),
                rows,
                title=f"Change of the {words}",
                note=(_assumed(plan) + left_out(fleet, classes)).strip(),
            ),
        ),
    )


def _assumed(plan: Plan) -> str:
    """What a bound, a map and sensitivities leave out, where that matters."""
    if analyze(plan.network).is_exact:
        return ""
    return "Computed for exponential service times and clients that are always there."


def _change(row: Sensitivity, value: float | None) -> float:
    return math.nan if value is None else 100.0 * (value / row.now - 1.0)


def _percent(change: float) -> str:
    return UNKNOWN if math.isnan(change) else f"{change:+.2g}%"
