"""Strategies on disk: TOML with a network, one line per class, and a table ``[strategy]``.

``sojourn tune`` and ``sojourn explore`` write them. A plan of ``sojourn plan`` has the same form and
an objective beside it; both are read here.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import tomli_w

from sojourn._support.configuration import Table, parse_toml
from sojourn._support.extensions import is_extension
from sojourn._support.files import read_text, write_text
from sojourn._support.ledger import Ledger
from sojourn.errors import InvalidFile
from sojourn.fleet import Fleet, Network
from sojourn.planning.objectives import Objective
from sojourn.planning.plan import network_lines, take_network
from sojourn.strategy.choices import FILE_KEYS, Choices
from sojourn.version import __version__


@dataclass(frozen=True, kw_only=True, eq=False)
class StrategyFile:
    """What a plan or strategy file says.

    ``fleet`` is the whole fleet, of which ``network`` may have split classes. ``objective`` is that
    of a plan; ``evidence`` says what a tuned strategy was chosen by.
    """

    text: str
    fleet: Fleet
    network: Network
    choices: Choices
    name: str | None = None
    objective: Objective | None = None
    evidence: Mapping[str, object] = field(default_factory=dict)


def read_strategy_file(path: str | os.PathLike[str], folder: Path | None = None) -> StrategyFile:
    """Read a plan or strategy file, checking every key and value.

    Modules of one's own are looked for in ``folder``, by default that of the file.
    """
    Ledger(Path(path).parent).note(Path(path))
    table = Table.read(os.fspath(path))
    if table.take("fleet", str, default=None) is not None:
        raise InvalidFile(
            f"{path}: an experiment, not a strategy. `sojourn tune {path}` writes a strategy.toml"
        )
    beside = Path(path).parent if folder is None else folder
    rate, network, fleet, objective = take_network(table, beside)
    evidence = table.take("evidence", dict, default={})
    inner = table.optional_table("strategy")
    name, choices = None, Choices()
    if inner is not None:
        name = inner.take("name", str, default=None)
        choices = Choices.take(inner, fleet, beside, FILE_KEYS)
        inner.close()
    for informative in ("predicted", "provenance"):
        table.take(informative, dict, default=None)
    table.close()
    head = Choices(concurrency=network.concurrency, learning_rate=rate)
    return StrategyFile(
        text=read_text(path, encoding="utf-8"),
        fleet=fleet,
        network=network,
        choices=choices.over(head),
        name=name,
        objective=objective,
        evidence=evidence,
    )


def modules_named(path: str | os.PathLike[str]) -> set[str]:
    """The modules of users' own that a file of a strategy names, none of which is imported."""
    table = parse_toml(read_text(path, encoding="utf-8"), str(path))
    return {text.partition(":")[0] for text in _texts(table) if is_extension(text)}


def _texts(value: object) -> Iterator[str]:
    """Every text in a table, however deep."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)


def write_strategy_file(
    path: str | os.PathLike[str],
    network: Network,
    strategy: Mapping[str, object],
    *,
    learning_rate: float | None,
    evidence: Mapping[str, object],
    provenance: Mapping[str, object],
) -> None:
    """Write the table of a strategy beside its network, atomically."""
    tail = {"strategy": dict(strategy), "evidence": dict(evidence), "provenance": dict(provenance)}
    text = "\n".join(
        [
            f"# A strategy by sojourn {__version__}: who gets the next task, how many are in flight, what",
            "# the server does with an update. Edit it as you like: it is checked when it is read.",
            "",
            *network_lines(network, learning_rate),
            "",
            tomli_w.dumps({key: value for key, value in tail.items() if value}),
        ]
    )
    write_text(path, text)
