"""``sojourn analyze``: the steady state of a fleet under a routing or another policy."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.markup import escape

from sojourn.cli import app
from sojourn.cli.options import FleetArgument, GroupOption, JsonOption, ServerRateOption, sort_help
from sojourn.cli.output import (
    ClassRow,
    class_rows,
    grouped_text,
    in_order,
    plain_table,
    print_table,
    printed,
    say_first,
    say_next,
    screen,
    show_classes,
    write_clients,
)
from sojourn.dispatch import Policy, as_policy
from sojourn.dispatch.analysis import analyze as analyze_network
from sojourn.errors import InvalidInput
from sojourn.fleet import Network
from sojourn.fleet.named import read_fleet, read_routing
from sojourn.planning.search import group_clients
from sojourn.theory.bounds import Bound, max_learning_rate, per_round_bound, per_time_bound
from sojourn.theory.constants import LearningConstants, read_constants
from sojourn.theory.energy import energy_per_round, has_powers
from sojourn.theory.floor import noise_floor
from sojourn.theory.jackson import Analysis

SORTED_BY = (
    "service_rate",
    "count",
    "share",
    "rate",
    "mean_tasks",
    "staleness",
    "staleness_time",
    "utilization",
    "weight",
)
LEARNING_RATE, ROUNDS = 0.01, 1000
"""Learning rate and rounds of the bounds where none are given."""
LEAST_EXCESS = 5e-4
"""Relative difference of noise rates below which one is not said to be larger."""


@app.command()
def analyze(
    fleet: FleetArgument,
    concurrency: Annotated[
        int | None, typer.Option(help="Tasks in flight, m.", show_default="as many as clients")
    ] = None,
    routing: Annotated[
        str | None,
        typer.Option(
            help="uniform, balanced, square-root, or a CSV with a column routing: the probability "
            "of each single client, one row per class.",
            show_default="uniform",
        ),
    ] = None,
    policy: Annotated[
        str,
        typer.Option(
            help="Who gets the next task: routed (a random client), never-queue (an idle one), or module:name."
        ),
    ] = "routed",
    constants: Annotated[
        str | None,
        typer.Option(
            help="Add the bounds G and H: L,sigma,M,A, or a TOML file from `sojourn calibrate`, "
            "or default."
        ),
    ] = None,
    learning_rate: Annotated[
        float | None,
        typer.Option(help="Learning rate, eta in the bounds.", show_default=str(LEARNING_RATE)),
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option(help="Number of rounds, T in the bounds.", show_default=str(ROUNDS)),
    ] = None,
    server_rate: ServerRateOption = None,
    group: GroupOption = None,
    sort: Annotated[str | None, typer.Option(help=sort_help(SORTED_BY), show_default=False)] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Write a line per class of the fleet's file here, as CSV."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Throughput, staleness, load and noise of every client; exact for exponential times.

    Example: sojourn analyze three-clusters --concurrency 30 --routing balanced
    """
    say_first(f"reading {fleet}")
    original, sends = read_fleet(fleet), as_policy(policy)
    grouping = None if group is None else group_clients(original, tolerance=group)
    clients = original if grouping is None else grouping.fleet
    if not sends.routes and (routing is not None or constants is not None):
        option = "--routing" if routing is not None else "--constants (the bounds G and H)"
        raise InvalidInput(
            f"{option} goes with the policy routed; this one is {sends.name}: leave it out"
        )
    for option, value in {"--learning-rate": learning_rate, "--rounds": rounds}.items():
        if value is not None and constants is None:
            raise InvalidInput(f"{option} goes with the bounds, --constants: give both or neither")
    routing = routing or "uniform"
    m = clients.size if concurrency is None else concurrency
    network = Network(clients, read_routing(routing, clients), m, server_rate=server_rate)
    analysis = analyze_network(network, sends)
    rows = _class_rows(analysis, sends)
    if out is not None:
        places = slice(None) if grouping is None else grouping.group
        found = [key for key in rows[0] if key not in ("name", "count", "service_rate")]
        columns = {key: np.array([row[key] for row in rows])[places] for key in found}
        write_clients(original, columns, out, one_by_one=False)
    rows = in_order(rows, sort, SORTED_BY)
    bounds = None
    if constants is not None:
        bounds = _Bounds.of(
            network,
            read_constants(constants),
            LEARNING_RATE if learning_rate is None else learning_rate,
            ROUNDS if rounds is None else rounds,
        )
    if as_json:
        result = {
            "fleet": fleet,
            "policy": sends.name,
            **({"routing": routing} if sends.routes else {}),
            **_steady_state(analysis, sends),
            "classes": rows,
            **({} if bounds is None else {"bounds": bounds.to_table()}),
        }
        typer.echo(json.dumps(result, indent=2))
        return
    console = screen()
    if group is not None:
        console.print(grouped_text(original, clients, group))
    how = f"{escape(routing)} routing" if sends.routes else sends.name
    console.print(
        f"[bold]{escape(fleet)}[/bold]: {network.size:,} clients, {sends.in_flight(network):,} tasks in "
        f"flight, {how}"
    )
    _show(analysis, sends, rows, console)
    if bounds is not None:
        _show_bounds(bounds, console)
    if out is not None:
        console.print(f"written: {escape(str(out))}")
    say_next("plan", fleet)


def _class_rows(analysis: Analysis, policy: Policy) -> list[ClassRow]:
    """Every class of the fleet in steady state."""
    network, fleet = analysis.network, analysis.network.fleet
    columns = {
        "service_rate": fleet.service_rates,
        "share": analysis.shares,
        "rate": analysis.rates,
        "mean_tasks": analysis.mean_tasks,
        "mean_tasks_full": analysis.mean_tasks_full,
        "relative_delay": analysis.relative_delay,
        "staleness": analysis.staleness,
        "staleness_time": analysis.staleness_time,
        "utilization": analysis.utilization,
        "weight": analysis.weights,
    }
    if analysis.mean_on_downlink is not None and analysis.mean_on_uplink is not None:
        columns |= {"on_downlink": analysis.mean_on_downlink, "on_uplink": analysis.mean_on_uplink}
    if fleet.is_intermittent:
        columns["availability"] = fleet.availability
    if policy.routes:
        columns["routing"] = network.routing
    return class_rows(fleet, columns)


def _steady_state(analysis: Analysis, policy: Policy) -> dict[str, object]:
    """The whole network in steady state, as JSON values."""
    network, fleet = analysis.network, analysis.network.fleet
    stations: dict[str, object] = {}
    if network.server_rate is not None:
        stations["server"] = {
            "rate": network.server_rate,
            "utilization": analysis.server_utilization,
            "mean_updates": analysis.mean_at_server,
        }
    if has_powers(fleet):
        energy = energy_per_round(network)
        stations["energy_per_round"] = {"value": energy.value, **energy.terms}
    return {
        "clients": network.size,
        "concurrency": network.concurrency,
        "in_flight": policy.in_flight(network),
        "throughput": analysis.throughput,
        "mean_staleness": policy.in_flight(network) - 1,
        "mean_staleness_time": analysis.mean_staleness_time,
        "weighted": fleet.weight is not None,
        "noise_rate": analysis.noise_rate,
        "noise_floor": noise_floor(fleet, network.concurrency),
        "exact": analysis.is_exact,
        **stations,
    }


@dataclass(frozen=True)
class _Bounds:
    """The bounds G and H of a network, and the learning rate up to which they are guarantees."""

    constants: LearningConstants
    learning_rate: float
    rounds: int
    largest: float
    per_round: Bound
    per_time: Bound

    @classmethod
    def of(
        cls, network: Network, constants: LearningConstants, learning_rate: float, rounds: int
    ) -> "_Bounds":
        return cls(
            constants,
            learning_rate,
            rounds,
            max_learning_rate(network, constants),
            per_round_bound(network, constants, learning_rate=learning_rate, rounds=rounds),
            per_time_bound(network, constants, learning_rate=learning_rate, rounds=rounds),
        )

    @property
    def kind(self) -> str:
        return "guarantee" if self.learning_rate <= self.largest else "proxy"

    def to_table(self) -> dict[str, object]:
        """The bounds as JSON values."""
        return {
            **asdict(self.constants),
            "learning_rate": self.learning_rate,
            "max_learning_rate": self.largest,
            "kind": self.kind,
            "rounds": self.rounds,
            "per_round": {"value": self.per_round.value, **self.per_round.terms},
            "per_time": {"value": self.per_time.value, **self.per_time.terms},
        }


def _show(analysis: Analysis, policy: Policy, rows: Sequence[ClassRow], console: Console) -> None:
    network = analysis.network
    columns = {
        "rate": "service_rate",
        "share each": "share",
        "mean tasks": "mean_tasks",
        "staleness": "staleness",
        "in time": "staleness_time",
        "weight": "weight",
    }
    optional = {"on downlink": "on_downlink", "on uplink": "on_uplink", "there": "availability"}
    columns |= {heading: column for heading, column in optional.items() if column in rows[0]}
    columns["utilisation"] = "utilization"
    in_full = "--out table.csv or --json for all, --sort for others"
    show_classes(
        rows,
        columns,
        console,
        in_full=in_full,
        percent=["utilization"],
        drop=("weight", "share each"),
    )
    console.print(
        f"{printed(analysis.throughput)} updates per time unit; mean staleness "
        f"{policy.in_flight(network) - 1:,} updates"
    )
    if not analysis.is_exact:
        console.print(
            f"An approximation, since {analysis.why_approximate}: `sojourn simulate` measures how near it is."
        )
    floor, least = (
        noise_floor(network.fleet, network.concurrency),
        "the least of any policy that lets tasks finish",
    )
    if analysis.noise_rate / floor - 1.0 > LEAST_EXCESS:
        least = f"{analysis.noise_rate / floor:.3g} times {least} ({printed(floor)})"
    console.print(
        f"noise rate {printed(analysis.noise_rate)}, {least}; a task takes "
        f"{printed(analysis.mean_staleness_time)} time units, mean over clients"
        + (", each by its weight" if network.fleet.weight is not None else "")
    )
    if network.server_rate is not None:
        console.print(
            f"the server, {printed(network.server_rate)} updates per time unit, is busy "
            f"{analysis.server_utilization:.1%}; {printed(analysis.mean_at_server)} updates wait "
            "there or are being made at the end of a round"
        )
    if has_powers(network.fleet):
        energy = energy_per_round(network)
        terms = ", ".join(
            f"{name} {printed(value)}" for name, value in energy.terms.items() if value
        )
        console.print(f"a round takes {printed(energy.value)} units of energy: {terms}")


def _show_bounds(bounds: _Bounds, console: Console) -> None:
    known = bounds.constants
    console.print(
        f"\nL = {known.smoothness:g}, sigma = {known.gradient_noise:g}, "
        f"M = {known.heterogeneity:g}, A = {known.initial_gap:g}, "
        f"learning rate {bounds.learning_rate:g}, {bounds.rounds} rounds\n"
        "(L: smoothness, sigma: gradient noise, M: heterogeneity of clients, A: initial gap)"
    )
    table = plain_table(["bound"], ["value", "= progress", "+ noise", "+ staleness", "is a"])
    for name, bound in (("G, per round", bounds.per_round), ("H, per time unit", bounds.per_time)):
        terms = (bound.terms[term] for term in ("progress", "noise", "staleness"))
        table.add_row(name, printed(bound.value), *map(printed, terms), bounds.kind)
    print_table(console, table)
    largest = printed(bounds.largest)
    if bounds.kind == "proxy":
        console.print(
            f"The learning rate is above {largest}, up to which the bounds are guarantees: "
            "here they rank choices, they do not promise values."
        )
    else:
        console.print(f"The learning rate is below {largest}: the bounds are guarantees.")
