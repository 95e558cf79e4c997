"""What the folder of a deployment holds, the verdict on it, and its page.

The same plan in virtual time, which a deployment writes beside its own history, is a prediction:
it stands beside what was measured and is not compared with it as another strategy.
"""

import math
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from sojourn._support.configuration import check_shape, parse_json
from sojourn._support.estimate import Estimate
from sojourn._support.files import exists, printable, read_text
from sojourn._support.numbers import UNKNOWN, number
from sojourn.errors import InvalidFile, SojournError
from sojourn.figures.figure import Figure, Series, Table, View
from sojourn.figures.palette import Ink
from sojourn.figures.timeline import OPENING_ROWS, SECONDS, TITLE, Timeline
from sojourn.report.outcomes import final_text, learning_figure, measures_of
from sojourn.report.page import Drawing, Section
from sojourn.report.verdict import Verdict, run_verdict
from sojourn.runs.folder import Run, RunFolder
from sojourn.runs.history import History
from sojourn.simulation.schedule import Schedule
from sojourn.simulation.simulate import simulate
from sojourn.strategy import Strategy
from sojourn.types import FloatArray

PREDICTIONS = 10
TROUBLES = ("refused", "late", "lost")
MOST_TROUBLE = 0.2
"""Share of the tasks beyond which their failures are the first news."""
PACE = ("{} updates a second", "mean staleness {}")
OUTCOMES = {
    "routed": "tasks handed out",
    "used": "updates that moved the model",
    "dropped": "updates that the rule did not want, or that were held back",
    "refused": "answers that were no good",
    "lost": "tasks taken from a client that failed, left or was overdue, and never answered",
    "withdrawn": "tasks taken from such a client before they were sent to it",
    "late": "replies after their deadline; the first to a task is used all the same",
    "unknown": "replies to a task that was never sent, or to another client's",
}
MAYBE = (float, None)
SENT = ("norm", "agreement", "speed")
"""What is measured of the updates that a client sends."""
STATUS = {
    **{"phase?": str, "updates?": float, "of?": float, "throughput?": MAYBE},
    **{"concurrency?": float, "error?": str, "heartbeat?": MAYBE},
    "clients?": [
        {
            **{"name": str, "number?": int, "status": str, "used": int, "refused": int},
            **{"waiting?": float, "routing?": float},
            **{f"{key}?": MAYBE for key in ("seconds", "planned", "rate", *SENT)},
        }
    ],
    "counts?": {f"{kind}?": int for kind in OUTCOMES},
    "sessions?": [[float]],
}
TASK = {"client": int, "dispatched": int, "time": float, "service_seconds": MAYBE}
"""What is looked at of a deployment's files: they may be anybody's, and half written."""
LONGEST = 1e12
"""Seconds, and clients."""
DEPLOYED = Ink("#0064a4", "#5cb6f2")
MOST_EVENTS = 300
"""Events that a page shows: the last so many."""
WINDOWS = 40
"""Parts of the run over which its throughput and staleness are drawn."""


@dataclass(frozen=True)
class Prediction:
    """What was run, simulated as long as the run: updates per time unit, staleness."""

    throughput: Estimate
    staleness: Estimate

    @classmethod
    def of(cls, rates: Sequence[float], schedules: Sequence[Schedule]) -> "Prediction":
        """From the updates per time unit of simulations, and the mean delays in their schedules."""
        delays = [float(schedule.relative_delay.mean()) for schedule in schedules]
        return cls(Estimate.from_samples(rates), Estimate.from_samples(delays))


@dataclass(frozen=True)
class Deployment:
    """What the folder of a deployment holds beside its histories.

    ``tasks`` are the lines of ``tasks.jsonl``, ``events`` those of ``events.log`` as seconds, kind
    and text, and ``sessions`` when the server was started: seconds of the run, and Unix time.
    ``unpredicted`` says why there is no ``prediction`` where one was asked for.
    """

    measured: History
    predicted: History | None
    status: Mapping[str, Any]
    tasks: Sequence[Mapping[str, Any]]
    events: Sequence[tuple[float, str, str]]
    prediction: Prediction | None = None
    sessions: Sequence[tuple[float, float]] = field(default_factory=tuple)
    unpredicted: str = ""

    @property
    def seconds(self) -> float:
        """How long it took, from the first update to the last."""
        return float(self.tasks[-1]["time"] - self.tasks[0]["time"]) if self.tasks else 0.0

    @property
    def throughput(self) -> float:
        """Updates a second between the first and the last."""
        return (len(self.tasks) - 1) / self.seconds if self.seconds > 0 else math.nan

    @property
    def delays(self) -> FloatArray:
        """Of every update, the others that came to the server since its task was handed out."""
        dispatched = np.array([task["dispatched"] for task in self.tasks], dtype=np.float64)
        return np.asarray(np.arange(dispatched.size) - dispatched)

    def at(self, seconds: float) -> str:
        """When that was on the clock, in UTC; seconds of the run where that is not known."""
        begun = [session for session in self.sessions if session[0] <= seconds + 0.05]
        if not begun:
            return f"{seconds:.1f} s"
        elapsed, unix = begun[-1]
        try:
            return f"{datetime.fromtimestamp(unix + seconds - elapsed, UTC):%Y-%m-%d %H:%M:%S}"
        except (ValueError, OverflowError, OSError):  # beyond the calendar
            return f"{seconds:.1f} s"


def deployment_of(run: Run) -> Deployment | None:
    """The deployment that a run is; ``None`` for one in virtual time."""
    real = [history for history in run.histories if history.clock == "real"]
    if not real:
        return None
    folder = RunFolder(run.path)
    others = [history for history in run.histories if history.clock != "real"]
    status = parse_json(_text(folder.status_path) or "{}", str(folder.status_path))
    check_shape(status, STATUS, str(folder.status_path))
    tasks = _tasks(folder.tasks_path)
    prediction, unpredicted = None, ""
    if others and tasks:
        try:
            prediction = predict(folder, others, rounds=len(tasks))
        except SojournError as error:
            unpredicted = f"Speed and staleness are not predicted: {error}"
    return Deployment(
        measured=real[0],
        predicted=others[0] if others else None,
        status=status,
        tasks=tasks,
        events=_events(folder.events_path),
        prediction=prediction,
        unpredicted=unpredicted,
        sessions=[(pair[0], pair[1]) for pair in status.get("sessions", ()) if len(pair) == 2],
    )


def predict(folder: RunFolder, histories: Sequence[History], *, rounds: int) -> Prediction | None:
    """Throughput and staleness of the plan that the folder holds, over as many rounds as were run."""
    strategies = folder.strategies(history.strategy for history in histories)
    strategy: Strategy = next(iter(strategies.values()))
    schedules = [
        simulate(strategy.network, strategy.scenario, rounds=rounds, seed=seed)
        for seed in range(PREDICTIONS)
    ]
    spans = [float(schedule.time[-1] - schedule.time[0]) for schedule in schedules]
    rates = [(rounds - 1) / span for span in spans if span > 0]
    return Prediction.of(rates, schedules) if rates else None


def verdict_on(run: Run) -> Verdict:
    """The verdict on any run, a deployment or not: every surface shows these words."""
    found = deployment_of(run)
    return run_verdict(run) if found is None else deployment_verdict(run, found)


def deployment_verdict(run: Run, found: Deployment) -> Verdict:
    """What to do with what was deployed, how much was done and how fast, beside the prediction."""
    own = run_verdict(run)
    clients = len(found.status.get("clients", ()))
    updates = int(found.measured.round[-1]) if found.measured.rows else 0
    seconds = float(found.measured.time[-1]) if found.measured.rows else 0.0
    counts = found.status.get("counts", {})
    trouble = [f"{counts[kind]:,} {kind}" for kind in TROUBLES if counts.get(kind)]
    bad = sum(counts.get(kind, 0) for kind in TROUBLES)
    routed = int(counts.get("routed", 0))
    title, command = own.title, own.next_command
    if bad > MOST_TROUBLE * max(routed, 1):
        title = f"Check the clients: {bad:,} of {routed:,} tasks failed"
    elif own.title.startswith("Reached "):
        measure = found.measured.measure
        title = f"Export the model: {measure.label} {final_text([found.measured], measure)}"
        command = shlex.join(["sojourn", "deploy", "export", str(run.path), "model.safetensors"])
    pace = [
        text.format(value) + (f" ({expected} predicted)" if expected != UNKNOWN else "")
        for text, (_, value, expected) in zip(PACE, pace_rows(found), strict=True)
        if value != UNKNOWN
    ]
    return replace(
        own,
        title=title,
        tested="",
        because=f"{updates:,} updates from {clients:,} client{'' if clients == 1 else 's'} in "
        f"{number(seconds)} s"
        + (f"; between the first and the last {', '.join(pace)}" if pace else "")
        + f"; of {routed:,} tasks {', '.join(trouble) or 'none was refused, late or lost'}.",
        next_command=command,
    )


def pace_rows(found: Deployment) -> list[tuple[str, str, str]]:
    """Throughput and staleness: name, measured, and predicted at the speeds that were measured."""
    expected = found.prediction
    return [
        (
            "updates a second",
            number(found.throughput) if math.isfinite(found.throughput) else UNKNOWN,
            UNKNOWN if expected is None else f"{expected.throughput:.3g}",
        ),
        (
            "mean staleness, updates",
            number(float(found.delays.mean())) if found.tasks else UNKNOWN,
            UNKNOWN if expected is None else f"{expected.staleness:.3g}",
        ),
    ]


def comparison_rows(run: Run, found: Deployment) -> list[tuple[str, str, str]]:
    """What was measured, and what was predicted at the speeds that were measured."""
    rows = pace_rows(found)
    for measure in measures_of(run.histories):
        other = UNKNOWN if found.predicted is None else final_text([found.predicted], measure)
        rows.append((f"final {measure.label}", final_text([found.measured], measure), other))
    return rows


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
        note=found.unpredicted
        or "Predicted: the same plan simulated with exponential times at the speeds that were "
        "measured, for as many updates; ± is one standard error over seeds. Staleness counts the "
        "updates of others that came since a task was handed out.",
    )
    shown = of_deployment(found.status.get("clients", ()), found.tasks)
    name = f"timeline-{index}"
    drawings = (Drawing.of_timelines(name, TITLE, shown, OPENING_ROWS),) if shown else ()
    opening = Section(
        anchor=f"run-{index}",
        title=run.name,
        lead=f"Real time, from {found.at(0.0)} to {found.at(float(found.measured.time[-1]))} (UTC)."
        if found.sessions and found.measured.rows
        else "Real time.",
        figures=(figure,),
        drawings=drawings,
        tables=(table, clients_table(found)),
        opening=True,
    )
    sections = [opening]
    if len(found.tasks) > 2 and found.seconds > 0:
        pace = pace_figure(index, found)
        anchor = f"pace-section-{index}"
        sections.append(Section(anchor, pace.title, figures=(pace,), folded=True))
    return [*sections, tasks_section(index, found), events_section(index, found)]


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
        "updates a second": Series("measured", middle, counts / np.diff(edges)),
        "staleness": Series("measured", middle[some], sums[some] / counts[some]),
    }
    views = []
    for metric, line in measured.items():
        series = [line]
        if expected is not None:
            mean = (expected.staleness if metric == "staleness" else expected.throughput).mean
            series.append(Series("prediction", edges[[0, -1]], [mean, mean], weight="background"))
        views.append(View("seconds", metric, tuple(series), metric=metric))
    return Figure(
        f"pace-{index}",
        "Throughput and staleness over time",
        f"{number(found.throughput)} updates a second at a mean staleness of "
        f"{number(float(found.delays.mean()))} updates.",
        tuple(views),
        caption="" if expected is None else "The straight line is the prediction.",
    )


def tasks_section(index: int, found: Deployment) -> Section:
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
        tables=(Table(("tasks", "number", "meaning"), rows), *(reasons if why else ())),
        folded=True,
    )


def events_section(index: int, found: Deployment) -> Section:
    """What happened, on the clock."""
    shown = found.events[-MOST_EVENTS:]
    left_out = len(found.events) - len(shown)
    rows = tuple((found.at(seconds), kind, text) for seconds, kind, text in shown)
    return Section(
        anchor=f"events-{index}",
        title="Events",
        lead=f"{len(found.events)} events{f', of which the last {len(shown)}' if left_out else ''}, "
        "in UTC." + (" events.log has them all." if left_out else ""),
        tables=(Table(("time", "event", "what"), rows),) if rows else (),
        folded=True,
    )


def _tasks(path: Path) -> list[Mapping[str, Any]]:
    """The records of a deployment, in the order of time; ``InvalidFile`` if they are none."""
    found: list[Mapping[str, Any]] = []
    latest = 0.0
    for line_number, line in enumerate(_whole_lines(path), 1):
        where = f"{path}, line {line_number}"
        task = parse_json(line, where)
        check_shape(task, TASK, where)
        if not latest <= task["time"] <= LONGEST:
            raise InvalidFile(f"{where}: time must not decrease, nor be beyond {LONGEST:g} seconds")
        if not (0 <= task["client"] <= LONGEST and 0 <= task["dispatched"] < line_number):
            raise InvalidFile(f"{where}: client and dispatched must be those of a task before it")
        latest = task["time"]
        found.append(task)
    return found


def _events(path: Path) -> list[tuple[float, str, str]]:
    found = []
    for line_number, line in enumerate(_whole_lines(path), 1):
        seconds, *rest = printable(line).split("\t", 2)
        try:
            at = float(seconds)
        except ValueError:
            at = math.nan
        if len(rest) != 2 or not math.isfinite(at):
            raise InvalidFile(f"{path}, line {line_number}: must be seconds, a kind and a text")
        found.append((at, rest[0], rest[1]))
    return found


def _whole_lines(path: Path) -> list[str]:
    """The lines of a file without the last if it has no end: its server writes it, or was killed."""
    return _text(path).split("\n")[:-1]


def _text(path: Path) -> str:
    """Nothing if there is no such file."""
    return read_text(path, errors="replace") if exists(path) else ""
