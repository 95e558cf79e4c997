"""What a simulation assumes beside the network: laws, policy, start, work."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sojourn.checks import check_positive
from sojourn.dispatch import Policy, Routed, as_policy, policy_to_table
from sojourn.errors import InvalidInput, UnknownName
from sojourn.laws import (
    Law,
    Laws,
    ServiceLaw,
    as_laws,
    fleet_laws,
    law_to_table,
)
from sojourn.network import Network
from sojourn.simulation.calendars import Calendars, Drift, Hours, as_drift, as_hours
from sojourn.simulation.starts import Start, start_name
from sojourn.simulation.streams import Seed

OFFLINE = ("wait", "lose")
"""What becomes of the tasks of a client that goes away."""


@dataclass(frozen=True, init=False)
class Scenario:
    """How tasks are served and sent: one value from the experiment to the schedule on disk.

    ``laws`` has one entry, or one per class of the (whole) fleet; a task takes ``work`` service
    times. With ``paired`` every client draws its service times from a stream of its own, so that
    the j-th task of a client takes the same time under every policy, routing and concurrency with
    the same seed: differences between strategies are then due to the strategies.

    Where the network has links and a server that take time, ``link_law`` and ``server_law`` are the
    laws of those times, exponential by default. In steady state the law of the links does not
    matter, only their means; that of the server does.

    Clients come and go as the fleet's ``mean_up`` and ``mean_down`` say, and within ``hours``
    (`Hours`); ``offline`` says whether what a client has when it goes waits for it, ``"wait"``, or is
    lost and sent anew, ``"lose"``. ``drift`` (`Drift`) multiplies speeds as time goes by.

    >>> Scenario(law="lognormal", policy="never-queue")
    Scenario(lognormal(sigma=1) service, never-queue dispatch, spread start)
    """

    laws: tuple[ServiceLaw, ...]
    policy: Policy
    start: str | tuple[int, ...]
    work: float
    paired: bool
    link_law: ServiceLaw = Law("exponential")
    server_law: ServiceLaw = Law("exponential")
    offline: str = "wait"
    hours: Hours | None = None
    drift: Drift | None = None

    def __init__(
        self,
        *,
        law: Laws | None = None,
        policy: str | Mapping[str, Any] | Policy | None = None,
        start: Start | None = None,
        work: float = 1.0,
        paired: bool = False,
        link_law: str | Mapping[str, Any] | ServiceLaw | None = None,
        server_law: str | Mapping[str, Any] | ServiceLaw | None = None,
        offline: str = "wait",
        hours: Any = None,
        drift: Any = None,
    ) -> None:
        check_positive("work", work)
        begin: Any = "spread" if start is None else start
        if start_name(begin) == "given":
            try:
                begin = tuple(np.asarray(begin, dtype=np.float64).tolist())
            except (TypeError, ValueError, OverflowError) as error:
                raise InvalidInput(
                    "start must be 'spread', 'stationary' or the number of tasks of each client"
                ) from error
        object.__setattr__(self, "laws", (Law("exponential"),) if law is None else as_laws(law))
        object.__setattr__(self, "policy", Routed() if policy is None else as_policy(policy))
        object.__setattr__(self, "start", begin)
        object.__setattr__(self, "work", float(work))
        object.__setattr__(self, "paired", bool(paired))
        object.__setattr__(self, "link_law", _one_law(link_law, "link_law"))
        object.__setattr__(self, "server_law", _one_law(server_law, "server_law"))
        if offline not in OFFLINE:
            raise UnknownName("way to be offline", offline, OFFLINE)
        object.__setattr__(self, "offline", offline)
        object.__setattr__(self, "hours", as_hours(hours))
        object.__setattr__(self, "drift", as_drift(drift))

    @classmethod
    def of(cls, network: Network, **parts: Any) -> "Scenario":
        """The scenario of these parts; without a law, the laws that the fleet itself tells."""
        if parts.get("law") is None:
            parts = {**parts, "law": fleet_laws(network.whole_fleet())}
        return cls(**parts)

    @property
    def law(self) -> str:
        """The laws in words."""
        return ", ".join(dict.fromkeys(str(law) for law in self.laws))

    @property
    def start_name(self) -> str:
        """``"spread"``, ``"stationary"``, or ``"given"`` for a state of one's own."""
        return start_name(self.start)

    @property
    def is_exponential(self) -> bool:
        """Whether the theory is about these service times, of the clients and of the server."""
        return all(law == Law("exponential") for law in (*self.laws, self.server_law))

    def has_calendar(self, network: Network) -> bool:
        """Whether clients are away at times, or change their speed."""
        return network.fleet.comes_and_goes or self.hours is not None or self.drift is not None

    def calendars(self, network: Network, seed: Seed) -> Calendars | None:
        """When clients are there, and how fast; ``None`` if always, and always the same."""
        if not self.has_calendar(network):
            return None
        loses = self.offline == "lose"
        return Calendars(network, self.hours, self.drift, loses=loses, seed=seed)

    def check(self, network: Network) -> None:
        """Raise unless ``network`` can be simulated so."""
        wholes = int(network.parents[-1]) + 1
        if len(self.laws) not in (1, wholes):
            raise InvalidInput(
                f"there must be one law for all clients or one for every class of the fleet, which "
                f"has {wholes}; there are {len(self.laws)}"
            )
        self.policy.check(network, self.start_name)
        given = () if isinstance(self.start, str) else self.start
        if self.policy.one_task_each and max(given, default=0) > 1:
            raise InvalidInput(
                f"the policy '{self.policy.name}' starts with at most one task per client"
            )

    def to_table(self) -> dict[str, Any]:
        """Plain values for TOML and JSON, which `from_table` reads back."""
        laws = [law_to_table(law) for law in self.laws]
        stations = {"link-law": self.link_law, "server-law": self.server_law}
        return {
            "law": laws[0] if len(laws) == 1 else laws,
            "policy": policy_to_table(self.policy),
            "start": self.start if isinstance(self.start, str) else list(self.start),
            "work": self.work,
            "paired": self.paired,
            **{k: law_to_table(v) for k, v in stations.items() if v != Law("exponential")},
            **({} if self.offline == "wait" else {"offline": self.offline}),
            **({} if self.hours is None else {"hours": asdict(self.hours)}),
            **({} if self.drift is None else {"drift": [list(x) for x in self.drift.steps]}),
        }

    @classmethod
    def from_table(cls, table: Mapping[str, Any], folder: Path | None = None) -> "Scenario":
        """The scenario in a table; what users brought is sought in ``folder``."""
        return cls(
            law=as_laws(table["law"], folder=folder),
            policy=as_policy(table["policy"], folder=folder),
            start=table["start"],
            work=table["work"],
            paired=table.get("paired", False),
            link_law=_one_law(table.get("link-law"), "link-law", folder),
            server_law=_one_law(table.get("server-law"), "server-law", folder),
            offline=table.get("offline", "wait"),
            hours=table.get("hours"),
            drift=table.get("drift"),
        )

    def __repr__(self) -> str:
        work = "" if self.work == 1.0 else f", work {self.work:g}"
        paired = ", paired" if self.paired else ""
        return (
            f"Scenario({self.law} service, {self.policy.name} dispatch, "
            f"{self.start_name} start{work}{paired})"
        )


def _one_law(
    given: str | Mapping[str, Any] | ServiceLaw | None, where: str, folder: Path | None = None
) -> ServiceLaw:
    if given is None:
        return Law("exponential")
    laws = as_laws(given, where, folder)
    if len(laws) > 1:
        raise InvalidInput(f"{where}: there is one law for all; {len(laws)} were given")
    return laws[0]
