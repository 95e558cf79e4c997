"""The verdict on a plan, and its page: what it gains over what is done now, by class, and why."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from sojourn._support.numbers import UNKNOWN, number
from sojourn.dispatch import NeverQueue, Policy
from sojourn.errors import Unreachable
from sojourn.figures.figure import Figure, Series, Table, View
from sojourn.figures.heatmap import Heatmap
from sojourn.figures.timeline import TITLE
from sojourn.fleet import Fleet, Network, uniform_routing
from sojourn.planning import Plan, Sensitivity, sensitivity
from sojourn.planning.advice import warnings
from sojourn.planning.frontier import ObjectiveMap, plan_frontier
from sojourn.planning.objectives import form_of
from sojourn.report.page import Drawing, Report, Section
from sojourn.report.verdict import Verdict
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
from sojourn.types import FloatArray, Step

MOST_DRAWN = 2000
"""Clients beyond which no timeline is simulated."""
OPENING_ROWS = 15
"""Clients that each timeline shows at most."""
EXPONENTS = np.linspace(-0.5, 1.5, 21)
LEVELS = 13
"""Numbers of tasks in flight on the map."""
POWER = "best power of speed"
"""The best routing in which probabilities are a power of speed."""
_WORDS = {
    "noise-rate": "noise rate",
    "throughput": "throughput",
    "time-to-accuracy": "time to the accuracy",
    "time-budget": "bound after the time budget",
    "per-time": "bound per time unit (H)",
    "per-round": "bound after the rounds (G)",
    "energy": "energy to the accuracy",
    "time-and-energy": "weighed time and energy",
}


@dataclass(frozen=True, eq=False)
class Compared:
    """A plan beside what is done now: the ways to send tasks, of which that is the first."""

    plan: Plan
    before: Network
    ways: Mapping[str, Analysis]

    @classmethod
    def of(cls, plan: Plan, now: FloatArray | None) -> "Compared":
        """The plan beside the routing ``now``, uniform unless given, with as many tasks."""
        routing = uniform_routing(plan.fleet) if now is None else now
        rate = plan.network.server_rate
        before = Network(plan.fleet, routing, plan.concurrency, server_rate=rate)
        ways = {UNIFORM if now is None else NOW: analyze(before), PLAN: analyze(plan.network)}
        never = NeverQueue().analysis(before)
        return cls(plan, before, ways if never is None else {**ways, NEVER: never})

    @property
    def first(self) -> str:
        """The name of what is done now."""
        return next(iter(self.ways))

    @property
    def how(self) -> str:
        """The same in a sentence."""
        return "what is done now" if self.first == NOW else self.first

    @property
    def now(self) -> Analysis:
        """What is done now, in steady state."""
        return self.ways[self.first]

    @property
    def words(self) -> str:
        """What the objective is called in a sentence."""
        name = self.plan.objective.name
        return _WORDS.get(name, name)

    @property
    def values(self) -> tuple[float, float]:
        """The objective before and under the plan; before, ``nan`` where it is out of reach.

        A noise rate or a throughput is that of the analysis, which knows laws and absences: the
        page has one number for each network. A bound is what the plan was optimised for, with
        exponential times.
        """
        name = self.plan.objective.name.replace("-", "_")
        if name in ("noise_rate", "throughput"):
            return getattr(self.now, name), getattr(self.ways[PLAN], name)
        try:
            return self.plan.objective.evaluate(self.before).value, self.plan.value
        except Unreachable:
            return math.nan, self.plan.value

    @property
    def gain(self) -> float:
        """How many times better the plan is; infinite where the objective was out of reach."""
        theirs, ours = self.values
        if math.isnan(theirs):
            return math.inf
        return ours / theirs if self.plan.objective.maximize else theirs / ours

    def verdict(self, policy: Policy | None, command: str) -> Verdict:
        """What is recommended, and why."""
        run = self.plan.recommended_policy if policy is None else policy
        if NEVER not in self.ways and not run.routes:
            run = self.plan.recommended_policy
        return Verdict(
            title=_title(self.plan, run),
            because=_because(self, run),
            tested="",
            seeds=0,
            pick=PLAN if run.routes else NEVER,
            next_command=command,
        )


def plan_verdict(plan: Plan, *, policy: Policy | None = None) -> Verdict:
    """What a plan recommends and why, beside uniform routing.

    ``policy`` is what will be run, by default what theory recommends.
    """
    return Compared.of(plan, None).verdict(policy, "")


def _title(plan: Plan, policy: Policy) -> str:
    way = "Route as planned" if policy.routes else "Never queue"
    tasks = f"{plan.concurrency:,} task{'' if plan.concurrency == 1 else 's'} in flight"
    rate = "" if plan.learning_rate is None else f", learning rate {number(plan.learning_rate)}"
    return f"{way}, {tasks}{rate}"


def _because(compared: Compared, policy: Policy) -> str:
    plan, how, now = compared.plan, compared.how, compared.now
    size = form_of(plan.objective).buffer
    collected = "" if size == 1 else f" The server collects {size} updates for each that it makes."
    head = f"{how[0].upper()}{how[1:]} "
    if not policy.routes:
        never, routed = compared.ways[NEVER], compared.ways[PLAN]
        theirs, best = (number(side.noise_rate / never.noise_rate, 2) for side in (now, routed))
        return (
            f"It makes {number(never.throughput / now.throughput, 2)} times as many updates per time "
            f"unit as {how}, which has {theirs} times its noise rate; the best routing has {best} "
            f"times.{collected}"
        )
    words, gain = compared.words, compared.gain
    if math.isinf(gain):
        return f"{head}does not get there at all.{collected}"
    if plan.objective.maximize:
        return f"It has {number(gain, 2)} times the {words} of {how}.{collected}"
    if abs(gain - 1.0) < 0.01:
        return f"{head}has the same {words}.{collected}"
    return f"{head}has {number(gain, 2)} times its {words}.{collected}"


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
    with the name of every part. Cost: a map of 273 networks, a frontier, two descents per class
    shown, three simulations.
    """
    step("verdict")
    compared = Compared.of(plan, now)
    verdict = compared.verdict(policy, command)
    step("map")
    found = _mapped(plan)
    opening = _opening(compared, found)
    if plan.fleet.size <= MOST_DRAWN:
        step("timelines")
        opening = replace(opening, drawings=(_timelines(compared),))
    sections = [opening, _classes_section(compared), _map_section(compared, found)]
    step("frontier")
    sections.append(_frontier_section(plan, step))
    step("what clients are worth")
    sections.append(_worth_section(compared, step))
    return Report(
        verdict.title,
        tuple(sections),
        because=verdict.because,
        command=verdict.next_command,
        origins={"The plan": plan.provenance},
    )


def _numbers(compared: Compared) -> str:
    """What the title rests on."""
    plan, ours = compared.plan, compared.ways[PLAN]
    value, best = compared.values
    was = "out of reach" if math.isnan(value) else number(value)
    rate = "" if plan.learning_rate is None else f" at learning rate {number(plan.learning_rate)}"
    text = (
        f"With {plan.concurrency:,} tasks in flight{rate} the best routing has a {compared.words} of "
        f"{number(best)} ({compared.how}: {was}) and makes "
        f"{number(ours.throughput / compared.now.throughput)} times as many updates per time unit."
    )
    never = compared.ways.get(NEVER)
    if never is not None:
        # Where a task spends time on its way, one each is not the least noise.
        links = compared.before.has_delays
        least = "" if links else ", the least of any policy that lets as many tasks finish"
        text += (
            " Never queueing, where the next task goes to an idle client, has a noise rate of "
            f"{number(never.noise_rate)}{least}."
        )
    if not ours.is_exact:
        text += f" These are approximations, since {ours.why_approximate}."
    return text


def _opening(compared: Compared, found: ObjectiveMap) -> Section:
    return Section(
        anchor="verdict",
        title="The plan",
        lead=f"{_numbers(compared)} The noise rate says how fast gradient noise enters when "
        "the model moves at a given speed; smaller is better. Clients count equally: an update of a "
        "client that is chosen rarely weighs more.",
        notes=tuple(warnings(compared.plan)),
        figures=(_curve(compared, found),),
        tables=(_ways_table(compared),),
        opening=True,
    )


def _ways_table(compared: Compared) -> Table:
    """The ways to send tasks, the best first: what they cost and what they bring."""
    objective = dict(zip(compared.ways, compared.values, strict=False))
    columns = {
        "noise rate": "noise_rate",
        "updates per time unit": "throughput",
        "time that a task takes": "mean_staleness_time",
    }
    other = compared.plan.objective.name not in ("noise-rate", "throughput")
    rows = [
        (
            name,
            *([number(objective.get(name, math.nan))] if other else []),
            *(number(getattr(side, field)) for field in columns.values()),
        )
        for name, side in reversed(list(compared.ways.items()))
    ]
    headings = ("policy or routing", *([compared.words] if other else []), *columns)
    return Table(headings, tuple(rows), title="What each brings")


def _mapped(plan: Plan) -> ObjectiveMap:
    most = max(2 * plan.fleet.size, plan.concurrency)
    levels = np.append(np.geomspace(1, most, LEVELS).round(), plan.concurrency)
    tasks, rate = np.unique(levels.astype(np.int64)), plan.network.server_rate
    return ObjectiveMap.of(plan.fleet, plan.objective, EXPONENTS, tasks, server_rate=rate)


def _curve(compared: Compared, found: ObjectiveMap) -> Figure:
    """The objective against tasks in flight: what is done now, the best power of speed, never queueing."""
    plan, words, first = compared.plan, compared.words, compared.first
    uniform = found.values[:, int(np.argmin(abs(EXPONENTS)))]
    if first == NOW:
        tasks = found.tasks.tolist()
        uniform = np.array([_with_tasks(plan, compared.before, m) for m in tasks])
    best = np.fmax if plan.objective.maximize else np.fmin  # of a row out of reach it is nan
    curves = {first: uniform, POWER: best.reduce(found.values, axis=1)}
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


def _classes_section(compared: Compared) -> Section:
    fleet, classes = compared.plan.fleet, shown_classes(compared.plan.fleet)
    return Section(
        anchor="classes-section",
        title="What each class gets",
        figures=(class_figure(fleet, classes, compared.ways),),
        tables=(_class_table(fleet, classes, compared.ways),),
        folded=True,
    )


def _timelines(compared: Compared) -> Drawing:
    from sojourn.simulation.scenario import Scenario
    from sojourn.simulation.simulate import previews

    plan, before = compared.plan, compared.before
    ways = {PLAN: (plan.network, Scenario()), compared.first: (before, Scenario())}
    if NEVER in compared.ways:
        m = min(plan.concurrency, plan.fleet.size)
        network = Network(plan.fleet, before.routing, m, server_rate=before.server_rate)
        ways = {NEVER: (network, Scenario(policy=NeverQueue())), **ways}
    title = f"{TITLE}, from a fresh start"
    return Drawing.of_timelines("timeline", title, previews(ways), OPENING_ROWS)


def _class_table(fleet: Fleet, classes: list[int], ways: Mapping[str, Analysis]) -> Table:
    columns = {
        "share of tasks": ("share", "{:.1%}"),
        "busy": ("busy", "{:.1%}"),
        "wait, time units": ("wait", ""),
        "weight of an update": ("weight", ""),
        "staleness, updates": ("staleness", ""),
    }
    by_way = {name: by_class(analysis) for name, analysis in ways.items()}
    rows = []
    for k in classes:
        for name, found in by_way.items():
            values = [(getattr(found, field)[k], form) for field, form in columns.values()]
            cells = [form.format(value) if form else number(value) for value, form in values]
            rows.append((f"{fleet.label(k)}, {name}", f"{fleet.counts[k]:,}", *cells))
    return Table(
        ("class", "clients", *columns),
        tuple(rows),
        title="Class by class",
        note="Wait: time from when a task is sent until the client begins it. Weight: what an update "
        "counts so that all clients count equally, 1 on average." + left_out(fleet, classes),
    )


def _map_section(compared: Compared, found: ObjectiveMap) -> Section:
    drawn, words = _heatmap(compared.plan, found, compared.first), compared.words
    exponent, tasks, _ = found.best
    alt = (
        f"The best {words} on the map has the routing proportional to speed to the power "
        f"{exponent:.2g} with {tasks} tasks in flight."
    )
    return Section(
        anchor="map",
        title="The map",
        folded=True,
        lead="Each square is a routing proportional to a power of speed (0: all clients equal; 1: as "
        "fast as they are) with a number of tasks in flight; the stronger the better. The best routing "
        "is drawn at the power nearest to its routing.",
        drawings=(
            Drawing(
                "map",
                f"How far from the best {words}",
                drawn.to_svg(styled=False, words=alt),
                drawn.to_svg(words=alt),
                alt,
            ),
        ),
    )


def _heatmap(plan: Plan, found: ObjectiveMap, now: str) -> Heatmap:
    """The picture of a map, with what is done now, the plan and the best on it marked."""
    m, (times, never) = float(plan.concurrency), found.times
    exponent, tasks, _ = found.best
    return Heatmap(
        found.exponents,
        found.tasks.astype(np.float64),
        times,
        "routing proportional to speed to this power",
        "tasks in flight",
        [(0.0, "0\nuniform"), (0.5, "½\nroot"), (1.0, "1\nbalanced")],
        {
            now: (0.0, m),
            PLAN: (_exponent(plan), m),
            "best on the map": (exponent, float(tasks)),
        },
        None if never is None else (NEVER, never),
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
        folded=True,
        lead="More updates per time unit mean staler ones: no routing lies below the line. Uniform, "
        "balanced and square-root routing are marked beside the best routing.",
        figures=(plan_frontier(plan, step).plot(),),
    )


def _worth_section(compared: Compared, step: Step) -> Section:
    plan, fleet, words = compared.plan, compared.plan.fleet, compared.words
    classes = shown_classes(fleet)
    sensitivities = sensitivity(plan, classes=classes, progress=step)
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
