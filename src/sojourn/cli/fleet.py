"""``sojourn fleet``: fleets from what was seen, and from what others write."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sojourn.cli import app
from sojourn.cli.inputs import print_table, printed, say_next, screen
from sojourn.errors import InvalidInput, UnknownName
from sojourn.network import Fleet

if TYPE_CHECKING:
    from sojourn.observed import ClassEstimate

fleet_app = typer.Typer(
    no_args_is_help=True, help="Fleets from what was seen, and from others' files."
)
app.add_typer(fleet_app, name="fleet")
FORMATS = ("appfl", "fedscale", "fedscale-hours")


@fleet_app.command()
def estimate(
    log: Annotated[
        Path | None,
        typer.Argument(
            metavar="LOG.csv",
            help="Columns device and either start and end (empty while running) or duration "
            "(and, optionally, running: yes or no); optionally what of that time is no work: wait, "
            "downlink, uplink.",
        ),
    ] = None,
    from_run: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="A deployment's folder instead: its tasks.jsonl, and status.json for tasks under way.",
        ),
    ] = None,
    presence: Annotated[
        Path | None,
        typer.Option(
            metavar="CSV",
            help="When devices were there: columns device, from, until (empty while there). Away "
            "they do not work; how long they come and go is estimated.",
        ),
    ] = None,
    now: Annotated[
        float | None,
        typer.Option(
            help="Until when tasks without an end have run; by default until the latest time in the "
            "whole log, of any device. One that died meanwhile then looks slow: give it an end, or "
            "leave its line out."
        ),
    ] = None,
    by_device: Annotated[
        bool, typer.Option("--by-device", help="Every device a class of its own.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Write the fleet here, as CSV.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Rates with 95 % intervals, laws and classes of devices, from a log of their tasks.

    Example: sojourn fleet estimate log.csv --out fleet.csv
    """
    from sojourn.observed import estimate_fleet, read_log, read_presence, read_run

    there = None if presence is None else read_presence(presence, now=now)
    if log is not None and from_run is None:
        seen = read_log(log, now=now, presence=there)
    elif from_run is not None and log is None:
        if presence is not None:
            raise InvalidInput("--presence goes with a log, LOG.csv, not with --from-run")
        seen = read_run(from_run)
    else:
        raise InvalidInput("give either a log, LOG.csv, or --from-run DIR")
    fleet, classes = estimate_fleet(seen, grouped=not by_device, presence=there)
    if out is not None:
        fleet.to_csv(out)
    if as_json:
        rows = [_row(fleet.label(k), one) for k, one in enumerate(classes)]
        typer.echo(json.dumps({"devices": fleet.size, "classes": rows}, indent=2))
        return
    console = screen()
    _show(fleet, classes, console)
    if out is not None:
        console.print(f"written: {escape(str(out))}")
    if out is not None:
        say_next("plan", out)
    else:
        source = [log] if log is not None else ["--from-run", str(from_run)]
        note = "then sojourn plan fleet.csv"
        say_next("fleet", "estimate", *source, "--out", "fleet.csv", note=note)


def _row(name: str, one: "ClassEstimate") -> dict[str, Any]:
    optional = ("downlink", "uplink", "mean_up", "mean_down", "drift")
    return {
        "name": name,
        "devices": list(one.devices),
        "tasks": one.tasks,
        "running": one.running,
        "service_rate": one.rate,
        "interval": [one.rate_low, one.rate_high],
        "law": str(one.fit.law),
        **{key: getattr(one, key) for key in optional if getattr(one, key) is not None},
    }


def _show(fleet: Fleet, classes: "tuple[ClassEstimate, ...]", console: Console) -> None:
    more = {"downlink": "downlink", "uplink": "uplink", "mean_up": "there", "mean_down": "away"}
    told = [name for name in more if name in fleet.columns]
    table = Table("class", "devices", "tasks", "rate", "95 % interval", "law", box=None)
    for name in told:
        table.add_column(more[name])
    for column in (*table.columns[1:5], *table.columns[6:]):
        column.justify = "right"
    for k, one in enumerate(classes):
        interval = f"{printed(one.rate_low)} to {printed(one.rate_high)}"
        table.add_row(
            escape(fleet.label(k)),
            str(len(one.devices)),
            str(one.tasks),
            printed(one.rate),
            interval,
            str(one.fit.law),
            *(printed(float(fleet.columns[name][k])) for name in told),
        )
    print_table(console, table)
    running = sum(one.running for one in classes)
    if running:
        console.print(f"{running} tasks were still running and count for as long as they had run")
    for k, one in enumerate(classes):
        if one.drift is not None:
            change = f"{abs(one.drift):.0%} {'longer' if one.drift > 0 else 'shorter'}"
            console.print(
                f"{escape(fleet.label(k))}: tasks took {change} at the end of the log than at its "
                "beginning, more than by chance: one rate does not tell all of it (sojourn simulate "
                "--drift)",
                soft_wrap=True,
            )


@fleet_app.command()
def read(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What another framework wrote.")],
    kind: Annotated[
        str,
        typer.Option(
            "--format",
            help="appfl: JSON of client profiles (delay, bandwidth); fedscale: "
            "client_device_capacity; fedscale-hours: client_behave_trace.",
        ),
    ],
    out: Annotated[
        Path, typer.Option(help="Write the fleet, or the hours, here, as CSV.", show_default=False)
    ],
    samples: Annotated[
        int | None, typer.Option(help="fedscale: samples that a task goes through.")
    ] = None,
    step_seconds: Annotated[
        float | None, typer.Option(help="appfl: seconds of a local step at delay 1.")
    ] = None,
    steps: Annotated[int, typer.Option(help="appfl: local steps of a task.")] = 1,
    model_bytes: Annotated[
        float | None, typer.Option(help="Size of the model, sent each way; none takes no time.")
    ] = None,
) -> None:
    """A fleet from APPFL's or FedScale's files of devices; pickles are read without running anything.

    Example: sojourn fleet read client_device_capacity --format fedscale --samples 100 --model-bytes 2e6 --out fleet.csv
    """
    from sojourn.observed.appfl import read_profiles
    from sojourn.observed.fedscale import BYTES_PER_KILOBIT, read_behaviour, read_capacity
    from sojourn.simulation.calendarfiles import write_hours

    if kind not in FORMATS:
        raise UnknownName("format", kind, FORMATS)
    console = screen()
    if kind == "fedscale-hours":
        hours, checksum = read_behaviour(file)
        write_hours(hours, out)
        share = hours.availability
        found = (
            f"{len(hours.devices)} devices, there {share.mean():.1%} of the time on average, in hours "
            f"that repeat after {printed(hours.period)} seconds"
        )
        following: tuple[str, ...] = (
            "simulate",
            "fleet.csv",
            "--concurrency",
            "30",
            "--hours",
            str(out),
        )
    else:
        if kind == "appfl":
            seconds = _needed(step_seconds, "--step-seconds", kind)
            fleet, checksum = read_profiles(
                file, step_seconds=seconds, steps=steps, model_bytes=model_bytes or 0.0
            )
        else:
            kilobits = (model_bytes or 0.0) / BYTES_PER_KILOBIT
            number = int(_needed(samples, "--samples", kind))
            fleet, checksum = read_capacity(file, samples=number, kilobits=kilobits)
        fleet.to_csv(out)
        found = f"{fleet}, tasks per second"
        following = ("plan", str(out))
    console.print(f"{escape(str(file))} (SHA-256 {checksum}): {found}", soft_wrap=True)
    console.print(f"written: {escape(str(out))}")
    say_next(*following)


def _needed(value: float | None, option: str, kind: str) -> float:
    if value is None:
        raise InvalidInput(f"the format {kind} needs {option}, to say how long a task takes")
    return value
