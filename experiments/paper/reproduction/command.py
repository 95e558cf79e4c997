"""``sojourn reproduce``: the paper's claims, computed again, beside what the paper printed."""

from pathlib import Path
from typing import Annotated

import click
import typer
from rich.markup import escape

from sojourn._support.files import alone_in
from sojourn._support.memory import check_jobs
from sojourn._support.progress import parse_duration, shown
from sojourn.cli import app
from sojourn.cli.options import DataDirOption, JobsOption
from sojourn.cli.output import plain_table, say_next, screen
from sojourn.cli.reproduce import PAPER, holds_claims, reproduction

STYLES = {
    "reproduces": "green",
    "reproduces where conclusive": "green",
    "reproduces in part": "yellow",
    "does not reproduce": "red",
    "does not reproduce where conclusive": "red",
}


def _print_statements(folder: Path, *, given: bool) -> None:
    """Every statement of the paper, from the findings in ``folder`` or from the saved results."""
    if not given and not holds_claims(folder):
        folder = PAPER / "results" / "standard"
    findings = reproduction("kept").all_findings(folder)
    statements = reproduction("statements").statements_table(findings)
    console = screen()
    console.print(f"from {folder}", highlight=False)
    table = plain_table(statements.columns)
    for row in statements.rows:
        table.add_row(*(escape(cell) for cell in row))
    console.print(table)


@app.command()
def reproduce(
    claims: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CLAIM...]", help="Numbers of claims; --list has them.", show_default="all"
        ),
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
    statements: Annotated[
        bool,
        typer.Option(
            "--statements",
            help="Print every statement of the paper with its status, as the results in --out (or the "
            "saved ones) have it.",
        ),
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Begin long work without asking on a terminal.")
    ] = False,
) -> None:
    """Compute the paper's claims again and say which of them hold.

    Claims about theory are always computed at full size. Finished runs are saved: the same command
    goes on where it was interrupted. At the scale paper, which takes weeks on one core, the page is
    written anew after every run with all that is done.

    Example: sojourn reproduce 1 2 4 5
    """
    wanted = reproduction("claims").read_claims(claims or [])
    console = screen()
    if listed:
        table = plain_table(["claim", "about", "in the paper"])
        for claim in wanted:
            table.add_row(claim.number, claim.title, claim.source)
        console.print(table)
        return
    folder = out or Path("runs") / f"paper-{scale}"
    if statements:
        _print_statements(folder, given=out is not None)
        return
    check_jobs(jobs)
    seconds = None if budget is None else parse_duration(budget)
    held, there = click.get_current_context(), folder.is_dir()
    if there:
        held.with_resource(alone_in(folder))
    work = reproduction("run").Reproduction.prepare(
        wanted, scale=scale, out=folder, jobs=jobs, data_dir=data_dir, budget=seconds
    )
    if not there:
        folder.mkdir(parents=True, exist_ok=True)
        held.with_resource(alone_in(folder))
    if work.trains:
        typer.echo("timing gradients to estimate the work ...")
        typer.echo(work.estimate())
        if scale == "paper" and not yes and console.is_terminal:
            typer.confirm("begin?", abort=True)
    page = folder / "report.html"

    def write_page() -> None:
        reproduction("pages").reproduction_report([folder]).write(page, jobs=jobs, say=typer.echo)

    table = plain_table(["claim", "about", "verdict", "statements"])
    with shown() as progress:
        for finding in work.run(typer.echo, progress, write_page):
            typer.echo(f"claim {finding.claim}: {finding.verdict}")
            style = STYLES.get(finding.verdict, "")
            table.add_row(
                finding.claim,
                finding.title,
                f"[{style}]{finding.verdict}[/]" if style else finding.verdict,
                finding.tally,
            )
    console.print(table)
    write_page()
    typer.echo(f"written to {page}")
    say_next("report", folder, "--out", page, note=f"writes the page again; look at it: {page}")
