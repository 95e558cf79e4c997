"""What training claims share: the paper's networks, the sizes of a run, and single cells."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from reproduction.claims import CLAIMS
from reproduction.intervals import SequentialIntervals
from reproduction.parameters import take_numbers
from sojourn._support.configuration import Table
from sojourn.errors import InvalidFile, InvalidInput, UnknownName
from sojourn.fleet import BUILT_IN_FLEETS, Fleet
from sojourn.theory.constants import LearningConstants
from sojourn.types import FloatArray

SCALES = ("quick", "standard", "paper")
TITLES = {
    "digits": "Digits",
    "fashion-mnist": "Fashion-MNIST",
    "kmnist": "KMNIST",
    "cifar-10": "CIFAR-10",
    "cifar-100": "CIFAR-100",
}
SIDES = {"digits": 8, "fashion-mnist": 28, "kmnist": 28, "cifar-10": 32, "cifar-100": 32}
"""Pixels on a side of the data sets' own images."""


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
class Fewer:
    """Cells of a data set that the paper ran with another number of seeds; empty fields mean any."""

    looks: SequentialIntervals
    settings: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    laws: tuple[str, ...] = ()

    def concerns(self, cell: "TrainingCell") -> bool:
        """Whether a cell is one of them."""
        return all(
            not wanted or value in wanted
            for wanted, value in (
                (self.settings, cell.setting),
                (self.partitions, cell.partition),
                (self.laws, cell.law),
            )
        )


@dataclass(frozen=True)
class Size:
    """How large a run on one data set is: network, batch, length, evaluations; after how many pairs
    results are looked at, ``fewer`` in some cells. Images are averaged down to ``pixels`` on a side, if
    that is given.
    """

    model: str
    batch_size: int
    looks: SequentialIntervals
    evaluations: int
    rounds: int | None = None
    time: float | None = None
    pixels: int | None = None
    fewer: tuple[Fewer, ...] = ()

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

    @property
    def run_by_run(self) -> bool:
        """Whether runs are made one after the other, with a page after each: without a budget, for days."""
        return self.budget is None

    def looks(self, cell: "TrainingCell") -> SequentialIntervals:
        """After how many pairs the results of a cell are looked at."""
        size = self.sizes[cell.data]
        return next((one.looks for one in size.fewer if one.concerns(cell)), size.looks)

    def image_share(self, cell: "TrainingCell") -> float:
        """How much of the pixels of the data set's own images the runs of a cell see."""
        pixels = self.sizes[cell.data].pixels
        return 1.0 if pixels is None else (pixels / SIDES[cell.data]) ** 2

    def size_in_words(self, cell: "TrainingCell") -> str:
        """Images, network, batches and length of the runs of a cell."""
        size = self.sizes[cell.data]
        if self.scale == "paper":
            return f"{TITLES[cell.data]} at the paper's size"
        side = size.pixels or SIDES[cell.data]
        return (
            f"{TITLES[cell.data]} at {side} x {side} pixels, {size.model}, batches of {size.batch_size}, "
            f"{self.share(cell):.0%} of the paper's {self.settings[cell.setting].axis}"
        )

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
        table = Table.read(CLAIMS / "settings.toml")
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
                name: _setting(name, tables["setting"].table(name))
                for name in list(tables["setting"].values)
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


def _looks(table: Table) -> SequentialIntervals:
    given = table.take("looks", list)
    try:
        return SequentialIntervals(tuple(int(pairs) for pairs in given))
    except (InvalidInput, TypeError, ValueError) as error:
        raise InvalidFile(f"{table.where}: 'looks': {error}") from error


def _fewer(table: Table) -> Fewer:
    found = Fewer(
        looks=_looks(table),
        settings=tuple(table.take("settings", list, default=[])),
        partitions=tuple(table.take("partitions", list, default=[])),
        laws=tuple(table.take("laws", list, default=[])),
    )
    table.close()
    return found


def _size(table: Table) -> Size:
    size = Size(
        model=table.take("model", str),
        batch_size=table.take("batch-size", int),
        looks=_looks(table),
        evaluations=table.take("evaluations", int),
        rounds=table.take("rounds", int, default=None),
        time=table.take("time", float, default=None),
        pixels=table.take("pixels", int, default=None),
        fewer=tuple(_fewer(entry) for entry in table.tables("fewer", default=[])),
    )
    table.close()
    return size
