"""``sojourn analyze``: the steady state of a fleet under a routing or another policy."""

import json
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sojourn.analysis import analyze as analyze_network
from sojourn.bounds import max_learning_rate, per_round_bound, per_time_bound
from sojourn.cli import app
from sojourn.cli.classtable import (
    GroupOption,
    grouped_text,
    in_order,
    show_classes,
    sort_option,
    write_clients,
)
from sojourn.cli.inputs import (
    FleetArgument,
    ServerRateOption,
    print_table,
    printed,
    say_next,
    screen,
)
from sojourn.constants import LearningConstants
from sojourn.dispatch import Policy, as_policy
from sojourn.energy import POWERS, energy_per_round
from sojourn.errors import InvalidInput
from sojourn.floor import noise_floor
from sojourn.inputs import read_constants, read_fleet, read_routing
from sojourn.network import Network
from sojourn.optimize import group_clients

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
LEAST_EXCESS = 5e-4
"""Relative difference of noise rates below which one is not said to be larger."""


@app.command()
def analyze(
    fleet: FleetArgument,
    concurrency: Annotated[int, typer.Option(help="Tasks in flight, m.")],
    routing: Annotated[
        str | None,
        typer.Option(
            help="uniform, balanced, square-root, or a CSV with a column routing: the probability "
            "of each single client, one row per class.",
            show_default="uniform",
        ),
    ] = None,
    policy: Annotated[
        str, typer.Option(help="Who gets the next task: routed, never-queue, or yours.")
    ] = "routed",
    constants: Annotated[
        str | None,
        typer.Option(
            help="Add the bounds G and H: L,sigma,M,A, or a TOML file from `sojourn calibrate`, "
            "or default."
        ),
    ] = None,
    learning_rate: Annotated[float, typer.Option(help="eta in the bounds.")] = 0.01,
    rounds: Annotated[int, typer.Option(help="T in the bounds.")] = 1000,
    server_rate: ServerRateOption = None,
    group: GroupOption = None,
    sort: Annotated[str | None, sort_option(SORTED_BY)] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Write a line per class of the fleet's file here, as CSV."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Throughput, staleness, load and noise of every client; exact for exponential times.

    Example: sojourn analyze three-clusters --concurrency 30 --routing balanced
    """
    original, sends = read_fleet(fleet), as_policy(policy)
    grouping = None if group is None else group_clients(original, tolerance=group)
    clients = original if grouping is None else grouping.fleet
    if not sends.routes and (routing is not None or constants is not None):
        option = "--routing" if routing is not None else "--constants (the bounds G and H)"
        raise InvalidInput(
            f"{option} goes with the policy routed; this one is {sends.name}: leave it out"
        )
    routing = routing or "uniform"
    network = Network(clients, read_routing(routing, clients), concurrency, server_rate=server_rate)
    result: dict[str, Any] = {"fleet": fleet, "policy": sends.name}
    if sends.routes:
        result["routing"] = routing
    found = _steady_state(network, sends)
    if out is not None:
        rows = {key: [row[key] for row in found["classes"]] for key in found["classes"][0]}
        places = slice(None) if grouping is None else grouping.group
        given = ("name", "count", "service_rate")
        columns = {key: np.array(rows[key])[places] for key in rows if key not in given}
        write_clients(original, columns, out, one_by_one=False)
    found["classes"] = in_order(found["classes"], sort, SORTED_BY)
    result |= found
    if constants is not None:
        result["bounds"] = _bounds(network, read_constants(constants), learning_rate, rounds)
    if as_json:
        typer.echo(json.dumps(result, indent=2))
    else:
        console = screen()
        if group is not None:
            console.print(grouped_text(original, clients, group))
        _show(result, console)
        if out is not None:
            console.print(f"written: {escape(str(out))}")
        say_next("plan", fleet)


def _steady_state(network: Network, policy: Policy) -> dict[str, Any]:
    analysis, fleet = analyze_network(network, policy), network.fleet
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
    stations: dict[str, Any] = {"exact": analysis.is_exact}
    if fleet.comes_and_goes:
        columns["availability"] = fleet.availability
    if network.server_rate is not None:
        stations["server"] = {
            "rate": network.server_rate,
            "utilization": analysis.server_utilization,
            "mean_updates": analysis.mean_at_server,
        }
    if any(name in fleet.columns for name in POWERS):
        energy = energy_per_round(network)
        stations["energy_per_round"] = {"value": energy.value, **energy.terms}
    if policy.routes:
        columns["routing"] = network.routing
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
        **stations,
        "classes": [
            {
                "name": fleet.label(k),
                "count": int(fleet.counts[k]),
                **{name: float(values[k]) for name, values in columns.items()},
            }
            for k in range(fleet.classes)
        ],
    }


def _bounds(
    network: Network, constants: LearningConstants, learning_rate: float, rounds: int
) -> dict[str, Any]:
    largest = max_learning_rate(network, constants)
    g = per_round_bound(network, constants, learning_rate=learning_rate, rounds=rounds)
    h = per_time_bound(network, constants, learning_rate=learning_rate, rounds=rounds)
    return {
        "smoothness": constants.smoothness,
        "gradient_noise": constants.gradient_noise,
        "heterogeneity": constants.heterogeneity,
        "initial_gap": constants.initial_gap,
        "learning_rate": learning_rate,
        "max_learning_rate": largest,
        "kind": "guarantee" if learning_rate <= largest else "proxy",
        "rounds": rounds,
        "per_round": {"value": g.value, **g.terms},
        "per_time": {"value": h.value, **h.terms},
    }


def _show(result: dict[str, Any], console: Console) -> None:
    sent = f"{escape(result['routing'])} routing" if "routing" in result else result["policy"]
    console.print(
        f"[bold]{escape(result['fleet'])}[/bold]: {result['clients']} clients, "
        f"{result['in_flight']} tasks in flight, {sent}"
    )
    columns = {
        "rate": "service_rate",
        "share each": "share",
        "mean tasks": "mean_tasks",
        "staleness": "staleness",
        "in time": "staleness_time",
        "weight": "weight",
    }
    if "on_downlink" in result["classes"][0]:
        columns |= {"on downlink": "on_downlink", "on uplink": "on_uplink"}
    if "availability" in result["classes"][0]:
        columns["there"] = "availability"
    columns["utilisation"] = "utilization"
    in_full = "--out table.csv or --json for all, --sort for others"
    show_classes(result["classes"], columns, console, in_full=in_full, percent=["utilization"])
    console.print(
        f"throughput {printed(result['throughput'])} rounds per unit of time; a task waits "
        f"{result['mean_staleness']} rounds on average, whoever gets it"
    )
    if not result["exact"]:
        console.print(
            "An approximation: clients come and go, or their times are not exponential. "
            "`sojourn simulate` measures how near it is."
        )
    over, least = result["noise_rate"] / result["noise_floor"] - 1.0, "the least of any policy"
    if over > LEAST_EXCESS:
        least = f"{1.0 + over:.3g} times {least} ({printed(result['noise_floor'])})"
    console.print(
        f"noise rate {printed(result['noise_rate'])}, {least}; a task spends "
        f"{printed(result['mean_staleness_time'])} units of time with a client, mean over clients"
        + (", each by its weight" if result["weighted"] else "")
    )
    if "server" in result:
        server = result["server"]
        console.print(
            f"the server, {printed(server['rate'])} updates per unit of time, is busy "
            f"{server['utilization']:.1%}; {printed(server['mean_updates'])} updates wait there or "
            "are being made at the end of a round"
        )
    if "energy_per_round" in result:
        parts = {name: value for name, value in result["energy_per_round"].items() if value}
        total = parts.pop("value", 0.0)
        terms = ", ".join(f"{name} {printed(value)}" for name, value in parts.items())
        console.print(f"a round takes {printed(total)} units of energy: {terms}")
    if "bounds" in result:
        _show_bounds(result["bounds"], console)


def _show_bounds(bounds: dict[str, Any], console: Console) -> None:
    console.print(
        f"\nL = {bounds['smoothness']:g}, sigma = {bounds['gradient_noise']:g}, "
        f"M = {bounds['heterogeneity']:g}, A = {bounds['initial_gap']:g}, "
        f"learning rate {bounds['learning_rate']:g}, {bounds['rounds']} rounds\n"
        "(L: smoothness, sigma: gradient noise, M: heterogeneity of clients, A: initial gap)"
    )
    table = Table("bound", "value", "= progress", "+ noise", "+ staleness", "is a", box=None)
    for column in table.columns[1:5]:
        column.justify = "right"
    for name, key in (("G, per round", "per_round"), ("H, per unit of time", "per_time")):
        row = bounds[key]
        terms = (row["value"], row["progress"], row["noise"], row["staleness"])
        table.add_row(name, *map(printed, terms), bounds["kind"])
    print_table(console, table)
    largest = printed(bounds["max_learning_rate"])
    if bounds["kind"] == "proxy":
        console.print(
            f"The learning rate is above {largest}, up to which the bounds are guarantees: "
            "here they rank choices, they do not promise values."
        )
    else:
        console.print(f"The learning rate is below {largest}: the bounds are guarantees.")
