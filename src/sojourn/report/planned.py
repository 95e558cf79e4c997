"""The verdict on a plan, and what it rests on: without a page, so that a terminal has the same words."""

import math
from collections.abc import Mapping

from sojourn._support.numbers import number
from sojourn.dispatch import NeverQueue, Policy
from sojourn.errors import Unreachable
from sojourn.fleet import Network, uniform_routing
from sojourn.planning import Plan
from sojourn.planning.objectives import Objective
from sojourn.planning.objectives.base import form_of
from sojourn.report.verdict import Verdict
from sojourn.theory.jackson import Analysis, analyze
from sojourn.theory.jackson.classes import NEVER, NOW, PLAN, UNIFORM
from sojourn.types import FloatArray

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


def plan_verdict(
    plan: Plan, *, policy: Policy | None = None, now: FloatArray | None = None, command: str = ""
) -> Verdict:
    """What a plan recommends and why, beside the routing ``now``, uniform unless given.

    ``policy`` is what will be run, by default what theory recommends.
    """
    before = before_plan(plan, now)
    sides = plan_sides(plan, before, now)
    run = plan.recommended_policy if policy is None else policy
    if NEVER not in sides and not run.routes:
        run = plan.recommended_policy
    return Verdict(
        title=_title(plan, run),
        because=_because(plan, before, sides, run),
        tested="",
        seeds=0,
        pick=PLAN if run.routes else NEVER,
        next_command=command,
    )


def before_plan(plan: Plan, now: FloatArray | None) -> Network:
    routing = uniform_routing(plan.fleet) if now is None else now
    return Network(plan.fleet, routing, plan.concurrency, server_rate=plan.network.server_rate)


def plan_sides(plan: Plan, before: Network, now: FloatArray | None) -> dict[str, Analysis]:
    """The ways to send tasks that are compared: the first is what is done now."""
    first = UNIFORM if now is None else NOW
    sides = {first: analyze(before), PLAN: analyze(plan.network)}
    never = NeverQueue().analysis(before)
    return sides if never is None else {**sides, NEVER: never}


def done_now(sides: Mapping[str, Analysis]) -> tuple[str, Analysis]:
    """What is done now: its name in a sentence, and its analysis."""
    name, analysis = next(iter(sides.items()))
    return "what is done now" if name == NOW else name, analysis


def objective_values(
    plan: Plan, before: Network, sides: Mapping[str, Analysis]
) -> tuple[float, float]:
    """The objective before and under the plan; before, ``nan`` where it is out of reach.

    A noise rate or a throughput is that of the analysis, which knows laws and absences: the page has one
    number for each network. A bound is what the plan was optimised for, with exponential times.
    """
    name = plan.objective.name.replace("-", "_")
    if name in ("noise_rate", "throughput"):
        return getattr(done_now(sides)[1], name), getattr(sides[PLAN], name)
    try:
        return plan.objective.evaluate(before).value, plan.value
    except Unreachable:
        return math.nan, plan.value


def _gain(plan: Plan, before: Network, sides: Mapping[str, Analysis]) -> float:
    """How many times better than ``before`` the plan is; infinite where that is out of reach."""
    theirs, ours = objective_values(plan, before, sides)
    if math.isnan(theirs):
        return math.inf
    return ours / theirs if plan.objective.maximize else theirs / ours


def _title(plan: Plan, policy: Policy) -> str:
    way = "Route as planned" if policy.routes else "Never queue"
    tasks = f"{plan.concurrency:,} task{'' if plan.concurrency == 1 else 's'} in flight"
    rate = "" if plan.learning_rate is None else f", learning rate {number(plan.learning_rate)}"
    return f"{way}, {tasks}{rate}"


def _because(plan: Plan, before: Network, sides: Mapping[str, Analysis], policy: Policy) -> str:
    how, now = done_now(sides)
    size = form_of(plan.objective).buffer
    collected = "" if size == 1 else f" The server collects {size} updates for each that it makes."
    head = f"{how[0].upper()}{how[1:]} "
    if not policy.routes:
        never = sides[NEVER]
        theirs, best = (
            number(side.noise_rate / never.noise_rate, 2) for side in (now, sides[PLAN])
        )
        return (
            f"It makes {number(never.throughput / now.throughput, 2)} times as many updates per time "
            f"unit as {how}, which has {theirs} times its noise rate; the best routing has {best} "
            f"times.{collected}"
        )
    words, gain = in_words(plan.objective), _gain(plan, before, sides)
    if math.isinf(gain):
        return f"{head}does not get there at all.{collected}"
    if plan.objective.maximize:
        return f"It has {number(gain, 2)} times the {words} of {how}.{collected}"
    if abs(gain - 1.0) < 0.01:
        return f"{head}has the same {words}.{collected}"
    return f"{head}has {number(gain, 2)} times its {words}.{collected}"


def in_words(objective: Objective) -> str:
    """What an objective is called in a sentence."""
    return _WORDS.get(objective.name, objective.name)
