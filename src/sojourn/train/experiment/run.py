"""Running an experiment: pilots, choice of learning rates, final runs, one folder of results."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sojourn.errors import InvalidFile, InvalidInput
from sojourn.history import History
from sojourn.progress import Progress, Silent, by_fraction
from sojourn.provenance import provenance
from sojourn.runfolder import RunFolder
from sojourn.train.experiment.cells import Cell, expected_gradients, kept, threads_for
from sojourn.train.experiment.engines import Engine
from sojourn.train.experiment.experiment import Experiment
from sojourn.train.experiment.summary import best_learning_rate, summarize, summarize_strategy


def run_experiment(
    experiment: Experiment,
    folder: Path,
    engine: Engine,
    *,
    resume: bool = False,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Run everything that is not yet in ``folder``, write the results there, return the summary.

    The folder is a `RunFolder`; its ``experiment.toml`` can be run again as it is. With ``resume`` finished cells are kept and interrupted ones go on from their checkpoints.
    """
    experiment = prepare_folder(experiment, folder, engine, resume=resume)
    shown = progress or Silent()
    pilots = run_all("pilots", _pilot_cells(experiment), experiment, folder, engine, shown)
    by_rate = [
        {
            rate: [pilots[Cell(i, seed, rate)] for seed in experiment.pilot_seeds]
            for rate in (strategy.learning_rates if experiment.pilot_seeds else ())
        }
        for i, strategy in enumerate(experiment.strategies)
    ]
    rates = [
        best_learning_rate(runs) if runs else strategy.learning_rates[0]
        for strategy, runs in zip(experiment.strategies, by_rate, strict=True)
    ]
    cells = [Cell(i, seed, rate) for seed in experiment.seeds for i, rate in enumerate(rates)]
    finals = run_all("runs", cells, experiment, folder, engine, shown)
    histories = [
        [finals[Cell(i, seed, rate)] for seed in experiment.seeds] for i, rate in enumerate(rates)
    ]
    return write_results(experiment, folder, rates, histories, by_rate)


def write_results(
    experiment: Experiment,
    folder: Path,
    rates: Sequence[float],
    histories: Sequence[Sequence[History]],
    pilots: Sequence[Mapping[float, Sequence[History]]] | None = None,
) -> dict[str, Any]:
    """Write histories and summary of all strategies, each at its learning rate; returns the summary."""
    entries = [
        summarize_strategy(
            strategy.name,
            runs,
            network=strategy.network,
            rule=strategy.rule,
            law=strategy.scenario.law,
            policy=strategy.scenario.policy,
            learning_rate=rate,
            targets=experiment.targets,
            pilots=tried,
        )
        for strategy, runs, rate, tried in zip(
            experiment.strategies, histories, rates, pilots or [{}] * len(rates), strict=True
        )
    ]
    summary = summarize(
        experiment.problem or experiment.data,
        entries,
        provenance(experiment=experiment.to_table()),
        pilot_seeds=experiment.pilot_seeds,
    )
    written = RunFolder(folder)
    written.write_history(run for runs in histories for run in runs)
    written.write_summary(summary)
    return summary


def prepare_folder(
    experiment: Experiment, folder: Path, engine: Engine, *, resume: bool
) -> Experiment:
    """Make the folder, or check that it is of the same experiment.

    Settles the number of threads and whether gradients are computed together, once for all runs.
    What can be wrong is looked for first, so that a mistake leaves no folder behind.
    """
    there = RunFolder(folder)
    if resume and there.begun:
        before = Experiment.read(there.experiment_path)
        if experiment.batched is None:
            experiment = dataclasses.replace(experiment, batched=before.batched)
        experiment = dataclasses.replace(experiment, threads=before.threads)
        _check_same(before, experiment, folder)
        if before.problem_digest is not None:
            _check_same_problem(before, engine.look(experiment).problem_digest, folder)
        return experiment
    if not there.empty:
        advice = (
            f"It holds no {there.experiment_path.name} to resume."
            if resume
            else "Give another --out, or --resume to go on with what is there."
        )
        raise InvalidInput(f"'{folder}' exists and is not empty. {advice}")
    experiment = dataclasses.replace(experiment, threads=threads_for(experiment, engine.threads()))
    look = engine.look(experiment)
    experiment = dataclasses.replace(
        experiment, batched=look.batched, problem_digest=look.problem_digest
    )
    there.cells.mkdir(parents=True, exist_ok=True)
    there.begin(
        experiment.to_table(),
        fleet=None if experiment.fleet_is_built_in else experiment.fleet,
        plans=plan_texts(experiment),
        extensions=experiment.extensions,
    )
    return experiment


def plan_texts(experiment: Experiment) -> dict[str, str]:
    """The plan files that strategies follow, by the name that a run folder gives them."""
    return {
        strategy.slug: strategy.plan_text
        for strategy in experiment.strategies
        if strategy.plan_text is not None
    }


def _check_same(before: Experiment, now: Experiment, folder: Path) -> None:
    old, new = before.signature(), now.signature()
    for key in sorted({*old, *new}):
        if old.get(key) != new.get(key):
            raise InvalidFile(
                f"'{folder}' was made by another experiment: its '{key}' differs. Give another "
                "--out for this one."
            )


def _check_same_problem(before: Experiment, digest: str | None, folder: Path) -> None:
    if digest != before.problem_digest:
        raise InvalidFile(
            f"'{folder}' was made with another problem: for seed {before.seeds[0]} "
            f"'{before.problem}' now gives another model, loss, data or first weights. Give another "
            "--out; and if the function draws random numbers, let its seed decide them."
        )


def _pilot_cells(experiment: Experiment) -> list[Cell]:
    return [
        Cell(i, seed, rate)
        for seed in experiment.pilot_seeds
        for i, strategy in enumerate(experiment.strategies)
        for rate in strategy.learning_rates
    ]


def run_all(
    phase: str,
    cells: Sequence[Cell],
    experiment: Experiment,
    folder: Path,
    engine: Engine,
    progress: Progress,
) -> Mapping[Cell, History]:
    """The histories of ``cells``: those of an earlier run, and what had to be run now."""
    if not cells:
        return {}
    cost = {cell: expected_gradients(experiment, cell) for cell in cells}
    found = {cell: kept(experiment, cell, folder) for cell in cells}
    histories = {cell: history for cell, history in found.items() if history is not None}
    progress.start(phase, sum(cost.values()), sum(cost[cell] for cell in histories))
    advance = by_fraction(progress, cost)
    missing = [cell for cell in cells if cell not in histories]
    for cell, history in engine.run(experiment, missing, folder, advance) if missing else ():
        histories[cell] = history
        advance(cell, 1.0)
    return histories
