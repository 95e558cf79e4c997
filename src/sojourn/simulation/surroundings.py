"""What surrounds the strategies of an experiment, from its TOML: hours, drift, links' laws, the server."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sojourn.config import Table
from sojourn.errors import InvalidFile, InvalidInput
from sojourn.network import Fleet, Network, uniform_routing
from sojourn.simulation.calendarfiles import read_drift, read_hours
from sojourn.simulation.scenario import Scenario


@dataclass(frozen=True)
class Surroundings:
    """What all strategies of an experiment meet alike, beside the fleet.

    ``parts`` are parts of a `Scenario` by name; ``server_rate`` is that of the network.
    """

    parts: Mapping[str, Any] = field(default_factory=dict)
    server_rate: float | None = None

    @classmethod
    def take(cls, table: Table, fleet: Fleet, folder: Path) -> "Surroundings":
        """The keys of ``table`` that are about surroundings; ``hours`` and ``drift`` name CSV files.

        In the folder of a run they are written out instead, as `to_table` does.
        """
        parts: dict[str, Any] = {
            "hours": table.take("hours", (str, dict), default=None),
            "drift": table.take("drift", (str, list), default=None),
            "offline": table.take("offline", str, default=None),
            "link_law": table.take("link-law", (str, dict), default=None),
            "server_law": table.take("server-law", (str, dict), default=None),
        }
        if isinstance(parts["hours"], str):
            parts["hours"] = read_hours(folder / parts["hours"])
        if isinstance(parts["drift"], str):
            parts["drift"] = read_drift(folder / parts["drift"], fleet)
        given = {name: value for name, value in parts.items() if value is not None}
        rate = table.take("server-rate", float, default=None)
        try:
            scenario = Scenario(**given)
            network = Network(fleet, uniform_routing(fleet), 1, server_rate=rate)
        except InvalidInput as error:
            raise InvalidFile(f"{table.where}: {error}") from error
        if "offline" in given and not scenario.has_calendar(network):
            raise InvalidFile(
                f"{table.where}: 'offline' has no effect: clients are always there. Give the fleet "
                "mean_up and mean_down, or 'hours'."
            )
        return cls(given, rate)

    def to_table(self) -> dict[str, Any]:
        """What `take` reads back, without files."""
        written = Scenario(**self.parts).to_table()
        keys = ("hours", "drift", "offline", "link-law", "server-law")
        table = {key: written[key] for key in keys if key in written}
        return table if self.server_rate is None else {**table, "server-rate": self.server_rate}

    def around(self, network: Network) -> Network:
        """``network`` with the server that all share, if the experiment tells of one."""
        if self.server_rate is None:
            return network
        return replace(network, server_rate=self.server_rate)
