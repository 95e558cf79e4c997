"""``sojourn demo``: the whole way from a fleet to a page to look at, on embedded data."""

from pathlib import Path
from typing import Annotated

import typer

from sojourn.cli import app
from sojourn.errors import MissingExtra
from sojourn.inputs import DEFAULT_CONSTANTS


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for everything that is made.")] = Path("demo"),
    jobs: Annotated[int, typer.Option(help="Processes on this machine.")] = 2,
) -> None:
    """Plan, simulate, train and report on a built-in fleet and embedded digits, in minutes."""
    try:
        from sojourn.reproduce.demo import demonstrate
    except ImportError as error:
        raise MissingExtra(error.name or "torch", extra="all") from error

    page = demonstrate(DEFAULT_CONSTANTS, out=out, jobs=jobs, say=typer.echo)
    typer.echo(f"open {page}")
