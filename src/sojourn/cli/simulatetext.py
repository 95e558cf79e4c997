"""What ``sojourn simulate`` prints: simulation beside theory, and whether they agree."""

import math
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from sojourn.cli.inputs import print_table, printed
from sojourn.estimate import plus_minus

if TYPE_CHECKING:
    from sojourn.simulation.scenario import Scenario

MOST_ROWS = 40
AGREE_WITHIN = 4.0
WORDS = {"wait": "wait for them", "lose": "are lost and sent anew"}


def explanation(result: dict[str, Any], scenario: "Scenario", warm_up: int) -> str:
    """Whether simulation and theory agree, and if not, why not."""
    from sojourn.laws import Law

    if "theory" not in result["throughput"]:
        what = f"'{result['policy']}'"
        if "offline" in result:
            what += " with clients that keep hours, drift or lose tasks"
        return f"No theory is known for {what} to compare the simulation with."
    rows = [result["throughput"], *([result["energy"]] if "energy" in result else [])]
    rows += [row[key] for row in result["classes"] for key in ("mean_tasks", "staleness")]
    scores = [abs(row["z"]) for row in rows if row.get("z") is not None]
    largest = max(scores, default=0.0)
    summary = f"the largest |z| of {len(scores)} comparisons is {largest:.1f}"
    near = ""
    if "approximate_throughput" in result:
        off = result["throughput"]["mean"] / result["approximate_throughput"] - 1.0
        near = f" From the approximation for these laws it is {off:+.1%}."
    exponential = all(law == Law("exponential") for law in scenario.laws)
    if exponential and not scenario.is_exponential:
        return (
            f"The theory is for exponential times at the server, and these are "
            f"{result['server_law']}: {summary}.{near}"
        )
    if not exponential and scenario.policy.routes:
        share = result["throughput"]["mean"] / result["throughput"]["theory"] - 1.0
        return (
            f"The theory is for exponential service times, and these are {result['law']}: throughput "
            f"is {share:+.1%} from it, and {summary}.{near}"
        )
    if not result.get("theory_is_exact", True):
        share = result["throughput"]["mean"] / result["throughput"]["theory"] - 1.0
        return (
            f"Where clients come and go the theory is an approximation: throughput is {share:+.1%} "
            f"from it, and {summary}."
        )
    if largest < AGREE_WITHIN:
        return f"Simulation and theory agree: {summary}."
    if result["start"] == "spread":
        return (
            f"They differ ({summary}) because the theory is for the steady state, and the runs start "
            f"with tasks dealt round-robin{f', {warm_up} rounds left out' if warm_up else ''}: use "
            "--start stationary, or leave out more rounds with --warm-up."
        )
    return (
        f"They differ: {summary}. Beyond a few thousand comparisons, or when a client completes few "
        "tasks in a run, a z of 4 comes by chance; more --rounds or --replicates will tell."
    )


def show(result: dict[str, Any], console: Console) -> None:
    """Simulation beside theory, class by class."""
    console.print(
        f"[bold]{result['source']}[/bold]: {result['clients']} clients, {result['concurrency']} "
        f"tasks in flight, {result['law']} service, {result['policy']} dispatch, "
        f"{result['start']} start"
        + (
            f"; tasks of clients that go away {WORDS[result['offline']]}"
            if "offline" in result
            else ""
        )
    )
    if "trace" in result:
        console.print(_trace_note(result["trace"]))
    if "schedule" in result:
        written = result["schedule"]
        console.print(
            f"wrote {written['rounds']:,} rounds, {printed(written['time'])} units of time, to "
            f"{written['folder']}"
        )
    if "timeline" in result:
        console.print(f"drew who computes what when into {result['timeline']}")
    if "classes" not in result:
        return
    headings = ("clients", "mean tasks", "theory", "z", "staleness", "theory", "z")
    table = Table("class", *headings, box=None, header_style="bold")
    for column in table.columns[1:]:
        column.justify, column.no_wrap = "right", True
    for row in result["classes"][:MOST_ROWS]:
        cells = [cell for key in ("mean_tasks", "staleness") for cell in _cells(row[key])]
        table.add_row(row["name"], str(row["count"]), *cells)
    print_table(console, table)
    hidden = len(result["classes"]) - MOST_ROWS
    if hidden > 0:
        console.print(f"... and {hidden} more classes (--json prints them all)")
    found, theory, score = _cells(result["throughput"])
    beside = f", in theory {theory} (z {score})" if "theory" in result["throughput"] else ""
    console.print(
        f"throughput {found} rounds per unit of time{beside}; {result['replicates']} replicates of "
        f"{result['rounds']['mean']:,.0f} rounds, {printed(result['time']['mean'])} units of time"
    )
    if "energy" in result:
        found, theory, score = _cells(result["energy"])
        beside = f", in theory {theory} (z {score})" if "theory" in result["energy"] else ""
        console.print(f"energy per round {found}{beside}")
    if "bytes" in result:
        least = min(result["bytes"], key=lambda row: row["mean"])
        most = max(result["bytes"], key=lambda row: row["mean"])
        console.print(
            f"bytes per unit of time that a client receives, and as many that it sends: "
            f"{_cells(least)[0]} ({least['name']}) to {_cells(most)[0]} ({most['name']})"
        )
    console.print(result["explanation"])
    if "theory" in result["throughput"]:
        console.print("z: how many standard errors simulation and theory are apart.")


def _cells(row: dict[str, Any]) -> tuple[str, str, str]:
    """Simulated with its standard error, theory, z-score."""
    mean, error, score = row["mean"], row["standard_error"], row.get("z")
    found = "-" if mean is None else plus_minus(mean, math.nan if error is None else error, ".4g")
    theory = printed(row["theory"]) if row.get("theory") is not None else "-"
    return found, theory, "-" if score is None else f"{score:+.1f}"


def _trace_note(trace: dict[str, Any]) -> str:
    if trace["speeds"] == "trace":
        return "speeds are those of the trace: durations are used as they were observed"
    factors = trace["factors"]
    low, high = printed(min(factors)), printed(max(factors))
    by = low if low == high else f"{low} to {high}, by class,"
    return (
        f"durations of the trace are multiplied by {by} to have the mean 1/rate of the fleet; "
        "--trace-speeds takes them as they are"
    )
