"""``sojourn plan``: the best routing, concurrency and learning rate for a fleet, and why."""

import json
import math
import shlex
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sojourn._support.configuration import Table as Settings
from sojourn._support.extensions import is_extension
from sojourn._support.numbers import finite
from sojourn._support.progress import steps
from sojourn._support.provenance import provenance
from sojourn.cli import app
from sojourn.cli.options import FleetArgument, GroupOption, JsonOption, ServerRateOption, sort_help
from sojourn.cli.output import (
    CHOSEN,
    ClassRow,
    class_rows,
    grouped_text,
    in_order,
    plain_table,
    print_table,
    printed,
    say_first,
    say_next,
    say_verdict,
    screen,
    show_classes,
    write_clients,
)
from sojourn.dispatch import NeverQueue, Policy, Routed
from sojourn.errors import InvalidInput, UnknownName
from sojourn.fleet import ROUTINGS, Fleet
from sojourn.fleet.named import read_fleet, read_routing
from sojourn.planning import Plan, Prediction, plan as make_plan, time_and_energy
from sojourn.planning.advice import queueing_cost, warnings
from sojourn.planning.frontier import plan_frontier
from sojourn.planning.objectives import (
    OBJECTIVES,
    Energy,
    NoiseRate,
    Objective,
    PerRound,
    PerTime,
    Throughput,
    TimeAndEnergy,
    TimeBudget,
    TimeToAccuracy,
    form_of,
    objective_from_table,
)
from sojourn.planning.search import group_clients, optimize_buffer
from sojourn.theory.bounds import PAPER, Form, max_learning_rate
from sojourn.theory.constants import LearningConstants, read_constants
from sojourn.theory.floor import noise_floor
from sojourn.theory.jackson import analyze
from sojourn.types import FloatArray

DEFAULT_TARGET = 0.5
"""The mean squared gradient norm to reach, where nothing is said of it."""
MOST_LINES = 10**7
"""The largest fleet whose clients are written one by one."""
LEAST_GAIN = 5e-4
"""Relative difference of values below which two routings are called equally good."""
SORTED_BY = ("service_rate", "count", "routing", "share")
BEST = "best"
FIGURES = (".png", ".pdf", ".svg")
NEEDED = {"time": "how long you can train", "rounds": "how many updates you will make"}
"""Options without a default, of the objectives that take them."""
TAKES: dict[str, dict[str, float | bool | None]] = {
    "time-to-accuracy": {"squared-gradient-norm": DEFAULT_TARGET, "guaranteed": False},
    "energy": {"squared-gradient-norm": DEFAULT_TARGET, "server-power": 0.0},
    "time-and-energy": {"squared-gradient-norm": DEFAULT_TARGET, "server-power": 0.0, "rho": 0.5},
    "time-budget": {"time": None},
    "per-time": {"rounds": None},
    "per-round": {"rounds": None},
}
"""The options that go with the built-in objectives about the bounds, and what they are by default."""
KEYS = {"rho": "energy-share"}
"""Options that tables of objectives call otherwise."""


@app.command()
def plan(
    fleet: FleetArgument,
    objective: Annotated[
        str | None,
        typer.Option(
            help="noise-rate, throughput (needs --concurrency), or with --constants: "
            "time-to-accuracy (--squared-gradient-norm), time-budget (needs --time), per-time (H) or "
            "per-round (G) (need --rounds), energy or time-and-energy (--rho) for a fleet with "
            "powers; or yours as module:Class.",
            show_default="noise-rate; with constants time-to-accuracy",
        ),
    ] = None,
    squared_gradient_norm: Annotated[
        float | None,
        typer.Option(help="Target for the mean squared gradient norm.", show_default="0.5"),
    ] = None,
    guaranteed: Annotated[
        bool,
        typer.Option(
            "--guaranteed", help="time-to-accuracy with a learning rate for which the bound holds."
        ),
    ] = False,
    rho: Annotated[
        float | None,
        typer.Option(help="Weight of energy in time-and-energy, 0 to 1.", show_default="0.5"),
    ] = None,
    server_rate: ServerRateOption = None,
    server_power: Annotated[
        float | None, typer.Option(help="Power of the server, for energy and time-and-energy.")
    ] = None,
    time: Annotated[
        float | None, typer.Option(help="How long you can train, for time-budget.")
    ] = None,
    rounds: Annotated[
        float | None, typer.Option(help="Number of rounds T, for per-time and per-round.")
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option(help="Tasks in flight, m. Chosen if left out.")
    ] = None,
    learning_rate: Annotated[
        float | None, typer.Option(help="Learning rate, eta. Chosen if left out.")
    ] = None,
    routing: Annotated[
        str | None,
        typer.Option(help="uniform, balanced, square-root or a CSV. Chosen if left out."),
    ] = None,
    constants: Annotated[
        str | None,
        typer.Option(
            help="Constants of the bounds (smoothness, gradient noise, heterogeneity, initial gap): L,sigma,M,A, "
            "a TOML file from `sojourn calibrate`, or default."
        ),
    ] = None,
    bound: Annotated[
        str,
        typer.Option(
            help="Which bound: the paper's (paper), or one with a smaller staleness term (tight)."
        ),
    ] = "paper",
    buffer: Annotated[
        str,
        typer.Option(help="Updates of clients that the server averages into one step, or best."),
    ] = "1",
    group: GroupOption = None,
    sort: Annotated[str | None, typer.Option(help=sort_help(SORTED_BY), show_default=False)] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Write the plan here, as TOML; if it ends in .csv, as --clients does."),
    ] = None,
    clients: Annotated[
        Path | None,
        typer.Option(
            help="Write every client's probability here, as CSV, with the columns of your own that "
            "the fleet's file has."
        ),
    ] = None,
    figure: Annotated[
        Path | None, typer.Option(help="Draw the frontier of throughput and staleness here.")
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option(
            help="Write a page here: the verdict, timelines, map, frontier, what clients are worth."
        ),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            help="Policy to write into the file: never-queue, or routed for a server that may not know "
            "who is idle.",
            show_default="what theory recommends: never-queue wherever it is known to be better",
        ),
    ] = None,
    now: Annotated[
        str | None,
        typer.Option(
            help="What the page compares with: uniform, balanced, square-root or a CSV.",
            show_default="uniform",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Recommend who gets the next task, how many are in flight, and how fast to learn.

    The recommendation is never-queue where the server may know who is idle. The optimised routing is
    for servers that must route at random: --policy routed.

    Example: sojourn plan three-clusters --out plan.toml
    """
    say_first(f"reading {fleet}")
    console = screen()
    if now is not None and page is None:
        raise InvalidInput("--now says what the page compares with: give --page, too")
    chosen = None if policy is None else _policy(policy)
    known = None if constants is None else read_constants(constants)
    if objective is None:
        learns = known is not None or squared_gradient_norm is not None or guaranteed
        objective = "time-to-accuracy" if learns else "noise-rate"
    options = {
        "squared-gradient-norm": squared_gradient_norm,
        "guaranteed": guaranteed or None,
        "time": time,
        "rounds": rounds,
        "rho": rho,
        "server-power": server_power,
    }
    asked = {option: value for option, value in options.items() if value is not None}
    wanted = _with_form(_objective(objective, known, asked), bound, buffer)
    original = read_fleet(fleet)
    if out is not None and out.suffix == ".csv":
        if clients is not None:
            raise InvalidInput(f"{out} and {clients}: both are tables of clients, give one")
        out, clients = None, out
    _check_files(clients, figure, page, original)
    if sort is not None:
        in_order([], sort, SORTED_BY)
    grouping = None if group is None else group_clients(original, tolerance=group)
    planned = original if grouping is None else grouping.fleet
    best = _planned(
        planned,
        wanted,
        best_buffer=buffer == BEST,
        concurrency=concurrency,
        learning_rate=learning_rate,
        routing=None if routing is None else read_routing(routing, planned),
        server_rate=server_rate,
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
            server_rate=server_rate,
            interrupted=interrupted,
        ),
    )
    if chosen is None and routing is not None:
        chosen = Routed()  # who names a routing wants it used
    run = best.recommended_policy if chosen is None else chosen
    if out is not None:
        best.write(out, run)
    if clients is not None:
        by_class = best.client_routing
        by_client = by_class if grouping is None else grouping.to_original(by_class)
        write_clients(original, {"routing": by_client}, clients, one_by_one=True)
    if figure is not None:
        with steps("tracing the frontier") as step:
            curve = plan_frontier(best, step)
        curve.plot().save(figure)
    if page is not None:
        _write_page(best, run, page, now or "uniform", shlex.join(["sojourn", "explore", fleet]))
    if as_json:
        typer.echo(json.dumps(as_table(best, run, sort), indent=2))
        return
    if group is not None:
        console.print(grouped_text(original, planned, group))
    if interrupted:
        console.print("[yellow]Interrupted:[/yellow] this is the best plan until then.")
    show(best, run, console, sort)
    for path in filter(None, (out, clients, figure, page)):
        console.print(f"written: {escape(str(path))}")
    if out is not None and out.suffix == ".toml":
        note = "checks the theory; sojourn tune measures who trains best"
        say_next("simulate", out, note=note)
    else:
        say_next("explore", fleet, note="see it move; --out plan.toml saves this plan")


def _policy(name: str) -> Policy:
    """A policy that theory knows: the plan has figures for these two."""
    known = {policy.name: policy for policy in (NeverQueue(), Routed())}
    if name not in known:
        raise UnknownName("policy of a plan", name, known)
    return known[name]


def _planned(
    fleet: Fleet,
    objective: Objective,
    *,
    best_buffer: bool,
    concurrency: int | None,
    learning_rate: float | None,
    routing: FloatArray | None,
    server_rate: float | None,
) -> Plan:
    """The plan; first what the objective itself leaves open: the scales of time and energy, a buffer."""
    with steps("planning") as step:
        if isinstance(objective, TimeAndEnergy):
            objective = time_and_energy(
                fleet,
                objective.constants,
                squared_gradient_norm=objective.squared_gradient_norm,
                energy_share=objective.energy_share,
                server_power=objective.server_power,
                form=objective.form,
                concurrency=concurrency,
                server_rate=server_rate,
                progress=step,
            )
        if best_buffer:
            if learning_rate is not None:
                objective = objective.with_learning_rate(learning_rate)
            objective = optimize_buffer(
                fleet,
                objective,
                concurrency=concurrency,
                routing=routing,
                server_rate=server_rate,
                progress=step,
            ).objective
        return make_plan(
            fleet,
            objective,
            learning_rate=learning_rate,
            concurrency=concurrency,
            routing=routing,
            server_rate=server_rate,
            progress=step,
        )


def _check_files(
    clients: Path | None, figure: Path | None, page: Path | None, fleet: Fleet
) -> None:
    """``InvalidInput`` where a file cannot be written, before anything is computed."""
    if clients is not None and fleet.size > MOST_LINES:
        raise InvalidInput(
            f"--clients writes one line per client, for up to {MOST_LINES} clients; the fleet has "
            f"{fleet.size}. Leave it out: --out writes one line per class."
        )
    if figure is not None and figure.suffix not in FIGURES:
        raise InvalidInput(f"{figure}: a figure ends in {', '.join(FIGURES)}")
    if page is not None and page.suffix != ".html":
        raise InvalidInput(f"{page}: a page ends in .html")


def _with_form(objective: Objective, bound: str, buffer: str) -> Objective:
    """The objective with another form of its bound, if one is asked for."""
    if buffer != BEST and not buffer.isdecimal():
        raise InvalidInput(f"--buffer must be a whole number or {BEST}; it is '{buffer}'")
    form = Form(bound, 1 if buffer == BEST else int(buffer))
    if form == PAPER and buffer != BEST:
        return objective
    if not isinstance(objective, PerRound | PerTime | TimeToAccuracy | TimeBudget | Energy):
        raise InvalidInput(
            f"--bound and --buffer go with objectives about the bounds; this one is {objective.name}"
        )
    return replace(objective, form=form)


def _objective(
    name: str, constants: LearningConstants | None, given: dict[str, float | bool]
) -> Objective:
    """The objective of this name, with those of the options in `TAKES` that are given."""
    parameters = given if is_extension(name) else _checked(name, constants, given)
    table = Settings({"name": name, **parameters}, f"the objective {name}")
    return objective_from_table(table, constants)


def _checked(
    name: str, constants: LearningConstants | None, given: dict[str, float | bool]
) -> dict[str, float | bool | None]:
    """What a built-in objective takes, after checking that it is what was given."""
    if name not in OBJECTIVES:
        raise UnknownName("objective", name, OBJECTIVES)
    takes = TAKES.get(name, {})
    for option in (option for option in given if option not in takes):
        goes_with = " or ".join(other for other, options in TAKES.items() if option in options)
        raise InvalidInput(f"--{option} goes with the objective {goes_with}; this one is {name}")
    if takes and constants is None:
        raise InvalidInput(
            f"the objective {name} needs --constants: L,sigma,M,A, a file from `sojourn calibrate`, "
            "or default. Without constants plan for the objective noise-rate"
        )
    for option in (option for option in NEEDED if option in takes and option not in given):
        raise InvalidInput(f"the objective {name} needs --{option}: {NEEDED[option]}")
    return {KEYS.get(option, option): value for option, value in {**takes, **given}.items()}


def _write_page(plan: Plan, policy: Policy, path: Path, now: str, command: str) -> None:
    from sojourn.report.plan import plan_report

    routing = None if now == "uniform" else read_routing(now, plan.fleet)
    with steps("writing the page") as step:
        report = plan_report(plan, policy=policy, now=routing, command=command, step=step)
        report.write(path, stills=False)


def as_table(plan: Plan, policy: Policy, sort: str | None = None) -> dict[str, object]:
    """The plan as JSON values."""
    cost = queueing_cost(plan)
    return {
        "policy": policy.name,
        "objective": plan.objective.name,
        "value": plan.value,
        "concurrency": plan.concurrency,
        "learning_rate": plan.learning_rate,
        "guarantee": plan.is_guarantee,
        "rounds": plan.rounds,
        "comparison": finite({name: asdict(row) for name, row in plan.comparison().items()}),
        "noise_floor": noise_floor(plan.fleet, plan.concurrency),
        "queueing_cost": None if cost is None else {"noise": cost[0], "staleness": cost[1]},
        "warnings": warnings(plan),
        "classes": in_order(_classes(plan), sort, SORTED_BY),
    }


def _classes(plan: Plan) -> list[ClassRow]:
    fleet, p = plan.network.fleet, plan.network.routing
    columns = {"service_rate": fleet.service_rates, "routing": p, "share": fleet.counts * p}
    return class_rows(fleet, columns)


def show(plan: Plan, policy: Policy, console: Console, sort: str | None = None) -> None:
    """Print what to run, what it is compared with, and why."""
    from sojourn.report.plan import plan_verdict

    verdict = plan_verdict(plan, policy=policy)
    say_verdict(verdict, console)
    comparison = plan.comparison()
    if policy.routes:
        # What is run comes first.
        comparison = {"plan": comparison["plan"], **comparison}
    print_table(console, _comparison_table(comparison, "plan" if policy.routes else "never-queue"))
    cost = _cost(plan, comparison)
    if cost is not None:
        console.print(cost)
    if not policy.routes:
        console.print(
            "[bold]If you must route at random[/bold] (the server may not know who is idle): "
            "--policy routed, with this routing."
        )
    if comparison["plan"].per_round is not None:
        console.print(
            "G: the bound on the mean squared gradient norm after the plan's rounds; H: the same per "
            "time unit."
        )
    headings = {"rate": "service_rate", "probability each": "routing", "share of tasks": "share"}
    in_full = "--clients FILE.csv for all, --sort for others"
    rows = in_order(_classes(plan), sort, SORTED_BY)
    show_classes(rows, headings, console, in_full=in_full, percent=["share"])
    console.print(_why(plan, comparison))
    if not analyze(plan.network).is_exact:
        console.print(
            "The table is an approximation for intermittent clients or service times that are not "
            "exponential. The routing was optimised for exponential service times; under these laws a "
            "simpler routing can do better."
        )
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
    given = plan.provenance.get("inputs", {})
    ours_is = "the best routing" if best and "routing" not in given else "this plan"
    floor = noise_floor(plan.fleet, m)
    if never.noise_rate > floor * (1.0 + LEAST_GAIN):
        takes = (
            "With links the least of any that lets tasks finish, {}, takes second tasks on the way."
        )
        return (
            f"Never queueing, one task per client with its journeys, has a noise rate of "
            f"{printed(never.noise_rate)} at a staleness of {never.staleness_time:.3g}; {ours_is} has "
            f"{printed(ours.noise_rate)} ({cost[0]:.3g} times) at {ours.staleness_time:.3g} "
            f"({cost[1]:.2g} times). {takes.format(printed(floor))}"
        )
    return (
        f"Never queueing has the least noise of any policy that lets tasks finish, with {m} "
        f"task{'s' if m > 1 else ''} in flight ({printed(never.noise_rate)}, the floor) at a staleness "
        f"of {never.staleness_time:.3g}; {ours_is} has {printed(ours.noise_rate)} ({cost[0]:.3g} times) "
        f"at {ours.staleness_time:.3g} ({cost[1]:.2g} times)."
    )


def _comparison_table(comparison: dict[str, Prediction], chosen: str) -> Table:
    columns = {
        "updates per time unit": "throughput",
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
    table = plain_table(["policy or routing"], list(shown))
    for name, row in comparison.items():
        values = [getattr(row, field) for field in shown.values()]
        cells = ["" if value is None else printed(value) for value in values]
        table.add_row(
            {"plan": "best routing"}.get(name, name),
            *cells,
            style=CHOSEN if name == chosen else None,
        )
    return table


def _why(plan: Plan, comparison: dict[str, Prediction]) -> str:
    """Two sentences: what the plan gains over the best simple routing, and how."""
    faster = comparison["plan"].throughput / comparison["uniform"].throughput
    fleet, p = plan.network.fleet, plan.network.routing
    most, least = int(p.argmax()), int(p.argmin())
    shares = (
        f"Each client of class {escape(fleet.label(most))} gets {p[most] * fleet.size:.3g} times an "
        f"even share of the tasks, of class {escape(fleet.label(least))} "
        f"{p[least] * fleet.size:.3g} times: "
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
    # The numbers of the table, which knows laws and absences, where it shows them.
    field = plan.objective.name.replace("-", "_")
    field = field if field in ("noise_rate", "throughput") else "value"
    values = {
        routing: getattr(comparison[routing], field) or math.inf for routing in (*ROUTINGS, "plan")
    }
    rival = pick(ROUTINGS, key=lambda routing: values[routing])
    other, ours = values[rival], values["plan"]
    if math.isinf(other):
        return f"no simple routing reaches the {name} asked for, and this one does"
    change = ours / other - 1.0
    if abs(change) < LEAST_GAIN:
        text = f"the {name} is that of {rival} routing"
    else:
        direction = "higher" if change > 0 else "lower"
        text = f"the {name} is {abs(change):.1%} {direction} than under {rival} routing"
    return f"{text}, the best of the simple ones"
