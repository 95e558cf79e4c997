"""A plan as a page: what it gains over what is done now, by class, and why."""

import math
from collections.abc import Mapping

from sojourn.dispatch import NeverQueue
from sojourn.figure import Table
from sojourn.jackson import Analysis, analyze
from sojourn.jackson.classes import (
    NEVER,
    NOW,
    PLAN,
    by_class,
    class_figure,
    left_out,
    shown_classes,
)
from sojourn.network import Fleet, Network, uniform_routing
from sojourn.optimize import NoiseRate
from sojourn.planning import Plan
from sojourn.planning.advice import warnings
from sojourn.planpage.parts import (
    Step,
    frontier_section,
    in_words,
    map_section,
    timelines,
    value_at,
    worth_section,
)
from sojourn.report.page import Report
from sojourn.report.sections import Section
from sojourn.report.verdict import Tile
from sojourn.types import FloatArray

MOST_DRAWN = 2000
"""Clients beyond which no timeline is simulated."""


def plan_report(
    plan: Plan, *, now: FloatArray | None = None, step: Step = lambda name: None
) -> Report:
    """A report on ``plan`` beside the routing ``now``, uniform unless given, with as many tasks.

    ``now`` has a probability per client of each class of ``plan.fleet``. ``step`` is told of every
    part. Cost: a map of 273 networks, a frontier, two descents per class shown, three simulations.
    """
    how = "uniform routing" if now is None else "what is done now"
    routing = uniform_routing(plan.fleet) if now is None else now
    before = Network(plan.fleet, routing, plan.concurrency, server_rate=plan.network.server_rate)
    step("verdict")
    sides = _sides(plan, before)
    sections = [_opening(plan, before, sides, how)]
    step("map")
    sections.append(map_section(plan))
    step("frontier")
    sections.append(frontier_section(plan, step))
    step("what clients are worth")
    sections.append(worth_section(plan, step))
    if plan.fleet.size <= MOST_DRAWN:
        step("timelines")
        sections.append(timelines(plan, before, sides))
    headline = _headline(plan, before, sides, how)
    return Report(headline, tuple(sections), origins={"The plan": plan.provenance})


def _sides(plan: Plan, before: Network) -> dict[str, Analysis]:
    sides = {NOW: analyze(before), PLAN: analyze(plan.network)}
    never = NeverQueue().analysis(before)
    return sides if never is None else {**sides, NEVER: never}


def _gain(plan: Plan, before: Network) -> float:
    """How many times better than ``before`` the plan is; infinite where that is out of reach."""
    value = value_at(plan, before)
    if math.isnan(value):
        return math.inf
    return plan.value / value if plan.objective.maximize else value / plan.value


def _headline(plan: Plan, before: Network, sides: Mapping[str, Analysis], how: str) -> str:
    words, gain = in_words(plan.objective), _gain(plan, before)
    if math.isinf(gain):
        return f"The plan gets there; {how} does not"
    if plan.objective.maximize:
        return f"The plan has {gain:.2g} times the {words} of {how}"
    head = f"{how[0].upper()}{how[1:]} has"
    head += " the" if gain < 1.01 else f" {gain:.2g} times the"
    head += f" {words} of the plan"
    if NEVER in sides and isinstance(plan.objective, NoiseRate):
        head += (
            f", {sides[NOW].noise_rate / sides[NEVER].noise_rate:.2g} times that of never queueing"
        )
    return head


def _least(network: Network) -> str:
    """Where a task spends time on its way, one each is not the least noise."""
    return "" if network.has_stations else ", the least of any policy with as many tasks"


def _opening(plan: Plan, before: Network, sides: Mapping[str, Analysis], how: str) -> Section:
    classes = shown_classes(plan.fleet)
    value, words = value_at(plan, before), in_words(plan.objective)
    was = "out of reach" if math.isnan(value) else f"{value:.4g}"
    ours, theirs = sides[PLAN], sides[NOW]
    rate = "" if plan.learning_rate is None else f" at learning rate {plan.learning_rate:.3g}"
    finding = (
        f"With {plan.concurrency} tasks in flight{rate} the plan comes to a {words} of "
        f"{plan.value:.4g}, {how} to {was}, at {ours.throughput / theirs.throughput:.3g} times the "
        "updates per unit of time."
    )
    tiles = [
        Tile(str(plan.concurrency), "tasks in flight"),
        Tile(f"{plan.value:.4g}", f"{words}, plan; now {was}"),
        Tile(
            f"{ours.throughput:.4g}", f"updates per unit of time, plan; now {theirs.throughput:.4g}"
        ),
    ]
    never = sides.get(NEVER)
    if never is not None:
        less = ours.noise_rate / never.noise_rate
        finding += (
            f" Never queueing, by which the next task goes to a client that has none, has a noise "
            f"rate of {never.noise_rate:.4g}{_least(before)}; the plan has {ours.noise_rate:.4g}"
            + (f", {less:.3g} times as much" if less > 1.005 else "")
            + "."
        )
        floor = "" if before.has_stations else ": the floor"
        tiles.append(Tile(f"{never.noise_rate:.4g}", f"noise rate of never queueing{floor}"))
    else:
        tiles.append(Tile(f"{ours.noise_rate:.4g}", "noise rate, plan"))
    return Section(
        anchor="verdict",
        title="Now against plan",
        kicker="Plan",
        finding=finding,
        tiles=tuple(tiles),
        lead=f"Now is {how} with as many tasks in flight. The noise rate says how fast gradient noise "
        "enters when the model moves at a given speed; smaller is better. Clients count equally: what "
        "comes rarely weighs more.",
        notes=tuple(warnings(plan)),
        figures=(class_figure(plan.fleet, classes, sides),),
        tables=(_class_table(plan.fleet, classes, sides),),
    )


def _class_table(fleet: Fleet, classes: list[int], sides: Mapping[str, Analysis]) -> Table:
    found = {name: by_class(analysis) for name, analysis in sides.items()}
    rows = [
        (
            f"{fleet.label(k)}, {name}",
            f"{fleet.counts[k]:,}",
            f"{own.share[k]:.1%}",
            f"{own.busy[k]:.1%}",
            _rounded(own.wait[k]),
            f"{own.weight[k]:.3g}",
            _rounded(own.staleness[k]),
        )
        for k in classes
        for name, own in found.items()
    ]
    return Table(
        (
            "class",
            "clients",
            "share of tasks",
            "busy",
            "wait, units of time",
            "weight of an update",
            "staleness, updates",
        ),
        tuple(rows),
        title="Class by class",
        note="Wait: time from when a task is sent until the client begins it. Weight: what an update "
        "counts so that all clients count equally, 1 on average." + left_out(fleet, classes),
    )


def _rounded(value: float) -> str:
    return f"{value:,.0f}" if value >= 100.0 else f"{value:.3g}"
