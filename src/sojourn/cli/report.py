"""``sojourn report`` and ``figure``: a page or a figure, from the folders that other commands wrote."""

import re
from pathlib import Path
from typing import Annotated

import typer

from sojourn._support.files import exists, file_name
from sojourn._support.memory import check_jobs
from sojourn.cli import app
from sojourn.cli.checkout import holds_claims, reproduction
from sojourn.cli.options import read_run
from sojourn.cli.output import page_line, say_first, say_next
from sojourn.errors import InvalidFile, InvalidInput, UnknownName

FORMATS = ("pdf", "png", "svg")
AXES = ("time", "rounds")


@app.command()
def report(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="DIR...", help="Folders of train, tune, reproduce, demo or deploy."),
    ],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    title: Annotated[
        str | None, typer.Option(help="Its title.", show_default="what was found")
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
    say_first(f"reading {', '.join(map(str, folders))}")
    for folder in folders:  # before all that a page needs is imported
        if not exists(folder):
            raise InvalidFile(f"{folder}: there is no such folder")
    from sojourn.report.runs import report_of

    check_jobs(jobs)
    of_claims = any(holds_claims(folder) for folder in folders)
    make = reproduction("pages").reproduction_report if of_claims else report_of
    made = make(folders, title=title)
    page = made.write(out, stills=stills, jobs=jobs, say=typer.echo)
    if stills:
        typer.echo(f"figures: {page.with_name(f'{page.stem}-figures')}")
    typer.echo(page_line(page))
    runs = [run for folder in folders for run in _runs(folder)]
    if runs:
        say_next("compare", runs[0], note="paired tests in numbers")
    else:
        say_next(
            "explore", "three-clusters", note="move the clients of the paper's claims yourself"
        )


def _runs(folder: Path) -> list[Path]:
    """What can be compared: the folder of a run, or those in it."""
    from sojourn.runs.folder import RunFolder

    candidates = (folder, *folder.glob("*"))
    return sorted(path for path in candidates if RunFolder(path).history_path.is_file())


@app.command()
def figure(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder of train or deploy.")],
    what: Annotated[
        str | None,
        typer.Option(help="accuracy, loss or a metric.", show_default="what runs are judged by"),
    ] = None,
    axis: Annotated[str, typer.Option(help="time or rounds.")] = "time",
    size: Annotated[str, typer.Option(help="Width x height in inches.")] = "3.3x2.2",
    form: Annotated[str, typer.Option("--format", help="pdf, png or svg.")] = "pdf",
    out: Annotated[
        Path | None, typer.Option(help="The file to write.", show_default="DIR-WHAT.FORMAT")
    ] = None,
    title: Annotated[
        str | None, typer.Option(help="Above the figure.", show_default="none")
    ] = None,
) -> None:
    """Draw how learning went: means over seeds, bands of one standard error.

    Example: sojourn figure runs/mine --what accuracy --size 3.3x2.2 --format pdf
    """
    say_first(f"reading {folder}")
    from sojourn.figures.figure import Figure
    from sojourn.report.curves import learning_view, measures_of

    inches = _inches(size)
    for name, value, offered in (("format", form, FORMATS), ("axis", axis, AXES)):
        if value not in offered:
            raise UnknownName(name, value, offered)
    run = read_run(folder)
    measures = {measure.name: measure for measure in measures_of(run.histories)}
    chosen = what or run.histories[0].measure.name
    if chosen not in measures:
        raise UnknownName("quantity", chosen, measures)
    view = learning_view(run.histories, measures[chosen], axis=axis)
    target = out or Path(f"{run.name}-{file_name(chosen)}.{form}")
    drawn = Figure(run.name, title or "", f"{chosen} of {run.name}", (view,))
    typer.echo(f"written to {drawn.save(target, size=inches)}")
    say_next("compare", folder, "--latex", "table.tex")


def _inches(text: str) -> tuple[float, float]:
    match = re.fullmatch(r"\s*(\d+\.?\d*)\s*[x×,]\s*(\d+\.?\d*)\s*", text)
    if match is None or not (0.5 <= float(match[1]) <= 50 and 0.5 <= float(match[2]) <= 50):
        raise InvalidInput(
            f"--size must be WIDTHxHEIGHT in inches, such as 3.3x2.2; it is '{text}'"
        )
    return float(match[1]), float(match[2])
