"""How each class of clients fares: its share, how busy it is, how long its tasks wait, what they count."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sojourn.figures.figure import Figure, Series, View
from sojourn.figures.palette import Ink, inks
from sojourn.fleet import Fleet
from sojourn.types import FloatArray

if TYPE_CHECKING:
    from sojourn.theory.jackson.analysis import Analysis

MOST_SHOWN = 12
"""Classes in tables and bars; of more, some are chosen evenly."""
NOW, UNIFORM, PLAN, NEVER = "now", "uniform routing", "best routing", "never-queue"
PALETTE = {
    NOW: inks(["uniform"])["uniform"],
    UNIFORM: inks(["uniform"])["uniform"],
    PLAN: inks(["plan"])["plan"],
    NEVER: Ink("#0064a4", "#5cb6f2", "dash", "circle"),
}


@dataclass(frozen=True, eq=False)
class ByClass:
    """How a way to send tasks treats the classes of a fleet, shape ``(k,)`` each.

    ``share`` of all tasks that a class gets, ``busy`` the share of the time that its clients compute,
    ``wait`` the time that a task waits there for its turn, ``weight`` what one of its updates counts,
    ``staleness`` in updates.
    """

    share: FloatArray
    busy: FloatArray
    wait: FloatArray
    weight: FloatArray
    staleness: FloatArray


def by_class(analysis: "Analysis") -> ByClass:
    """Means over the clients of each class of the whole fleet, where a plan splits one."""
    network = analysis.network
    fleet, parents = network.fleet, network.parents
    clients = np.bincount(parents, weights=fleet.counts)
    tasks = fleet.counts * analysis.shares
    share = np.asarray(np.bincount(parents, weights=tasks), dtype=np.float64)
    wait = np.maximum(analysis.mean_tasks_full / analysis.rates - 1.0 / fleet.service_rates, 0.0)
    return ByClass(
        share=share,
        busy=np.bincount(parents, weights=fleet.counts * analysis.utilization) / clients,
        wait=np.bincount(parents, weights=tasks * wait) / share,
        weight=clients / fleet.size / share,
        staleness=np.bincount(parents, weights=tasks * analysis.staleness) / share,
    )


def shown_classes(fleet: Fleet) -> list[int]:
    """The classes that are listed, slowest first."""
    order = np.argsort(fleet.service_rates, kind="stable")
    places = np.linspace(0, fleet.classes - 1, min(fleet.classes, MOST_SHOWN)).round().astype(int)
    return [int(order[place]) for place in places]


def left_out(fleet: Fleet, classes: list[int]) -> str:
    hidden = fleet.classes - len(classes)
    return f" Of {fleet.classes} classes, {len(classes)} are shown." if hidden else ""


def class_figure(fleet: Fleet, classes: list[int], sides: "Mapping[str, Analysis]") -> Figure:
    quantities = {
        "share": ("share of all tasks", True),
        "busy": ("share of the time that a client computes", True),
        "wait": ("time that a task waits for its turn", False),
        "weight": ("what an update counts (1 on average)", False),
    }
    found = {name: by_class(analysis) for name, analysis in sides.items()}
    names = tuple(fleet.label(k) for k in classes)
    views = []
    for metric, (label, percent) in quantities.items():
        values = {name: getattr(own, metric)[classes] for name, own in found.items()}
        log = metric in ("wait", "weight") and all((v > 0).all() for v in values.values())
        series = tuple(
            Series(name, np.arange(len(classes)), own, kind="points" if log else "bars")
            for name, own in values.items()
        )
        views.append(
            View(
                "clients, slowest first",
                label,
                series,
                metric=metric,
                percent=percent,
                categories=names,
                log_y=log,
            )
        )
    slow = {name: own.share[classes[0]] for name, own in found.items()}
    alt = f"Share of all tasks that {names[0]} gets: " + "; ".join(
        f"{name} {share:.1%}" for name, share in slow.items()
    )
    return Figure(
        "classes", "What each class gets", alt + ".", tuple(views), wide=True, palette=PALETTE
    )
