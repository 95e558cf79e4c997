"""The page of a deployment: its clients, how fast and how stale it was, and what happened when.

The same plan in virtual time, which a deployment writes beside its own history, is a prediction:
it stands beside what was measured and is not compared with it as another strategy.
"""

from collections import Counter
from dataclasses import replace

import numpy as np

from sojourn._support.numbers import number
from sojourn.figures.figure import Figure, Series, Table, View
from sojourn.figures.timeline import OPENING_ROWS
from sojourn.report.curves import learning_figure
from sojourn.report.deployment import DEPLOYED, OUTCOMES, UNKNOWN, Deployment, comparison_rows
from sojourn.report.page import Drawing, Section
from sojourn.report.timelines import TITLE, of_deployment
from sojourn.runs.folder import Run

MOST_EVENTS = 300
"""Events that a page shows: the last so many."""
WINDOWS = 40
"""Parts of the run over which its throughput and staleness are drawn."""


def deployment_sections(run: Run, index: int, found: Deployment) -> list[Section]:
    """The first screen; then the clients, what became of the tasks, and the events."""
    figure = learning_figure(
        f"learning-{index}",
        f"{found.measured.measure.label.capitalize()} over time",
        run.histories,
        strong=[found.measured.strategy],
        caption="Grey: the same plan in virtual time, at the speeds measured."
        if found.predicted is not None
        else "",
    )
    figure = replace(figure, palette={found.measured.strategy: DEPLOYED})
    table = Table(
        ("what", "measured", "predicted"),
        tuple(comparison_rows(run, found)),
        title="Measured, and predicted",
        note="Predicted: the same plan simulated with exponential times at the speeds that were "
        "measured, for as many updates; ± is one standard error over seeds. Staleness counts the "
        "updates of others that came since a task was handed out.",
    )
    shown = of_deployment(found.status.get("clients", ()), found.tasks)
    name = f"timeline-{index}"
    drawings = (Drawing.of_timelines(name, TITLE, shown, OPENING_ROWS),) if shown else ()
    opening = Section(
        anchor=f"run-{index}",
        title=run.name,
        kicker="Deployment",
        lead=f"Real time, from {found.at(0.0)} to {found.at(float(found.measured.time[-1]))} (UTC)."
        if found.sessions and found.measured.rows
        else "Real time.",
        figures=(figure,),
        drawings=drawings,
        tables=(table, clients_table(found)),
        opening=True,
    )
    folded = [tasks_section(index, run.name, found), events_section(index, run.name, found)]
    if len(found.tasks) > 2 and found.seconds > 0:
        folded.insert(0, pace_section(index, run.name, found))
    return [opening, *folded]


def pace_section(index: int, name: str, found: Deployment) -> Section:
    """How fast and how stale it was as the run went on."""
    return Section(
        anchor=f"pace-section-{index}",
        title="Throughput and staleness over time",
        kicker=name,
        figures=(pace_figure(index, found),),
        folded=True,
    )


def clients_table(found: Deployment) -> Table:
    """Every client: whether it takes part, its speed beside the planned one, what it sent."""
    delays: dict[int, list[float]] = {}
    for task, delay in zip(found.tasks, found.delays.tolist(), strict=True):
        delays.setdefault(int(task["client"]), []).append(delay)
    late = Counter(text.split(": ")[0] for _, kind, text in found.events if kind == "late")
    rows = []
    for index, client in enumerate(found.status.get("clients", ())):
        own = delays.get(int(client.get("number", index)), [])
        seconds, planned = client.get("seconds"), client.get("planned")
        rows.append(
            (
                str(client["name"]),
                str(client["status"]),
                UNKNOWN if seconds is None else f"{seconds:.3g}",
                UNKNOWN if not planned else f"{1.0 / planned:.3g}",
                str(client["used"]),
                number(len(own) / found.seconds) if found.seconds > 0 else UNKNOWN,
                number(float(np.mean(own))) if own else UNKNOWN,
                str(client["refused"]),
                str(late[client["name"]]),
            )
        )
    return Table(
        (
            "client",
            "status",
            "seconds per task",
            "planned",
            "updates",
            "a second",
            "mean staleness",
            "refused",
            "late",
        ),
        tuple(rows),
        title="Clients",
    )


def pace_figure(index: int, found: Deployment) -> Figure:
    """Updates a second and staleness as the run went on, with the predictions as straight lines."""
    times = np.array([task["time"] for task in found.tasks], dtype=np.float64)
    edges = np.linspace(times[0], times[-1], min(WINDOWS, max(2, times.size // 5)) + 1)
    counts, _ = np.histogram(times, edges)
    sums, _ = np.histogram(times, edges, weights=found.delays)
    middle = (edges[:-1] + edges[1:]) / 2.0
    some = counts > 0
    expected = found.prediction
    measured = {
        "updates a second": (middle, counts / np.diff(edges)),
        "staleness": (middle[some], sums[some] / counts[some]),
    }
    means = {
        "updates a second": None if expected is None else expected.throughput.mean,
        "staleness": None if expected is None else expected.staleness.mean,
    }
    views = []
    for metric, (x, y) in measured.items():
        series = [Series("measured", x, y, label="measured")]
        mean = means[metric]
        if mean is not None:
            line = Series(
                "prediction", edges[[0, -1]], [mean, mean], label="prediction", weight="background"
            )
            series.append(line)
        views.append(View("seconds", metric, tuple(series), metric=metric))
    return Figure(
        f"pace-{index}",
        "Throughput and staleness over time",
        f"{number(found.throughput)} updates a second at a mean staleness of "
        f"{number(float(found.delays.mean()))} updates.",
        tuple(views),
        caption="" if expected is None else "The straight line is the prediction.",
    )


def tasks_section(index: int, name: str, found: Deployment) -> Section:
    """Where every task has gone."""
    counts = found.status.get("counts", {})
    rows = tuple((kind, str(counts.get(kind, 0)), text) for kind, text in OUTCOMES.items())
    refused = Counter(
        text.split(" refused: ", 1)[-1].split(" (")[0]
        for _, kind, text in found.events
        if kind == "refused"
    )
    why = tuple((reason, str(times)) for reason, times in refused.most_common(10))
    reasons = (Table(("reason", "times"), why, title="Why replies and nodes were refused"),)
    return Section(
        anchor=f"tasks-{index}",
        title="What became of the tasks",
        kicker=name,
        tables=(Table(("tasks", "number", "meaning"), rows), *(reasons if why else ())),
        folded=True,
    )


def events_section(index: int, name: str, found: Deployment) -> Section:
    """What happened, on the clock."""
    shown = found.events[-MOST_EVENTS:]
    left_out = len(found.events) - len(shown)
    rows = tuple((found.at(seconds), kind, text) for seconds, kind, text in shown)
    return Section(
        anchor=f"events-{index}",
        title="Events",
        kicker=name,
        lead=f"{len(found.events)} events{f', of which the last {len(shown)}' if left_out else ''}, "
        "in UTC." + (" events.log has them all." if left_out else ""),
        tables=(Table(("time", "event", "what"), rows),) if rows else (),
        folded=True,
    )
