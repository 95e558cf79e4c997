"""What ``sojourn plan`` prints."""

import math
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sojourn.bounds import max_learning_rate
from sojourn.cli.classtable import in_order, show_classes
from sojourn.cli.inputs import CHOSEN, print_table, printed
from sojourn.floor import noise_floor
from sojourn.jackson import analyze
from sojourn.network import ROUTINGS
from sojourn.optimize import NoiseRate, Throughput
from sojourn.optimize.objectives import form_of
from sojourn.planning import Plan, Prediction
from sojourn.planning.advice import queueing_cost, warnings

LEAST_GAIN = 5e-4
"""Relative difference of values below which two routings are called equally good."""


SORTED_BY = ("service_rate", "count", "routing", "share")


def as_table(plan: Plan, sort: str | None = None) -> dict[str, Any]:
    """The plan as JSON values."""
    cost = queueing_cost(plan)
    return {
        "objective": plan.objective.name,
        "value": plan.value,
        "concurrency": plan.concurrency,
        "learning_rate": plan.learning_rate,
        "guarantee": plan.is_guarantee,
        "rounds": plan.rounds,
        "comparison": {
            name: {key: _or_null(value) for key, value in asdict(row).items()}
            for name, row in plan.comparison().items()
        },
        "noise_floor": noise_floor(plan.fleet, plan.concurrency),
        "queueing_cost": None if cost is None else {"noise": cost[0], "staleness": cost[1]},
        "warnings": warnings(plan),
        "classes": in_order(_classes(plan), sort, SORTED_BY),
    }


def _classes(plan: Plan) -> list[dict[str, Any]]:
    fleet, p = plan.network.fleet, plan.network.routing
    return [
        {
            "name": fleet.label(k),
            "count": int(fleet.counts[k]),
            "service_rate": float(fleet.service_rates[k]),
            "routing": float(p[k]),
            "share": float(fleet.counts[k] * p[k]),
        }
        for k in range(fleet.classes)
    ]


def _or_null(value: float | None) -> float | None:
    """JSON has no infinity, which stands for out of reach, and nothing for what is unknown."""
    return None if value is None or not math.isfinite(value) else value


def show(plan: Plan, console: Console, sort: str | None = None) -> None:
    """Print the plan, what it is compared with, and why."""
    rate = "" if plan.learning_rate is None else f", learning rate {printed(plan.learning_rate)}"
    size = form_of(plan.objective).buffer
    collected = "" if size == 1 else f", {size} updates collected for each that is made"
    console.print(
        f"[bold]{plan.fleet.size} clients, {plan.concurrency} tasks in flight{collected}{rate}[/bold]"
    )
    comparison = plan.comparison()
    print_table(console, _comparison_table(comparison))
    if comparison["plan"].per_round is not None:
        console.print(
            "G: the bound on the mean squared gradient norm after the plan's rounds; H: the same per "
            "unit of time."
        )
    headings = {"rate": "service_rate", "probability each": "routing", "share of tasks": "share"}
    in_full = "--clients FILE.csv for all, --sort for others"
    rows = in_order(_classes(plan), sort, SORTED_BY)
    show_classes(rows, headings, console, in_full=in_full, percent=["share"])
    console.print(_why(plan, comparison))
    if not analyze(plan.network).is_exact:
        console.print(
            "The table is an approximation for clients that come and go or times that are not "
            "exponential; the routing was sought by the theory of exponential times at the speed that "
            "is left, and may be beaten by a simple one in it."
        )
    cost = _cost(plan, comparison)
    if cost is not None:
        console.print(cost)
    constants = plan.objective.constants
    if constants is not None and plan.is_guarantee is False:
        largest = printed(max_learning_rate(plan.network, constants, form_of(plan.objective)))
        console.print(
            f"[yellow]A proxy, not a guarantee:[/yellow] the bound is proven for learning rates up "
            f"to {largest}. Compare plans with it; measure before you trust its values."
        )
    for warning in warnings(plan):
        console.print(f"[yellow]Far from what trains:[/yellow] {warning}")


def _cost(plan: Plan, comparison: dict[str, Prediction]) -> str | None:
    """What queueing costs: the plan against the policy that never does."""
    never, ours, cost = comparison.get("never-queue"), comparison["plan"], queueing_cost(plan)
    if never is None or cost is None:
        return None
    m, best = plan.concurrency, isinstance(plan.objective, NoiseRate)
    ours_is = "the best routing" if best and "routing" not in _given(plan) else "this plan"
    floor = noise_floor(plan.fleet, m)
    if never.noise_rate > floor * (1.0 + LEAST_GAIN):
        takes = "With links the least of any policy, {}, takes second tasks on the way."
        if plan.fleet.comes_and_goes:
            takes = "The least of any policy, {}, would take to know who is there."
        return (
            f"Never queueing, one task per client with its journeys, has a noise rate of "
            f"{printed(never.noise_rate)} at a staleness of {never.staleness_time:.3g}; {ours_is} has "
            f"{printed(ours.noise_rate)} ({cost[0]:.3g} times) at {ours.staleness_time:.3g} "
            f"({cost[1]:.2g} times). {takes.format(printed(floor))}"
        )
    return (
        f"Never queueing has the least noise any policy can have with {m} "
        f"task{'s' if m > 1 else ''} in flight ({printed(never.noise_rate)}, the floor) at a staleness "
        f"of {never.staleness_time:.3g}; {ours_is} has {printed(ours.noise_rate)} ({cost[0]:.3g} times) "
        f"at {ours.staleness_time:.3g} ({cost[1]:.2g} times)."
    )


def _given(plan: Plan) -> dict[str, Any]:
    inputs: dict[str, Any] = plan.provenance.get("inputs", {})
    return inputs


def _comparison_table(comparison: dict[str, Prediction]) -> Table:
    columns = {
        "throughput": "throughput",
        "mean staleness": "mean_staleness",
        "worst staleness": "worst_staleness",
        "noise rate": "noise_rate",
        "staleness in time": "staleness_time",
        "learning rate": "learning_rate",
        "G": "per_round",
        "H": "per_time",
        "time to accuracy": "time_to_accuracy",
        "energy per round": "energy_per_round",
    }
    shown = {
        heading: field
        for heading, field in columns.items()
        if getattr(comparison["plan"], field) is not None
    }
    table = Table(
        "routing", *shown, box=None, header_style="bold", padding=(0, 1, 0, 0), pad_edge=False
    )
    for column in table.columns[1:]:
        column.justify = "right"
    for name, row in comparison.items():
        values = [getattr(row, field) for field in shown.values()]
        cells = ["" if value is None else printed(value) for value in values]
        table.add_row(
            name.replace("never-queue", "never queue"),
            *cells,
            style=CHOSEN if name == "plan" else None,
        )
    return table


def _why(plan: Plan, comparison: dict[str, Prediction]) -> str:
    """Two sentences: what the plan gains over the best simple routing, and how."""
    faster = comparison["plan"].throughput / comparison["uniform"].throughput
    fleet, p = plan.network.fleet, plan.network.routing
    most, least = int(p.argmax()), int(p.argmin())
    shares = (
        f"A client of {escape(fleet.label(most))} gets {p[most] * fleet.size:.3g} times an even "
        f"share of the tasks and one of {escape(fleet.label(least))} {p[least] * fleet.size:.3g} times: "
    )
    reason = (
        "whoever is slow is left out, since staleness and the weight of rare updates do not count."
        if isinstance(plan.objective, Throughput)
        else "more would queue up there and go stale, less would make its rare updates too heavy."
    )
    return (
        f"Why: {_gain(plan, comparison)}, at {faster:.3g} times the throughput of uniform routing. "
        f"{shares}{reason}"
    )


def _gain(plan: Plan, comparison: dict[str, Prediction]) -> str:
    maximize, name = plan.objective.maximize, plan.objective.name.replace("-", " ")
    pick = max if maximize else min
    values = {routing: comparison[routing].value or math.inf for routing in ROUTINGS}
    rival = pick(ROUTINGS, key=lambda routing: values[routing])
    other, ours = values[rival], plan.value
    if math.isinf(other):
        return f"no simple routing reaches the {name} asked for, and this one does"
    change = ours / other - 1.0
    if abs(change) < LEAST_GAIN:
        text = f"the {name} is that of {rival} routing"
    else:
        direction = "higher" if change > 0 else "lower"
        text = f"the {name} is {abs(change):.1%} {direction} than under {rival} routing"
    return f"{text}, the best of the simple ones"
