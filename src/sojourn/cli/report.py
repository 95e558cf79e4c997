"""``sojourn report``: one page to look at, from the folders that other commands wrote."""

from pathlib import Path
from typing import Annotated

import typer

from sojourn.cli import app
from sojourn.cli.inputs import say_next
from sojourn.errors import MissingExtra
from sojourn.resources import check_jobs


@app.command()
def report(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="DIR...", help="Folders of train, tune, reproduce, demo or deploy."),
    ],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    title: Annotated[
        str | None, typer.Option(help="Its title.", show_default="(what was found)")
    ] = None,
    stills: Annotated[
        bool, typer.Option(help="Write every figure as PNG and SVG beside the page.")
    ] = True,
    jobs: Annotated[
        int, typer.Option(min=1, help="Processes that draw the PNG and SVG files.")
    ] = 2,
) -> None:
    """Write one self-contained HTML page about runs: figures, fleet, plans, provenance.

    Example: sojourn report runs/mine --out mine.html
    """
    try:
        from sojourn.reproduce.pages import report_of
    except ImportError as error:
        raise MissingExtra(error.name or "plotly", extra="report") from error

    check_jobs(jobs)
    made = report_of(folders, title=title)
    page = made.write(out, stills=stills, jobs=jobs, say=typer.echo)
    typer.echo(f"{page} ({page.stat().st_size / 1e6:.1f} MB): open it in a browser")
    if stills:
        typer.echo(f"figures: {page.with_name(f'{page.stem}-figures')}")
    runs = [run for folder in folders for run in _runs(folder)]
    if runs:
        say_next("compare", runs[0], note="paired tests in numbers")
    else:
        say_next(
            "explore", "three-clusters", note="move the clients of the paper's claims yourself"
        )


def _runs(folder: Path) -> list[Path]:
    """What can be compared: the folder of a run, or those in it."""
    from sojourn.runfolder import RunFolder

    return sorted(
        one for one in (folder, *folder.glob("*")) if RunFolder(one).history_path.is_file()
    )
