"""``sojourn reproduce``: the paper's claims, computed again, beside what the paper printed."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from sojourn.cli import app
from sojourn.cli.inputs import (
    DataDirOption,
    JobsOption,
    say_next,
    screen,
)
from sojourn.errors import MissingExtra
from sojourn.progress import shown
from sojourn.resources import check_jobs

STYLES = {
    "reproduces": "green",
    "reproduces, as far as told": "green",
    "reproduces in part": "yellow",
    "does not reproduce": "red",
    "does not reproduce, as far as told": "red",
}


@app.command()
def reproduce(
    claims: Annotated[
        list[str] | None,
        typer.Argument(metavar="[CLAIM...]", help="Their numbers.", show_default="(all)"),
    ] = None,
    scale: Annotated[
        str,
        typer.Option(
            help="quick (20 minutes on two cores; checks trends), standard (an hour), or paper "
            "(the paper's own size)."
        ),
    ] = "quick",
    budget: Annotated[
        str | None,
        typer.Option(
            help="How long training may take instead: 90s, 10m, 2h.",
            show_default="as the scale says",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the results.", show_default="runs/paper-SCALE")
    ] = None,
    jobs: JobsOption = 2,
    data_dir: DataDirOption = None,
    listed: Annotated[
        bool, typer.Option("--list", help="List the claims and where the paper makes them.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Begin long work without asking on a terminal.")
    ] = False,
) -> None:
    """Compute the paper's claims again and say which of them hold.

    Claims about theory are always computed at full size. What is done is kept: the same command
    goes on where it was interrupted.

    Example: sojourn reproduce 1 2 4 5
    """
    try:
        from sojourn.reproduce.claims import read_claims
        from sojourn.reproduce.pages import report_of
        from sojourn.reproduce.run import Reproduction
        from sojourn.tuning.budget import parse_duration
    except ImportError as error:
        raise MissingExtra(error.name or "torch", extra="all") from error

    wanted = read_claims(claims or [])
    console = screen()
    if listed:
        table = Table(box=None, header_style="bold")
        for column in ("claim", "about", "in the paper"):
            table.add_column(column)
        for claim in wanted:
            table.add_row(claim.number, claim.title, claim.source)
        console.print(table)
        return
    check_jobs(jobs)
    folder = out or Path("runs") / f"paper-{scale}"
    seconds = None if budget is None else parse_duration(budget)
    work = Reproduction.prepare(
        wanted, scale=scale, out=folder, jobs=jobs, data_dir=data_dir, budget=seconds
    )
    if work.trains:
        typer.echo("timing gradients to estimate the work ...")
        typer.echo(work.estimate())
        if scale == "paper" and not yes and console.is_terminal:
            typer.confirm("begin?", abort=True)
    table = Table(box=None, header_style="bold")
    for column in ("claim", "about", "verdict", "statements"):
        table.add_column(column)
    with shown() as progress:
        for finding in work.run(typer.echo, progress):
            typer.echo(f"claim {finding.claim}: {finding.verdict}")
            style = STYLES.get(finding.verdict, "")
            table.add_row(
                finding.claim,
                finding.title,
                f"[{style}]{finding.verdict}[/]" if style else finding.verdict,
                finding.tally,
            )
    console.print(table)
    page = report_of([folder]).write(folder / "report.html", jobs=jobs, say=typer.echo)
    typer.echo(f"written to {page}")
    say_next("report", folder, "--out", page, note=f"writes the page again; look at it: {page}")
