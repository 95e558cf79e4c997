"""``sojourn report``, ``figure``, ``compare``, ``watch`` and ``explore``: what a person looks at."""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from sojourn._support.estimate import Estimate
from sojourn._support.files import exists, file_name, write_text
from sojourn._support.memory import check_jobs
from sojourn.cli import app
from sojourn.cli.options import FleetArgument, OpenOption, PortOption, read_run
from sojourn.cli.output import (
    page_line,
    plain_table,
    print_table,
    say_first,
    say_next,
    screen,
    wrapped,
)
from sojourn.cli.reproduce import holds_claims, reproduction
from sojourn.errors import InvalidFile, InvalidInput, UnknownName
from sojourn.fleet.named import read_fleet

if TYPE_CHECKING:
    from sojourn.report.comparison import Comparison, Paired
    from sojourn.runs.folder import Run
    from sojourn.runs.history import History

FORMATS = ("pdf", "png", "svg")
AXES = ("time", "rounds")
MOST_COLOURED = 8
"""Strategies that a figure shows in colour: as many as can be distinguished."""
LONG_NAME = 16
"""Letters of a strategy's name beyond which no heading has room for it."""


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
    from sojourn.runs.folder import RunFolder

    check_jobs(jobs)
    of_claims = any(holds_claims(folder) for folder in folders)
    make = reproduction("pages").reproduction_report if of_claims else report_of
    made = make(folders, title=title)
    page = made.write(out, stills=stills, jobs=jobs, say=typer.echo)
    if stills:
        typer.echo(f"figures: {page.with_name(f'{page.stem}-figures')}")
    typer.echo(page_line(page))
    inside = [path for folder in folders for path in (folder, *sorted(folder.glob("*")))]
    runs = [path for path in inside if RunFolder(path).has_histories]
    if runs and RunFolder(runs[0]).tasks_path.exists():  # a deployment
        say_next("deploy", "export", runs[0], "model.safetensors")
    elif runs:
        say_next("compare", runs[0], note="paired tests in numbers")
    else:
        say_next(
            "explore", "three-clusters", note="move the clients of the paper's claims yourself"
        )


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
    highlight: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STRATEGY",
            help="Draw this strategy in colour, and those that are not named thin and grey; may be repeated.",
            show_default=f"all, of more than {MOST_COLOURED} the best and its rival",
        ),
    ] = None,
) -> None:
    """Draw how learning went: means over seeds, bands of one standard error.

    Example: sojourn figure runs/mine --what accuracy --size 3.3x2.2 --format pdf
    """
    say_first(f"reading {folder}")
    from sojourn.figures.figure import Figure
    from sojourn.report.outcomes import by_strategy, learning_view, measures_of
    from sojourn.report.verdict import run_verdict

    inches = _inches(size)
    for name, value, offered in (("format", form, FORMATS), ("axis", axis, AXES)):
        if value not in offered:
            raise UnknownName(name, value, offered)
    run = read_run(folder)
    measures = {measure.name: measure for measure in measures_of(run.histories)}
    chosen = what or run.histories[0].measure.name
    if chosen not in measures:
        raise UnknownName("quantity", chosen, measures)
    names, strong = by_strategy(run.histories), highlight or []
    for name in strong:
        if name not in names:
            raise UnknownName("strategy", name, names)
    if not strong and len(names) > MOST_COLOURED:
        strong = run_verdict(run).strong
    view = learning_view(run.histories, measures[chosen], axis=axis, strong=strong)
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


@app.command()
def compare(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Folders of train, tune or deploy.")
    ],
    against: Annotated[
        str | None,
        typer.Option(help="The strategy to compare with.", show_default="the first"),
    ] = None,
    target: Annotated[
        list[float] | None,
        typer.Option(
            help="Time to this accuracy, loss or metric.", show_default="the run's targets"
        ),
    ] = None,
    factors: Annotated[
        bool,
        typer.Option(
            "--factors",
            help="What each factor is worth: policy, rule, weighting, optimiser, averaging, local "
            "steps, from strategies that differ in one of them.",
        ),
    ] = False,
    csv: Annotated[Path | None, typer.Option(help="Write all numbers as CSV.")] = None,
    latex: Annotated[
        Path | None, typer.Option(help="Write a table for a paper (booktabs).")
    ] = None,
    table: Annotated[
        Path | None,
        typer.Option(
            help="Strategies times settings, each folder a setting: write .tex, .csv or .md. The best "
            "of each setting, and those not significantly worse, are bold."
        ),
    ] = None,
) -> None:
    """Compare strategies with paired tests over seeds.

    Folders of different problems are not paired: --table puts them side by side.

    Runs of the same seed saw the same data, first weights and service times: their differences are
    tested, which needs fewer seeds. Times that were not reached count as longer than the run.

    Example: sojourn compare runs/mine --against uniform --csv table.csv
    """
    say_first(f"reading {', '.join(map(str, folders))}")
    from sojourn.report.comparison import compare as compare_runs, differing_problem

    read = [read_run(folder) for folder in folders]
    if factors:
        _show_factors(read, target)
        return
    if table is not None:
        _write_table(
            read, table, target or [], {"--against": against, "--csv": csv, "--latex": latex}
        )
        return
    different = differing_problem(read)
    if different is not None:
        raise InvalidInput(
            f"these runs are of different problems ({different}), so that runs of one seed cannot be "
            "paired. For strategies times settings: --table table.tex (or .csv, .md)"
        )
    runs, targets = _named(read)
    comparison = compare_runs(runs, target or targets, against)
    for path, text in ((csv, comparison.to_csv), (latex, comparison.to_latex)):
        if path is not None:
            write_text(path, text())
    _show(comparison)
    for path in filter(None, (csv, latex)):
        typer.echo(f"written to {path}")
    say_next("report", folders[0], note=f"or sojourn figure {folders[0]}")


def _named(read: "Sequence[Run]") -> "tuple[dict[str, Sequence[History]], list[float]]":
    """The runs of all strategies in the folders, named after both where there are several."""
    runs: dict[str, Sequence[History]] = {}
    for run in read:
        for history in run.histories:
            name = history.strategy if len(read) == 1 else f"{run.name}: {history.strategy}"
            runs[name] = [*runs.get(name, []), history]
    return runs, sorted({target for run in read for target in run.targets})


def _write_table(
    read: "Sequence[Run]", path: Path, targets: Sequence[float], others: Mapping[str, object]
) -> None:
    from sojourn.report.comparison import settings_table

    for option, given in others.items():
        if given is not None:
            raise InvalidInput(f"{option} does not go with --table: leave it out")
    if len(targets) > 1:
        raise InvalidInput("--table takes one --target, whose times it shows")
    if path.suffix not in (".tex", ".csv", ".md"):
        raise InvalidInput(f"'{path}': the table must end in .tex, .csv or .md")
    found = settings_table(read, targets[0] if targets else None)
    texts = {".tex": found.to_latex(), ".csv": found.to_csv(), ".md": found.to_markdown()}
    write_text(path, texts[path.suffix])
    typer.echo(texts[".md"], nl=False)
    what = f"final {found.measure.label}" if found.target is None else "median time to the target"
    typer.echo(
        f"{what}; bold: the best of each setting, and those not significantly worse (paired t-test, "
        "Holm, 5 %)"
        + ("" if found.target is None else "; by final values where a run missed the target")
    )
    typer.echo(f"written to {path}")


def _show_factors(read: "Sequence[Run]", targets: Sequence[float] | None) -> None:
    from sojourn.report.tuned import effects_table
    from sojourn.runs.factors import levels_of, main_effects

    if len(read) != 1:
        raise InvalidInput("--factors compares the strategies of one folder; give one")
    run = read[0]
    entries = run.summary.get("strategies", [])
    if not run.histories or not entries:
        raise InvalidFile(f"{run.name}: no finished runs in it. Give a folder written by 'train'.")
    levels = {str(entry["name"]): levels_of(entry) for entry in entries}
    target = targets[0] if targets else None
    measure = run.histories[0].measure
    percent = measure.percent and target is None
    effects = main_effects(run.histories, levels, target)
    if not effects:
        raise InvalidInput(
            f"{run.name}: no two strategies differ in one factor alone. Run a factorial experiment: "
            "every combination of the levels that you want to compare."
        )
    about = f"final {measure.name}" if target is None else measure.time_to(target)
    console, found = screen(), effects_table(effects, about, percent=percent)
    table = plain_table(found.columns[:2], found.columns[2:])
    for row in found.rows:
        table.add_row(*map(escape, row))
    print_table(console, table)
    console.print(
        f"Mean {'ratio' if effects[0].ratio else 'difference'} between strategies that differ in this "
        f"factor alone, over {effects[0].seeds} seeds; intervals hold for all effects together (95 %).",
        highlight=False,
    )


def _show(comparison: "Comparison") -> None:
    measure = comparison.measure
    console = screen()
    long = len(comparison.reference) > LONG_NAME
    minus = "difference" if long else f"minus {comparison.reference}"
    heads = ["seeds", f"final {measure.name}", "mean", minus, "95 %", "p"]
    heads += [f"to {measure.target(time.target)}" for time in comparison.rows[0].times]
    table = plain_table(["strategy"], heads)
    for row in comparison.rows:
        lost = f" ({row.diverged} diverged)" if row.diverged else ""
        table.add_row(
            escape(row.name),
            f"{len(row.seeds)}{lost}",
            _estimate(row.final, measure.percent),
            _estimate(row.mean, measure.percent),
            *_difference(row.paired, measure.percent),
            *("".join(time.texts) for time in row.times),
        )
    print_table(console, table, drop=("seeds", "mean"))
    if long:
        console.print(
            wrapped(f"difference: from {comparison.reference}", console.width), markup=False
        )
    console.print(
        "a ± b: standard error b over seeds; p: paired t-test over common seeds, after Holm's "
        "correction; 95 %: intervals for all differences together (Bonferroni); times: median, with how many runs reached the target if not all did.",
        highlight=False,
    )


def _estimate(estimate: Estimate, percent: bool) -> str:
    if math.isnan(estimate.mean):
        return "-"
    return format(estimate, ".1%" if percent else ".4g")


def _difference(paired: "Paired | None", percent: bool) -> tuple[str, str, str]:
    if paired is None or math.isnan(paired.difference):
        return "-", "-", "-"
    scale, form = (100.0, "+.1f") if percent else (1.0, "+.3g")
    low, high = scale * paired.low, scale * paired.high
    margin = "-" if math.isnan(low) else f"{low:{form}} to {high:{form}}"
    p = "-" if math.isnan(paired.adjusted) else f"{paired.adjusted:.2g}"
    return f"{scale * paired.difference:{form}}", margin, p


@app.command()
def explore(
    fleet: FleetArgument = "three-clusters",
    open_browser: OpenOption = True,
    port: PortOption = 0,
) -> None:
    """Change speeds, tasks in flight, policy and weights on a local page, and see the consequences.

    Example: sojourn explore three-clusters
    """
    say_first(f"reading {fleet}")
    from sojourn.live.explorer import Explorer
    from sojourn.live.server import serve

    explorer = Explorer(read_fleet(fleet), fleet)
    explorer.prepare()
    say_next(
        "plan", fleet, "--page", "plan.html", note="Ctrl-C ends this, and the pilots that it runs"
    )
    try:
        serve(explorer.serve_on(port), open_browser=open_browser, say=typer.echo)
    finally:
        explorer.close()


@app.command()
def watch(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The folder of train, tune or deploy.")
    ],
    open_browser: OpenOption = True,
    port: PortOption = 0,
) -> None:
    """Follow a run on a local page: timeline, learning curves, clients, time left, verdict.

    The folder is only read; closing the page changes nothing.

    Example: sojourn watch results
    """
    say_first(f"reading {folder}")
    from sojourn.live.server import serve
    from sojourn.live.watcher import Watcher

    watcher = Watcher(folder)
    if not folder.exists():
        typer.echo(f"{folder} is not there yet: the page waits for it")
    say_next("report", folder, note="when it is over; Ctrl-C ends the watching, not the run")
    serve(watcher.serve_on(port), open_browser=open_browser, say=typer.echo)
