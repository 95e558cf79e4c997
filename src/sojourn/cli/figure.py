"""``sojourn figure``: one figure of a run, as a paper wants it."""

import re
from pathlib import Path
from typing import Annotated

import typer

from sojourn.cli import app
from sojourn.cli.inputs import say_next
from sojourn.errors import InvalidFile, InvalidInput, MissingExtra, UnknownName

FORMATS = ("pdf", "png", "svg")
AXES = ("time", "rounds")


@app.command()
def figure(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder of train or deploy.")],
    what: Annotated[
        str | None,
        typer.Option(help="accuracy, loss or a metric.", show_default="(what runs are judged by)"),
    ] = None,
    axis: Annotated[str, typer.Option(help="time or rounds.")] = "time",
    size: Annotated[str, typer.Option(help="Width x height in inches.")] = "3.3x2.2",
    form: Annotated[str, typer.Option("--format", help="pdf, png or svg.")] = "pdf",
    out: Annotated[
        Path | None, typer.Option(help="The file to write.", show_default="DIR-WHAT.FORMAT")
    ] = None,
    title: Annotated[
        str | None, typer.Option(help="Above the figure.", show_default="(none)")
    ] = None,
) -> None:
    """Draw how learning went: means over seeds, bands of one standard deviation.

    Example: sojourn figure runs/mine --what accuracy --size 3.3x2.2 --format pdf
    """
    try:
        from sojourn.report.matplotlib_figure import save_view
    except ImportError as error:
        raise MissingExtra(error.name or "matplotlib", extra="report") from error
    from sojourn.figure import Figure
    from sojourn.report.curves import learning_view, measures_of
    from sojourn.runfolder import RunFolder

    inches = _inches(size)
    for name, value, offered in (("format", form, FORMATS), ("axis", axis, AXES)):
        if value not in offered:
            raise UnknownName(name, value, offered)
    if not RunFolder(folder).has_histories:
        raise InvalidFile(f"{folder}: no history.jsonl in it. Give a folder written by 'train'.")
    run = RunFolder(folder).read()
    measures = {measure.name: measure for measure in measures_of(run.histories)}
    chosen = what or run.histories[0].measure.name
    if chosen not in measures:
        raise UnknownName("quantity", chosen, measures)
    view = learning_view(run.histories, measures[chosen], axis=axis)
    target = out or Path(f"{run.name}-{chosen}.{form}")
    drawn = Figure(run.name, title or "", f"{chosen} of {run.name}", (view,))
    typer.echo(f"written to {save_view(drawn, view, target, size=inches)}")
    say_next("compare", folder, "--latex", "table.tex")


def _inches(text: str) -> tuple[float, float]:
    match = re.fullmatch(r"\s*(\d+\.?\d*)\s*[x×,]\s*(\d+\.?\d*)\s*", text)
    if match is None or not (0.5 <= float(match[1]) <= 50 and 0.5 <= float(match[2]) <= 50):
        raise InvalidInput(
            f"--size must be WIDTHxHEIGHT in inches, such as 3.3x2.2; it is '{text}'"
        )
    return float(match[1]), float(match[2])
