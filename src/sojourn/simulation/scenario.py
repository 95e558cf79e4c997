"""What a simulation assumes beside the network: laws, policy, start, work."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

import numpy as np

from sojourn._support.checks import check_per_client, check_positive
from sojourn.dispatch import NeverQueue, Policy, Routed, as_policy, policy_to_table
from sojourn.errors import InvalidInput, UnknownName
from sojourn.fleet import Network
from sojourn.fleet.calendars import Drift, Hours, as_drift, as_hours
from sojourn.fleet.laws import (
    Law,
    LawLike,
    Laws,
    ServiceLaw,
    as_law,
    as_laws,
    check_law_per_class,
    fleet_laws,
    law_to_table,
)
from sojourn.simulation.calendars import Calendars
from sojourn.simulation.starts import Start, start_name
from sojourn.simulation.streams import Seed
from sojourn.types import FloatArray

OFFLINE = ("wait", "lose")
"""What becomes of the tasks of a client that goes away."""


PolicyLike = str | Mapping[str, object] | Policy
HoursLike = Hours | dict[str, object]
Work = float | Sequence[float] | FloatArray
"""Service times that a task takes: one number for all clients, or one for each."""
DriftLike = Drift | Sequence[Sequence[Sequence[float]]]


class ScenarioParts(TypedDict, total=False):
    """The keyword arguments of `Scenario`; ``None`` means the default."""

    law: Laws | None
    policy: PolicyLike | None
    start: Start | None
    work: Work | None
    paired: bool | None
    link_law: LawLike | None
    server_law: LawLike | None
    offline: str | None
    hours: HoursLike | None
    drift: DriftLike | None


@dataclass(frozen=True, init=False)
class Scenario:
    """How tasks are served and sent: one value from the experiment to the schedule on disk.

    ``law`` is the law of the service times by name, as a table or as a value, or a list with one
    per class of the (whole) fleet; the attribute is a tuple of laws. ``policy`` says who gets the
    next task (`sojourn.dispatch`) and ``start`` where the first tasks are: ``"spread"``,
    ``"stationary"`` or the number of tasks of each client. A task takes ``work`` service times,
    such as the local steps of a client: one number for all clients, or one for each. With
    ``paired`` every client draws its service times from a stream of its own, so that the j-th task
    of a client takes the same time under every policy, routing and concurrency with the same seed:
    differences between strategies are then due to the strategies.

    Where the network has links and a server that take time, ``link_law`` and ``server_law`` are the
    laws of those times, exponential by default. In steady state the law of the links does not
    matter, only their means; that of the server does.

    Clients are present as the fleet's ``mean_up`` and ``mean_down`` say, and within ``hours``
    (`Hours`); ``offline`` says whether the tasks of a client that leaves wait for it, ``"wait"``, or
    are lost and sent anew, ``"lose"``. ``drift`` (`Drift`) multiplies speeds as time goes by.

    >>> scenario = Scenario(law="lognormal", policy="never-queue")
    >>> scenario
    Scenario(lognormal(sigma=1) service, never-queue dispatch, spread start)
    >>> from dataclasses import replace
    >>> replace(scenario, work=2.0)
    Scenario(lognormal(sigma=1) service, never-queue dispatch, spread start, work 2)
    """

    law: tuple[ServiceLaw, ...]
    policy: Policy
    start: str | tuple[int, ...]
    work: float | tuple[float, ...]
    paired: bool
    link_law: ServiceLaw
    server_law: ServiceLaw
    offline: str
    hours: Hours | None
    drift: Drift | None

    def __init__(
        self,
        *,
        law: Laws | None = None,
        policy: PolicyLike | None = None,
        start: Start | None = None,
        work: Work | None = None,
        paired: bool | None = None,
        link_law: LawLike | None = None,
        server_law: LawLike | None = None,
        offline: str | None = None,
        hours: HoursLike | None = None,
        drift: DriftLike | None = None,
    ) -> None:
        if offline not in (None, *OFFLINE):
            raise UnknownName("way to be offline", offline, OFFLINE)
        values = {
            "law": (Law("exponential"),) if law is None else as_laws(law),
            "policy": Routed() if policy is None else as_policy(policy),
            "start": "spread" if start is None else _checked_start(start),
            "work": 1.0 if work is None else _checked_work(work),
            "paired": bool(paired),
            "link_law": as_law(link_law, "link_law"),
            "server_law": as_law(server_law, "server_law"),
            "offline": offline or "wait",
            "hours": as_hours(hours),
            "drift": as_drift(drift),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @classmethod
    def of(cls, network: Network, **parts: Unpack[ScenarioParts]) -> "Scenario":
        """The scenario of these parts; without a law, the laws in the fleet's own column."""
        if parts.get("law") is None:
            parts["law"] = fleet_laws(network.whole_fleet())
        return cls(**parts)

    @property
    def law_text(self) -> str:
        """The laws of the service times as text."""
        return ", ".join(dict.fromkeys(str(law) for law in self.law))

    @property
    def start_name(self) -> str:
        """``"spread"``, ``"stationary"``, or ``"given"`` for a state of one's own."""
        return start_name(self.start)

    @property
    def is_exponential(self) -> bool:
        """Whether the theory is about these service times, of the clients and of the server."""
        return all(law == Law("exponential") for law in (*self.law, self.server_law))

    def client_work(self, network: Network) -> FloatArray:
        """The work of a task of every client, shape ``(n,)``."""
        return np.broadcast_to(np.array(self.work), (network.size,))

    def task_network(self, network: Network) -> Network:
        """``network`` with the rates of whole tasks; work per client makes a class of every client."""
        if not isinstance(self.work, tuple):
            rates = network.fleet.service_rates / self.work
            return replace(network, fleet=network.fleet.with_rates(rates))
        clients = each_client(network)
        rates = clients.fleet.service_rates / self.client_work(network)
        return replace(clients, fleet=clients.fleet.with_rates(rates))

    def shares(self, network: Network) -> FloatArray | None:
        """Every client's share of the completions in the long run, ``(n,)``; ``None``: unknown."""
        # Beside journeys, tasks of several steps change who is heard how often.
        if (
            self.work != 1
            and isinstance(self.policy, NeverQueue)
            and self.policy.shares(network) is not None
        ):
            from sojourn.theory.never_queue import never_queue

            law = self.law if len(self.law) == 1 else None
            clients = each_client(network)
            patience = self.policy.patience
            work = self.client_work(network)
            return never_queue(clients, work=work, patience=patience, law=law).shares
        return self.policy.shares(network)

    def has_calendar(self, network: Network) -> bool:
        """Whether clients are away at times, or change their speed."""
        return network.fleet.is_intermittent or self.hours is not None or self.drift is not None

    def calendars(self, network: Network, seed: Seed) -> Calendars | None:
        """When clients are there, and how fast; ``None`` if always, and always the same."""
        if not self.has_calendar(network):
            return None
        loses = self.offline == "lose"
        return Calendars(network, self.hours, self.drift, loses=loses, seed=seed)

    def check(self, network: Network) -> None:
        """Raise unless ``network`` can be simulated so."""
        check_law_per_class(self.law, network)
        check_per_client("work", self.work, network.size)
        self.policy.check(network, self.start_name)
        given = () if isinstance(self.start, str) else self.start
        if self.policy.one_task_each and max(given, default=0) > 1:
            raise InvalidInput(
                f"the policy '{self.policy.name}' starts with at most one task per client"
            )

    def to_table(self) -> dict[str, object]:
        """Plain values for TOML and JSON, which `from_table` reads back."""
        laws = [law_to_table(law) for law in self.law]
        stations = {"link-law": self.link_law, "server-law": self.server_law}
        return {
            "law": laws[0] if len(laws) == 1 else laws,
            "policy": policy_to_table(self.policy),
            "start": self.start if isinstance(self.start, str) else list(self.start),
            "work": list(self.work) if isinstance(self.work, tuple) else self.work,
            "paired": self.paired,
            **{k: law_to_table(v) for k, v in stations.items() if v != Law("exponential")},
            **({} if self.offline == "wait" else {"offline": self.offline}),
            **({} if self.hours is None else {"hours": asdict(self.hours)}),
            **({} if self.drift is None else {"drift": [list(x) for x in self.drift.steps]}),
        }

    @classmethod
    def from_table(cls, table: Mapping[str, Any], folder: Path | None = None) -> "Scenario":
        """The scenario in a table; what users brought is looked for in ``folder``."""
        return cls(
            law=as_laws(table["law"], folder=folder),
            policy=as_policy(table["policy"], folder=folder),
            start=table["start"],
            work=table["work"],
            paired=table.get("paired", False),
            link_law=as_law(table.get("link-law"), "link-law", folder),
            server_law=as_law(table.get("server-law"), "server-law", folder),
            offline=table.get("offline", "wait"),
            hours=table.get("hours"),
            drift=table.get("drift"),
        )

    def __repr__(self) -> str:
        least, most = (
            (min(self.work), max(self.work)) if isinstance(self.work, tuple) else (self.work,) * 2
        )
        span = f"{least:g}" if least == most else f"{least:g} to {most:g}"
        work = "" if self.work == 1.0 else f", work {span}"
        paired = ", paired" if self.paired else ""
        return (
            f"Scenario({self.law_text} service, {self.policy.name} dispatch, "
            f"{self.start_name} start{work}{paired})"
        )


def _checked_work(work: Work) -> float | tuple[float, ...]:
    if np.ndim(work) == 0:
        return check_positive("work", work)  # type: ignore[arg-type]
    return tuple(check_positive("work", one) for one in np.asarray(work).tolist())


def each_client(network: Network) -> Network:
    """``network`` with a class of its own for every client."""
    fleet = network.fleet
    classes = np.repeat(np.arange(fleet.classes), fleet.counts)
    clients = fleet.select(classes, np.ones(network.size, dtype=np.int64))
    parents = network.parents[classes]
    return replace(network, fleet=clients, routing=network.client_routing, parents=parents)


def _checked_start(start: Start) -> str | tuple[int, ...]:
    if start_name(start) != "given":
        return str(start)
    try:
        return tuple(np.asarray(start, dtype=np.float64).tolist())
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidInput(
            "start must be 'spread', 'stationary' or the number of tasks of each client"
        ) from error


def chosen_scenario(network: Network, scenario: Scenario | None, parts: ScenarioParts) -> Scenario:
    """``scenario``, or the one made of its parts; raise if both are given."""
    given = [name for name, value in parts.items() if value is not None]
    if scenario is None:
        return Scenario.of(network, **parts)
    if given:
        raise InvalidInput(f"give a scenario or its parts ({', '.join(given)}), not both")
    return scenario
