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
from sojourn.summary import best_learning_rate, summarize, summarize_strategy
from sojourn.train.experiment.cells import (
    AnyPart,
    Cell,
    Runs,
    expected_gradients,
    kept,
    pilots_of,
    set_aside_shorter,
    threads_for,
)
from sojourn.train.experiment.engines import Engine
from sojourn.train.experiment.experiment import Experiment

FREE = ("seeds", "pilot-seeds", "targets")
"""What decides which runs there are, or what is told of them, and changes none."""


def check_grows(before: Experiment, now: Experiment, folder: Path) -> None:
    """Raise unless every run in ``folder`` would come out as it did, or longer.

    Seeds, strategies, learning rates and targets may come and go: each run is named after its
    strategy, seed and rate. ``time`` or ``rounds`` may grow; all runs are then made again, so that
    they are evaluated at the times of the longer run. Anything else would change what is kept.
    """
    old, new = before.signature(), now.signature()
    kept = {entry["name"]: entry for entry in old.pop("strategy")}
    for entry in new.pop("strategy"):
        _check_strategy(kept.get(entry["name"]), entry, folder)
    for key in ("time", "rounds"):
        if key in old and key in new and new[key] < old[key]:
            raise _refused(folder, f"its '{key}' is {old[key]:g}, and {new[key]:g} is shorter")
        if key in old and key in new:
            del old[key], new[key]
    own, theirs = new.pop("extensions", {}), old.pop("extensions", {})
    for path in sorted({*own} & {*theirs}):
        if own[path] != theirs[path]:
            raise _refused(folder, f"'{path}', which it runs, says something else now")
    for key in sorted({*old, *new} - {*FREE}):
        if old.get(key) != new.get(key):
            raise _refused(folder, f"its '{key}' differs")


def _check_strategy(old: dict[str, Any] | None, new: dict[str, Any], folder: Path) -> None:
    if old is None:
        return
    for key in sorted({*old, *new} - {"learning-rate"}):
        if old.get(key) != new.get(key):
            raise _refused(
                folder,
                f"the '{key}' of its strategy '{new['name']}' differs. Give the changed strategy a "
                "name of its own to have both",
            )


def _refused(folder: Path, what: str) -> InvalidFile:
    return InvalidFile(
        f"'{folder}' was made by another experiment: {what}. Runs that are kept would change: give "
        "another --out for this one."
    )


def run_experiment(
    experiment: Experiment,
    folder: Path,
    engine: Engine,
    *,
    resume: bool = False,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Run everything that is not yet in ``folder``, write the results there, return the summary.

    The folder is a `RunFolder`; its ``experiment.toml`` can be run again as it is. With ``resume``
    finished cells are kept and interrupted ones go on from their checkpoints; the experiment may
    then have other seeds, strategies, learning rates and targets than before, and last longer (see
    `check_grows`). What comes of it is what one run made whole would give, to the bit.
    """
    experiment = prepare_folder(experiment, folder, engine, resume=resume)
    shown = progress or Silent()
    by_rate = _tried(experiment, folder, engine, shown)
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


def _tried(
    experiment: Experiment, folder: Path, engine: Engine, progress: Progress
) -> list[dict[float, list[History]]]:
    """Of every strategy the pilots at every learning rate, one of each pilot seed."""
    pilots = pilots_of(experiment)
    found = run_parts("pilots", pilots, experiment, folder, engine, progress)
    tried: list[dict[float, list[History]]] = [{} for _ in experiment.strategies]
    for part in pilots:
        for rate, history in zip(part.learning_rates, found[part], strict=True):
            tried[part.strategy].setdefault(rate, []).append(history)
    return tried


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
    """Make the folder, or check that what it holds is part of the experiment.

    Settles the number of threads and whether gradients are computed together, once for all runs.
    What can be wrong is looked for first, so that a mistake leaves no folder behind.
    """
    there = RunFolder(folder)
    if resume and there.begun:
        return _grown(experiment, there, engine)
    if not there.empty:
        advice = (
            f"It holds no {there.experiment_path.name} to resume."
            if resume
            else "Give another --out, or --resume to go on with what is there."
        )
        raise InvalidInput(f"'{folder}' exists and is not empty. {advice}")
    threads = threads_for(experiment, engine.threads())
    look = engine.look(dataclasses.replace(experiment, threads=threads))
    if look.light and experiment.threads is None:
        threads = 1
    experiment = dataclasses.replace(
        experiment,
        threads=threads,
        batched=look.batched,
        lockstep=look.lockstep,
        channels_last=look.channels_last or None,
        problem_digest=look.problem_digest,
    )
    there.cells.mkdir(parents=True, exist_ok=True)
    _write(experiment, there)
    return experiment


def _write(experiment: Experiment, there: RunFolder) -> None:
    there.begin(
        experiment.to_table(),
        fleet=None if experiment.fleet_is_built_in else experiment.fleet,
        plans=plan_texts(experiment),
        extensions=experiment.extensions,
    )


def _grown(experiment: Experiment, there: RunFolder, engine: Engine) -> Experiment:
    """The experiment, to be gone on with in a folder that was begun with it or with part of it."""
    before = Experiment.read(there.experiment_path)
    if experiment.batched is None:
        experiment = dataclasses.replace(experiment, batched=before.batched)
    if experiment.lockstep is None:
        experiment = dataclasses.replace(experiment, lockstep=before.lockstep)
    if experiment.channels_last is None:
        experiment = dataclasses.replace(experiment, channels_last=before.channels_last)
    experiment = dataclasses.replace(
        experiment, threads=before.threads, problem_digest=before.problem_digest
    )
    check_grows(before, experiment, there.path)
    if before.problem_digest is not None:
        looked = engine.look(dataclasses.replace(experiment, seeds=before.seeds))
        _check_same_problem(before, looked.problem_digest, there.path)
    if experiment.signature() != before.signature() or experiment.keep_weights:
        _write(experiment, there)
    if (experiment.time, experiment.rounds) != (before.time, before.rounds):
        set_aside_shorter(experiment, there.path)
    return experiment


def plan_texts(experiment: Experiment) -> dict[str, str]:
    """The plan files that strategies follow, by the name that a run folder gives them."""
    return {
        strategy.slug: strategy.plan_text
        for strategy in experiment.strategies
        if strategy.plan_text is not None
    }


def _check_same_problem(before: Experiment, digest: str | None, folder: Path) -> None:
    if digest != before.problem_digest:
        raise InvalidFile(
            f"'{folder}' was made with another problem: for seed {before.seeds[0]} "
            f"'{before.problem}' now gives another model, loss, data or first weights. Give another "
            "--out; and if the function draws random numbers, let its seed decide them."
        )


def run_all(
    phase: str,
    cells: Sequence[Cell],
    experiment: Experiment,
    folder: Path,
    engine: Engine,
    progress: Progress,
) -> Mapping[Cell, History]:
    """The history of each of ``cells``: those of an earlier run, and what had to be run now."""
    found = run_parts(phase, cells, experiment, folder, engine, progress)
    return {cell: histories[0] for cell, histories in found.items()}


def run_parts(
    phase: str,
    parts: Sequence[AnyPart],
    experiment: Experiment,
    folder: Path,
    engine: Engine,
    progress: Progress,
) -> Mapping[AnyPart, Runs]:
    """What came of ``parts``: of those of an earlier run, and of what had to be run now."""
    if not parts:
        return {}
    cost = {part: expected_gradients(experiment, part) for part in parts}
    found = {part: kept(experiment, part, folder) for part in parts}
    done = {part: histories for part, histories in found.items() if histories is not None}
    progress.start(phase, sum(cost.values()), sum(cost[part] for part in done))
    advance = by_fraction(progress, cost)
    missing = [part for part in parts if part not in done]
    for part, histories in engine.run(experiment, missing, folder, advance) if missing else ():
        done[part] = histories
        advance(part, 1.0)
    return done
