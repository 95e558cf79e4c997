"""``sojourn plan``: the best routing, concurrency and learning rate for a fleet, and why."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from sojourn.boundforms import PAPER, Form
from sojourn.cli import app
from sojourn.cli.classtable import (
    GroupOption,
    grouped_text,
    in_order,
    sort_option,
    write_clients,
)
from sojourn.cli.inputs import FleetArgument, ServerRateOption, say_next, screen
from sojourn.cli.plantext import SORTED_BY, as_table, show
from sojourn.config import Table as Settings
from sojourn.constants import LearningConstants
from sojourn.errors import InvalidInput, MissingExtra, UnknownName
from sojourn.extensions import is_extension
from sojourn.inputs import read_constants, read_fleet, read_routing
from sojourn.network import Fleet
from sojourn.optimize import (
    OBJECTIVES,
    Energy,
    Grouping,
    Objective,
    PerRound,
    PerTime,
    TimeAndEnergy,
    TimeBudget,
    TimeToAccuracy,
    group_clients,
    objective_from_table,
    optimize_buffer,
)
from sojourn.planning import Plan, frontier, plan as make_plan, time_and_energy
from sojourn.progress import steps
from sojourn.provenance import provenance
from sojourn.types import FloatArray

DEFAULT_TARGET = 0.5
"""The mean squared gradient norm to reach, where nothing is said of it."""
MOST_TRACED = 200
"""Classes beyond which the frontier is drawn for a grouped fleet."""
MOST_LINES = 10**7
"""The largest fleet whose clients are written one by one."""
BEST = "best"
FIGURES = (".png", ".pdf", ".svg")
NEEDED = {"time": "how long you can train", "rounds": "how many updates you will make"}
"""Options without a default, of the objectives that take them."""
TAKES: dict[str, dict[str, Any]] = {
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
        float | None, typer.Option(help="What the server draws, for energy.")
    ] = None,
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
        typer.Option(help="L,sigma,M,A, a TOML file from `sojourn calibrate`, or default."),
    ] = None,
    bound: Annotated[
        str,
        typer.Option(
            help="The paper's bound (paper), or the one with a smaller staleness (tight)."
        ),
    ] = "paper",
    buffer: Annotated[
        str,
        typer.Option(help="Updates that the server collects for each that it makes, or best."),
    ] = "1",
    group: GroupOption = None,
    sort: Annotated[str | None, sort_option(SORTED_BY)] = None,
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
            help="Write a page here: now against plan, map, frontier, what clients are worth."
        ),
    ] = None,
    now: Annotated[
        str,
        typer.Option(help="What the page compares with: uniform, balanced, square-root or a CSV."),
    ] = "uniform",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Choose who gets which share of the tasks, how many are in flight, and how fast to learn.

    Example: sojourn plan three-clusters --out plan.toml
    """
    console = screen()
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
    files = _Files.asked(out, clients, figure, page, original)
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
    files.write(best, original, grouping, now)
    if as_json:
        typer.echo(json.dumps(as_table(best, sort), indent=2))
        return
    if group is not None:
        console.print(grouped_text(original, planned, group))
    if interrupted:
        console.print("[yellow]Interrupted:[/yellow] this is the best plan until then.")
    show(best, console, sort)
    for path in files.written:
        console.print(f"written: {escape(str(path))}")
    if files.plan is not None and files.plan.suffix == ".toml":
        note = "checks the theory; sojourn tune measures who trains best"
        say_next("simulate", files.plan, note=note)
    else:
        say_next("explore", fleet, note="see it move; --out plan.toml keeps this plan")


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
    given: dict[str, Any] = {"concurrency": concurrency, "server_rate": server_rate}
    with steps("planning") as step:
        if isinstance(objective, TimeAndEnergy):
            objective = time_and_energy(
                fleet,
                objective.constants,
                squared_gradient_norm=objective.squared_gradient_norm,
                energy_share=objective.energy_share,
                server_power=objective.server_power,
                form=objective.form,
                progress=step,
                **given,
            )
        given |= {"routing": routing, "progress": step}
        if best_buffer:
            rated = (
                objective if learning_rate is None else objective.with_learning_rate(learning_rate)
            )
            objective = optimize_buffer(fleet, rated, **given).objective
        return make_plan(fleet, objective, learning_rate=learning_rate, **given)


@dataclass(frozen=True)
class _Files:
    """What is written: the plan, every client's probability, the frontier's figure, a page."""

    plan: Path | None
    clients: Path | None
    figure: Path | None
    page: Path | None

    @classmethod
    def asked(
        cls,
        out: Path | None,
        clients: Path | None,
        figure: Path | None,
        page: Path | None,
        fleet: Fleet,
    ) -> "_Files":
        """Those that can be written, or ``InvalidInput`` before anything is computed."""
        if out is not None and out.suffix == ".csv":
            if clients is not None:
                raise InvalidInput(f"{out} and {clients}: both are tables of clients, give one")
            out, clients = None, out
        if clients is not None and fleet.size > MOST_LINES:
            raise InvalidInput(
                f"--clients writes one line per client, for up to {MOST_LINES} clients; the fleet has "
                f"{fleet.size}. Leave it out: --out writes one line per class."
            )
        if figure is not None and figure.suffix not in FIGURES:
            raise InvalidInput(f"{figure}: a figure ends in {', '.join(FIGURES)}")
        if page is not None and page.suffix != ".html":
            raise InvalidInput(f"{page}: a page ends in .html")
        return cls(out, clients, figure, page)

    @property
    def written(self) -> list[Path]:
        """All of them that were asked for."""
        return [path for path in (self.plan, self.clients, self.figure, self.page) if path]

    def write(self, plan: Plan, fleet: Fleet, grouping: Grouping | None, now: str) -> None:
        """Write them; ``fleet`` is the one that was asked about, before clients were grouped."""
        if self.plan is not None:
            plan.write(self.plan)
        if self.clients is not None:
            routing = plan.client_routing
            by_client = routing if grouping is None else grouping.to_original(routing)
            write_clients(fleet, {"routing": by_client}, self.clients, one_by_one=True)
        if self.figure is not None:
            _draw_frontier(plan, self.figure)
        if self.page is not None:
            _write_page(plan, self.page, now)


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
    table: dict[str, Any] = dict(given)
    if not is_extension(name):
        table = _checked(name, constants, given)
    return objective_from_table(
        Settings({"name": name, **table}, f"the objective {name}"), constants
    )


def _checked(
    name: str, constants: LearningConstants | None, given: dict[str, float | bool]
) -> dict[str, Any]:
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


def _draw_frontier(plan: Plan, path: Path) -> None:
    fleet = plan.fleet
    if fleet.classes > MOST_TRACED:
        fleet = group_clients(fleet, tolerance=0.05).fleet
    with steps("tracing the frontier") as step:
        curve = frontier(
            fleet,
            plan.concurrency,
            penalty="staleness" if plan.concurrency > 1 else "routing",
            server_rate=plan.network.server_rate,
            plan=plan,
            progress=step,
        )
    curve.plot().save(path)


def _write_page(plan: Plan, path: Path, now: str) -> None:
    try:
        from sojourn.planpage import plan_report
    except ImportError as error:
        raise MissingExtra(error.name or "plotly", extra="report") from error
    routing = None if now == "uniform" else read_routing(now, plan.fleet)
    with steps("writing the page") as step:
        plan_report(plan, now=routing, step=step).write(path, stills=False)
