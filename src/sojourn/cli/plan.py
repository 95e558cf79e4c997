"""``sojourn plan``: the best routing, concurrency and learning rate for a fleet, and why."""

import csv
import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sojourn.bounds import max_learning_rate
from sojourn.cli import app
from sojourn.cli.inputs import FleetArgument, printed
from sojourn.config import Table as Settings
from sojourn.constants import LearningConstants
from sojourn.errors import InvalidInput, MissingExtra, UnknownName
from sojourn.extensions import is_extension
from sojourn.files import replacing
from sojourn.inputs import DEFAULT_CONSTANTS, read_constants, read_fleet, read_routing
from sojourn.network import ROUTINGS, Fleet
from sojourn.optimize import (
    OBJECTIVES,
    Objective,
    PerRound,
    PerTime,
    Throughput,
    TimeBudget,
    TimeToAccuracy,
    group_clients,
    objective_from_table,
)
from sojourn.planning import Plan, Prediction, frontier, plan as make_plan
from sojourn.progress import steps
from sojourn.provenance import provenance
from sojourn.types import FloatArray

DEFAULT_GRADIENT_NORM = 0.5
LEAST_GAIN = 5e-4
"""Relative difference of values below which two routings are called equally good."""
MOST_TRACED = 200
"""Classes beyond which the frontier is drawn for a grouped fleet."""
MOST_ROWS = 40
MOST_LINES = 10**7
"""The largest fleet whose clients are written one by one."""
FIGURES = (".png", ".pdf", ".svg")


@app.command()
def plan(
    fleet: FleetArgument,
    objective: Annotated[
        str,
        typer.Option(
            help="time-to-accuracy (--gradient-norm), time-budget (needs --time), per-time (H) or "
            "per-round (G) (need --rounds), throughput (needs --concurrency), or yours as "
            "module:Class."
        ),
    ] = "time-to-accuracy",
    gradient_norm: Annotated[
        float | None,
        typer.Option(help="Target for the mean squared gradient norm.", show_default="0.5"),
    ] = None,
    guaranteed: Annotated[
        bool,
        typer.Option(
            "--guaranteed", help="time-to-accuracy with a learning rate for which the bound holds."
        ),
    ] = False,
    time: Annotated[float | None, typer.Option(help="Units of time for time-budget.")] = None,
    rounds: Annotated[float | None, typer.Option(help="T for per-time and per-round.")] = None,
    concurrency: Annotated[
        int | None, typer.Option(help="Tasks in flight, m. Chosen if left out.")
    ] = None,
    learning_rate: Annotated[float | None, typer.Option(help="eta. Chosen if left out.")] = None,
    routing: Annotated[
        str | None,
        typer.Option(help="uniform, balanced, square-root or a CSV. Chosen if left out."),
    ] = None,
    constants: Annotated[
        str | None,
        typer.Option(help="L,sigma,M,A, or a TOML file from `sojourn calibrate`."),
    ] = None,
    group: Annotated[
        float | None,
        typer.Option(help="Treat clients whose speeds differ by less than this as one class."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write the plan here, as TOML.")] = None,
    clients: Annotated[
        Path | None, typer.Option(help="Write every client's probability here, as CSV.")
    ] = None,
    figure: Annotated[
        Path | None, typer.Option(help="Draw the frontier of throughput and staleness here.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Choose who gets which share of the tasks, how many are in flight, and how fast to learn.

    Example: sojourn plan three-clusters --objective time-to-accuracy --gradient-norm 0.5 --out plan.toml
    """
    console = Console()
    known = DEFAULT_CONSTANTS if constants is None else read_constants(constants)
    wanted = _objective(objective, known, gradient_norm, guaranteed, time, rounds)
    original = read_fleet(fleet)
    if clients is not None and original.size > MOST_LINES:
        raise InvalidInput(
            f"--clients writes one line per client, for up to {MOST_LINES} clients; the fleet has "
            f"{original.size}. Leave it out: --out writes one line per class."
        )
    if figure is not None and figure.suffix not in FIGURES:
        raise InvalidInput(f"{figure}: a figure ends in {', '.join(FIGURES)}")
    grouping = None if group is None else group_clients(original, tolerance=group)
    planned = original if grouping is None else grouping.fleet
    with steps("planning") as step:
        best = make_plan(
            planned,
            wanted,
            concurrency=concurrency,
            learning_rate=learning_rate,
            routing=None if routing is None else read_routing(routing, planned),
            progress=step,
        )
    interrupted = best.provenance["inputs"].get("interrupted")
    best = replace(
        best,
        provenance=provenance(
            fleet=Path(fleet).name,
            concurrency=concurrency,
            learning_rate=learning_rate,
            routing=None if routing is None else Path(routing).name,
            group=group,
            interrupted=interrupted,
        ),
    )
    if as_json:
        typer.echo(json.dumps(_as_json(best), indent=2))
    else:
        if constants is None and not isinstance(wanted, Throughput):
            console.print(_default_constants_said())
        if group is not None:
            console.print(
                f"{original.classes} speeds taken as {planned.classes} classes: every client is "
                f"within {group:.2g} of its class."
            )
        if interrupted:
            console.print("[yellow]Interrupted:[/yellow] this is the best plan until then.")
        _show(best, console)
    if out is not None:
        best.write(out)
    if clients is not None:
        by_client = best.client_routing
        if grouping is not None:
            by_client = grouping.to_original(by_client)
        _write_clients(original, by_client, clients)
    if figure is not None:
        _draw_frontier(best, figure)
    for path in (out, clients, figure):
        if path is not None and not as_json:
            console.print(f"written: {escape(str(path))}")


def _objective(
    name: str,
    constants: LearningConstants,
    gradient_norm: float | None,
    guaranteed: bool,
    time: float | None,
    rounds: float | None,
) -> Objective:
    if is_extension(name):
        options = {
            "gradient-norm": gradient_norm,
            "guaranteed": guaranteed or None,
            "time": time,
            "rounds": rounds,
        }
        table = {key: value for key, value in options.items() if value is not None}
        return objective_from_table(
            Settings({"name": name, **table}, f"the objective {name}"), constants
        )
    if name not in OBJECTIVES:
        raise UnknownName("objective", name, OBJECTIVES)
    for option, given, goes_with in (
        ("--gradient-norm", gradient_norm is not None, ("time-to-accuracy",)),
        ("--guaranteed", guaranteed, ("time-to-accuracy",)),
        ("--time", time is not None, ("time-budget",)),
        ("--rounds", rounds is not None, ("per-time", "per-round")),
    ):
        if given and name not in goes_with:
            raise InvalidInput(
                f"{option} goes with the objective {' or '.join(goes_with)}; this one is {name}"
            )
    if name == "time-to-accuracy":
        return TimeToAccuracy(
            constants, DEFAULT_GRADIENT_NORM if gradient_norm is None else gradient_norm, guaranteed
        )
    if name == "throughput":
        return Throughput()
    if name == "time-budget":
        if time is None:
            raise InvalidInput("the objective time-budget needs --time: how long you can train")
        return TimeBudget(constants, time)
    if rounds is None:
        raise InvalidInput(f"the objective {name} needs --rounds: how many updates you will make")
    return (PerTime if name == "per-time" else PerRound)(constants, None, rounds)


def _as_json(plan: Plan) -> dict[str, Any]:
    fleet = plan.network.fleet
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
        "classes": [
            {
                "name": fleet.label(k),
                "count": int(fleet.counts[k]),
                "service_rate": float(fleet.service_rates[k]),
                "routing": float(plan.network.routing[k]),
            }
            for k in range(fleet.classes)
        ],
    }


def _or_null(value: float | None) -> float | None:
    """JSON has no infinity, which stands for out of reach."""
    return None if value is None or math.isinf(value) else value


def _show(plan: Plan, console: Console) -> None:
    rate = "" if plan.learning_rate is None else f", learning rate {printed(plan.learning_rate)}"
    console.print(
        f"[bold]{plan.fleet.size} clients, {plan.concurrency} tasks in flight{rate}[/bold]"
    )
    comparison = plan.comparison()
    console.print(_comparison_table(comparison))
    console.print(_routing_table(plan))
    console.print(_why(plan, comparison))
    constants = plan.objective.constants
    if constants is not None and plan.is_guarantee is False:
        largest = printed(max_learning_rate(plan.network, constants))
        console.print(
            f"[yellow]A proxy, not a guarantee:[/yellow] the bound is proven for learning rates up "
            f"to {largest}. Compare plans with it; measure before you trust its values."
        )


def _comparison_table(comparison: dict[str, Prediction]) -> Table:
    columns = {
        "throughput": "throughput",
        "mean staleness": "mean_staleness",
        "worst staleness": "worst_staleness",
        "eta": "learning_rate",
        "G": "per_round",
        "H": "per_time",
        "time to accuracy": "time_to_accuracy",
    }
    shown = {
        heading: field
        for heading, field in columns.items()
        if getattr(comparison["plan"], field) is not None
    }
    table = Table(
        "routing", *shown, box=None, header_style="bold", padding=(0, 1, 0, 0), pad_edge=False
    )
    table.columns[0].no_wrap = True
    for column in table.columns[1:]:
        column.justify = "right"
    for name, row in comparison.items():
        values = [printed(getattr(row, field)) for field in shown.values()]
        table.add_row(name, *values, style="bold" if name == "plan" else None)
    return table


def _routing_table(plan: Plan) -> Table:
    fleet, p = plan.network.fleet, plan.network.routing
    table = Table("class", "clients", "rate", "probability each", "share of tasks", box=None)
    for column in table.columns[1:]:
        column.justify = "right"
    for k in range(min(fleet.classes, MOST_ROWS)):
        table.add_row(
            escape(fleet.label(k)),
            str(fleet.counts[k]),
            printed(fleet.service_rates[k]),
            printed(p[k]),
            f"{fleet.counts[k] * p[k]:.1%}",
        )
    if fleet.classes > MOST_ROWS:
        table.add_row(f"... and {fleet.classes - MOST_ROWS} more (--out writes them all)")
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
    maximize, name = plan.objective.maximize, plan.objective.name
    pick = max if maximize else min
    rival = pick(ROUTINGS, key=lambda routing: comparison[routing].value)
    other, ours = comparison[rival].value, comparison["plan"].value
    if math.isinf(other):
        return f"no simple routing reaches the {name} asked for, and this one does"
    change = ours / other - 1.0
    if abs(change) < LEAST_GAIN:
        text = f"the {name} is that of {rival} routing"
    else:
        direction = "higher" if change > 0 else "lower"
        text = f"the {name} is {abs(change):.1%} {direction} than under {rival} routing"
    return f"{text}, the best of the simple ones"


def _default_constants_said() -> str:
    c = DEFAULT_CONSTANTS
    return (
        f"No --constants given: L = {c.smoothness:g}, sigma = {c.gradient_noise:g}, "
        f"M = {c.heterogeneity:g}, A = {c.initial_gap:g} are assumed (a ten-class classifier at its "
        "start). `sojourn calibrate` measures yours."
    )


def _write_clients(fleet: Fleet, routing: FloatArray, path: Path) -> None:
    """One line per client: its name, rate and probability."""
    names = [
        fleet.label(k) if fleet.counts[k] == 1 else f"{fleet.label(k)} {member}"
        for k in range(fleet.classes)
        for member in range(1, int(fleet.counts[k]) + 1)
    ]
    rates = fleet.expand(fleet.service_rates)
    with replacing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["name", "service_rate", "routing"])
        writer.writerows(zip(names, rates.tolist(), routing.tolist(), strict=True))


def _draw_frontier(plan: Plan, path: Path) -> None:
    try:
        from sojourn.report.frontier import save_frontier
    except ImportError as error:
        raise MissingExtra("matplotlib", extra="report") from error
    fleet = plan.fleet
    if fleet.classes > MOST_TRACED:
        fleet = group_clients(fleet, tolerance=0.05).fleet
    with steps("tracing the frontier") as step:
        curve = frontier(
            fleet,
            plan.concurrency,
            penalty="staleness" if plan.concurrency > 1 else "routing",
            plan=plan,
            progress=step,
        )
    save_frontier(curve, path)
