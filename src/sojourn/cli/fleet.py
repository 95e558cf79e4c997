"""``sojourn fleet``: fleets from what was seen."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from sojourn.cli import app
from sojourn.cli.inputs import print_table, printed, say_next, screen
from sojourn.errors import InvalidInput

fleet_app = typer.Typer(no_args_is_help=True, help="Fleets from what was seen.")
app.add_typer(fleet_app, name="fleet")


@fleet_app.command()
def estimate(
    log: Annotated[
        Path | None,
        typer.Argument(
            metavar="LOG.csv",
            help="Columns device and either start and end (empty while running) or duration "
            "(and, optionally, running: yes or no).",
        ),
    ] = None,
    from_run: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="A deployment's folder, with its tasks.jsonl, instead."),
    ] = None,
    now: Annotated[
        float | None,
        typer.Option(help="Until when running tasks have run; the latest time in the log."),
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
    from sojourn.observed import estimate_fleet, read_log, read_run

    if log is not None and from_run is None:
        seen = read_log(log, now=now)
    elif from_run is not None and log is None:
        seen = read_run(from_run)
    else:
        raise InvalidInput("give either a log, LOG.csv, or --from-run DIR")
    fleet, classes = estimate_fleet(seen, grouped=not by_device)
    if out is not None:
        fleet.to_csv(out)
    if as_json:
        rows = [
            {
                "name": fleet.label(k),
                "devices": list(one.devices),
                "tasks": one.tasks,
                "running": one.running,
                "service_rate": one.rate,
                "interval": [one.rate_low, one.rate_high],
                "law": str(one.fit.law),
            }
            for k, one in enumerate(classes)
        ]
        typer.echo(json.dumps({"devices": fleet.size, "classes": rows}, indent=2))
        return
    console = screen()
    table = Table("class", "devices", "tasks", "rate", "95 % interval", "law", box=None)
    for column in table.columns[1:5]:
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
        )
    print_table(console, table)
    if out is not None:
        console.print(f"written: {escape(str(out))}")
    say_next(
        f"sojourn plan {out}"
        if out
        else "the same with --out fleet.csv, then sojourn plan fleet.csv"
    )
