"""How runs begin, over one time for all, to be drawn beside each other."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from sojourn.network import Network
from sojourn.simulation.scenario import Scenario
from sojourn.simulation.simulate import simulate
from sojourn.timeline import LOOK_AHEAD, TASKS_EACH, Timeline


def beginnings(
    runs: Mapping[str, tuple[Network, Scenario]],
    *,
    until: float | None = None,
    classes: Sequence[tuple[str, int]] | None = None,
    seed: int = 0,
) -> dict[str, Timeline]:
    """The beginning of each run up to ``until``, as a timeline.

    By default as long as the fastest of them needs for some tasks of every client. ``classes`` are
    the names and sizes of the classes of clients, if they are not to be the networks' own.
    """
    if until is None:
        until = min(
            simulate(network, scenario, rounds=TASKS_EACH * network.size, seed=seed).duration
            for network, scenario in runs.values()
        )
    drawn = {}
    for name, (network, scenario) in runs.items():
        schedule = simulate(network, scenario, time=LOOK_AHEAD * until, seed=seed)
        timeline = schedule.timeline(until)
        drawn[name] = timeline if classes is None else replace(timeline, classes=tuple(classes))
    return drawn
