"""``sojourn tune``: the strategy that wins, with its evidence."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sojourn.cli import app
from sojourn.cli.inputs import (
    CHOSEN,
    DataDirOption,
    EngineOption,
    JobsOption,
    SchedulerOption,
    say_next,
    screen,
)
from sojourn.progress import shown

if TYPE_CHECKING:
    from sojourn.tuning.tune import Tuned

INTERRUPTED = 130


@app.command()
def tune(
    experiment: Annotated[
        Path,
        typer.Argument(
            metavar="EXPERIMENT.toml",
            help="Fleet, data, model and horizon; strategies to choose among, or none: then "
            "Sojourn proposes them.",
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="Folder for the answer.", show_default="runs/NAME-tuned")
    ] = None,
    target: Annotated[
        float | None, typer.Option(help="Judge by the time to this accuracy, such as 0.8.")
    ] = None,
    criterion: Annotated[
        str | None,
        typer.Option(
            help="final (loss at the end), area (mean loss over time), or target.",
            show_default="final",
        ),
    ] = None,
    time: Annotated[
        float | None,
        typer.Option(help="How long runs last, in virtual time, instead of the file's."),
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(help="How long runs last, in rounds, instead of the file's.")
    ] = None,
    budget: Annotated[str, typer.Option(help="How long tuning may take: 90s, 10m, 2h.")] = "10m",
    jobs: JobsOption = 1,
    engine: EngineOption = "local",
    scheduler: SchedulerOption = None,
    data_dir: DataDirOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")] = False,
) -> None:
    """Choose policy, rule and learning rate on pilot runs, and confirm the choice on fresh seeds.

    What the folder holds of an interrupted run is not run again.

    Example: sojourn tune experiments/digits.toml --target 0.8 --budget 5m --jobs 2
    """
    from sojourn.runfolder import RunFolder
    from sojourn.train.experiment.engines import make_engine
    from sojourn.tuning.budget import parse_duration
    from sojourn.tuning.setting import read_setting
    from sojourn.tuning.tune import PLAN, tune_setting

    seconds = parse_duration(budget)
    chosen = make_engine(engine, jobs=jobs, scheduler=scheduler)
    setting = read_setting(
        experiment,
        time=time,
        rounds=rounds,
        target=target,
        criterion=criterion,
        data_dir=None if data_dir is None else str(data_dir.resolve()),
    )
    folder = out or Path("runs") / f"{experiment.stem}-tuned"
    try:
        with shown() as progress:
            tuned = tune_setting(
                setting,
                folder,
                engine=chosen,
                budget=seconds,
                progress=progress,
                say=lambda text: typer.echo(text, err=True),
            )
    except KeyboardInterrupt:
        _say_best_so_far(folder, setting)
        typer.secho(
            f"interrupted. What is done is kept; run the same command again to go on with {folder}.",
            err=True,
        )
        raise typer.Exit(INTERRUPTED) from None
    if as_json:
        typer.echo(RunFolder(folder).tuning_path.read_text(encoding="utf-8"))
        return
    console = screen()
    _show(tuned, console)
    console.print(f"[bold]{escape(tuned.sentence)}[/bold]")
    console.print(f"written to {folder}")
    say_next("report", folder, note=f"then sojourn deploy init my-app, and {folder / PLAN} in it")


def _show(tuned: "Tuned", console: Console) -> None:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("strategy", overflow="fold")
    for heading in ("rate", tuned.setting.criterion.describe(), "accuracy", "seeds"):
        table.add_column(heading, justify="right", no_wrap=True)
    for place, row in enumerate(tuned.table):
        finals = [100 * history.final_accuracy for history in row.histories]
        mean = sum(finals) / len(finals) if finals else float("nan")
        style = CHOSEN if place == 0 else None
        table.add_row(
            escape(row.name),
            f"{row.learning_rate:g}",
            f"{row.score:.3g}",
            f"{mean:.1f}%",
            str(len(row.scores)),
            style=style,
        )
    console.print(table)
    exhaustive = tuned.race.entered
    console.print(
        f"{exhaustive} candidates raced with {tuned.gradients:,} gradients in {tuned.seconds:.0f} s; "
        "scores are on the test set, from seeds that no pilot used (± standard error).",
        highlight=False,
    )


def _say_best_so_far(folder: Path, setting: Any) -> None:
    from sojourn.tuning.heats import RACE, read_race

    path = folder / RACE
    if not path.exists():
        return
    race, _ = read_race(path)
    for candidate in race.podium()[:1]:
        name = setting.experiment.strategies[candidate.strategy].name
        fraction = race.rungs[-1].fraction
        typer.echo(
            f"best so far, after {fraction:.3g} of the horizon and not confirmed: {name} at learning "
            f"rate {candidate.learning_rate:g}",
            err=True,
        )
