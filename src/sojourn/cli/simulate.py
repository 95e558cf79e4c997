"""``sojourn simulate``: theory beside simulation, and schedules to train on."""

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sojourn.cli import app
from sojourn.cli.inputs import ServerRateOption, say_next, screen
from sojourn.cli.simulated import comparison, traffic
from sojourn.cli.simulatetext import explanation, show
from sojourn.errors import InvalidInput
from sojourn.inputs import read_fleet, read_routing
from sojourn.network import BUILT_IN_FLEETS, Fleet, Network

if TYPE_CHECKING:
    from sojourn.laws import ServiceLaw
    from sojourn.simulation.scenario import Scenario

DEFAULT_ROUNDS = 100_000
DEFAULT_REPLICATES = 20


@app.command()
def simulate(
    source: Annotated[
        str,
        typer.Argument(
            metavar="PLAN|FLEET",
            help="A plan (plan.toml, written by `sojourn plan`), a fleet as CSV, or a built-in "
            "fleet: " + ", ".join(BUILT_IN_FLEETS) + ".",
        ),
    ],
    concurrency: Annotated[
        int | None, typer.Option(help="Tasks in flight, m; a plan has its own.")
    ] = None,
    routing: Annotated[
        str | None,
        typer.Option(
            help="uniform (default for a fleet), balanced, square-root, or a CSV with a column "
            "routing; a plan has its own."
        ),
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option(help="Completions to simulate.", show_default="100,000 without --time"),
    ] = None,
    time: Annotated[float | None, typer.Option(help="Virtual time to simulate instead.")] = None,
    law: Annotated[
        str | None,
        typer.Option(
            help="Service times: exponential, deterministic, lognormal, gamma, erlang, "
            "hyperexponential, weibull, pareto; if left out the fleet's column law, or exponential."
        ),
    ] = None,
    law_parameter: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Parameter of the law, such as sigma=0.5."),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            help="Service times drawn from observations instead: CSV with a column duration and, "
            "optionally, class."
        ),
    ] = None,
    trace_speeds: Annotated[
        bool,
        typer.Option(
            "--trace-speeds",
            help="Take the speeds from the trace too; otherwise durations are rescaled to the "
            "fleet's.",
        ),
    ] = False,
    policy: Annotated[
        str,
        typer.Option(
            help="Dispatch: routed, never-queue, idle, shuffled, synchronous, restart, first-of, "
            "attempts, or module:name."
        ),
    ] = "routed",
    start: Annotated[
        str | None,
        typer.Option(help="stationary (default if routed) or spread: tasks dealt round-robin."),
    ] = None,
    server_rate: ServerRateOption = None,
    link_law: Annotated[
        str, typer.Option(help="Law of the times on links; in the long run only means matter.")
    ] = "exponential",
    server_law: Annotated[
        str, typer.Option(help="Law of the server's times; the theory is for exponential.")
    ] = "exponential",
    offline: Annotated[
        str,
        typer.Option(
            help="What becomes of the tasks of a client that goes away (columns mean_up and "
            "mean_down of the fleet, or --hours): wait, or lose (lost and sent anew)."
        ),
    ] = "wait",
    hours: Annotated[
        Path | None,
        typer.Option(
            help="When clients are there: CSV with columns device, from, until; repeats after the "
            "column period, or the latest time."
        ),
    ] = None,
    drift: Annotated[
        Path | None,
        typer.Option(
            help="How speeds change: CSV with columns time, speed (a factor from then on) and, "
            "optionally, class."
        ),
    ] = None,
    model_bytes: Annotated[
        float | None,
        typer.Option(help="Size of the model: tells the bytes of every client, each way."),
    ] = None,
    work: Annotated[float, typer.Option(help="Service times are multiplied by this.")] = 1.0,
    warm_up: Annotated[int, typer.Option(help="Leave out this many first rounds.")] = 0,
    replicates: Annotated[
        int | None,
        typer.Option(help="Independent runs.", show_default="20; none with --out or --timeline"),
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same result.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Write the schedule of one run to this folder.")
    ] = None,
    timeline: Annotated[
        Path | None,
        typer.Option(
            help="Draw who computes what when into this .svg or .png: the first --time units of "
            "one run, or some tasks of every client."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Simulate who finishes when, and compare with theory class by class.

    Example: sojourn simulate three-clusters --concurrency 30 --law lognormal --seed 1
    """
    from sojourn.dispatch import as_policy
    from sojourn.progress import progress_bar
    from sojourn.provenance import provenance
    from sojourn.simulation.calendarfiles import read_drift, read_hours
    from sojourn.simulation.replicate import replicate
    from sojourn.simulation.scenario import Scenario
    from sojourn.simulation.simulate import simulate as simulate_network

    network, fleet = _network(source, concurrency, routing, server_rate)
    service = _law(law, law_parameter or [], trace, fleet)
    speeds, network = _traced(network, fleet, service, trace_speeds)
    chosen = as_policy(policy)
    begin = start or ("stationary" if chosen.routes else "spread")
    scenario = Scenario(
        law=service,
        policy=chosen,
        start=begin,
        work=work,
        link_law=link_law,
        server_law=server_law,
        offline=offline,
        hours=None if hours is None else read_hours(hours),
        drift=None if drift is None else read_drift(drift, fleet),
    )
    if rounds is None and time is None:
        rounds = DEFAULT_ROUNDS
    settings: dict[str, Any] = {"rounds": rounds, "time": time, "seed": seed}
    result: dict[str, Any] = {
        "source": source,
        "clients": network.size,
        "concurrency": network.concurrency,
        "law": scenario.law,
        "server_law": str(scenario.server_law),
        "policy": chosen.name,
        "start": begin,
        "work": work,
        **({"offline": offline} if scenario.has_calendar(network) else {}),
        **({} if speeds is None else {"trace": speeds}),
    }
    if out is not None:
        with progress_bar("simulating") as advance:
            schedule = simulate_network(network, scenario, folder=out, progress=advance, **settings)
        result["schedule"] = {
            "folder": str(out),
            "rounds": schedule.rounds,
            "time": schedule.duration,
        }
    if timeline is not None:
        _draw_timeline(network, scenario, timeline, time, seed)
        result["timeline"] = str(timeline)
    if replicates is not None or (out is None and timeline is None):
        number = DEFAULT_REPLICATES if replicates is None else replicates
        found = replicate(
            network, scenario, replicates=number, warm_up=warm_up, progress=True, **settings
        )
        result |= comparison(network, found, scenario)
        if model_bytes is not None:
            result["bytes"] = traffic(network, found, model_bytes)
        result["explanation"] = explanation(result, scenario, warm_up)
    result["provenance"] = provenance(seed=seed, rounds=rounds, time=time, warm_up=warm_up)
    if as_json:
        typer.echo(json.dumps(result, indent=2, allow_nan=False))
    else:
        show(result, screen())
        if source.endswith(".toml"):
            note = f'with strategies = ["{source}", "uniform"] in it, or none'
            say_next("tune", "EXPERIMENT.toml", note=note)
        else:
            say_next("plan", source, "--out", "plan.toml")


def _draw_timeline(
    network: Network, scenario: "Scenario", path: Path, until: float | None, seed: int
) -> None:
    from sojourn.report.timeline import save_timelines
    from sojourn.simulation.beginnings import beginnings

    title = f"{scenario.policy.name} dispatch, {network.concurrency} tasks in flight"
    drawn = beginnings({title: (network, scenario)}, until=until, seed=seed)
    save_timelines(list(drawn.items()), path)


def _network(
    source: str, concurrency: int | None, routing: str | None, server_rate: float | None
) -> tuple[Network, Fleet]:
    """What is to be simulated, and the whole fleet, whose classes a trace names."""
    if source.endswith(".toml"):
        from sojourn.planning import Plan

        plan = Plan.read(source)
        m = concurrency or plan.concurrency
        rate = plan.network.server_rate if server_rate is None else server_rate
        if routing is None:
            return replace(plan.network, concurrency=m, server_rate=rate), plan.fleet
        p = read_routing(routing, plan.fleet)
        return Network(plan.fleet, p, m, server_rate=rate), plan.fleet
    if concurrency is None:
        raise InvalidInput("a fleet needs --concurrency, the number of tasks in flight")
    fleet = read_fleet(source)
    p = read_routing(routing or "uniform", fleet)
    return Network(fleet, p, concurrency, server_rate=server_rate), fleet


def _law(
    name: str | None, pairs: list[str], trace: Path | None, fleet: Fleet
) -> "tuple[ServiceLaw, ...]":
    from sojourn.laws import as_laws, fleet_laws
    from sojourn.simulation.traces import read_trace

    if trace is not None or name == "trace":
        if trace is None:
            raise InvalidInput("the law 'trace' needs --trace FILE, a CSV with a column duration")
        return read_trace(trace, fleet)
    parameters = {}
    for pair in pairs:
        key, _, value = pair.partition("=")
        try:
            parameters[key] = float(value)
        except ValueError:
            raise InvalidInput(
                f"--law-parameter must be NAME=VALUE with a number, such as sigma=0.5; it is '{pair}'"
            ) from None
    if name is None and not parameters:
        return fleet_laws(fleet) or as_laws("exponential")
    return as_laws({"name": name or "exponential", **parameters})


def _traced(
    network: Network, fleet: Fleet, laws: "tuple[ServiceLaw, ...]", speeds: bool
) -> tuple[dict[str, Any] | None, Network]:
    """How observed durations are rescaled to the fleet's speeds, or the network at theirs."""
    from sojourn.laws import Trace
    from sojourn.simulation.traces import trace_factors, trace_fleet

    traces = [law for law in laws if isinstance(law, Trace)]
    if not traces:
        if speeds:
            raise InvalidInput("--trace-speeds goes with --trace FILE")
        return None, network
    if speeds:
        rates = trace_fleet(fleet, traces).service_rates[network.parents]
        moved = replace(network, fleet=network.fleet.with_rates(rates))
        return {"speeds": "trace", "factors": [1.0] * fleet.classes}, moved
    return {"speeds": "fleet", "factors": trace_factors(fleet, traces).tolist()}, network
