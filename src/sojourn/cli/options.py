"""Options and arguments that several commands take, and what is checked of them first."""

import os
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sojourn._support.configuration import Table as Configuration
from sojourn._support.files import exists, is_file, nearest_existing
from sojourn.errors import InvalidFile, InvalidInput
from sojourn.fleet import BUILT_IN_FLEETS
from sojourn.fleet.named import read_fleet

if TYPE_CHECKING:
    from sojourn.runs.folder import Run

WRITTEN = ("out", "page", "clients", "figure")
"""Options that name a file to be written."""


FleetArgument = Annotated[
    str,
    typer.Argument(
        metavar="FLEET",
        help="CSV with a column service_rate and, optionally, count and name; or a built-in fleet: "
        + ", ".join(BUILT_IN_FLEETS)
        + ".",
    ),
]


def sparing_inputs(command: Callable[..., None]) -> Callable[..., None]:
    """A command that refuses to write over one of the files that it reads."""

    @wraps(command)
    def spared(**values: object) -> None:
        read = [
            v for name, v in values.items() if name not in WRITTEN and isinstance(v, str | Path)
        ]
        for name in WRITTEN:
            out = values.get(name)
            if isinstance(out, Path) and any(_is_same_file(out, path) for path in read):
                raise InvalidInput(
                    f"--{name} {out} is read by this command and would be lost: give another name"
                )
        command(**values)

    return spared


def _is_same_file(first: Path, second: str | Path) -> bool:
    return is_file(first) and is_file(second) and first.samefile(second)


def read_run(folder: Path) -> "Run":
    """The runs in a folder, or ``InvalidFile`` where there are none."""
    from sojourn.runs.folder import RunFolder

    if not RunFolder(folder).has_histories:
        why = "no history.jsonl in it" if exists(folder) else "there is no such folder"
        raise InvalidFile(f"{folder}: {why}. Give a folder written by 'train' or 'tune'.")
    return RunFolder(folder).read()


def check_out_folder(folder: Path) -> None:
    """Refuse a folder that cannot be made or written into, before anything is computed."""
    place = nearest_existing(folder)
    if not place.is_dir():
        raise InvalidInput(f"{folder}: cannot be written ({place.name} is a file): give a folder")
    if not os.access(place, os.W_OK | os.X_OK):
        raise InvalidInput(f"{folder}: cannot be written (no permission to write in {place})")


def check_experiment_file(path: Path) -> None:
    """Refuse a file that is missing, no TOML, or of a fleet or strategies that cannot be read.

    All this is found before torch is imported; reading the experiment itself checks everything.
    """
    from sojourn.strategy import read_strategies

    if path.is_dir():
        inside = path / "experiment.toml"
        hint = f": give {inside}" if inside.is_file() else ""
        raise InvalidFile(f"{path} is a folder, not an experiment's file{hint}")
    table = Configuration.read(path)
    if "fleet" not in table.values and "classes" in table.values:
        raise InvalidFile(
            f"{path}: a plan or a strategy, not an experiment. Name it in one, which also has a fleet, a "
            f'problem or data, and a time: strategies = ["{path.name}"]'
        )
    fleet = read_fleet(table.take("fleet", str), path.parent)
    read_strategies(table, fleet, path.parent, none_needed=True)


ServerRateOption = Annotated[
    float | None,
    typer.Option(
        help="Updates per time unit that the server can make, one after the other; it takes no "
        "time if left out. Times on links are the fleet's columns downlink and uplink; how long clients "
        "are there and away, mean_up and mean_down."
    ),
]


OpenOption = Annotated[bool, typer.Option("--open/--no-open", help="Open the page in a browser.")]


PortOption = Annotated[
    int, typer.Option(min=0, max=65535, help="Where to listen on 127.0.0.1; 0 takes a free port.")
]


JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
JobsOption = Annotated[int, typer.Option(help="Processes on this machine.")]


EngineOption = Annotated[str, typer.Option(help="local, or dask.")]


SchedulerOption = Annotated[
    str | None, typer.Option(help="Address of the Dask scheduler, such as tcp://host:8786.")
]


TrackOption = Annotated[
    str | None,
    typer.Option(
        help="Log finished runs: tensorboard:DIR, mlflow:URI, wandb:PROJECT, or your own module:name."
    ),
]


DataDirOption = Annotated[
    Path | None, typer.Option(help="Folder of data sets, searched before $SOJOURN_DATA.")
]


GroupOption = Annotated[
    float | None,
    typer.Option(help="Treat clients whose speeds differ by less than this as one class."),
]


def sort_help(columns: Sequence[str]) -> str:
    """What the help says of ``--sort``, for a command whose table has these columns."""
    return f"Largest first by one of: {', '.join(columns)}; or by name."
