"""Who computes what when in a run: the timelines that its page and its live view show, without a page."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sojourn._support.numbers import number
from sojourn.dispatch import Routed
from sojourn.figures.timeline import OPENING_ROWS, SECONDS, Timeline
from sojourn.fleet import Fleet, Network, uniform_routing
from sojourn.report.verdict import REFERENCES
from sojourn.simulation.simulate import previews
from sojourn.strategy import Strategy

TITLE = "Who computes what when"


def beside_uniform(pick: Strategy, fleet: Fleet) -> dict[str, Timeline]:
    """A strategy and uniform routing with as many tasks, simulated over one time axis."""
    m = pick.network.concurrency
    rate = pick.network.server_rate
    uniform = Network(fleet, uniform_routing(fleet), m, server_rate=rate)
    ways = {
        pick.name: (pick.network, pick.scenario),
        REFERENCES[1]: (uniform, replace(pick.scenario, policy=Routed(), start="spread")),
    }
    if pick.name in REFERENCES:
        del ways[REFERENCES[1]]
    return previews(ways, classes=_classes(fleet))


def of_every_strategy(
    strategies: Mapping[str, Strategy], fleet: Fleet, seed: int = 0
) -> dict[str, Timeline]:
    """The beginning of every strategy's schedule, over one time for all.

    As long as the fastest strategy needs for some tasks of every client. Strategies that send tasks
    alike, and differ only in what the server does with them, share one.
    """
    alike: dict[str, list[str]] = {}
    for name, s in strategies.items():
        routed = s.network.to_table() if s.scenario.policy.routes else s.network.concurrency
        alike.setdefault(repr((routed, s.scenario.to_table())), []).append(name)
    first = {"; ".join(names): strategies[names[0]] for names in alike.values()}
    runs = {names: (s.network, s.scenario) for names, s in first.items()}
    return previews(runs, classes=_classes(fleet), seed=seed)


def of_deployment(
    clients: Sequence[Mapping[str, Any]], tasks: Sequence[Mapping[str, Any]]
) -> dict[str, Timeline]:
    """What was computed from the first updates on; nothing before there are any.

    ``clients`` are those of ``status.json``, which lacks who has left, ``tasks`` the lines of
    ``tasks.jsonl``.
    """
    if not tasks:
        return {}
    names = {int(task["client"]): f"client {task['client']}" for task in tasks}
    names |= {int(client.get("number", k)): str(client["name"]) for k, client in enumerate(clients)}
    row = {client: k for k, client in enumerate(sorted(names))}
    classes = [(names[client], 1) for client in row]
    timeline = Timeline.from_completions(
        [row[int(task["client"])] for task in tasks],
        [min(int(task["dispatched"]), k) for k, task in enumerate(tasks)],
        [task["time"] for task in tasks],
        classes=classes if len(classes) <= OPENING_ROWS else [("clients", len(classes))],
        service=[task["service_seconds"] for task in tasks],
        unit=SECONDS,
    )
    return {f"the first {number(timeline.until)} s": timeline}


def _classes(fleet: Fleet) -> list[tuple[str, int]]:
    return [(fleet.label(k), int(fleet.counts[k])) for k in range(fleet.classes)]
