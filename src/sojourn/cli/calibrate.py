"""``sojourn calibrate``: measure the constants of the bounds on an experiment's problem."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from sojourn.bounds import max_learning_rate
from sojourn.cli import app
from sojourn.cli.inputs import (
    DataDirOption,
    printed,
    say_next,
    screen,
)
from sojourn.estimate import plus_minus

if TYPE_CHECKING:
    from sojourn.train.experiment.calibrate import Calibration, Measurement
    from sojourn.train.experiment.experiment import Experiment


@app.command()
def calibrate(
    experiment: Annotated[
        Path, typer.Argument(metavar="EXPERIMENT.toml", help="As for `sojourn train`.")
    ],
    out: Annotated[Path, typer.Option(help="File for the constants.")] = Path("constants.toml"),
    seed: Annotated[int, typer.Option(help="Seed of partition, weights and batches.")] = 0,
    data_dir: DataDirOption = None,
) -> None:
    """Measure smoothness, noise and heterogeneity on your problem, for `sojourn plan`.

    Example: sojourn calibrate experiments/digits.toml --out constants.toml
    """
    import tomli_w

    from sojourn.files import replacing
    from sojourn.provenance import provenance
    from sojourn.train.experiment.build import build_problem, calibration_of
    from sojourn.train.experiment.cells import threads_for, using_threads
    from sojourn.train.experiment.experiment import Experiment

    asked = Experiment.read(experiment)
    if data_dir is not None:
        asked = replace(asked, data_dir=str(data_dir.resolve()))
    rate = min(strategy.learning_rates[0] for strategy in asked.strategies)
    errors = Console(stderr=True)
    threads = using_threads(threads_for(asked, None))
    with threads, errors.status("measuring") as status:
        problem = build_problem(asked, seed)
        found = calibration_of(
            asked,
            problem,
            learning_rate=rate,
            seed=seed,
            progress=lambda step: status.update(f"measuring {step}"),
        )
    constants = {key.replace("_", "-"): value for key, value in asdict(found.constants).items()}
    record = {
        "constants": constants,
        "initial": asdict(found.initial),
        "warm": asdict(found.warm),
        "provenance": provenance(experiment=asked.to_table(), seed=seed, warm_up_rate=rate),
    }
    with replacing(out) as temporary:
        temporary.write_text(tomli_w.dumps(record), encoding="utf-8")
    _show(found, asked, screen())
    typer.echo(f"written to {out}")
    say_next("plan", asked.fleet_name, "--constants", out)


def _show(found: "Calibration", experiment: "Experiment", console: Console) -> None:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("")
    for heading in ("at the start", f"after {found.warm_up_rounds} rounds", "used"):
        table.add_column(heading, justify="right")
    first, warm, used = found.initial, found.warm, found.constants
    table.add_row("training loss f", printed(first.loss), printed(warm.loss), "")
    table.add_row("A, at most f at the start", "", "", printed(used.initial_gap))
    table.add_row(
        "L", printed(first.smoothness), printed(warm.smoothness), printed(used.smoothness)
    )
    table.add_row(
        "sigma squared", _variance(first), _variance(warm), printed(used.gradient_noise**2)
    )
    table.add_row(
        "M squared", _dissimilarity(first), _dissimilarity(warm), printed(used.heterogeneity**2)
    )
    console.print(table)
    strategy = experiment.strategies[0]
    largest = max_learning_rate(strategy.network, used)
    rate = min(strategy.learning_rates[0] for strategy in experiment.strategies)
    share = 2.0 * used.heterogeneity**2 / used.noise if used.noise else 0.0
    console.print(
        f"B = sigma^2 + 2 M^2 = {printed(used.noise)}, of which {share:.0%} comes from clients "
        f"holding different data.\nWith {strategy.name} routing and {strategy.network.concurrency} "
        f"tasks in flight the bounds are guarantees up to learning rate {printed(largest)}; "
        + (
            f"the experiment's {rate:g} is {rate / largest:.2g} times that, where they are a proxy."
            if rate > largest
            else f"the experiment's {rate:g} is within."
        ),
        highlight=False,
    )


def _variance(point: "Measurement") -> str:
    return plus_minus(point.gradient_variance, point.gradient_variance_error, ".4g")


def _dissimilarity(point: "Measurement") -> str:
    return plus_minus(point.dissimilarity, point.dissimilarity_error, ".4g")
