"""Running an experiment: pilots, choice of learning rates, final runs, one folder of results."""

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from sojourn._support.files import alone_in
from sojourn._support.progress import Progress, Silent, by_fraction
from sojourn._support.provenance import provenance
from sojourn.errors import InvalidFile, InvalidInput
from sojourn.runs.folder import RunFolder
from sojourn.runs.history import History
from sojourn.runs.summary import best_learning_rate, summarize, summarize_strategy
from sojourn.training.experiment.engines import Engine
from sojourn.training.experiment.experiment import Experiment
from sojourn.training.experiment.jobs import (
    Histories,
    Job,
    at_seed,
    expected_gradients,
    pilots_of,
    saved,
    set_aside_shorter,
    threads_for,
)

FREE = ("seeds", "pilot-seeds", "targets")
"""What decides which runs there are, or what is told of them, and changes none."""


def check_grows(before: Experiment, now: Experiment, folder: Path) -> None:
    """Raise unless every run in ``folder`` would come out as it did, or longer.

    Seeds, strategies, learning rates and targets may come and go: each run is named after its
    strategy, seed and rate. ``time`` or ``rounds`` may grow; all runs are then made again, so that
    they are evaluated at the times of the longer run. Anything else would change saved results.
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


def _check_strategy(
    old: Mapping[str, object] | None, new: Mapping[str, object], folder: Path
) -> None:
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
        f"'{folder}' was made by another experiment: {what}. Saved runs would change: give "
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
    finished runs are reused and interrupted ones resume from their checkpoints; the experiment may
    then have other seeds, strategies, learning rates and targets than before, and last longer (see
    `check_grows`). What comes of it is what one run made whole would give, to the bit.
    """
    with ExitStack() as held:
        there = folder.is_dir()
        if there:
            held.enter_context(alone_in(folder))
        experiment = prepare_folder(experiment, folder, engine, resume=resume)
        if not there:
            held.enter_context(alone_in(folder))
        return _run(experiment, folder, engine, progress or Silent())


def _run(experiment: Experiment, folder: Path, engine: Engine, shown: Progress) -> dict[str, Any]:
    by_rate = _tried(experiment, folder, engine, shown)
    rates = [
        best_learning_rate(runs) if runs else strategy.learning_rates[0]
        for strategy, runs in zip(experiment.strategies, by_rate, strict=True)
    ]
    jobs = [[Job(i, seed, (rate,)) for seed in experiment.seeds] for i, rate in enumerate(rates)]
    by_seed = [job for same_seed in zip(*jobs, strict=True) for job in same_seed]
    found = run_all("runs", by_seed, experiment, folder, engine, shown)
    histories = [[found[job][0] for job in own] for own in jobs]
    return write_results(experiment, folder, rates, histories, by_rate)


def _tried(
    experiment: Experiment, folder: Path, engine: Engine, progress: Progress
) -> list[dict[float, list[History]]]:
    """Of every strategy the pilots at every learning rate, one of each pilot seed."""
    pilots = pilots_of(experiment)
    found = run_all("pilots", pilots, experiment, folder, engine, progress)
    tried: list[dict[float, list[History]]] = [{} for _ in experiment.strategies]
    for job in pilots:
        for rate, history in zip(job.learning_rates, found[job], strict=True):
            tried[job.strategy].setdefault(rate, []).append(history)
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
            rule=at_seed(experiment, strategy, experiment.seeds[0]).rule,
            law=strategy.scenario.law_text,
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
    found = engine.preflight(dataclasses.replace(experiment, threads=threads))
    if found.light and experiment.threads is None:
        threads = 1
    experiment = dataclasses.replace(
        experiment,
        threads=threads,
        batched=found.batched,
        lockstep=found.lockstep,
        channels_last=found.channels_last or None,
        problem_digest=found.problem_digest,
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
    there.check_asked()
    before = Experiment.read(there.experiment_path)
    settled = {
        name: getattr(before, name)
        for name in ("batched", "lockstep", "channels_last")
        if getattr(experiment, name) is None
    }
    experiment = dataclasses.replace(
        experiment, threads=before.threads, problem_digest=before.problem_digest, **settled
    )
    check_grows(before, experiment, there.path)
    if before.problem_digest is not None:
        found = engine.preflight(dataclasses.replace(experiment, seeds=before.seeds))
        _check_same_problem(before, found.problem_digest, there.path)
    if experiment.signature() != before.signature() or experiment.keep_weights:
        _write(experiment, there)
    if (experiment.time, experiment.rounds) != (before.time, before.rounds):
        set_aside_shorter(experiment, there.path)
    return experiment


def plan_texts(experiment: Experiment) -> dict[str, str]:
    """The plan and strategy files that strategies follow, by the name that a run folder gives them."""
    return {
        strategy.slug: strategy.origin.file_text
        for strategy in experiment.strategies
        if strategy.origin.file_text is not None
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
    jobs: Sequence[Job],
    experiment: Experiment,
    folder: Path,
    engine: Engine,
    progress: Progress,
) -> Mapping[Job, Histories]:
    """The histories of ``jobs``: of those that are finished, and of what had to be run now."""
    if not jobs:
        return {}
    cost = {job: expected_gradients(experiment, job) for job in jobs}
    found = {job: saved(experiment, job, folder) for job in jobs}
    done = {job: histories for job, histories in found.items() if histories is not None}
    progress.start(phase, sum(cost.values()), sum(cost[job] for job in done))
    advance = by_fraction(progress, cost)
    missing = [job for job in jobs if job not in done]
    for job, histories in engine.run(experiment, missing, folder, advance) if missing else ():
        done[job] = histories
        advance(job, 1.0)
    return done
