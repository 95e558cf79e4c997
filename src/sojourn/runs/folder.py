"""The folder of a run: which files it has, how they are written, and what they hold when read.

::

    experiment.toml   what was asked for, every choice written out
    fleet.csv         the clients, where they are not a built-in fleet
    plans/            the plan of every strategy that follows one
    extensions/       the users' own modules that the experiment names
    cells/            the histories of what is finished of an experiment: a run, or the pilots of a strategy
    history.jsonl     the histories of all final runs
    summary.json      means over seeds, networks, provenance
    weights/          the final weights of every run, where they are kept (``state_dict`` files)
    tune.json         of a tuning: its answer, the race, what it cost
    weights.npy       the final weights of a deployment, one flat vector
    weights.safetensors   the same as a ``state_dict``
    status.json, tasks.jsonl, events.log   of a deployment: how it stands, its updates, what happened
    ledger.jsonl      a digest of each of these that is finished: edits by hand are refused
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tomli_w
from numpy.typing import NDArray

from sojourn._support.arrays import write_tensors
from sojourn._support.configuration import Table, check_shape, parse_json, parse_toml
from sojourn._support.files import printable, read_text
from sojourn._support.ledger import NAME as LEDGER, Ledger
from sojourn._support.user_modules import KEPT_IN, Sources
from sojourn.errors import InvalidFile, InvalidInput
from sojourn.fleet import Fleet, Network
from sojourn.fleet.named import read_fleet
from sojourn.runs.history import History
from sojourn.types import Vector

if TYPE_CHECKING:
    from sojourn.strategy import Strategy

SUMMARY = {"strategies?": [{"name": str, "time_to?": {}}], "provenance?": {}}
"""What reports need of a summary; the networks in it are read by `Network.from_table`."""
SCORE = (float, None)
TUNING = {
    **{"sentence?": str, "pick?": str, "criterion?": str, "learning_rate?": float},
    **{"gradients?": int, "seconds?": float, "tied?": [str], "analyses?": [int]},
    "confirmed?": [{"name": str, "score": {"mean": SCORE}, "scores": [SCORE]}],
    "race?": [
        {
            **{"fraction": float, "gradients": int, "diverged": int},
            "candidates": [{"name": str, "learning_rate": float, "score": float}],
        }
    ],
}
"""What reports need of a tuning's answer."""
FLEET = "fleet.csv"
"""What an experiment in its folder calls a fleet that is not built in."""
PLANS = "plans"
"""Where it finds the plans that strategies follow."""


@dataclass(frozen=True, eq=False)
class Run:
    """What a run folder holds; of a run that is not finished there are only histories."""

    name: str
    histories: tuple[History, ...]
    experiment: Mapping[str, Any]
    summary: Mapping[str, Any]
    networks: Mapping[str, Network]
    path: Path
    tuning: Mapping[str, Any] = field(default_factory=dict)

    @property
    def horizon(self) -> float | None:
        """The virtual time that runs were given; ``None`` where they were given rounds."""
        time = self.experiment.get("time")
        return float(time) if isinstance(time, int | float) else None

    @property
    def targets(self) -> list[float]:
        """The targets whose times the summary has, rising."""
        found: set[float] = set()
        for entry in self.summary.get("strategies", []):
            found.update(_target(key, self.path) for key in entry.get("time_to", {}))
        return sorted(found)


class _Inside:
    """A file or folder of that name in a run folder."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, folder: "RunFolder", kind: type["RunFolder"]) -> Path:
        return folder.path / self.name


@dataclass(frozen=True)
class RunFolder:
    """Where a run is kept: training and deployments write it, reports and reproductions read it."""

    path: Path

    @property
    def ledger(self) -> Ledger:
        """The digests of what is finished."""
        return Ledger(self.path)

    experiment_path = _Inside("experiment.toml")
    """What was asked for."""
    history_path = _Inside("history.jsonl")
    """The histories of the final runs."""
    summary_path = _Inside("summary.json")
    """What the runs amount to."""
    tuning_path = _Inside("tune.json")
    """What a tuning answered."""
    status_path = _Inside("status.json")
    """How a deployment stands now."""
    tasks_path = _Inside("tasks.jsonl")
    """Every update that came to a deployment, a line each."""
    events_path = _Inside("events.log")
    """What went wrong or changed in a deployment, a line each."""
    cells = _Inside("cells")
    """Where the finished runs of an experiment are kept one by one."""
    weights = _Inside("weights")
    """Where their final weights are kept one by one."""

    @property
    def finished_cells(self) -> list[Path]:
        """The files of the finished runs, in order; what is half written is hidden (`replacing`)."""
        return sorted(self.cells.glob("[!.]*.jsonl"))

    @property
    def begun(self) -> bool:
        """Whether an experiment was begun here."""
        return self.experiment_path.is_file()

    @property
    def has_histories(self) -> bool:
        """Whether there is anything to read."""
        return self.history_path.is_file()

    @property
    def empty(self) -> bool:
        """Whether nothing stands where a new run would be written, or what `begin` left undone.

        The folder of cells is made first and the experiment written last: killed in between, it
        holds nothing that was computed.
        """
        if not self.path.exists():
            return True
        if not self.path.is_dir():
            return False
        names = [path.name for path in self.path.iterdir()]
        if self.cells.name not in names:
            return not names
        asked = (self.cells.name, PLANS, FLEET, KEPT_IN, LEDGER)
        half = tuple(f".{name}." for name in (FLEET, self.experiment_path.name))
        undone = all(name in asked or name.startswith(half) for name in names)
        return undone and self.cells.is_dir() and not any(self.cells.iterdir())

    def begin(
        self,
        experiment: Mapping[str, object],
        *,
        fleet: Fleet | None = None,
        plans: Mapping[str, str] | None = None,
        extensions: Sources | None = None,
    ) -> None:
        """Write what was asked for: the experiment's table last, so that it finds all it names.

        ``fleet`` is given where it is not built in, ``plans`` are the texts of plan files by the
        name that the experiment gives them, ``extensions`` the modules of the users' own.
        """
        if fleet is not None:
            with self.ledger.writing(self.path / FLEET) as temporary:
                fleet.to_csv(temporary)
        if extensions is not None:
            extensions.write(self.path / KEPT_IN)
        for name, text in (plans or {}).items():
            with self.ledger.writing(self.plan_path(name)) as temporary:
                temporary.write_text(text, encoding="utf-8")
        with self.ledger.writing(self.experiment_path) as temporary:
            temporary.write_text(tomli_w.dumps(experiment), encoding="utf-8")

    def plan_path(self, name: str) -> Path:
        """Where the plan of a strategy is kept."""
        return self.path / PLANS / f"{name}.toml"

    def write_history(self, histories: Iterable[History]) -> None:
        """Write the histories of the final runs."""
        with self.ledger.writing(self.history_path) as temporary:
            History.write(temporary, histories)

    def write_summary(self, summary: Mapping[str, object]) -> None:
        """Write what the runs amount to."""
        with self.ledger.writing(self.summary_path) as temporary:
            text = json.dumps(summary, indent=2, allow_nan=False)
            temporary.write_text(text + "\n", encoding="utf-8")

    def write_weights(self, weights: Vector) -> None:
        """Write the final weights as a NumPy file."""
        path = self.path / "weights.npy"
        with self.ledger.writing(path) as temporary:
            np.save(temporary, weights, allow_pickle=False)

    def write_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Write the final weights of a deployment as a ``state_dict`` file."""
        with self.ledger.writing(self.path / "weights.safetensors") as temporary:
            write_tensors(temporary, state)

    @property
    def histories(self) -> list[History]:
        """The histories of the final runs."""
        self.ledger.check(self.history_path)
        return History.read(self.history_path)

    @property
    def experiment(self) -> Mapping[str, Any]:
        """The table of what was asked for; empty where there is none."""
        path = self.experiment_path
        if not path.is_file():
            return {}
        self.ledger.check(path)
        return parse_toml(read_text(path, encoding="utf-8"), str(path))

    @property
    def summary(self) -> Mapping[str, Any]:
        """What the runs amount to; empty where there is no summary yet."""
        self.ledger.check(self.summary_path)
        return _object_in(self.summary_path, SUMMARY)

    @property
    def tuning(self) -> Mapping[str, Any]:
        """What a tuning answered; empty where there was none."""
        self.ledger.check(self.tuning_path)
        return _object_in(self.tuning_path, TUNING)

    def strategies(self, names: Iterable[str]) -> "dict[str, Strategy]":
        """The strategies of these ``names``, as the experiment in the folder asks for them."""
        # Imported here: a deployed server writes such a folder and needs none of what this loads.
        from sojourn.strategy import read_strategies

        self.check_asked()
        table = Table(self.experiment, str(self.experiment_path))
        fleet = read_fleet(table.take("fleet", str), self.path)
        wanted = set(names)
        found, _ = read_strategies(table, fleet, self.path)
        return {strategy.name: strategy for strategy in found if strategy.name in wanted}

    def check_asked(self) -> None:
        """Raise ``InvalidFile`` if what was asked for was edited: the experiment, its fleet, its plans."""
        for path in (self.experiment_path, self.path / FLEET, *self.plans.values()):
            self.ledger.check(path)

    @property
    def plans(self) -> dict[str, Path]:
        """The plan files of the run, by the name of their strategy."""
        return {path.stem: path for path in sorted(self.plan_path("").parent.glob("[!.]*.toml"))}

    def networks(self, summary: Mapping[str, Any] | None = None) -> dict[str, Network]:
        """The network of every strategy whose tasks follow a routing, from the summary."""
        networks = {}
        for entry in (self.summary if summary is None else summary).get("strategies", []):
            if "network" in entry:
                try:
                    networks[str(entry["name"])] = Network.from_table(entry["network"])
                except (InvalidFile, InvalidInput) as error:
                    raise InvalidFile(f"{self.summary_path}: {error}") from error
        return networks

    def read(self) -> Run:
        """All that the folder holds; only the histories must be there."""
        histories = self.histories
        if not histories:
            raise InvalidFile(f"{self.history_path}: holds no run")
        summary = self.summary
        return Run(
            name=printable(self.path.resolve().name),
            histories=tuple(histories),
            experiment=self.experiment,
            summary=summary,
            networks=self.networks(summary),
            path=self.path,
            tuning=self.tuning,
        )


def _target(key: str, folder: Path) -> float:
    try:
        return float(key)
    except ValueError:
        raise InvalidFile(f"{folder}: the summary has a time to '{key}', no number") from None


def _object_in(path: Path, shape: Mapping[str, object]) -> Mapping[str, Any]:
    if not path.is_file():
        return {}
    values = parse_json(read_text(path, encoding="utf-8"), str(path))
    check_shape(values, shape, str(path))
    return dict(values)
