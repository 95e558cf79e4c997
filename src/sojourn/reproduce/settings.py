"""What training claims share: the paper's networks, the sizes of a run, and single cells."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sojourn.comparison import Looks
from sojourn.config import Table
from sojourn.constants import LearningConstants
from sojourn.errors import InvalidFile, InvalidInput, UnknownName
from sojourn.network import BUILT_IN_FLEETS, Fleet
from sojourn.reproduce.claims import claims_folder
from sojourn.reproduce.parameters import take_numbers
from sojourn.types import FloatArray

SCALES = ("quick", "standard", "paper")
TITLES = {
    "digits": "Digits",
    "fashion-mnist": "Fashion-MNIST",
    "kmnist": "KMNIST",
    "cifar-10": "CIFAR-10",
    "cifar-100": "CIFAR-100",
}


@dataclass(frozen=True, eq=False)
class Setting:
    """One of the paper's networks: a fleet of single clients, slowest first, and what is tried.

    Where ``tried_rates`` are given, every strategy has the best of them instead of ``learning_rate``.
    """

    name: str
    fleet: Fleet
    concurrency: int
    learning_rate: float
    axis: str
    strategies: tuple[str, ...]
    printed: FloatArray | None
    tried_rates: tuple[float, ...] = ()


@dataclass(frozen=True)
class Size:
    """How large a run on one data set is: network, batch, length, evaluations; after how many pairs
    results are looked at. Images are averaged down to ``pixels`` on a side, if that is given.
    """

    model: str
    batch_size: int
    looks: Looks
    evaluations: int
    rounds: int | None = None
    time: float | None = None
    pixels: int | None = None

    def of(self, data: str) -> str:
        """The data set in this size, as experiments name it."""
        return data if self.pixels is None else f"{data}({self.pixels})"


@dataclass(frozen=True, eq=False)
class Settings:
    """The file ``settings.toml`` at one scale.

    ``budget`` is in seconds of processor time; ``None`` runs everything there is.
    """

    scale: str
    reduced: str
    budget: float | None
    settings: Mapping[str, Setting]
    sizes: Mapping[str, Size]
    full_sizes: Mapping[str, Size]
    constants: LearningConstants

    def share(self, cell: "TrainingCell") -> float:
        """How much of the paper's rounds or time the runs of a cell last."""
        size, full = self.sizes[cell.data], self.full_sizes[cell.data]
        if self.settings[cell.setting].axis == "time":
            return (size.time or 0.0) / (full.time or math.inf)
        return (size.rounds or 0) / (full.rounds or math.inf)

    @classmethod
    def read(cls, scale: str) -> "Settings":
        """Read the settings for one of the scales."""
        if scale not in SCALES:
            raise UnknownName("scale", scale, SCALES)
        table = Table.read(claims_folder() / "settings.toml")
        tables = {name: table.table(name) for name in (*SCALES, "constants", "setting")}
        table.close()
        reduced = {name: tables[name].take("reduced", str) for name in SCALES}[scale]
        minutes = {
            name: tables[name].take("processor-minutes", float, default=None) for name in SCALES
        }
        budget = minutes[scale]
        sizes = {
            name: {data: _size(tables[name].table(data)) for data in list(tables[name].values)}
            for name in SCALES
        }
        return cls(
            scale=scale,
            reduced=reduced,
            budget=None if budget is None else 60.0 * budget,
            settings={
                name: _setting(name, Table(entry, f"[setting.{name}]"))
                for name, entry in tables["setting"].values.items()
            },
            sizes=sizes[scale],
            full_sizes=sizes["paper"],
            constants=LearningConstants.from_table(tables["constants"]),
        )


@dataclass(frozen=True)
class TrainingCell:
    """One figure of a training claim: a data set, how it is shared, a law, a network."""

    data: str
    partition: str
    setting: str
    law: str = "exponential"

    @property
    def name(self) -> str:
        """The cell as a folder name, the same in every claim that uses it.

        >>> TrainingCell("kmnist", "dirichlet(0.5)", "time").name
        'time-kmnist-dirichlet-0.5-exponential'
        """
        text = f"{self.setting}-{self.data}-{self.partition}-{self.law}"
        return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")

    @property
    def title(self) -> str:
        """The cell in words."""
        return f"{self.where}{'' if self.law == 'exponential' else f', {self.law} times'}"

    @property
    def where(self) -> str:
        """Data and partition in words."""
        name, _, number = self.partition.rstrip(")").partition("(")
        kind = {
            "dirichlet": "Dirichlet",
            "labels": f"{number} labels per client",
            "disjoint": "one label per client",
        }
        return f"{TITLES[self.data]}, {kind.get(name, name)}"


def _setting(name: str, table: Table) -> Setting:
    table.take("where", str)
    clients = table.take("clients", int)
    rates = _service_rates(table.take("service-rates", str), clients, table.where)
    setting = Setting(
        name=name,
        fleet=Fleet(rates),
        concurrency=table.take("concurrency", int),
        learning_rate=table.take("learning-rate", float),
        axis=table.take("axis", str),
        strategies=tuple(table.take("strategies", list)),
        printed=np.array(take_numbers(table, "printed")) if "printed" in table.values else None,
        tried_rates=tuple(take_numbers(table, "tried-rates"))
        if "tried-rates" in table.values
        else (),
    )
    table.close()
    return setting


def _service_rates(text: str, clients: int, where: str) -> FloatArray:
    """The rates of single clients, slowest first, from a fleet's name or ``exp(i/k)``."""
    if text in BUILT_IN_FLEETS:
        fleet = BUILT_IN_FLEETS[text]
        rates = np.sort(fleet.expand(fleet.service_rates))
    else:
        law = re.fullmatch(r"exp\(i/(\d+)\)", text)
        if law is None:
            raise InvalidFile(f"{where}: 'service-rates' must be a fleet or exp(i/k): '{text}'")
        rates = np.exp(np.arange(1, clients + 1) / int(law[1]))
    if rates.size != clients:
        raise InvalidFile(f"{where}: {text} has {rates.size} clients; 'clients' is {clients}")
    return rates


def _looks(table: Table) -> Looks:
    given = table.take("looks", list)
    try:
        return Looks(tuple(int(pairs) for pairs in given))
    except (InvalidInput, TypeError, ValueError) as error:
        raise InvalidFile(f"{table.where}: 'looks': {error}") from error


def _size(table: Table) -> Size:
    size = Size(
        model=table.take("model", str),
        batch_size=table.take("batch-size", int),
        looks=_looks(table),
        evaluations=table.take("evaluations", int),
        rounds=table.take("rounds", int, default=None),
        time=table.take("time", float, default=None),
        pixels=table.take("pixels", int, default=None),
    )
    table.close()
    return size
