"""``sojourn train``: run an experiment, compare its strategies."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sojourn.cli import app
from sojourn.cli.inputs import (
    DataDirOption,
    EngineOption,
    JobsOption,
    SchedulerOption,
    print_table,
    printed,
    say_next,
    screen,
)
from sojourn.errors import InvalidInput
from sojourn.estimate import Estimate
from sojourn.measure import ACCURACY, Measure
from sojourn.progress import shown

if TYPE_CHECKING:
    from sojourn.train.experiment.experiment import Experiment

INTERRUPTED = 130
COUNTS = ("updates", "gradients")
"""Columns to do without where there is no room for all, the first one first."""
SHORTEST_NAME = 12
WIDE = 1000


@app.command()
def train(
    experiment: Annotated[
        Path, typer.Argument(metavar="EXPERIMENT.toml", help="What to compare, on what.")
    ],
    out: Annotated[
        Path | None, typer.Option(help="Folder for the results.", show_default="runs/NAME")
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Go on in the folder: with what was interrupted, and with seeds, strategies, "
            "learning rates and targets that have come since.",
        ),
    ] = False,
    jobs: JobsOption = 1,
    engine: EngineOption = "local",
    scheduler: SchedulerOption = None,
    data_dir: DataDirOption = None,
    partition_figure: Annotated[
        Path | None,
        typer.Option(help="Only draw who holds what under the first seed, as .png or .svg."),
    ] = None,
) -> None:
    """Compare strategies on a learning problem, in virtual time.

    Example: sojourn train experiments/digits.toml --jobs 2
    """
    import dataclasses

    from sojourn.train.experiment.engines import LocalEngine, make_engine
    from sojourn.train.experiment.experiment import Experiment
    from sojourn.train.experiment.run import run_experiment

    asked = Experiment.read(experiment)
    if data_dir is not None:
        asked = dataclasses.replace(asked, data_dir=str(data_dir.resolve()))
    if partition_figure is not None:
        _draw_partition(asked, partition_figure)
        return
    chosen = make_engine(engine, jobs=jobs, scheduler=scheduler)
    if isinstance(chosen, LocalEngine):
        _say_notes(asked)
    folder = out or Path("runs") / experiment.stem
    try:
        with shown() as progress:
            summary = run_experiment(asked, folder, chosen, resume=resume, progress=progress)
    except KeyboardInterrupt:
        typer.secho(
            f"interrupted. What is done is kept; go on with: sojourn train {experiment} "
            f"--out {folder} --resume",
            err=True,
        )
        raise typer.Exit(INTERRUPTED) from None
    _show(summary, _console())
    typer.echo(f"written to {folder}")
    say_next("report", folder)


def _say_notes(experiment: "Experiment") -> None:
    """Load the data once, so that what is wrong with it is said at once, and what is notable."""
    from sojourn.rules.memory import keeps_table, memory_note
    from sojourn.train.experiment.build import build_problem, partition_notes

    for note in partition_notes(experiment):
        typer.echo(f"note: {note}", err=True)
    large = [s for s in experiment.strategies if keeps_table(s.rule, s.network.size)]
    if large:
        weights = build_problem(experiment, experiment.seeds[0]).initial_weights().numpy()
        for strategy in large:
            note = memory_note(strategy.rule, strategy.network.size, weights)
            typer.echo(f"note: {strategy.name}: {note}", err=True)


def _draw_partition(experiment: "Experiment", path: Path) -> None:
    from sojourn.report.partition import draw_partition
    from sojourn.train.data.partition import partition_table
    from sojourn.train.experiment.build import dataset, partition_of

    if path.suffix not in (".png", ".svg"):
        raise InvalidInput(f"'{path}': the picture must end in .png or .svg")
    if experiment.problem is not None:
        raise InvalidInput("there is no built-in partition to draw: the experiment has a 'problem'")
    data = dataset(experiment.data, experiment.data_dir)
    seed = experiment.seeds[0]
    made = partition_of(experiment, data, seed)
    table = partition_table(made, data.train_labels)
    title = f"{experiment.data}, {experiment.partition}, seed {seed}"
    draw_partition(table, path, title=title)
    typer.echo(f"written to {path}")


def _console() -> Console:
    """Standard output; wide enough for every number where it is a file or a pipe."""
    return screen() if sys.stdout.isatty() else Console(width=WIDE, highlight=False)


def _show(summary: Mapping[str, Any], console: Console) -> None:
    entries = summary["strategies"]
    names = [entry["name"] for entry in entries]
    columns = _columns(entries)
    least = min(SHORTEST_NAME, max(map(len, ("strategy", *names))))
    for dropped in COUNTS:
        if least + sum(2 + width for _, _, width in columns) > console.width:
            columns = [column for column in columns if column[0] != dropped]
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("strategy", overflow="fold")
    for heading, _, width in columns:
        table.add_column(heading, justify="right", no_wrap=True, min_width=width)
    for name, *values in zip(names, *(values for _, values, _ in columns), strict=True):
        table.add_row(escape(name), *values)
    print_table(console, table)
    for line in _explained(entries):
        console.print(line, highlight=False)


def _explained(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the columns mean, and what a reader should be warned of."""
    seeds, measure = len(entries[0]["seeds"]), _measure(entries[0])
    targets = (
        "to x%: time until the accuracy is x"
        if measure.percent
        else f"to x: time to {measure.name} x"
    )
    lines = [
        f"rate: learning rate; final: {measure.label} at the end; mean: its average over time; "
        + targets
        + (f"; ± standard error over {seeds} seeds" if seeds > 1 else "")
    ]
    known = {
        target: [e["time_to"][target].get("resolution") for e in entries]
        for target in entries[0]["time_to"]
    }
    told = {
        target: max(r for r in all_ if r is not None) for target, all_ in known.items() if any(all_)
    }
    if told:
        within = ", ".join(f"{measure.target(float(t))} {printed(r)}" for t, r in told.items())
        lines.append(f"times to a target are known to within: {within}")
    for entry in entries:
        edge = entry.get("learning_rate_at_edge")
        if edge:
            wider = "smaller" if edge == "smallest" else "larger"
            lines.append(
                f"warning: {entry['name']}: the best learning rate, {entry['learning_rate']:g}, is "
                f"the {edge} that was tried; a {wider} one may be better. Add some to "
                "'learning-rate' and go on with --resume."
            )
        lines += [
            f"{entry['name']}: diverged in round {run['round']} with seed {run['seed']}; it is "
            "left out of the means. Try a smaller learning rate."
            for run in entry["diverged"]
        ]
    return lines


def _measure(entry: Mapping[str, Any]) -> Measure:
    return Measure(**entry["measure"]) if "measure" in entry else ACCURACY


def _columns(entries: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[str], int]]:
    """Heading, values and width of every column but the names."""
    seeds, measure = len(entries[0]["seeds"]), _measure(entries[0])
    final = "final" if measure.percent else f"final {measure.name}"
    columns = {
        "rate": [f"{entry['learning_rate']:g}" for entry in entries],
        final: [_final(entry, measure) for entry in entries],
        "mean": [
            _shown(entry["mean_accuracy" if measure.percent else "mean"], measure)
            for entry in entries
        ],
    }
    for name in entries[0].get("metrics", {}):
        if name != measure.name:
            other = Measure(name)
            columns[name] = [_shown(entry["metrics"][name], other) for entry in entries]
    for target in entries[0]["time_to"]:
        times = [_time(entry["time_to"][target], seeds) for entry in entries]
        shown = measure.target(float(target))
        columns[f"to {shown if measure.percent else target}"] = times
    for count in reversed(COUNTS):
        means = [entry[count]["mean"] for entry in entries]
        columns[count] = ["-" if mean is None else f"{mean:.0f}" for mean in means]
    return [(name, values, max(map(len, (name, *values)))) for name, values in columns.items()]


def _final(entry: Mapping[str, Any], measure: Measure) -> str:
    """The final accuracy or what else runs are judged by."""
    if len(entry["diverged"]) == len(entry["seeds"]):
        return "diverged"
    return _shown(entry["final_accuracy" if measure.percent else "final"], measure)


def _shown(value: Mapping[str, float | None], measure: Measure) -> str:
    if value["mean"] is None:
        return "-"
    return _tight(Estimate.from_table(value), ".1%" if measure.percent else ".4g")


def _time(value: Mapping[str, Any], seeds: int) -> str:
    if value["mean"] is None:
        return f"{value['reached']} of {seeds} seeds" if value["reached"] else "not reached"
    if value["standard_error"] is None:
        return printed(value["mean"])
    return _tight(Estimate.from_table(value), ".0f" if value["mean"] >= 100 else ".1f")


def _tight(estimate: Estimate, form: str) -> str:
    """Without spaces, for columns that must fit a terminal."""
    return format(estimate, form).replace(" ", "")
