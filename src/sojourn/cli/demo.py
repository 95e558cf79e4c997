"""``sojourn demo``: from a fleet to the strategy that wins, and a page to look at."""

from pathlib import Path
from typing import Annotated

import typer

from sojourn.cli import app
from sojourn.cli.inputs import (
    JobsOption,
    say_next,
)
from sojourn.errors import MissingExtra
from sojourn.resources import check_jobs


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for everything that is made.")] = Path("demo"),
    jobs: JobsOption = 2,
) -> None:
    """Find the strategy that wins on a built-in fleet and embedded digits, and show it, in minutes.

    Example: sojourn demo --out demo
    """
    try:
        from sojourn.reproduce.demo import demonstrate
    except ImportError as error:
        raise MissingExtra(error.name or "torch", extra="all") from error

    check_jobs(jobs)
    page = demonstrate(out=out, jobs=jobs, say=typer.echo)
    typer.echo(f"open {page}")
    say_next(
        "explore",
        "three-clusters",
        note="move these clients; yours: sojourn plan FLEET.csv --page plan.html",
    )
