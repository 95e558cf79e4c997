"""The runs of training claims as experiments of `sojourn.training`, and what is measured before them."""

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch

from reproduction.measures import SLOWEST_LABEL
from reproduction.settings import Settings, TrainingCell
from reproduction.strategies import strategy_of
from reproduction.training import exponential
from sojourn._support.arrays import read_tensors
from sojourn._support.configuration import Table, check_shape, parse_json
from sojourn._support.files import read_text, replacing
from sojourn.errors import InvalidFile, InvalidInput
from sojourn.runs.folder import RunFolder
from sojourn.runs.history import History
from sojourn.theory.constants import LearningConstants
from sojourn.training.experiment.build import build_problem, dataset, partition_of
from sojourn.training.experiment.calibrate import calibrate
from sojourn.training.experiment.experiment import Experiment, experiment_from_table
from sojourn.training.experiment.jobs import Job, expected_gradients_of, schedule_of
from sojourn.training.experiment.models import SMALL_MODELS, build_model, parse_model

CALIBRATION_SEED = 2_000_000
REMOVE_IT = "Remove the file to have it made anew."


@dataclass(frozen=True, eq=False)
class CellRunner:
    """Makes runs into experiments, whose folders and constants are kept in ``folder``."""

    settings: Settings
    folder: Path
    jobs: int
    data_dir: Path | None = None
    _tables: dict[tuple[str, ...], dict[str, Any]] = field(default_factory=dict)

    @property
    def data_folder(self) -> str | None:
        """Where data sets are sought first."""
        return None if self.data_dir is None else str(self.data_dir.resolve())

    def place(self, cell: TrainingCell, strategy: str) -> Path:
        """The folder of a strategy in a cell: each has as many seeds as its statements need."""
        return self.folder / cell.name / strategy.replace(", ", "-")

    def experiment(
        self, cell: TrainingCell, strategy: str, pairs: int, rate: float | None = None
    ) -> Experiment:
        """One strategy in a cell under the seeds from 0, at its own best rate where there is one.

        All strategies share partition, first weights, batches and service times under a seed.
        """
        there = RunFolder(self.place(cell, strategy))
        if there.begun:
            known = Experiment.read(there.experiment_path)
            return dataclasses.replace(
                known, seeds=tuple(range(pairs)), keep_weights=told_by_label(cell)
            )
        setting, size = self.settings.settings[cell.setting], self.settings.sizes[cell.data]
        if rate is None and setting.tried_rates:
            rate = self.rates(cell)[strategy]
        values = {
            "seeds": pairs,
            "learning-rate": setting.learning_rate if rate is None else rate,
            "strategy": [self._strategy(cell, strategy)],
        }
        if setting.axis == "rounds":
            rounds = size.rounds or 0
        else:
            short = self.read(cell, {**values, "time": size.time})
            rounds = schedule_of(short, short.strategies[0], 0, time=size.time).rounds
        return self.read(
            cell, {**values, "evaluate-every": max(1, round(rounds / size.evaluations))}
        )

    def candidates(self, cell: TrainingCell, strategies: Sequence[str]) -> Experiment:
        """Strategies of a cell together, to be tried at other learning rates than the setting's."""
        setting = self.settings.settings[cell.setting]
        values = {
            "learning-rate": setting.learning_rate,
            "strategy": [self._strategy(cell, name) for name in strategies],
        }
        return self.read(cell, values)

    def read(self, cell: TrainingCell, values: Mapping[str, object]) -> Experiment:
        """An experiment on the data of a cell, as long as its runs unless ``values`` say otherwise."""
        setting, size = self.settings.settings[cell.setting], self.settings.sizes[cell.data]
        fleets = self.folder / "fleets"
        if not (fleets / f"{setting.name}.csv").exists():
            setting.fleet.to_csv(fleets / f"{setting.name}.csv")
        length = {"time": size.time} if setting.axis == "time" else {"rounds": size.rounds}
        common: dict[str, object] = {
            "fleet": f"{setting.name}.csv",
            "data": size.of(cell.data),
            "partition": cell.partition,
            "model": size.model,
            "batch-size": size.batch_size,
            "concurrency": setting.concurrency,
            "law": cell.law,
            "paired": True,
            "refine": False,
            "keep-weights": told_by_label(cell),
            **({} if "rounds" in values or "time" in values else length),
        }
        if self.small(cell.data):
            common |= {"batched": True, "threads": 1}
        if self.data_folder is not None:
            common["data-dir"] = self.data_folder
        return experiment_from_table(Table({**common, **values}, cell.name), fleets)

    def small(self, data: str) -> bool:
        """Whether the model for a data set is so small that runs are computed together."""
        return parse_model(self.settings.sizes[data].model)[0] in SMALL_MODELS

    def gradients(self, cell: TrainingCell, strategy: str) -> float:
        """About how many gradients one run of a strategy computes."""
        setting, size = self.settings.settings[cell.setting], self.settings.sizes[cell.data]
        if setting.axis == "rounds":
            return float(size.rounds or 0)
        experiment = self.candidates(cell, [strategy])
        return expected_gradients_of(experiment, experiment.strategies[0])

    def runs(
        self, cell: TrainingCell, strategy: str, pairs: int
    ) -> tuple[Path, Experiment, list[Job]]:
        """Folder, experiment and single runs of a strategy under the first ``pairs`` seeds."""
        experiment = self.experiment(cell, strategy, pairs)
        rate = experiment.strategies[0].learning_rates[0]
        cells = [Job(0, seed, (rate,)) for seed in experiment.seeds]
        return self.place(cell, strategy), experiment, cells

    def optimize(self, cell: TrainingCell, strategy: str) -> None:
        """Find the routing of a strategy, so that other processes need not, unless data decide it."""
        if strategy != "plan":
            self._strategy(cell, strategy)

    def _strategy(self, cell: TrainingCell, strategy: str) -> dict[str, Any]:
        """The table of a strategy, whose routing is optimised once, however many cells use it."""
        setting, size = self.settings.settings[cell.setting], self.settings.sizes[cell.data]
        measured = self.measured(cell) if strategy == "plan" else None
        key = (strategy, setting.name, *((exponential(cell).name,) if measured else ()))
        if key not in self._tables:
            given = strategy, setting, size, self.settings.constants, measured
            self._tables[key] = strategy_of(*given)
        return self._tables[key]

    def measured(self, cell: TrainingCell) -> LearningConstants:
        """The constants of a cell's problem, measured once, whatever the law of service times."""
        path = self.folder / "constants" / f"{exponential(cell).name}.json"
        if path.exists():
            return _kept_constants(path)
        problem = build_problem(
            self.read(cell, {"rounds": 1, "learning-rate": 0.01, "strategies": ["uniform"]}),
            CALIBRATION_SEED,
        )
        rate = self.settings.settings[cell.setting].learning_rate
        constants = calibrate(problem, learning_rate=rate, seed=CALIBRATION_SEED).constants
        with replacing(path) as temporary:
            temporary.write_text(json.dumps(asdict(constants)), encoding="utf-8")
        return constants

    def rates_path(self, cell: TrainingCell) -> Path:
        """Where the learning rates that were chosen for the strategies of a cell are kept."""
        return self.folder / "rates" / f"{cell.name}.json"

    def rates(self, cell: TrainingCell) -> dict[str, float]:
        """The learning rate of every strategy of a cell, chosen before its runs are made."""
        path = self.rates_path(cell)
        names = _kept(path, {})
        tried = _kept(path, {name: {"chosen": float} for name in names})
        rates = {name: float(entry["chosen"]) for name, entry in tried.items()}
        for name, rate in rates.items():
            if rate <= 0:
                raise InvalidFile(
                    f"{path}: {name}.chosen must be positive; it is {rate:g}. {REMOVE_IT}"
                )
        return rates


def told_by_label(cell: TrainingCell) -> bool:
    """Whether the final weights of a cell are kept, to tell how well each label is learnt."""
    return cell.partition == "disjoint"


def with_slowest_label(experiment: Experiment, job: Job, folder: Path, run: History) -> History:
    """A run with one more column: how much better it tells the label of the slowest client at its end.

    The accuracy on that label less the mean accuracy on the others; not a number before the end, and
    of a run that diverged.
    """
    gap = np.full(run.rows, math.nan)
    if run.rows and run.diverged_at is None:
        data = dataset(experiment.data, experiment.data_dir)
        slowest = int(np.argmin(experiment.fleet.expand(experiment.fleet.service_rates)))
        held = partition_of(experiment, data, job.seed).clients[slowest]
        own = int(np.bincount(data.train_labels[held]).argmax())
        arrays = read_tensors(job.weights_path(experiment, folder))
        model = build_model(
            experiment.model,
            shape=data.shape,
            classes=data.classes,
            generator=torch.Generator(),
            averaged=data.averaged,
        )
        model.load_state_dict({name: torch.from_numpy(v) for name, v in arrays.items()})
        model.eval()
        images, labels = data.test
        with torch.no_grad():
            right = (model(images).argmax(dim=1) == labels).double()
        each = [float(right[labels == label].mean()) for label in range(data.classes)]
        gap[-1] = each[own] - float(np.mean(each[:own] + each[own + 1 :]))
    return dataclasses.replace(run, metrics={**run.metrics, SLOWEST_LABEL: gap})


def _kept(path: Path, shape: Mapping[str, Any]) -> Any:
    """What a file of an earlier run says, which must look like ``shape``."""
    try:
        found = parse_json(read_text(path, encoding="utf-8"), str(path))
        check_shape(found, shape, str(path))
    except InvalidFile as error:
        raise InvalidFile(f"{error}. {REMOVE_IT}") from error
    return found


def _kept_constants(path: Path) -> LearningConstants:
    names = [one.name for one in fields(LearningConstants)]
    found = _kept(path, dict.fromkeys(names, float))
    try:
        return LearningConstants(**{name: float(found[name]) for name in names})
    except InvalidInput as error:
        raise InvalidFile(f"{path}: {error}. {REMOVE_IT}") from error
