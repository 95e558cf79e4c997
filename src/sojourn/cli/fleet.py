"""``sojourn fleet``: fleets from logs, and from the files of other frameworks."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click
import typer
from rich.console import Console
from rich.markup import escape

from sojourn._support.progress import shown
from sojourn.cli import WORDS, app
from sojourn.cli.options import JsonOption
from sojourn.cli.output import (
    MOST_ROWS,
    plain_table,
    print_table,
    printed,
    say_first,
    say_next,
    screen,
)
from sojourn.errors import InvalidInput, UnknownName
from sojourn.fleet import Fleet

if TYPE_CHECKING:
    from datetime import tzinfo

    from sojourn.fleet.from_logs import ClassEstimate, TaskLog
    from sojourn.fleet.from_logs.rows import Only

fleet_app = typer.Typer(
    no_args_is_help=True, help="Estimate fleets from logs, and read those of other frameworks."
)
app.add_typer(fleet_app, name="fleet")
MOST_NAMED = 5
"""Devices that a message names."""
FORMATS = ("appfl", "fedscale", "fedscale-hours")


@fleet_app.command()
def estimate(
    log: Annotated[
        Path | None,
        typer.Argument(
            metavar="LOG",
            help="CSV, TSV, JSON or Parquet, compressed or not, a row per task: device and either start "
            "and end (empty while running) or duration (and, optionally, running: yes or no); "
            "optionally wait, downlink and uplink, the parts of that time that are not work, and type, "
            "the device's class. Times are dates, seconds or epoch times.",
        ),
    ] = None,
    from_run: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="A deployment's folder instead: its tasks.jsonl, and status.json for running tasks.",
        ),
    ] = None,
    presence: Annotated[
        Path | None,
        typer.Option(
            metavar="CSV",
            help="When devices were there: columns device, from, until (empty while there). Time "
            "away is not work; the mean times there and away are estimated.",
        ),
    ] = None,
    now: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Until when tasks without an end have run; by default until the latest time in the "
            "log. A device that was switched off meanwhile looks slow: give its task an end.",
        ),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(
            metavar="OURS=THEIRS,...",
            help="What the log calls its columns, such as device=cid,start=t0,end=t1; uplink= leaves "
            "one out.",
        ),
    ] = None,
    class_column: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The column that names a device's class.",
            show_default="type or class, if there is one",
        ),
    ] = None,
    classes: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="K", help="Cut devices into this number of classes by their speed."
        ),
    ] = None,
    by_device: Annotated[
        bool, typer.Option("--by-device", help="Every device a class of its own.")
    ] = False,
    only: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN=VALUE", help="Read only rows with this value, such as status=succeeded."
        ),
    ] = None,
    time_format: Annotated[
        str | None,
        typer.Option(
            metavar="FORMAT",
            help="How dates are written, as for strptime, such as '%d/%m/%Y %H:%M:%S'.",
            show_default="ISO 8601 and other usual ways",
        ),
    ] = None,
    time_zone: Annotated[
        str,
        typer.Option(metavar="ZONE", help="Of times without one, such as Europe/Paris."),
    ] = "UTC",
    max_bad: Annotated[
        str,
        typer.Option(
            metavar="SHARE", help="Leave out up to this share of rows that cannot be used."
        ),
    ] = "5%",
    bad_rows: Annotated[
        Path | None,
        typer.Option(
            metavar="CSV",
            help="Write rows that cannot be used here, with line and reason.",
            show_default="beside --out",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write the fleet here, as CSV.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Estimate rates with 95 % intervals, laws and classes of devices from a log of their tasks.

    Rows that cannot be used are counted by reason and left out. Devices without a finished task are
    left out and named.

    Example: sojourn fleet estimate log.csv --out fleet.csv
    """
    say_first(f"reading {log or from_run}")
    from sojourn.fleet.from_logs import TaskLog, estimate_fleet, read_presence, read_tasks
    from sojourn.fleet.from_logs.log import TooManyBadRows, read_log
    from sojourn.fleet.from_logs.rows import write_bad_rows
    from sojourn.fleet.from_logs.times import time_zone as named_zone
    from sojourn.runs.folder import RunFolder

    if (log is None) == (from_run is None):
        raise InvalidInput("give either a log, LOG, or --from-run DIR")
    if log is not None and log.is_dir():
        raise InvalidInput(f"{log} is a folder: --from-run {log} reads that of a deployment")
    if by_device and classes is not None:
        raise InvalidInput("--by-device and --classes K exclude each other: give one of them")
    if from_run is not None:
        log_options = {
            **{"--presence": presence, "--columns": columns, "--class-column": class_column},
            **{"--only": only, "--time-format": time_format},
        }
        for option, given in log_options.items():
            if given is not None:
                raise InvalidInput(f"{option} goes with a log, LOG, not with --from-run")
    zone = named_zone(time_zone)
    share, until = _share(max_bad), None if now is None else _moment(now, zone)
    hours_present = (
        None
        if presence is None
        else read_presence(presence, now=until, time_format=time_format, zone=zone)
    )
    beside = out if out is not None and out.name else None  # "." has no name, and is refused below
    listed = bad_rows or (beside and beside.with_name(f"{beside.stem}.bad-rows.csv"))
    with shown() as progress:
        if log is not None:
            try:
                task_log = read_log(
                    log,
                    now=until,
                    presence=hours_present,
                    columns=_names(columns, class_column),
                    max_bad=share,
                    only=_only(only),
                    time_format=time_format,
                    zone=zone,
                    progress=progress,
                )
            except TooManyBadRows as error:
                if listed is None:
                    raise
                write_bad_rows(error.bad, listed)
                raise InvalidInput(f"{error}\nAll of them: {listed}") from error
        else:
            folder = RunFolder(from_run or Path())
            task_log = TaskLog(read_tasks(folder.tasks_path, folder.status_path))
        fleet, estimates = estimate_fleet(
            task_log,
            grouped=not by_device,
            presence=hours_present,
            classes=classes or (None if by_device else task_log.classes or None),
            progress=progress,
        )
    if listed is not None and task_log.bad:
        write_bad_rows(task_log.bad, listed)
    if out is not None:
        fleet.to_csv(out)
    if as_json:
        rows = [_row(fleet.label(k), fitted) for k, fitted in enumerate(estimates)]
        bad = {
            "rows": task_log.rows,
            "bad": task_log.reasons,
            "left_out": list(task_log.unfinished),
        }
        typer.echo(json.dumps({"devices": fleet.size, **bad, "classes": rows}, indent=2))
        return
    console = screen()
    _show(fleet, estimates, console)
    _show_left_out(task_log, listed, console)
    if out is not None:
        console.print(f"written: {escape(str(out))}")
        say_next("plan", out)
    else:
        typed = click.get_current_context().meta[WORDS]
        say_next(*typed, "--out", "fleet.csv", note="then sojourn plan fleet.csv")


def _share(text: str) -> float:
    """A share such as ``5%`` or ``0.05``."""
    try:
        value = float(text.removesuffix("%")) / (100.0 if text.endswith("%") else 1.0)
    except ValueError:
        value = math.nan
    if not 0.0 <= value < 1.0:
        raise InvalidInput(f"--max-bad must be a share below 1, such as 5% or 0.05; it is '{text}'")
    return value


def _only(text: str | None) -> "Only | None":
    """Which rows to read, such as ``status=succeeded`` or ``status=ok,done``."""
    from sojourn.fleet.from_logs.rows import Only

    if text is None:
        return None
    column, equals, values = (part.strip() for part in text.partition("="))
    if not (column and equals):
        raise InvalidInput(f"--only is written like status=succeeded; it is '{text}'")
    return Only(column, frozenset(value.strip() for value in values.split(",")))


def _moment(text: str, zone: "tzinfo") -> float:
    from sojourn.fleet.from_logs.times import parse_moment

    try:
        return parse_moment(text, zone)
    except (ValueError, OverflowError):
        raise InvalidInput(
            f"--now must be a time, such as 1700000000 or 2024-05-01T12:00:00Z; it is '{text}'"
        ) from None


def _names(columns: str | None, class_column: str | None) -> dict[str, str]:
    """What the log calls our columns."""
    from sojourn.fleet.from_logs.columns import SYNONYMS

    names = {}
    for pair in filter(None, (columns or "").split(",")):
        ours, equals, theirs = (part.strip() for part in pair.partition("="))
        if not (ours and equals):
            raise InvalidInput(
                f"--columns is written like device=cid,start=t0; there is '{pair.strip()}' in it"
            )
        ours = "class" if ours == "type" else ours
        if ours not in SYNONYMS:
            raise UnknownName("column", ours, SYNONYMS)
        names[ours] = theirs
    if class_column is not None:
        names["class"] = class_column
    return names


def _row(name: str, fitted: "ClassEstimate") -> dict[str, object]:
    links = {"downlink": fitted.downlink, "uplink": fitted.uplink}
    optional = {"mean_up": fitted.mean_up, "mean_down": fitted.mean_down, "drift": fitted.drift}
    return {
        "name": name,
        "devices": list(fitted.devices),
        "tasks": fitted.tasks,
        "running": fitted.running,
        "service_rate": fitted.rate,
        "interval": [fitted.rate_low, fitted.rate_high],
        "law": str(fitted.fit.law),
        **{key: fit.mean for key, fit in links.items() if fit is not None},
        **{f"{key}_law": str(fit.law) for key, fit in links.items() if fit is not None},
        **{key: value for key, value in optional.items() if value is not None},
        **({"drifting": dict(fitted.drifting)} if fitted.drifting else {}),
    }


def _change(by: float) -> str:
    """How durations drifted, in words."""
    return f"{abs(by):.0%} {'longer' if by > 0.0 else 'shorter'}"


def _show(fleet: Fleet, classes: "Sequence[ClassEstimate]", console: Console) -> None:
    links = [name for name in ("downlink", "uplink") if name in fleet.columns]
    intermittent = "mean_up" in fleet.columns
    headings = ["devices", "tasks", "rate", "95 % interval", "law", *links]
    table = plain_table(["class"], [*headings, *(["there", "away"] if intermittent else [])])
    for k, fitted in enumerate(classes[:MOST_ROWS]):
        fits = [getattr(fitted, name) for name in links]
        absences = ["always", "-"] if intermittent else []
        if intermittent and fitted.mean_down:
            absences = [printed(fitted.mean_up or 0.0), printed(fitted.mean_down)]
        table.add_row(
            escape(fleet.label(k)),
            str(len(fitted.devices)),
            str(fitted.tasks),
            printed(fitted.rate),
            f"{printed(fitted.rate_low)} to {printed(fitted.rate_high)}",
            str(fitted.fit.law),
            *("-" if fit is None else f"{printed(fit.mean)} {fit.law}" for fit in fits),
            *absences,
        )
    print_table(console, table)
    if len(classes) > MOST_ROWS:
        console.print(
            f"... and {len(classes) - MOST_ROWS} more classes: --out fleet.csv or --json for all"
        )
    running = sum(fitted.running for fitted in classes)
    if running:
        console.print(
            "1 task was still running and counts for as long as it had run"
            if running == 1
            else f"{running} tasks were still running and count for as long as they had run"
        )
    for k, fitted in enumerate(classes):
        if fitted.drift is not None:
            console.print(
                f"{escape(fleet.label(k))}: tasks took {_change(fitted.drift)} at the end of the log than at its "
                "beginning, significantly: one rate does not describe it (sojourn simulate --drift)",
                soft_wrap=True,
            )
        if fitted.drifting:
            shown = [
                f"{name} ({_change(by)})" for name, by in [*fitted.drifting.items()][:MOST_NAMED]
            ]
            more = len(fitted.drifting) - len(shown)
            also = f" and {more} more" if more else ""
            console.print(
                f"{escape(fleet.label(k))}: from the beginning of the log to its end the tasks of "
                f"{escape(', '.join(shown))}{also} changed significantly: one rate does not describe "
                "such a device; --by-device separates them",
                soft_wrap=True,
            )
        if fitted.spread is not None:
            console.print(
                f"{escape(fleet.label(k))}: its devices differ significantly in speed, by a factor "
                f"of up to {printed(fitted.spread)} (the slowest is {escape(fitted.devices[0])}); "
                "--by-device or --classes K separates them",
                soft_wrap=True,
            )


def _show_left_out(task_log: "TaskLog", listed: Path | None, console: Console) -> None:
    """How times were read, and the rows and devices that were left out."""
    from sojourn.fleet.from_logs.log import bad_row_lines

    for note in task_log.notes:
        console.print(escape(note), soft_wrap=True)
    if task_log.bad:
        console.print(
            f"{len(task_log.bad):,} of {task_log.rows:,} rows ({len(task_log.bad) / task_log.rows:.1%}) cannot be "
            "used and were left out:"
        )
        for line in bad_row_lines(task_log):
            console.print(f"  {escape(line)}", soft_wrap=True)
        where = "--bad-rows FILE lists them" if listed is None else f"listed in {listed}"
        console.print(escape(where))
    if task_log.unfinished:
        names = ", ".join(task_log.unfinished[:MOST_NAMED])
        more = len(task_log.unfinished) - MOST_NAMED
        console.print(
            f"left out, without a finished task: {escape(names)}"
            + (f" and {more} more" if more > 0 else ""),
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

    Example: sojourn fleet read client_device_capacity --format fedscale --samples 100 --model-bytes
    2e6 --out fleet.csv
    """
    from sojourn.fleet.calendars import write_hours
    from sojourn.fleet.from_logs.simulators import (
        BYTES_PER_KILOBIT,
        read_behaviour,
        read_capacity,
        read_profiles,
    )

    if kind not in FORMATS:
        raise UnknownName("format", kind, FORMATS)
    console = screen()
    if kind == "fedscale-hours":
        hours, checksum = read_behaviour(file)
        write_hours(hours, out)
        share = hours.availability
        description = (
            f"{len(hours.devices)} devices, there {share.mean():.1%} of the time on average, in hours "
            f"that repeat after {printed(hours.period)} seconds"
        )
        following = [*["simulate", "fleet.csv", "--concurrency", "30", "--hours"], str(out)]
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
        description = f"{fleet}, tasks per second"
        following = ["plan", str(out)]
    console.print(f"{escape(str(file))} (SHA-256 {checksum}): {description}", soft_wrap=True)
    console.print(f"written: {escape(str(out))}")
    say_next(*following)


def _needed(value: float | None, option: str, kind: str) -> float:
    if value is None:
        raise InvalidInput(f"the format {kind} needs {option}, to say how long a task takes")
    return value
