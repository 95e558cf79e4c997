"""Tune: theory proposes, pilots decide, fresh seeds confirm, and the answer is a plan that holds."""

import dataclasses
import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from sojourn.comparison import Looks, told_apart
from sojourn.errors import InvalidInput
from sojourn.estimate import Estimate
from sojourn.figure import Figure
from sojourn.files import replacing
from sojourn.history import History
from sojourn.notebook import table_html
from sojourn.progress import Progress, Silent
from sojourn.provenance import provenance
from sojourn.report.tuned import race_figure
from sojourn.runfolder import RunFolder
from sojourn.summary import TARGETS
from sojourn.train.experiment.cells import Cell
from sojourn.train.experiment.engines import Engine, LocalEngine
from sojourn.train.experiment.experiment import Experiment
from sojourn.train.experiment.run import plan_texts, run_all, write_results
from sojourn.tuning.answer import plan_of, sentence
from sojourn.tuning.budget import Costs, fitted, measure, parse_duration
from sojourn.tuning.heats import Heats, Race
from sojourn.tuning.race import (
    LEAST_FINALISTS,
    LEAST_SEEDS,
    MOST_SEEDS,
    SPREAD_OF_SCORE,
    Candidate,
)
from sojourn.tuning.setting import Setting, read_setting

PLAN = "plan.toml"


@dataclass(frozen=True, eq=False)
class Confirmed:
    """A strategy at its learning rate on fresh seeds: scores on the test set, one per seed."""

    name: str
    strategy: int
    learning_rate: float
    baseline: bool
    scores: tuple[float, ...]
    histories: tuple[History, ...]

    @property
    def score(self) -> Estimate:
        """The mean over seeds."""
        return Estimate.from_samples(self.scores)


@dataclass(frozen=True, eq=False)
class Tuned:
    """What tuning found: the pick, what it was compared with, and what that cost.

    ``table`` has the pick first, then the other finalists, then the baselines; ``tied`` are the names of
    finalists that could not be told from the pick at 95 %.
    """

    setting: Setting
    race: Race
    table: tuple[Confirmed, ...]
    tied: tuple[str, ...]
    gradients: int
    seconds: float
    folder: Path

    @property
    def pick(self) -> Confirmed:
        """The recommended strategy."""
        return self.table[0]

    @property
    def sentence(self) -> str:
        """The answer in a sentence."""
        return sentence(self)

    def plot(self) -> Figure:
        """The race: scores against the part of the run, those that ran to the end named."""
        return race_figure("race", _answer(self))

    def _repr_html_(self) -> str:
        rows = [(row.name, f"{row.learning_rate:g}", f"{row.score:.3g}") for row in self.table]
        columns = ("strategy", "learning rate", self.setting.criterion.describe())
        return table_html(self.sentence, columns, rows)

    def __repr__(self) -> str:
        return (
            f"Tuned({self.pick.name}, learning rate {self.pick.learning_rate:g}: {self.sentence})"
        )


def tune(
    experiment: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    time: float | None = None,
    rounds: int | None = None,
    target: float | None = None,
    criterion: str | None = None,
    budget: float | str | None = None,
    jobs: int = 1,
    say: Callable[[str], None] = lambda text: None,
) -> Tuned:
    """The best way to drive a fleet on a learning problem, found by pilots and confirmed.

    ``experiment`` is a TOML file: fleet, data or problem, model, horizon and, if one wants to choose among
    a few only, strategies. ``time`` or ``rounds`` replaces its horizon. Candidates are judged by their
    final loss, or with ``target`` by the time to that accuracy, or by another ``criterion``. ``budget``
    is in seconds, or text such as ``"10m"``. Everything goes to the folder ``out``: ``plan.toml``,
    ``tune.json``, and the confirming runs as `sojourn.train` writes them; what it holds of an
    interrupted call is not run again.
    """
    setting = read_setting(
        Path(experiment), time=time, rounds=rounds, target=target, criterion=criterion
    )
    seconds = parse_duration(budget) if isinstance(budget, str) else budget
    return tune_setting(setting, Path(out), engine=LocalEngine(jobs), budget=seconds, say=say)


def tune_setting(
    setting: Setting,
    folder: Path,
    *,
    engine: Engine | None = None,
    budget: float | None = None,
    progress: Progress | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Tuned:
    """Race the candidates of ``setting`` on pilots, confirm the best on fresh seeds, write the answer.

    ``budget`` is in seconds; candidates are dropped, the least promising first, until what is planned
    fits, and ``say`` hears what is planned. What ``folder`` holds of an earlier run is not run again.
    The test set is looked at only for the confirmation, after the race has decided.
    """
    begun = monotonic()
    engine, shown = engine or LocalEngine(), progress or Silent()
    folder.mkdir(parents=True, exist_ok=True)
    costs = measure(setting)
    setting, planned = fitted(setting, costs, budget, engine.width)
    say(planned)
    heats = Heats(setting, folder, engine, shown)
    if budget is not None:
        heats.deadline = begun + budget
    race = heats.run()
    finalists = _finalists(setting, race)
    if not finalists:
        raise InvalidInput(
            "every candidate diverged, at every learning rate that was tried. Give smaller ones: "
            "learning-rate = [...] in the experiment."
        )
    table, tied = _confirm(setting, finalists, folder, engine, shown, begun, budget, costs)
    tuned = Tuned(
        setting=setting,
        race=race,
        table=table,
        tied=tied,
        gradients=race.gradients,
        seconds=monotonic() - begun,
        folder=folder,
    )
    _write(tuned)
    return tuned


def _finalists(setting: Setting, race: Race) -> list[Candidate]:
    """The best three strategies, then the baselines that are not among them."""
    podium = race.podium()
    best = podium[:LEAST_FINALISTS]
    return best + [c for c in podium if c not in best and c.strategy in setting.baselines]


def _confirm(
    setting: Setting,
    finalists: Sequence[Candidate],
    folder: Path,
    engine: Engine,
    progress: Progress,
    begun: float,
    budget: float | None,
    costs: Costs,
) -> tuple[tuple[Confirmed, ...], tuple[str, ...]]:
    """Seeds are added until the race's winner is told from its runners-up, or enough is enough.

    The pick stays the race's winner, chosen on pilots and held-out samples, so that what is said of it
    here is not what it was chosen for; unless a runner-up is told to be better. Which runners-up it is
    not told from is said with it.
    """
    experiment = dataclasses.replace(
        setting.experiment,
        strategies=tuple(
            dataclasses.replace(
                setting.experiment.strategies[c.strategy], learning_rates=(c.learning_rate,)
            )
            for c in finalists
        ),
        targets=_targets(setting),
        batched=False,
    )
    written = RunFolder(folder)
    written.cells.mkdir(parents=True, exist_ok=True)
    rates = [c.learning_rate for c in finalists]
    looks = Looks(tuple(range(LEAST_SEEDS, MOST_SEEDS + 1)))
    number = LEAST_SEEDS
    while True:
        experiment = dataclasses.replace(experiment, seeds=tuple(range(number)))
        histories = _runs(experiment, rates, folder, engine, progress)
        rows = [_confirmed(setting, c, runs) for c, runs in zip(finalists, histories, strict=True)]
        verdicts = [
            told_apart(rows[0].scores, row.scores, looks) for row in rows[1:LEAST_FINALISTS]
        ]
        one_more = costs.solo * costs.gradients(setting.experiment) * len(finalists)
        spent = budget is not None and monotonic() - begun + one_more > budget
        if number >= MOST_SEEDS or spent or all(v is not None for v in verdicts):
            break
        number += 1
    best = rows[: len(verdicts) + 1]
    pick = best[upset(verdicts)]
    tied = [
        row.name
        for row in best
        if row is not pick and told_apart(pick.scores, row.scores, looks) is None
    ]
    ordered = [pick, *(row for row in rows if row is not pick)]
    places = [rows.index(row) for row in ordered]
    experiment = dataclasses.replace(
        experiment, strategies=tuple(experiment.strategies[i] for i in places)
    )
    written.begin(
        experiment.to_table(),
        fleet=None if experiment.fleet_is_built_in else experiment.fleet,
        plans=plan_texts(experiment),
        extensions=experiment.extensions,
    )
    write_results(experiment, folder, [rates[i] for i in places], [histories[i] for i in places])
    return tuple(ordered), tuple(tied)


def upset(verdicts: Sequence[float | None]) -> int:
    """The place of the pick among finalists, given how much worse the first is told to be than the others.

    >>> upset([None, -0.2]), upset([None, 0.1]), upset([0.3, 0.1])
    (0, 2, 1)
    """
    worse = [0.0, *(0.0 if verdict is None else verdict for verdict in verdicts)]
    return max(range(len(worse)), key=lambda place: worse[place])


def _runs(
    experiment: Experiment, rates: Sequence[float], folder: Path, engine: Engine, progress: Progress
) -> list[list[History]]:
    cells = [Cell(i, seed, rate) for seed in experiment.seeds for i, rate in enumerate(rates)]
    found = run_all("confirming on fresh seeds", cells, experiment, folder, engine, progress)
    return [
        [found[Cell(i, seed, rate)] for seed in experiment.seeds] for i, rate in enumerate(rates)
    ]


def _confirmed(setting: Setting, candidate: Candidate, runs: Sequence[History]) -> Confirmed:
    def score(run: History) -> float:
        end = setting.experiment.time or float(run.time[-1]) if run.rows else 0.0
        return setting.criterion.score(run, end, SPREAD_OF_SCORE)

    return Confirmed(
        name=setting.experiment.strategies[candidate.strategy].name,
        strategy=candidate.strategy,
        learning_rate=candidate.learning_rate,
        baseline=candidate.strategy in setting.baselines,
        scores=tuple(score(run) for run in runs),
        histories=tuple(runs),
    )


def _targets(setting: Setting) -> tuple[float, ...]:
    wanted = () if setting.criterion.target is None else (setting.criterion.target,)
    given = setting.experiment.targets
    return tuple(sorted({*(TARGETS if given is None else given), *wanted}))


def _answer(tuned: Tuned) -> dict[str, Any]:
    """The answer as it stands in its file."""
    names = [strategy.name for strategy in tuned.setting.experiment.strategies]
    return {
        "sentence": tuned.sentence,
        "criterion": tuned.setting.criterion.describe(),
        "pick": tuned.pick.name,
        "learning_rate": tuned.pick.learning_rate,
        "tied": list(tuned.tied),
        "confirmed": [
            {
                "name": row.name,
                "learning_rate": row.learning_rate,
                "baseline": row.baseline,
                "score": row.score.to_table(),
                "scores": [s if math.isfinite(s) else None for s in row.scores],
            }
            for row in tuned.table
        ],
        "race": [
            {
                "fraction": rung.fraction,
                "gradients": rung.gradients,
                "candidates": [
                    {"name": names[c.strategy], "learning_rate": c.learning_rate, "score": s}
                    for c, s in sorted(rung.scores.items(), key=lambda item: item[::-1])
                    if math.isfinite(s)
                ],
                "diverged": sum(not math.isfinite(s) for s in rung.scores.values()),
            }
            for rung in tuned.race.rungs
        ],
        "gradients": tuned.gradients,
        "seconds": round(tuned.seconds, 1),
        "provenance": provenance(experiment=tuned.setting.experiment.to_table()),
    }


def _write(tuned: Tuned) -> None:
    plan_of(tuned).write(tuned.folder / PLAN)
    table = _answer(tuned)
    with replacing(RunFolder(tuned.folder).tuning_path) as temporary:
        temporary.write_text(json.dumps(table, indent=1, allow_nan=False) + "\n", encoding="utf-8")
