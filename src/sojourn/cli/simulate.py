"""``sojourn simulate``: theory beside simulation, and schedules to train on."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict

import numpy as np
import typer
from rich.console import Console

from sojourn._support.checks import check_number
from sojourn._support.estimate import Estimate
from sojourn._support.numbers import or_null, plus_minus
from sojourn.cli import app
from sojourn.cli.options import JsonOption, ServerRateOption
from sojourn.cli.output import (
    MOST_ROWS,
    plain_table,
    print_table,
    printed,
    say_first,
    say_next,
    screen,
    wrapped,
)
from sojourn.errors import InvalidInput
from sojourn.fleet import BUILT_IN_FLEETS, Fleet, Network
from sojourn.fleet.named import read_fleet
from sojourn.theory.energy import energy_per_round

if TYPE_CHECKING:
    from sojourn.fleet.laws import ServiceLaw
    from sojourn.simulation.scenario import Scenario
    from sojourn.simulation.simulate import Estimates
    from sojourn.strategy import Choices, Strategy
    from sojourn.theory.jackson import Analysis

DEFAULT_ROUNDS = 100_000
DEFAULT_REPLICATES = 20
AGREE_WITHIN = 4.0
"""Standard errors: one of 16,000 comparisons differs more by chance, and there are some hundred."""
WORDS = {"wait": "wait for them", "lose": "are lost and sent anew"}


class Row(TypedDict, total=False):
    """A simulated mean beside theory; what cannot be had is None, and theory may be missing."""

    name: str
    mean: float | None
    standard_error: float | None
    theory: float | None
    z: float | None


class ClassRow(TypedDict):
    """One class of clients."""

    name: str
    count: int
    mean_tasks: Row
    staleness: Row


class Comparison(TypedDict, total=False):
    """Simulation beside theory: throughput, energy, every class."""

    replicates: int
    rounds: Row
    time: Row
    throughput: Row
    theory_is_exact: bool
    approximate_throughput: float
    energy: Row
    classes: list[ClassRow]
    gradient: dict[str, object] | None


@app.command()
def simulate(
    source: Annotated[
        str,
        typer.Argument(
            metavar="STRATEGY|PLAN|FLEET",
            help="A strategy (strategy.toml, of `sojourn tune`), a plan (plan.toml, of `sojourn "
            "plan`), a fleet as CSV, or a built-in fleet: " + ", ".join(BUILT_IN_FLEETS) + ".",
        ),
    ],
    concurrency: Annotated[
        int | None,
        typer.Option(
            help="Tasks in flight, m.", show_default="the file's; as many as clients for a fleet"
        ),
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
            "hyperexponential, weibull, pareto, as in lognormal(sigma=0.5); if left out the fleet's column "
            "law, or exponential."
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
        str | None,
        typer.Option(
            help="Dispatch: routed, never-queue, idle, shuffled, synchronous, restart, first-of, "
            "attempts, or module:name.",
            show_default="the file's; routed for a fleet",
        ),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(help="stationary (default if routed) or spread: tasks dealt round-robin."),
    ] = None,
    server_rate: ServerRateOption = None,
    link_law: Annotated[
        str | None,
        typer.Option(
            help="Law of the times on links; in the long run only means matter.",
            show_default="the file's; exponential",
        ),
    ] = None,
    server_law: Annotated[
        str | None,
        typer.Option(
            help="Law of the server's times; the theory is for exponential.",
            show_default="the file's; exponential",
        ),
    ] = None,
    offline: Annotated[
        str | None,
        typer.Option(
            help="What becomes of the tasks of a client that goes away (columns mean_up and "
            "mean_down of the fleet, or --hours): wait, or lose (lost and sent anew).",
            show_default="the file's; wait",
        ),
    ] = None,
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
        typer.Option(
            help="Size of the model in bytes: adds the traffic of every client, each way."
        ),
    ] = None,
    work: Annotated[
        float | None,
        typer.Option(
            help="Service times are multiplied by this.",
            show_default="the local steps of the file's rule; 1 for a fleet",
        ),
    ] = None,
    warm_up: Annotated[int, typer.Option(help="Rounds at the start that are left out.")] = 0,
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
    as_json: JsonOption = False,
) -> None:
    """Simulate who finishes when, and compare with theory class by class.

    Example: sojourn simulate three-clusters --concurrency 30 --law lognormal --seed 1
    """
    say_first(f"reading {source}")
    from sojourn._support.progress import progress_bar
    from sojourn._support.provenance import provenance
    from sojourn.fleet.calendars import read_drift, read_hours
    from sojourn.fleet.laws import as_laws
    from sojourn.simulation.simulate import replicate, simulate as simulate_network
    from sojourn.strategy import Strategy

    if model_bytes is not None:
        check_number("--model-bytes", model_bytes, above=0.0)
    fleet, options = _options(source, law, law_parameter or [], trace)
    if concurrency is None and not source.endswith(".toml"):
        concurrency = fleet.size
    strategy = Strategy.read(
        source,
        replace(
            options,
            routing=routing,
            concurrency=concurrency,
            policy=policy,
            start=start,
            steady=True,
            server_rate=server_rate,
            link_law=None if link_law is None else as_laws(link_law, "--link-law")[0],
            server_law=None if server_law is None else as_laws(server_law, "--server-law")[0],
            offline=offline,
            hours=None if hours is None else read_hours(hours),
            drift=None if drift is None else read_drift(drift, fleet),
        ),
    )
    scenario = _with_work(source, strategy, work)
    factors, network = _traced(strategy.network, fleet, scenario.law, trace_speeds)
    if rounds is None and time is None:
        rounds = DEFAULT_ROUNDS
    has_hours = scenario.has_calendar(network)
    result, lines = _heading(source, strategy.rule.name, scenario, network)
    if factors is not None:
        result["trace"] = {"speeds": "trace" if trace_speeds else "fleet", "factors": factors}
        lines.append(_trace_note(factors, trace_speeds))
    if out is not None:
        with progress_bar("simulating") as advance:
            schedule = simulate_network(
                network, scenario, rounds=rounds, time=time, seed=seed, folder=out, progress=advance
            )
        written = {"folder": str(out), "rounds": schedule.rounds, "time": schedule.duration}
        result["schedule"] = written
        lines.append(
            f"wrote {schedule.rounds:,} rounds, {printed(schedule.duration)} time units, to {out}"
        )
    if timeline is not None:
        _draw_timeline(network, scenario, timeline, time, seed)
        result["timeline"] = str(timeline)
        lines.append(f"drew who computes what when into {timeline}")
    compared, traffic, why = None, None, ""
    if replicates is not None or (out is None and timeline is None):
        estimates = replicate(
            network,
            scenario,
            rounds=rounds,
            time=time,
            seed=seed,
            replicates=DEFAULT_REPLICATES if replicates is None else replicates,
            warm_up=warm_up,
            progress=True,
        )
        compared = _compared(network, estimates, scenario)
        result |= compared
        if model_bytes is not None:
            result["bytes"] = traffic = _traffic(network, estimates, model_bytes)
        result["explanation"] = why = _explanation(compared, scenario, has_hours, warm_up)
    result["provenance"] = provenance(seed=seed, rounds=rounds, time=time, warm_up=warm_up)
    if as_json:
        typer.echo(json.dumps(result, indent=2, allow_nan=False))
        return
    console = screen()
    for line in lines:
        console.print(line)
    if compared is not None:
        _show(compared, traffic, why, console)
    if source.endswith(".toml"):
        note = f'with strategies = ["{source}", "uniform"] in it, or none'
        say_next("tune", "EXPERIMENT.toml", note=note)
    else:
        say_next("plan", source, "--out", "plan.toml")


def _with_work(source: str, strategy: "Strategy", work: float | None) -> "Scenario":
    """The scenario of the strategy, whose service times are multiplied by ``work`` where it is given."""
    if work is not None:
        return replace(strategy.scenario, work=work)
    if strategy.local_epochs is not None:
        raise InvalidInput(
            f"{source}: local-epochs = {strategy.local_epochs:g}, but how many steps that is depends on "
            "the samples of each client, which a simulation does not know. Write local-steps (a number, "
            "or a list with one per client), or give --work."
        )
    return strategy.scenario


def _heading(
    source: str, rule: str, scenario: "Scenario", network: Network
) -> tuple[dict[str, object], list[str]]:
    """What is simulated: the first keys of the JSON, and the first line of the screen."""
    result: dict[str, object] = {
        "source": source,
        "clients": network.size,
        "concurrency": network.concurrency,
        "law": scenario.law_text,
        "server_law": str(scenario.server_law),
        "policy": scenario.policy.name,
        "rule": rule,
        "start": scenario.start_name,
        "work": scenario.work,
    }
    line = (
        f"[bold]{source}[/bold]: {network.size:,} clients, {network.concurrency:,} tasks in flight, "
        f"{scenario.law_text} service, {scenario.policy.name} dispatch, {scenario.start_name} start"
    )
    if scenario.has_calendar(network):
        result["offline"] = scenario.offline
        line += f"; tasks of clients that go away {WORDS[scenario.offline]}"
    return result, [line]


def _draw_timeline(
    network: Network, scenario: "Scenario", path: Path, until: float | None, seed: int
) -> None:
    from sojourn.figures.timeline import save_timelines
    from sojourn.simulation.simulate import previews

    title = f"{scenario.policy.name} dispatch, {network.concurrency} tasks in flight"
    drawn = previews({title: (network, scenario)}, until=until, seed=seed)
    save_timelines(list(drawn.items()), path)


def _options(
    source: str, law: str | None, pairs: list[str], trace: Path | None
) -> "tuple[Fleet, Choices]":
    """The whole fleet, whose classes a trace names, and what the options say of service times."""
    from sojourn.fleet.laws import as_laws, read_trace
    from sojourn.strategy import Choices, read_strategy_file

    fleet = read_strategy_file(source).fleet if source.endswith(".toml") else read_fleet(source)
    if trace is not None:
        if law not in (None, "trace") or pairs:
            raise InvalidInput("--trace is a law by itself; leave out --law and --law-parameter")
        return fleet, Choices(law=read_trace(trace, fleet))
    if law == "trace":
        raise InvalidInput("the law 'trace' needs --trace FILE, a CSV with a column duration")
    parameters = {}
    for pair in pairs:
        key, _, value = pair.partition("=")
        try:
            parameters[key] = float(value)
        except ValueError:
            raise InvalidInput(
                f"--law-parameter must be NAME=VALUE with a number, such as sigma=0.5; it is '{pair}'"
            ) from None
    if parameters:
        return fleet, Choices(law=as_laws({"name": law or "exponential", **parameters}))
    return fleet, Choices() if law is None else Choices(law=as_laws(law, "--law"))


def _traced(
    network: Network, fleet: Fleet, laws: "tuple[ServiceLaw, ...]", speeds: bool
) -> tuple[list[float] | None, Network]:
    """What durations of a trace are multiplied by, and the network, at the trace's speeds if asked."""
    from sojourn.fleet.laws import Trace, trace_factors, trace_fleet

    traces = [law for law in laws if isinstance(law, Trace)]
    if not traces:
        if speeds:
            raise InvalidInput("--trace-speeds goes with --trace FILE")
        return None, network
    if speeds:
        rates = trace_fleet(fleet, traces).service_rates[network.parents]
        moved = replace(network, fleet=network.fleet.with_rates(rates))
        return [1.0] * fleet.classes, moved
    return trace_factors(fleet, traces).tolist(), network


def _theory(network: Network, scenario: "Scenario") -> "Analysis | None":
    """What is known of these clients with exponential times, or of their policy for all."""
    from sojourn.fleet.laws import Law
    from sojourn.theory.jackson import analyze

    loses = scenario.offline == "lose" and network.fleet.is_intermittent
    if loses or scenario.hours is not None or scenario.drift is not None:
        return None
    if scenario.policy.routes:
        return analyze(network, law=Law("exponential"))
    return scenario.policy.analysis(network)


def _compared(network: Network, estimates: "Estimates", scenario: "Scenario") -> Comparison:
    """Simulation beside theory: throughput, energy, and every class."""
    from sojourn.theory.jackson import analyze

    slowed, fleet = scenario.task_network(network), network.fleet
    theory = _theory(slowed, scenario)
    compared = Comparison(
        replicates=estimates.replicates,
        rounds=_row(estimates.rounds, None),
        time=_row(estimates.time, None),
        throughput=_row(estimates.throughput, None if theory is None else theory.throughput),
    )
    energy = None
    if theory is not None:
        compared["theory_is_exact"] = theory.is_exact
        if scenario.policy.routes and estimates.energy is not None and theory.is_exact:
            energy = energy_per_round(slowed).value
        variances = [getattr(law, "scv", math.nan) for law in (*scenario.law, scenario.server_law)]
        if (
            scenario.policy.routes
            and not scenario.is_exponential
            and all(map(math.isfinite, variances))
        ):
            near = analyze(slowed, law=scenario.law, server_law=scenario.server_law)
            compared["approximate_throughput"] = near.throughput
    if estimates.energy is not None:
        compared["energy"] = _row(estimates.energy, energy)
    compared["classes"] = [
        ClassRow(
            name=fleet.label(k),
            count=int(fleet.counts[k]),
            mean_tasks=_row(
                estimates.mean_tasks, None if theory is None else theory.relative_delay[k], k
            ),
            staleness=_row(estimates.staleness, None if theory is None else theory.staleness[k], k),
        )
        for k in range(fleet.classes)
    ]
    compared["gradient"] = None if estimates.gradient is None else estimates.gradient.to_table()
    return compared


def _traffic(network: Network, estimates: "Estimates", model_bytes: float) -> list[Row]:
    """Bytes that one client of each class receives, and as many that it sends, per time unit."""
    assert estimates.completed is not None
    sent = Estimate(
        model_bytes * estimates.completed.mean, model_bytes * estimates.completed.standard_error
    )
    return [
        Row(name=network.fleet.label(k)) | _row(sent, None, k) for k in range(network.fleet.classes)
    ]


def _row(estimate: Estimate, theory: float | None, k: int | tuple[()] = ()) -> Row:
    """One comparison; what cannot be had, such as the staleness of a client never seen, is None."""
    mean, error = float(np.asarray(estimate.mean)[k]), float(np.asarray(estimate.standard_error)[k])
    row = Row(mean=or_null(mean), standard_error=or_null(error))
    if theory is not None:
        row["theory"] = or_null(float(theory))
        row["z"] = or_null(float(Estimate(mean, error).z_scores(theory)))
    return row


def _explanation(compared: Comparison, scenario: "Scenario", has_hours: bool, warm_up: int) -> str:
    """Whether simulation and theory agree, and if not, why not."""
    from sojourn.fleet.laws import Law

    throughput = compared["throughput"]
    if "theory" not in throughput:
        what = f"'{scenario.policy.name}'"
        if has_hours:
            what += " with clients that keep hours, drift or lose tasks"
        return f"No theory is known for {what} to compare the simulation with."
    rows = [throughput, *([compared["energy"]] if "energy" in compared else [])]
    for by_class in compared["classes"]:
        rows += [by_class["mean_tasks"], by_class["staleness"]]
    scores = [abs(score) for row in rows if (score := row.get("z")) is not None]
    largest = max(scores, default=0.0)
    summary = f"the largest |z| of {len(scores)} comparisons is {largest:.1f}"
    mean, theory = throughput["mean"] or math.nan, throughput["theory"] or math.nan
    off, near = f"{mean / theory - 1.0:+.1%}", ""
    if "approximate_throughput" in compared:
        share = mean / compared["approximate_throughput"] - 1.0
        near = f" From the approximation for these laws it is {share:+.1%}."
    exponential = all(law == Law("exponential") for law in scenario.law)
    if exponential and not scenario.is_exponential:
        return (
            f"The theory is for exponential times at the server, and these are "
            f"{scenario.server_law}: {summary}.{near}"
        )
    if not exponential and scenario.policy.routes:
        return (
            f"The theory is for exponential service times, and these are {scenario.law_text}: "
            f"throughput is {off} from it, and {summary}.{near}"
        )
    if not compared.get("theory_is_exact", True):
        return (
            f"With intermittent clients the theory is an approximation: throughput is {off} from it, "
            f"and {summary}."
        )
    if largest < AGREE_WITHIN:
        return f"Simulation and theory agree: {summary}."
    if scenario.start_name == "spread":
        return (
            f"They differ (throughput is {off} from theory, and {summary}) because the theory is for the steady state, and the runs start "
            f"with tasks dealt round-robin{f', {warm_up} rounds left out' if warm_up else ''}: "
            f"{'use --start stationary, or ' if scenario.policy.routes else ''}leave out more rounds "
            "with --warm-up."
        )
    return (
        f"They differ: throughput is {off} from theory, and {summary}. Beyond a few thousand comparisons, or when a client completes few "
        "tasks in a run, a z of 4 comes by chance; more --rounds or --replicates will tell."
    )


def _show(
    compared: Comparison, traffic: list[Row] | None, explanation: str, console: Console
) -> None:
    """Simulation beside theory, class by class."""
    headings = ("clients", "mean tasks", "theory", "z", "staleness", "theory", "z")
    table = plain_table(["class"], headings)
    classes = compared["classes"]
    for row in classes[:MOST_ROWS]:
        cells = (*_cells(row["mean_tasks"]), *_cells(row["staleness"]))
        table.add_row(row["name"], f"{row['count']:,}", *cells)
    print_table(console, table)
    if len(classes) > MOST_ROWS:
        console.print(f"... and {len(classes) - MOST_ROWS} more classes (--json prints them all)")
    text = (
        f"throughput {_beside(compared['throughput'], ' rounds per time unit')}; "
        f"{compared['replicates']} replicates of {compared['rounds']['mean']:,.0f} rounds, "
        f"{printed(compared['time']['mean'] or math.nan)} time units"
    )
    console.print(wrapped(text, console.width), markup=False)
    if "energy" in compared:
        console.print(f"energy per round {_beside(compared['energy'])}")
    if traffic is not None:
        least = min(traffic, key=lambda row: row["mean"] or 0.0)
        most = max(traffic, key=lambda row: row["mean"] or 0.0)
        span = " to ".join(f"{_cells(row)[0]} ({row['name']})" for row in (least, most))
        console.print(
            f"bytes per time unit that a client receives, and as many that it sends: {span}"
        )
    console.print(explanation)
    if "theory" in compared["throughput"]:
        console.print("z: how many standard errors simulation and theory are apart.")


def _beside(row: Row, unit: str = "") -> str:
    """A simulated mean in words, and theory where it is known."""
    simulated, theory, score = _cells(row)
    return f"{simulated}{unit}" + (f", in theory {theory} (z {score})" if "theory" in row else "")


def _cells(row: Row) -> tuple[str, str, str]:
    """Simulated with its standard error, theory, z-score."""
    mean, error, theory, score = (
        row.get("mean"),
        row.get("standard_error"),
        row.get("theory"),
        row.get("z"),
    )
    simulated = (
        "-" if mean is None else plus_minus(mean, math.nan if error is None else error, ".4g")
    )
    return (
        simulated,
        "-" if theory is None else printed(theory),
        "-" if score is None else f"{score:+.1f}",
    )


def _trace_note(factors: list[float], speeds: bool) -> str:
    if speeds:
        return "speeds are those of the trace: durations are used as they were observed"
    low, high = printed(min(factors)), printed(max(factors))
    by = low if low == high else f"{low} to {high}, by class,"
    return (
        f"durations of the trace are multiplied by {by} to have the mean 1/rate of the fleet; "
        "--trace-speeds takes them as they are"
    )
