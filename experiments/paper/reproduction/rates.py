"""The learning rate at which each strategy of a cell is run: the best of several on held-out samples."""

import json
from collections.abc import Sequence

from reproduction.cell_runs import CellRunner
from reproduction.measures import final_accuracy
from reproduction.settings import TrainingCell
from sojourn._support.files import replacing
from sojourn.runs.history import History
from sojourn.training.experiment.engines import LocalEngine
from sojourn.training.experiment.experiment import FIRST_PILOT_SEED, Experiment
from sojourn.tuning.criteria import Criterion
from sojourn.tuning.pilots import Pilot, advance, group_key
from sojourn.tuning.successive_halving import Candidate, neighbours

MOST_EXTENSIONS = 2


def choose_rates(runner: CellRunner, cell: TrainingCell) -> None:
    """Try the setting's learning rates on a pilot seed, and keep what was found.

    All strategies try the same, and rates beyond an edge at which the best of a strategy lies. Rates of
    one strategy, and rules that send tasks alike, share a schedule and are trained together. The
    test set is not used.
    """
    if runner.rates_path(cell).exists():
        return
    setting = runner.settings.settings[cell.setting]
    experiment = runner.candidates(cell, setting.strategies)
    rates = dict.fromkeys(range(len(setting.strategies)), setting.tried_rates)
    scores = _tried(runner, experiment, [Candidate(i, r) for i in rates for r in rates[i]])
    for _ in range(MOST_EXTENSIONS):
        added = neighbours(scores, rates)
        if not added:
            break
        for candidate in added:
            rates[candidate.strategy] = (*rates[candidate.strategy], candidate.learning_rate)
        scores |= _tried(runner, experiment, added)
    found = {}
    for i, name in enumerate(setting.strategies):
        own = {c.learning_rate: s for c, s in sorted(scores.items()) if c.strategy == i}
        best = min(own, key=lambda rate: own[rate])
        accuracies = {f"{rate:g}": round(1.0 - score, 4) for rate, score in own.items()}
        found[name] = {"chosen": best, "validation accuracy": accuracies}
    with replacing(runner.rates_path(cell)) as temporary:
        temporary.write_text(json.dumps(found, indent=1), encoding="utf-8")


def _tried(
    runner: CellRunner, experiment: Experiment, candidates: Sequence[Candidate]
) -> dict[Candidate, float]:
    """The error of every candidate on held-out samples, over the last tenth of a whole run."""
    groups: dict[object, list[Candidate]] = {}
    for candidate in candidates:
        groups.setdefault(group_key(experiment.strategies[candidate.strategy]), []).append(
            candidate
        )
    work = [
        Pilot(experiment, Criterion("final"), tuple(group), FIRST_PILOT_SEED, 1.0)
        for group in groups.values()
    ]
    scores: dict[Candidate, float] = {}
    arguments = [(pilot, [None] * len(pilot.candidates)) for pilot in work]
    for place, done in LocalEngine(runner.jobs).map(advance, arguments):
        for candidate, history in zip(work[place].candidates, done.histories, strict=True):
            scores[candidate] = _error(history)
    return scores


def _error(history: History) -> float:
    return 1.0 - final_accuracy(history)
