"""The cells of training claims as experiments of `sojourn.train`, and their measured constants."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from sojourn.config import Table
from sojourn.constants import LearningConstants
from sojourn.files import replacing
from sojourn.reproduce.settings import Settings, TrainingCell
from sojourn.reproduce.strategies import network_of, routing_of
from sojourn.reproduce.training import exponential
from sojourn.runfolder import RunFolder
from sojourn.simulation.simulate import simulate
from sojourn.train.experiment.build import build_problem
from sojourn.train.experiment.calibrate import calibrate
from sojourn.train.experiment.experiment import Experiment, experiment_from_table

CALIBRATION_SEED = 2_000_000


@dataclass(frozen=True, eq=False)
class CellRunner:
    """Makes cells into experiments, whose folders and constants are kept in ``folder``."""

    settings: Settings
    folder: Path
    jobs: int
    data_dir: Path | None = None

    @property
    def data_folder(self) -> str | None:
        """Where data sets are sought first."""
        return None if self.data_dir is None else str(self.data_dir.resolve())

    def experiments(
        self, cell: TrainingCell, also: Sequence[str] = ()
    ) -> Iterator[tuple[Path, Experiment]]:
        """The experiments of a cell and their folders.

        Against rounds there is one with all strategies. Against time there is one per strategy, with
        its own spacing of evaluations: one completes tens of rounds where another completes
        thousands.
        """
        setting = self.settings.settings[cell.setting]
        strategies = (*setting.strategies, *also)
        along_time = setting.axis == "time"
        for group in [(name,) for name in strategies] if along_time else [strategies]:
            folder = self.folder / cell.name / (group[0] if along_time else "all")
            there = RunFolder(folder)
            if there.begun:
                yield folder, Experiment.read(there.experiment_path)
            else:
                yield folder, self._experiment(cell, group)

    def _experiment(self, cell: TrainingCell, strategies: Sequence[str]) -> Experiment:
        setting, size = self.settings.settings[cell.setting], self.settings.sizes[cell.data]
        measured = self.measured(cell) if "plan" in strategies else None
        routings = {
            name: routing_of(name, setting, size, self.settings.constants, measured)
            for name in strategies
        }
        if setting.axis == "time":
            network = network_of(routings[strategies[0]], setting)
            length: dict[str, object] = {"time": size.time}
            rounds = simulate(network, time=size.time, law=cell.law, seed=0).rounds
        else:
            length = {"rounds": size.rounds}
            rounds = size.rounds or 0
        return self._read(
            cell,
            {
                **length,
                "evaluate-every": max(1, round(rounds / size.evaluations)),
                "seeds": size.seeds,
                "law": cell.law,
                "strategy": [
                    {"name": name, "routing": routing.tolist()}
                    for name, routing in routings.items()
                ],
            },
        )

    def _read(self, cell: TrainingCell, values: Mapping[str, object]) -> Experiment:
        setting, size = self.settings.settings[cell.setting], self.settings.sizes[cell.data]
        fleets = self.folder / "fleets"
        if not (fleets / f"{setting.name}.csv").exists():
            setting.fleet.to_csv(fleets / f"{setting.name}.csv")
        common: dict[str, object] = {
            "fleet": f"{setting.name}.csv",
            "data": cell.data,
            "partition": cell.partition,
            "model": size.model,
            "batch-size": size.batch_size,
            "concurrency": setting.concurrency,
            "learning-rate": setting.learning_rate,
        }
        if self.data_folder is not None:
            common["data-dir"] = self.data_folder
        return experiment_from_table(Table({**common, **values}, cell.name), fleets)

    def measured(self, cell: TrainingCell) -> LearningConstants:
        """The constants of a cell's problem, measured once, whatever the law of service times."""
        path = self.folder / "constants" / f"{exponential(cell).name}.json"
        if path.exists():
            known: dict[str, float] = json.loads(path.read_text(encoding="utf-8"))
            return LearningConstants(**known)
        problem = build_problem(
            self._read(cell, {"rounds": 1, "strategies": ["uniform"]}), CALIBRATION_SEED
        )
        rate = self.settings.settings[cell.setting].learning_rate
        constants = calibrate(problem, learning_rate=rate, seed=CALIBRATION_SEED).constants
        with replacing(path) as temporary:
            temporary.write_text(json.dumps(asdict(constants)), encoding="utf-8")
        return constants
