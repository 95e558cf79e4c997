"""An experiment: what is compared, on what, for how long; read from and written to TOML."""

import math
import os
import pickle
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, SupportsIndex

from sojourn._support.checks import check_seed
from sojourn._support.configuration import Table
from sojourn._support.extensions import is_extension
from sojourn._support.user_modules import Sources, sources_of
from sojourn.errors import InvalidFile, InvalidInput, UnknownName
from sojourn.fleet import Fleet
from sojourn.fleet.named import is_built_in, read_fleet
from sojourn.runs.folder import FLEET
from sojourn.simulation.starts import start_name
from sojourn.strategy import Choices, Strategy, at_location, read_strategies
from sojourn.training.data.partition import parse_partition
from sojourn.training.data.sets import parse_data
from sojourn.training.experiment.models import parse_model

FIRST_PILOT_SEED = 1_000_000
CLIENT_WEIGHTS = ("equal", "size", "fleet")
_NO_MATTER = (
    *("fleet", "data-dir", "threads", "checkpoint-seconds", "problem-digest", "keep-weights"),
)
"""What results do not depend on, or is compared otherwise."""
MOST_SEEDS = 100_000
MOST_THREADS = 256
LARGEST_BATCH = 1_000_000
"""Beyond these a number is a slip, and would fill the memory before anyone noticed."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Experiment:
    """Everything that a comparison of strategies depends on.

    Either ``problem`` names a function ``(clients, seed) -> Problem``, or ``data``, ``partition``
    and ``model`` name what is built in. Runs last ``rounds`` rounds or ``time`` time units.
    ``targets`` and ``stop_at`` are values of the primary measure of the problem, by default
    accuracies; without ``targets`` the times to 50 and 80 % accuracy are told. ``client_weights``
    is ``"equal"``, ``"size"`` or ``"fleet"``: whether clients count the same, as their samples do, or
    as the fleet's column ``weight`` says, which is the default where there is one. ``environment``
    is what all strategies meet: hours, drifting speeds, the server's rate. ``device`` and
    ``precision`` say where and how clients compute, in place of what the problem says.
    In the folder of an experiment ``threads``, ``batched``, ``lockstep``, ``channels_last`` and
    ``problem_digest`` are written down as they were found when it was begun.

    Modules of the users' own are sought in ``folder``; ``extensions`` holds their text, so that an
    experiment can be pickled to where there is no such folder.
    """

    fleet_name: str
    fleet: Fleet
    strategies: tuple[Strategy, ...]
    seeds: tuple[int, ...]
    pilot_seeds: tuple[int, ...]
    time: float | None = None
    rounds: int | None = None
    data: str = "digits"
    data_dir: str | None = None
    partition: str = "homogeneous"
    model: str = "mlp"
    problem: str | None = None
    problem_digest: str | None = None
    batch_size: int = 32
    start: str = "spread"
    paired: bool = False
    environment: Choices = field(default_factory=Choices)
    targets: tuple[float, ...] | None = None
    stop_at: float | None = None
    evaluate_every: int | None = None
    refine: bool = True
    client_weights: str = "equal"
    keep_weights: bool = False
    batched: bool | None = None
    lockstep: bool | None = None
    channels_last: bool | None = None
    device: str | None = None
    precision: str | None = None
    threads: int | None = None
    checkpoint_seconds: float = 30.0
    folder: Path | None = None
    extensions: Sources = field(default_factory=Sources)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> "Experiment":
        """The experiment in a TOML file; paths in it are relative to the file's folder."""
        return experiment_from_table(Table.read(Path(path)), Path(path).parent)

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[Any, ...]:
        """With modules of the users' own, what is pickled is opened after these are loaded."""
        if not self.extensions.files:
            return super().__reduce_ex__(protocol)
        return _carried, (
            pickle.dumps(vars(self), protocol.__index__()),
            self.extensions,
            self.folder,
        )

    @property
    def fleet_is_built_in(self) -> bool:
        """Whether the name alone tells the fleet; otherwise it is written beside the experiment."""
        return is_built_in(self.fleet_name, self.fleet)

    def to_table(self) -> dict[str, Any]:
        """What ``read`` reads back, every choice written out; the fleet and plans by file name."""
        source: dict[str, Any] = {
            "problem": self.problem,
            "problem-digest": self.problem_digest,
            "data-dir": self.data_dir,
        }
        if self.problem is None:
            source |= {"data": self.data, "partition": self.partition, "model": self.model}
            source |= {"batch-size": self.batch_size}
        table = {
            "fleet": self.fleet_name if self.fleet_is_built_in else FLEET,
            **source,
            "time": self.time,
            "rounds": self.rounds,
            "start": self.start,
            "paired": self.paired or None,
            **self.environment.world_table(),
            "seeds": list(self.seeds),
            "pilot-seeds": len(self.pilot_seeds) or None,
            "targets": None if self.targets is None else list(self.targets),
            "stop-at": self.stop_at,
            "evaluate-every": self.evaluate_every,
            "refine": None if self.refine else False,
            "client-weights": None if self.client_weights == "equal" else self.client_weights,
            "keep-weights": self.keep_weights or None,
            "batched": self.batched,
            "lockstep": self.lockstep,
            "channels-last": self.channels_last,
            "device": self.device,
            "precision": self.precision,
            "threads": self.threads,
            "checkpoint-seconds": self.checkpoint_seconds,
            "strategy": [strategy.to_table() for strategy in self.strategies],
        }
        return {key: value for key, value in table.items() if value is not None}

    def signature(self) -> dict[str, Any]:
        """What results depend on, in plain values, to tell whether two experiments are the same."""
        table = self.to_table()
        for key in _NO_MATTER:
            table.pop(key, None)
        table["service rates"] = self.fleet.service_rates.tolist()
        table["counts"] = self.fleet.counts.tolist()
        table |= {name: column.tolist() for name, column in self.fleet.columns.items()}
        for entry, strategy in zip(table["strategy"], self.strategies, strict=True):
            entry["routing"] = strategy.network.routing.tolist()
        table["extensions"] = sources_of(_modules(self.strategies), self.folder).codes()
        return table


def _carried(data: bytes, extensions: Sources, folder: Path | None) -> Experiment:
    """An experiment that was pickled, perhaps on another machine."""
    place = extensions.place(folder)
    return Experiment(**{**extensions.unpickled(data, place), "folder": place})


def _modules(strategies: tuple[Strategy, ...]) -> set[str]:
    return {module for strategy in strategies for module in strategy.modules}


def experiment_from_table(table: Table, folder: Path, *, to_tune: bool = False) -> Experiment:
    """The experiment that ``table`` describes, fully validated; files are looked for in ``folder``.

    One ``to_tune`` may leave out strategies and learning rates.
    """
    fleet_name = table.take("fleet", str)
    fleet = at_location(table.where, read_fleet, fleet_name, folder)
    values = _scalars(table)
    values["client_weights"] = _client_weights(table, fleet)
    seeds = _seeds(table)
    pilots = table.take("pilot-seeds", int, default=1, least=1, most=MOST_SEEDS)
    data_dir = table.take("data-dir", str, default=None)
    strategies, environment = read_strategies(table, fleet, folder, none_needed=to_tune)
    table.close()
    for strategy in strategies:
        if not strategy.learning_rates and not to_tune:
            raise InvalidFile(
                f"{table.where}: strategy '{strategy.name}': the key 'learning-rate' is missing"
            )
    candidates = {len(strategy.learning_rates) for strategy in strategies}
    if len(candidates) > 1 and not to_tune:
        raise InvalidFile(
            f"{table.where}: every strategy must try equally many learning rates, or the "
            f"comparison is not fair; here some try {min(candidates)} and some {max(candidates)}"
        )
    modules = _modules(strategies)
    if values["problem"] is not None:
        modules.add(values["problem"].partition(":")[0])
    return Experiment(
        fleet_name=fleet_name,
        fleet=fleet,
        strategies=strategies,
        seeds=seeds,
        pilot_seeds=_pilot_seeds(pilots, seeds) if max(candidates, default=0) > 1 else (),
        data_dir=None if data_dir is None else str((folder / data_dir).resolve()),
        folder=folder.resolve(),
        extensions=sources_of(modules, folder),
        environment=environment,
        start=at_location(table.where, _start, environment.start),
        paired=bool(environment.paired),
        **values,
    )


def _scalars(table: Table) -> dict[str, Any]:
    where = table.where
    time = table.take("time", float, default=None)
    rounds = table.take("rounds", int, default=None)
    if (time is None) == (rounds is None):
        raise InvalidFile(f"{where}: give either 'time' or 'rounds', how long each run lasts")
    length = rounds if time is None else time
    if not (length > 0 and math.isfinite(length)):
        raise InvalidFile(f"{where}: a run must last longer than 0; it lasts {length}")
    problem = table.take("problem", str, default=None)
    built_in = {key: table.take(key, str, default=None) for key in ("data", "partition", "model")}
    size = table.take("batch-size", int, default=None, least=1, most=LARGEST_BATCH)
    built_in["batch-size"] = size
    given = {key: value for key, value in built_in.items() if value is not None}
    if problem is not None:
        if given:
            raise InvalidFile(f"{where}: '{min(given)}' has no meaning beside 'problem'")
        at_location(where, _check_problem_name, problem)
    if "data" in given:
        at_location(where, parse_data, given["data"])
    if "partition" in given:
        at_location(where, parse_partition, given["partition"])
    if "model" in given:
        at_location(where, parse_model, given["model"])
    return {
        "time": time,
        "rounds": rounds,
        "problem": problem,
        "problem_digest": table.take("problem-digest", str, default=None),
        "targets": _targets(table, accuracies=problem is None),
        "stop_at": _target(table, "stop-at", accuracies=problem is None),
        "refine": table.take("refine", bool, default=True),
        "keep_weights": table.take("keep-weights", bool, default=False),
        "evaluate_every": table.take("evaluate-every", int, default=None, least=1),
        "batched": table.take("batched", bool, default=None),
        "lockstep": table.take("lockstep", bool, default=None),
        "channels_last": table.take("channels-last", bool, default=None),
        "device": table.take("device", str, default=None),
        "precision": table.take("precision", str, default=None),
        "threads": table.take("threads", int, default=None, least=1, most=MOST_THREADS),
        "checkpoint_seconds": table.take(
            "checkpoint-seconds", float, default=30.0, least=0.0, most=1e9
        ),
        **{key.replace("-", "_"): value for key, value in given.items()},
    }


def _targets(table: Table, *, accuracies: bool) -> tuple[float, ...] | None:
    targets = table.take("targets", list, default=None)
    if targets is None:
        return None
    return tuple(_checked_target(table, "targets", target, accuracies) for target in targets)


def _target(table: Table, key: str, *, accuracies: bool) -> float | None:
    target = table.take(key, float, default=None)
    return None if target is None else _checked_target(table, key, target, accuracies)


def _checked_target(table: Table, key: str, target: object, accuracies: bool) -> float:
    number = math.nan
    if isinstance(target, int | float) and not isinstance(target, bool):
        number = float(target)
    if accuracies and not 0 < number <= 1:
        raise InvalidFile(
            f"{table.where}: '{key}' are accuracies above 0 and up to 1; {target!r} is not"
        )
    if not math.isfinite(number):
        raise InvalidFile(f"{table.where}: '{key}' are numbers; {target!r} is not")
    return number


def _client_weights(table: Table, fleet: Fleet) -> str:
    weighted = fleet.weight is not None
    given: str = table.take("client-weights", str, default="fleet" if weighted else "equal")
    if given not in CLIENT_WEIGHTS:
        raise InvalidFile(f"{table.where}: {UnknownName('client weights', given, CLIENT_WEIGHTS)}")
    if weighted and given != "fleet":
        raise InvalidFile(
            f"{table.where}: client-weights = \"{given}\", but the fleet has a column 'weight', which "
            "its theory goes by. Leave out client-weights, or take the column out of the fleet."
        )
    if given == "fleet" and not weighted:
        raise InvalidFile(
            f"{table.where}: client-weights = \"fleet\", but the fleet has no column 'weight' that says "
            'how much each client counts. Add it, or write "size" to count samples.'
        )
    return given


def _seeds(table: Table) -> tuple[int, ...]:
    given = table.take("seeds", (int, list), default=3, least=1, most=MOST_SEEDS)
    if isinstance(given, int):
        return tuple(range(given))
    for seed in given:
        at_location(table.where, check_seed, seed)
    if not given or len(set(given)) != len(given):
        raise InvalidFile(f"{table.where}: 'seeds' must be different numbers: {given}")
    return tuple(given)


def _pilot_seeds(count: int, final: tuple[int, ...]) -> tuple[int, ...]:
    """Seeds that no final run uses."""
    span = range(FIRST_PILOT_SEED, FIRST_PILOT_SEED + count + len(final))
    return tuple(seed for seed in span if seed not in final)[:count]


def _check_problem_name(text: str) -> None:
    if not is_extension(text):
        raise InvalidInput(
            f"'problem' must name a function as package.module:function; it is '{text}'"
        )


def _start(given: str | list[int] | None) -> str:
    if given is None:
        return "spread"
    if not isinstance(given, str):
        raise InvalidInput("'start' must be 'spread' or 'stationary' in an experiment")
    start_name(given)
    return given
