"""What one source says about what is run: a strategy's table, a file, an experiment, or options."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numpy as np

from sojourn._support.checks import check_positive, check_whole
from sojourn._support.configuration import Table
from sojourn.errors import InvalidInput, UnknownName, reading
from sojourn.fleet import Fleet
from sojourn.fleet.calendars import Drift, Hours, as_drift, as_hours, read_drift, read_hours
from sojourn.fleet.laws import Laws, ServiceLaw, as_law, law_to_table, read_laws
from sojourn.rules import dynamic_local_steps
from sojourn.rules.state import LocalSteps
from sojourn.theory.floor import balanced_work

Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")

NamedTable = str | Mapping[str, object]
"""A rule or a policy as configuration writes it: a name, or a table of a name and parameters."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Choices:
    """What is said about a strategy; ``None`` where nothing is said.

    ``routing`` is a name, numbers per class or per client, or the path of a plan or strategy file.
    ``local_steps`` is as `local_steps_given` takes it; with ``local_epochs`` a client goes through its
    samples so many times in a task.
    From ``law`` on, the fields are about the world that a strategy meets: service times, links, the
    server, absences, and how a run starts. ``steady`` asks for a start in steady state where it is
    known, if no ``start`` is given.

    >>> Choices(concurrency=8).over(Choices(concurrency=4, policy="idle")).policy
    'idle'
    """

    routing: str | list[float] | None = None
    policy: NamedTable | None = None
    rule: NamedTable | None = None
    local_steps: int | str | list[int] | Mapping[str, object] | None = None
    local_epochs: float | None = None
    concurrency: int | None = None
    learning_rate: float | list[float] | None = None
    law: tuple[ServiceLaw, ...] | None = None
    link_law: ServiceLaw | None = None
    server_law: ServiceLaw | None = None
    server_rate: float | None = None
    offline: str | None = None
    hours: Hours | None = None
    drift: Drift | None = None
    start: str | list[int] | None = None
    paired: bool | None = None
    steady: bool | None = None

    @classmethod
    def take(
        cls, table: Table, fleet: Fleet, folder: Path | None, keys: Collection[str]
    ) -> "Choices":
        """Those of ``keys`` that ``table`` has; files and modules are looked for in ``folder``.

        ``trace``, a file of observed durations, is a law; it goes with the key ``law``.
        """
        given: dict[str, Any] = {}
        kinds: dict[str, type | tuple[type, ...]] = {
            "routing": (str, list),
            "policy": (str, dict),
            "rule": (str, dict),
            "local-steps": (int, str, list, dict),
            "local-epochs": float,
            "concurrency": int,
            "learning-rate": (float, list),
            "link-law": (str, dict),
            "server-law": (str, dict),
            "server-rate": float,
            "offline": str,
            "start": (str, list),
            "paired": bool,
        }
        for key, kind in kinds.items():
            if key in keys:
                given[key.replace("-", "_")] = table.take(key, kind, default=None)
        with reading(table.where):
            if given.get("local_steps") is not None and given.get("local_epochs") is not None:
                raise InvalidInput(
                    "'local-steps' and 'local-epochs' both say how much a client does in a task; leave out one"
                )
            if "law" in keys:
                given["law"] = _laws(table, fleet, folder)
            for key in ("link_law", "server_law"):
                if given.get(key) is not None:
                    name = key.replace("_", "-")
                    given[key] = as_law(given[key], name, folder)
            if "hours" in keys:
                hours = table.take("hours", (str, dict), default=None)
                given["hours"] = (
                    read_hours((folder or Path()) / hours)
                    if isinstance(hours, str)
                    else as_hours(hours)
                )
            if "drift" in keys:
                drift = table.take("drift", (str, list), default=None)
                given["drift"] = (
                    read_drift((folder or Path()) / drift, fleet)
                    if isinstance(drift, str)
                    else as_drift(drift)
                )
        return cls(**given)

    def over(self, other: "Choices") -> "Choices":
        """These choices, and those of ``other`` where nothing is said here."""
        said = {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if getattr(self, field.name) is not None
        }
        # Steps of an own rule belong to it: another source's steps are about that source's rule.
        if self.rule is not None and self.local_steps is None:
            other = replace(other, local_steps=None)
        if self.rule is not None or self.local_steps is not None:
            other = replace(other, local_epochs=None)
        if self.local_epochs is not None:
            other = replace(other, local_steps=None)
        return replace(other, **said)

    def with_local_work(self, other: "Choices") -> "Choices":
        """These choices, with the local work of ``other`` where nothing is said here.

        >>> entry = Choices(rule={"name": "fedbuff"})
        >>> entry.with_local_work(Choices(local_steps=4)).local_steps
        4
        """
        of_rule = isinstance(self.rule, Mapping) and "local-steps" in self.rule
        if of_rule or self.local_steps is not None or self.local_epochs is not None:
            return self
        return replace(self, local_steps=other.local_steps, local_epochs=other.local_epochs)

    def world_table(self) -> dict[str, object]:
        """What is said about links, server, absences and speeds, as TOML has it, without files."""
        table: dict[str, object] = {
            "hours": None if self.hours is None else asdict(self.hours),
            "drift": None if self.drift is None else [list(row) for row in self.drift.steps],
            "offline": self.offline,
            "link-law": None if self.link_law is None else law_to_table(self.link_law),
            "server-law": None if self.server_law is None else law_to_table(self.server_law),
            "server-rate": self.server_rate,
        }
        return {key: value for key, value in table.items() if value is not None}


DECISIONS = (
    *("routing", "policy", "rule", "local-steps", "local-epochs", "concurrency", "learning-rate"),
)
WORLD = ("link-law", "server-law", "server-rate", "offline", "hours", "drift")
ENTRY_KEYS = (*DECISIONS, "law")
"""What the table of one strategy may say: all strategies of an experiment meet the same world."""
EXPERIMENT_KEYS = (*DECISIONS[1:], "law", "start", "paired", *WORLD)
FILE_KEYS = (
    *("policy", "rule", "local-steps", "local-epochs", "law", "link-law", "server-law"),
    *("offline", "hours", "drift"),
)
"""What ``[strategy]`` in a plan or strategy file may say; the rest of the file has the network."""


def learning_rates_given(given: float | list[float] | None) -> tuple[float, ...]:
    """One learning rate or several, all positive and different; none where nothing is said."""
    if given is None:
        return ()
    rates = given if isinstance(given, list) else [given]
    for rate in rates:
        check_positive("a learning rate", rate)
    if not rates or len(set(rates)) != len(rates):
        raise InvalidInput(f"learning rates must be a list of different numbers: {rates}")
    return tuple(float(rate) for rate in rates)


def local_steps_given(given: object, fleet: Fleet) -> LocalSteps:
    r"""Local steps as configuration writes them: one number for all clients, or one for each.

    - a number;
    - a list, per class or per client;
    - ``"theory"`` or ``{by = "theory", factor = 1.0}``: :math:`H_i = \max(1, c \mu_i (d_i + u_i))`, by which
      a client computes as long as its task travels (`sojourn.theory.floor.balanced_work`);
    - ``{by = "speed", most = 16}``: in proportion to the speed, so that tasks take about equally long
      (`sojourn.rules.dynamic_local_steps`).

    >>> fleet = Fleet([1.0, 4.0], counts=[1, 2], uplink=[1.0, 2.0])
    >>> local_steps_given("theory", fleet), local_steps_given({"by": "speed", "most": 8}, fleet)
    ((1, 8, 8), (2, 8, 8))
    >>> local_steps_given([3, 5], fleet)
    (3, 5, 5)
    """
    if isinstance(given, str | Mapping):
        table = Table({"by": given} if isinstance(given, str) else dict(given), "local-steps")
        kind = table.take("by", str)
        if kind == "theory":
            factor = table.take("factor", float, default=1.0)
            wanted = fleet.expand(balanced_work(fleet, factor)).astype(int).tolist()
        elif kind == "speed":
            rates = fleet.expand(fleet.service_rates)
            wanted = list(dynamic_local_steps(rates, table.take("most", int)))
        else:
            raise UnknownName("way to choose local steps", kind, ("theory", "speed"))
        table.close()
        steps = tuple(wanted)
    elif isinstance(given, Sequence):
        numbers = [check_whole("local-steps", number) for number in given]
        if len(numbers) == fleet.classes != fleet.size:
            numbers = np.repeat(numbers, fleet.counts).tolist()
        if len(numbers) != fleet.size:
            raise InvalidInput(
                f"local-steps has {len(numbers)} numbers; give one, one for each of the "
                f"{fleet.classes} classes, or one for each of the {fleet.size} clients"
            )
        steps = tuple(numbers)
    else:
        return check_whole("local-steps", given)
    return steps[0] if len(set(steps)) == 1 else steps


def at_location(
    where: str,
    check: Callable[Arguments, Result],
    *values: Arguments.args,
    **options: Arguments.kwargs,
) -> Result:
    """``check(*values)``; a complaint opens with the place in the file, if there is one (`reading`)."""
    with reading(where):
        return check(*values, **options)


def _laws(table: Table, fleet: Fleet, folder: Path | None) -> tuple[ServiceLaw, ...] | None:
    law: Laws | None = table.take("law", (str, dict, list), default=None)
    trace = table.take("trace", str, default=None)
    if trace is not None:
        if law is not None:
            raise InvalidInput("'trace' is a law by itself; leave out 'law'")
        law = {"name": "trace", "file": trace}
    return None if law is None else read_laws(law, fleet, folder=folder)
