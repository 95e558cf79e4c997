"""Confirmation: the finalists of successive halving on fresh seeds and the test set, as long as there is time."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import numpy as np

from sojourn._support.estimate import Estimate
from sojourn._support.progress import Portion, Progress
from sojourn.runs.comparison import SequentialTest, significant_difference
from sojourn.runs.folder import RunFolder
from sojourn.runs.history import History
from sojourn.training.experiment.engines import Engine
from sojourn.training.experiment.experiment import Experiment
from sojourn.training.experiment.jobs import Job
from sojourn.training.experiment.run import plan_texts, run_all, write_results
from sojourn.tuning.budget import CONFIRMED, LEAST_SEEDS, MOST_SEEDS
from sojourn.tuning.setting import Setting
from sojourn.tuning.successive_halving import Candidate

ANALYSES = tuple(range(LEAST_SEEDS, MOST_SEEDS + 1))
"""Numbers of seeds at which the finalists are compared."""


@dataclass(frozen=True, eq=False)
class Confirmed:
    """A strategy at its learning rate on fresh seeds: the criterion's value on the test set, per seed."""

    name: str
    strategy: int
    learning_rate: float
    baseline: bool
    scores: tuple[float, ...]
    histories: tuple[History, ...]

    @property
    def score(self) -> Estimate:
        """The mean over seeds with its standard error; not finite if a run failed."""
        with np.errstate(invalid="ignore"):
            return Estimate.from_samples(self.scores)

    @property
    def without_update(self) -> bool:
        """Whether the server made no update in any of the runs, so that nothing was learnt."""
        return not any(history.rows and history.updates[-1] for history in self.histories)


class Confirmation:
    """Runs finalists on fresh seeds until ``deadline`` (of the monotonic clock).

    ``seconds`` is about how long a run takes; once runs are finished, how long they took.
    ``batched`` computes independent gradients of a run together.
    """

    def __init__(
        self,
        setting: Setting,
        folder: Path,
        engine: Engine,
        progress: Progress,
        *,
        deadline: float = math.inf,
        seconds: float = 0.0,
        batched: bool = False,
    ) -> None:
        self.setting, self.folder, self.engine, self.progress = setting, folder, engine, progress
        self.deadline, self.seconds, self.batched = deadline, seconds, batched
        self._taken: list[float] = []

    def run(self, finalists: Sequence[Candidate]) -> tuple[tuple[Confirmed, ...], tuple[str, ...]]:
        """Add seeds until the winner differs significantly from the runners-up, or ``MOST_SEEDS`` is reached.

        The pick stays the winner of the pilot runs, which was chosen on held-out samples, so that its score
        here is not biased by the choice, unless a runner-up is significantly better. Also returns the names
        of the runners-up that are not significantly different from the pick. If there is too little time for
        all ``finalists`` on one seed only the first of them are run, and for a further seed only if there is time
        for all of them.
        """
        experiment = self._experiment(finalists)
        RunFolder(self.folder).cells.mkdir(parents=True, exist_ok=True)
        test = SequentialTest(ANALYSES)
        histories: list[list[History]] = []
        for seed in range(MOST_SEEDS):
            if seed and not self._in_time(len(histories)):
                break
            found = self._on(experiment, finalists[: len(histories) or None], seed)
            if seed and len(found) < len(histories):
                break
            histories = [
                [*own, run] for own, run in zip(histories or [[]] * len(found), found, strict=True)
            ]
            rows = [
                _confirmed(self.setting, candidate, own)
                for candidate, own in zip(finalists, histories, strict=False)
            ]
            best = rows[:CONFIRMED]
            gaps = [_worse_by(self.setting, best[0], row, test) for row in best[1:]]
            if seed + 1 >= LEAST_SEEDS and all(gap is not None for gap in gaps):
                break
        pick = best[upset(gaps)]
        tied = [
            row.name
            for row in best
            if row is not pick and _worse_by(self.setting, pick, row, test) is None
        ]
        places = sorted(range(len(rows)), key=lambda place: rows[place] is not pick)
        table = tuple(rows[place] for place in places)
        seeds = tuple(range(len(pick.scores)))
        self._write(dataclasses.replace(experiment, seeds=seeds), table, places)
        return table, tuple(tied)

    def _on(
        self, experiment: Experiment, finalists: Sequence[Candidate], seed: int
    ) -> list[History]:
        """The runs with ``seed``, as many at a time as there are workers; the first ones if time is short."""
        experiment = dataclasses.replace(experiment, seeds=tuple(range(seed + 1)))
        found: list[History] = []
        while len(found) < len(finalists):
            first = len(found)
            if first and not self._in_time(1):
                break
            jobs = [
                Job(i, seed, (candidate.learning_rate,))
                for i, candidate in enumerate(finalists)
                if first <= i < first + self.engine.width
            ]
            phase = f"confirming, seed {seed + 1}: {first} of {len(finalists)} runs"
            runs = MOST_SEEDS * len(finalists)
            before, share = (seed * len(finalists) + first) / runs, len(jobs) / runs
            progress = Portion(self.progress, before, share)
            begun = monotonic()
            done = run_all(phase, jobs, experiment, self.folder, self.engine, progress)
            self._taken.append((monotonic() - begun) / len(jobs))
            self.seconds = sum(self._taken) / len(self._taken)
            found += [done[job][0] for job in jobs]
        return found

    def _in_time(self, runs: int) -> bool:
        """Whether so many runs can be finished before the deadline."""
        return monotonic() + runs * self.seconds <= self.deadline

    def _experiment(self, finalists: Sequence[Candidate]) -> Experiment:
        strategies = self.setting.experiment.strategies
        return dataclasses.replace(
            self.setting.experiment,
            strategies=tuple(
                dataclasses.replace(strategies[c.strategy], learning_rates=(c.learning_rate,))
                for c in finalists
            ),
            targets=targets_of(self.setting),
            batched=self.batched,
        )

    def _write(
        self, experiment: Experiment, table: Sequence[Confirmed], places: Sequence[int]
    ) -> None:
        """Write the folder of a run with the strategies at ``places``, in this order."""
        experiment = dataclasses.replace(
            experiment, strategies=tuple(experiment.strategies[i] for i in places)
        )
        RunFolder(self.folder).begin(
            experiment.to_table(),
            fleet=None if experiment.fleet_is_built_in else experiment.fleet,
            plans=plan_texts(experiment),
            extensions=experiment.extensions,
        )
        rates = [row.learning_rate for row in table]
        write_results(experiment, self.folder, rates, [row.histories for row in table])


def upset(gaps: Sequence[float | None]) -> int:
    """The place of the pick among finalists, given how much worse the first is than each of the others.

    ``None`` stands for a difference that is not significant.

    >>> upset([None, -0.2]), upset([None, 0.1]), upset([0.3, 0.1])
    (0, 2, 1)
    """
    worse = [0.0, *(0.0 if gap is None else gap for gap in gaps)]
    return max(range(len(worse)), key=lambda place: worse[place])


def targets_of(setting: Setting) -> tuple[float, ...] | None:
    """The targets whose times the summary has: those of the experiment, and the criterion's."""
    given, target = setting.experiment.targets, setting.criterion.target
    return given if target is None else tuple(sorted({*(given or ()), target}))


def _worse_by(
    setting: Setting, first: Confirmed, second: Confirmed, test: SequentialTest
) -> float | None:
    """How much worse ``first`` is than ``second``, if significantly different, else ``None``."""
    gap = significant_difference(first.scores, second.scores, test)
    return None if gap is None else -gap if setting.criterion.higher_is_better else gap


def _confirmed(setting: Setting, candidate: Candidate, runs: Sequence[History]) -> Confirmed:
    return Confirmed(
        name=setting.experiment.strategies[candidate.strategy].name,
        strategy=candidate.strategy,
        learning_rate=candidate.learning_rate,
        baseline=candidate.strategy in setting.baselines,
        scores=tuple(setting.criterion.value(run) for run in runs),
        histories=tuple(runs),
    )
