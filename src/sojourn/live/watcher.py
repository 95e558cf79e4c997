"""The live view of a run folder: a sentence, timelines, curves, rungs, clients, as its files have them.

Files of a run that is going on are read again when they change. None is written, and half lines are
left for the next time.
"""

import json
import math
import os
import stat
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import numpy as np

from sojourn._support.configuration import check_shape, parse_json
from sojourn._support.files import file_name, read_text
from sojourn.deployment.status import NOT_RUNNING_SECONDS, RunStatus
from sojourn.dispatch import POLICIES, Policy
from sojourn.dispatch.analysis import analyze
from sojourn.errors import InvalidInput, SojournError
from sojourn.figures.palette import GREY, inks
from sojourn.figures.timeline import OPENING_ROWS, timelines_svg
from sojourn.fleet import Fleet, Network
from sojourn.fleet.named import read_fleet
from sojourn.live.server import LocalServer, page
from sojourn.report.deployment import DEPLOYED, SENT, STATUS, of_deployment, verdict_on
from sojourn.report.outcomes import by_strategy, final, final_text, on_one_grid, seen_staleness
from sojourn.report.runs import beside_uniform
from sojourn.report.verdict import Verdict
from sojourn.runs.folder import RunFolder
from sojourn.runs.history import History
from sojourn.runs.measure import relative, scored_by
from sojourn.types import FloatArray

if TYPE_CHECKING:
    from sojourn.tuning.successive_halving import Halving

PATIENCE = 90.0
"""Seconds without a word after which a run is said to be silent."""
MOST_POINTS = 300
LEAST_PROGRESS = 0.005
"""What must have been done while watching, before the time left is guessed from it."""
Value = TypeVar("Value")
LAST_EVENTS = 12
MOST_NEWS = 1 << 26
"""Bytes of a growing file that are taken in at one look; the rest comes with the next ones."""
LONGEST_LINE = 1 << 20
MOST_TASKS = 20_000
"""Tasks of a deployment that its timeline is drawn from: the first ones."""
RUNNING = {**STATUS, "phase": str}
COPIED = ("name", "status", "waiting", "used", "refused", "rate", "planned", *SENT)
"""What a client's row takes from its status."""
ANSWER = {"pick": str, "learning_rate": float, "sentence": str}
EXPERIMENT = {
    **{"rounds?": float, "time?": float, "checkpoint-seconds?": float, "pilot-seeds?": float},
    **{"strategy?": [{}], "seeds?": [int], "targets?": [float]},
}
"""What is looked at of each file, and how it must look; anything else is as good as half written."""
CHECKPOINT = ".checkpoint"
HALVING = "halving.json"


class Followed(Generic[Value]):
    """What ``read`` makes of a file: asked again only if the file changed.

    While somebody writes it a file may be half there: what it held before is then given once more. So
    it is with whatever else cannot be read, such as a pipe or a file edited by hand.
    """

    def __init__(self, read: Callable[[Path], Value]) -> None:
        self._read = read
        self._kept: dict[Path, tuple[tuple[int, int], Value]] = {}

    def __call__(self, path: Path) -> Value | None:
        """The value now, or ``None`` if there is none yet."""
        before = self._kept.get(path)
        try:
            info = path.stat()
            if not stat.S_ISREG(info.st_mode):
                return None
            mark = (info.st_mtime_ns, info.st_size)
            if before is None or before[0] != mark:
                before = self._kept[path] = (mark, self._read(path))
        except FileNotFoundError:
            self._kept.pop(path, None)
            return None
        except MemoryError:  # the file may be as it should
            raise
        except Exception:  # nosec B110 # a file that is being written: what was read before is shown
            pass
        return None if before is None else before[1]


@dataclass
class Seen:
    """How stale the updates of one client were."""

    tasks: int = 0
    staleness: float = 0.0

    @property
    def mean(self) -> float:
        return self.staleness / self.tasks if self.tasks else math.nan


@dataclass
class Lines:
    """The whole lines that a growing file has had, since last asked; all of them if it began anew."""

    path: Path
    _place: int = 0
    _rest: bytes = field(default=b"", repr=False)

    def fresh(self) -> tuple[list[bytes], bool]:
        """New whole lines, and whether the file was begun anew, so that what was heard is void."""
        try:
            with os.fdopen(os.open(self.path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
                info = os.fstat(file.fileno())
                if not stat.S_ISREG(info.st_mode):
                    return [], False
                anew = info.st_size < self._place
                if anew:
                    self._place, self._rest = 0, b""
                file.seek(self._place)
                # Not more than there is: memory for what is asked is taken at once.
                text = self._rest + file.read(min(MOST_NEWS, info.st_size - self._place))
                self._place = file.tell()
        except OSError:
            return [], False
        *whole, rest = text.split(b"\n")
        self._rest = rest[-LONGEST_LINE:]
        return [line for line in whole if len(line) <= LONGEST_LINE], anew


@dataclass(frozen=True)
class RunSeen:
    """A run of an experiment or a deployment, and whether it has come to its end."""

    history: History
    ended: bool


class Follower:
    """All that a run folder holds, as far as it is there."""

    def __init__(self, path: Path) -> None:
        self.folder = RunFolder(path)
        self._histories = Followed(lambda file: History.read(file, partial=True))
        self._unfinished = Followed(_unfinished)
        self._status = Followed(lambda path: cast("RunStatus", _checked(path, RUNNING)))
        self._summary = Followed(lambda path: _checked(path, {}))
        self._tuning = Followed(lambda path: _checked(path, ANSWER))
        self._experiment = Followed(_experiment)
        self._halving = Followed(_halving)
        self._tasks = Lines(self.folder.tasks_path)
        self._events = Lines(self.folder.events_path)
        self.clients: dict[int, Seen] = {}
        self.tasks: list[dict[str, object]] = []
        self.events: list[str] = []

    @property
    def status(self) -> RunStatus | None:
        """How a deployment says that it stands."""
        return self._status(self.folder.status_path)

    @property
    def has_summary(self) -> bool:
        """Whether the runs have come to their end."""
        return bool(self._summary(self.folder.summary_path))

    @property
    def has_answer(self) -> bool:
        """Whether a tuning has come to its end."""
        return bool(self._tuning(self.folder.tuning_path))

    @property
    def experiment(self) -> Mapping[str, Any]:
        """What was asked for; empty where it is not written yet."""
        return self._experiment(self.folder.experiment_path) or {}

    @property
    def names(self) -> list[str]:
        """The strategies that were asked for."""
        return [str(entry.get("name", "")) for entry in self.experiment.get("strategy", [])]

    @property
    def halving(self) -> "tuple[Halving | None, str]":
        """The rungs of successive halving so far, and what it ranks by; ``None`` before the first."""
        return self._halving(self.folder.path / HALVING) or (None, "")

    def runs(self) -> list[RunSeen]:
        """Every run: finished ones, and unfinished ones as far as their last checkpoint."""
        finished: dict[tuple[str, int, float], RunSeen] = {}
        for path in self.folder.finished_cells:
            for history in self._histories(path) or ():
                finished.setdefault(_label(history), RunSeen(history, True))
        listed, done = [*finished.values()], {*finished}
        called = {file_name(name): name for name in self.names}
        for path in sorted(self.folder.cells.glob(f"[!.]*.jsonl{CHECKPOINT}")):
            for run in self._unfinished(path) or ():
                history = replace(run, strategy=called.get(run.strategy, run.strategy))
                if _label(history) not in done:
                    listed.append(RunSeen(history, False))
        if listed:
            return listed
        histories = self._histories(self.folder.history_path) or []
        return [RunSeen(history, self.has_summary) for history in histories]

    def hear(self) -> None:
        """Take in what was appended to the records of a deployment."""
        lines, anew = self._tasks.fresh()
        if anew:
            self.clients, self.tasks = {}, []
        for line in lines:
            try:
                record = json.loads(line)
                if len(self.tasks) < MOST_TASKS:
                    self.tasks.append(_task(record))
                client, staleness = int(record["client"]), float(record["staleness"])
                used = bool(record["used"])
            except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
                continue
            if used and math.isfinite(staleness):
                seen = self.clients.setdefault(client, Seen())
                seen.tasks += 1
                seen.staleness += staleness
        lines, anew = self._events.fresh()
        events = [line.decode("utf-8", "replace") for line in lines if line.strip()]
        self.events = [*([] if anew else self.events), *events][-LAST_EVENTS:]

    def changed_at(self) -> float | None:
        """When anything was last written, in seconds of the system's clock."""
        folder = self.folder
        paths = [
            *(folder.status_path, folder.tasks_path, folder.history_path, folder.summary_path),
            *(folder.tuning_path, folder.experiment_path, folder.path / HALVING),
            *folder.cells.glob("*"),
        ]
        times = []
        for path in paths:
            try:
                times.append(path.stat().st_mtime)
            except OSError:
                continue
        return max(times, default=None)


def _task(record: Mapping[str, Any]) -> dict[str, object]:
    """What a timeline needs of a line of ``tasks.jsonl``; ``ValueError`` where it is no such line."""
    client, sent, time = int(record["client"]), int(record["dispatched"]), float(record["time"])
    took = None if record["service_seconds"] is None else float(record["service_seconds"])
    if min(client, sent, time, took or 0.0) < 0 or not math.isfinite(time + (took or 0.0)):
        raise ValueError("a task in which something is negative or infinite")
    return {"client": client, "dispatched": sent, "time": time, "service_seconds": took}


def _label(history: History) -> tuple[str, int, float]:
    return history.strategy, history.seed, history.learning_rate


def _checked(path: Path, shape: object) -> dict[str, object]:
    """What a JSON file holds, if it has the shape."""
    table = parse_json(read_text(path, encoding="utf-8"), str(path))
    check_shape(table, shape, str(path))
    return dict(table)


def _experiment(path: Path) -> Mapping[str, Any]:
    table = RunFolder(path.parent).experiment
    check_shape(table, EXPERIMENT, str(path))
    return table


def _halving(path: Path) -> "tuple[Halving, str]":
    from sojourn.tuning.runner import read_halving  # loads PyTorch, so only where it is needed

    halving, (_, criterion) = read_halving(path)
    return halving, criterion


def _unfinished(path: Path) -> list[History]:
    """The runs in a checkpoint, which is called after their strategy and seed."""
    from sojourn.training.replay.checkpoint import rows_in

    slug, _, rest = path.name.rpartition("_seed-")
    seed = int(rest.partition("_")[0])
    return [
        History(
            strategy=slug,
            seed=seed,
            learning_rate=rate,
            clock="virtual",
            metrics=rows.metrics,
            **rows.columns,
        )
        for rate, rows in rows_in(path).items()
    ]


@dataclass(frozen=True)
class Standing:
    """How a run stands: waiting, running, silent, failed or finished, in a title and a text.

    ``fraction`` is how much of it is done, if that is known; one that has ended has a ``verdict``.
    """

    state: str
    title: str
    text: str
    fraction: float | None = None
    verdict: Verdict | None = None


class Watcher:
    """Looks at one folder, again and again, and writes nothing there."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        if path.exists() and not path.is_dir():
            raise InvalidInput(f"'{path}' is no folder: name the --out of train, tune or deploy")
        self.path, self._clock = path, clock
        self.follower = Follower(path)
        self._begun: tuple[float, float] | None = None
        self._said: tuple[float | None, Verdict] | None = None
        self._subject = ""
        self._drawn = ("", "")
        self._drawing = threading.Lock()

    def serve_on(self, port: int = 0) -> LocalServer:
        """The server of this view, not yet serving."""
        about = {"folder": self.path.resolve().name}
        return LocalServer(
            page("watch", about), {"look": self.look, "timeline": self.timeline}, port=port
        )

    def look(self, asked: Mapping[str, object] | None = None) -> dict[str, object]:
        """How it stands now."""
        follower = self.follower
        follower.hear()
        runs = follower.runs()
        status, (halving, criterion) = follower.status, follower.halving
        tunes = follower.has_answer or halving is not None
        kind = "deploy" if status else "tune" if tunes else "train"
        if status:
            standing = self._deployment(status, runs)
        elif tunes:
            standing = self._tuning(halving, runs)
        else:
            standing = self._training(runs)
        changed = follower.changed_at()
        age = None if changed is None else max(0.0, self._clock() - changed)
        if standing.state == "running":
            standing = self._if_silent(standing, age, status)
        seeds = follower.experiment.get("seeds", []) if kind == "train" else []
        pilots = [run for run in runs if seeds and run.history.seed not in seeds]
        finals = [run for run in runs if run not in pilots]
        if standing.state == "finished":
            pilots = []
        verdict = standing.verdict
        real = (run.history for run in finals if run.history.clock == "real")
        deployed = list(dict.fromkeys(history.strategy for history in real))
        groups = {} if verdict is None else verdict.groups
        if status:
            # To two digits, so that a picture of many tasks is not drawn again for every one.
            self._subject = f"{len(follower.tasks):.2g} tasks" if follower.tasks else ""
        else:
            self._subject = self._leading(finals) if verdict is None else verdict.pick
        return {
            "kind": kind,
            "age": age,
            "left": self._left(standing, status),
            "timeline": self._subject,
            "curves": _curves(
                finals, pilots, deployed or ([] if verdict is None else verdict.strong)
            ),
            "strategies": _strategies(finals),
            "pilots": _pilots(pilots),
            "race": _halving_table(halving, criterion),
            "clients": [] if status is None else self._clients(status),
            "events": follower.events,
            **{key: getattr(standing, key) for key in ("state", "title", "text", "fraction")},
            "groups": [[heading, list(names)] for heading, names in groups.items()],
            "command": "" if verdict is None else verdict.next_command,
            **({} if status is None else self._measured(status)),
        }

    def timeline(self, asked: Mapping[str, object] | None = None) -> dict[str, str]:
        """The picture of who computes what when, as the page of the run has it; empty if there is none.

        Of the strategy that ``look`` found leading beside uniform routing, or of a deployment's own
        tasks. Drawn again only when ``look`` found another subject.
        """
        with self._drawing:
            subject = self._subject
            if self._drawn[0] != subject:
                self._drawn = subject, self._draw(subject)
            return {"of": subject, "svg": self._drawn[1]}

    def _draw(self, subject: str) -> str:
        follower = self.follower
        try:
            if (status := follower.status) is not None:
                shown = of_deployment(status.get("clients", ()), follower.tasks)
            elif (strategy := follower.folder.strategies([subject]).get(subject)) is not None:
                fleet = read_fleet(str(follower.folder.experiment["fleet"]), follower.folder.path)
                shown = beside_uniform(strategy, fleet)
            else:
                return ""
        except SojournError:  # no experiment yet, or one whose own code is not trusted
            return ""
        panels = list(shown.items())
        rows = OPENING_ROWS
        return timelines_svg(panels, styled=False, stacked=True, most_rows=rows) if panels else ""

    def _leading(self, runs: list[RunSeen]) -> str:
        """The best strategy so far; before the first evaluation, the first of the experiment."""
        best = _best(runs)
        return best.strategy if best is not None else next(iter(self.follower.names), "")

    def _if_silent(
        self, standing: Standing, age: float | None, status: RunStatus | None
    ) -> Standing:
        """What is said of a run that should be going on, and has not been heard of for too long."""
        heartbeat = None if status is None else status.get("heartbeat")
        silent = None if heartbeat is None else max(0.0, self._clock() - heartbeat)
        if silent is not None and silent > NOT_RUNNING_SECONDS:
            return replace(
                standing,
                state="silent",
                title=f"{standing.title}, and its server does not run",
                text=f"{standing.text} Its last sign of life was {silent:.0f} s ago: it was killed or "
                "lost its machine. Resume it (resume = true, or deploy local --resume).",
            )
        if age is not None and age > self._patience():
            return replace(
                standing,
                state="silent",
                text=f"{standing.text} Nothing was written for a while: if it was ended, the same "
                "command goes on where it was (train with --resume).",
            )
        return standing

    def _patience(self) -> float:
        """Checkpoints are far between where the experiment says so."""
        seconds = self.follower.experiment.get("checkpoint-seconds", 30.0)
        return max(PATIENCE, 3.0 * float(seconds))

    def _left(self, standing: Standing, status: RunStatus | None) -> float | None:
        """Seconds left, at the pace of a deployment or as seen while watching; ``None``: unknown."""
        if standing.state != "running":
            self._begun = None
            return None
        if status is not None:
            pace, updates, of = status.get("throughput"), status.get("updates"), status.get("of")
            if not pace or updates is None or of is None:
                return None
            return max(0, of - updates) / pace
        fraction = standing.fraction
        if fraction is None:
            return None
        now = self._clock()
        if self._begun is None or fraction < self._begun[1]:
            self._begun = now, fraction
        done = fraction - self._begun[1]
        return (1.0 - fraction) * (now - self._begun[0]) / done if done > LEAST_PROGRESS else None

    def _training(self, runs: list[RunSeen]) -> Standing:
        table = self.follower.experiment
        total = _expected(table)
        done = sum(run.ended for run in runs)
        if not table and not runs:
            text = "The page fills as soon as something is written."
            return Standing("waiting", "Nothing is here yet", text)
        if self.follower.has_summary and (total is None or done >= total):
            return self._finished()
        parts = sum(1.0 if run.ended else _part(run.history, table) for run in runs)
        title = f"{done} of {total or 'some'} runs are done"
        return Standing("running", title, _leader(runs), parts / total if total else None)

    def _tuning(self, halving: "Halving | None", runs: list[RunSeen]) -> Standing:
        if self.follower.has_answer or halving is None:
            return self._finished()
        rungs = halving.rungs
        if rungs[-1].fraction >= 1.0:
            title = "Successive halving is done: the best are run on fresh seeds"
            text = _leader(runs) if runs else "The first of these runs are under way."
        else:
            done = f"{len(rungs)} rung{'s' if len(rungs) > 1 else ''}"
            title = f"{done} of successive halving done, to {rungs[-1].fraction:.3g} of the run"
            text = f"{len(rungs[-1].scores)} candidates ran so far; the best go on."
        return Standing("running", title, text)

    def _finished(self) -> Standing:
        """The verdict on all runs, as the page of the folder has it."""
        changed = self.follower.changed_at()
        if self._said is None or self._said[0] != changed:
            self._said = changed, verdict_on(RunFolder(self.path).read())
        verdict = self._said[1]
        return Standing("finished", verdict.title, verdict.because, 1.0, verdict)

    def _deployment(self, status: RunStatus, runs: list[RunSeen]) -> Standing:
        phase, updates, of = status["phase"], status.get("updates"), status.get("of")
        ended = {"finished": "finished", "failed": "failed", "stopped": "silent"}
        state = ended.get(phase, "running")
        fraction = updates / of if updates is not None and of else None
        if state == "finished" and RunFolder(self.path).has_histories:
            return replace(self._finished(), fraction=fraction)
        if state == "failed":
            return Standing(state, "The deployment failed", status.get("error", ""), fraction)
        if updates is None or of is None or "clients" not in status:
            return Standing(state, phase.capitalize(), "", fraction)
        alive = sum(client["status"] == "alive" for client in status["clients"])
        text = f"{alive} of {len(status['clients'])} clients are alive. {_leader(runs)}"
        return Standing(state, f"{updates:,} of {of:,} updates: {phase}", text, fraction)

    def _measured(self, status: RunStatus) -> dict[str, object]:
        """Throughput and staleness of a deployment beside what theory says, and what was refused."""
        seen = self.follower.clients.values()
        tasks = sum(client.tasks for client in seen)
        return {
            "staleness": sum(c.staleness for c in seen) / tasks if tasks else None,
            "predicted_staleness": _in_flight(status) - 1.0 if "concurrency" in status else None,
            "throughput": status.get("throughput"),
            "counts": status.get("counts"),
        }

    def _clients(self, status: RunStatus) -> list[dict[str, object]]:
        """Every client: alive, its queue, its speed and staleness beside what theory says of them, and
        what it sends: how large, how far as others do, how fast beside what is plausible.
        """
        theory = _theory(status)
        rows = []
        for place, client in enumerate(status.get("clients", ())):
            number = client.get("number", place)
            seen = self.follower.clients.get(number)
            rate, planned = client.get("rate"), client.get("planned")
            rows.append(
                {
                    **{key: client.get(key) for key in COPIED},
                    "against_plan": rate / planned if rate and planned else None,
                    "staleness": None if seen is None else seen.mean,
                    "predicted": theory.get(number),
                }
            )
        return rows


def _in_flight(status: RunStatus) -> int:
    """Tasks among the clients; never more than one each where nobody may queue."""
    alive = sum(client["status"] == "alive" for client in status.get("clients", ()))
    tasks = int(status["concurrency"])
    policy = POLICIES.get(str(status.get("policy")))
    return min(tasks, max(alive, 1)) if policy is not None and policy.one_task_each else tasks


def _theory(status: RunStatus) -> dict[int, float]:
    """The staleness of every living client in steady state, at the speeds estimated by now."""
    known = [
        (client.get("number", place), client["rate"], client["routing"])
        for place, client in enumerate(status.get("clients", ()))
        if client["status"] == "alive" and client.get("rate") and client.get("routing") is not None
    ]
    policy = POLICIES.get(str(status.get("policy")))
    if policy is None or policy.analysis is Policy.analysis:
        return {}
    if not known or "concurrency" not in status:
        return {}
    numbers, rates, routing = zip(*known, strict=True)
    try:
        share = np.array(routing) / (sum(routing) or 1.0)
        network = Network(Fleet(rates), share, _in_flight(status))
        staleness = analyze(network, policy()).staleness
    except SojournError:
        return {}
    return dict(zip(numbers, staleness.tolist(), strict=True))


def _expected(table: Mapping[str, Any]) -> int | None:
    """How many runs an experiment has, pilots included; ``None`` where it is not known."""
    strategies, seeds = table.get("strategy", []), table.get("seeds", [])
    if not strategies or not seeds:
        return None
    rates = [s.get("learning-rate") for s in strategies]
    pilots = sum(len(r) for r in rates if isinstance(r, list)) * int(table.get("pilot-seeds", 1))
    return len(strategies) * len(seeds) + pilots


def _part(history: History, table: Mapping[str, Any]) -> float:
    """How far an unfinished run is."""
    if not history.rows:
        return 0.0
    if table.get("time", 0.0) > 0:
        return min(1.0, float(history.time[-1]) / float(table["time"]))
    rounds = float(table.get("rounds", 0.0))
    return min(1.0, float(history.round[-1]) / rounds) if rounds > 0 else 0.0


def _evaluated(runs: list[RunSeen]) -> list[History]:
    """The runs with a value: of a deployment and its prediction, the deployment."""
    rows = [run.history for run in runs if math.isfinite(run.history.final)]
    return [history for history in rows if history.clock == "real"] or rows


def _best(runs: list[RunSeen]) -> History | None:
    """Who is ahead, by the last row of every run."""
    rows = _evaluated(runs)
    if not rows:
        return None
    best = max if rows[0].measure.higher_is_better else min
    return best(rows, key=lambda history: history.final)


def _leader(runs: list[RunSeen]) -> str:
    """Who is ahead, in a sentence."""
    best, rows = _best(runs), _evaluated(runs)
    if best is None:
        return "No evaluation was written yet."
    measure = best.measure
    unit = "seconds" if best.clock == "real" else "time units"
    reached = f"{measure.label} {measure.text(best.final)} after {best.time[-1]:.4g} {unit}."
    if len({history.strategy for history in rows}) == 1:
        return reached[0].upper() + reached[1:]
    return f"The best so far is {best.strategy}: {reached}"


def _curves(
    finals: list[RunSeen], pilots: list[RunSeen], strong: Sequence[str]
) -> dict[str, object]:
    """A curve for the mean of every strategy's finished runs, one for every other run; pilots grey.

    Where ``strong`` strategies are named, the others are grey, too, as on the page of the run, and
    the first is drawn strongest. What was predicted of a deployment is grey beside it.
    """
    shown = [run for run in (*finals, *pilots) if run.history.rows]
    if not shown:
        return {"runs": [], "hint": "", "measure": "accuracy", "percent": True, "clock": "virtual"}
    measure = shown[0].history.measure
    real = {run.history.strategy: DEPLOYED for run in shown if run.history.clock == "real"}
    colours = inks(dict.fromkeys(run.history.strategy for run in shown), real)

    def curve(
        history: History, name: str, *columns: FloatArray, ended: bool, pilot: bool = False
    ) -> dict[str, object]:
        time, value, loss = (column.tolist() for column in columns)
        faint = pilot or (bool(strong) and history.strategy not in strong)
        return {
            "strategy": history.strategy,
            "name": name,
            "label": None if pilot else history.strategy,
            "ended": ended,
            "faint": faint,
            "pick": not pilot and history.strategy in strong[:1],
            "time": time,
            "value": value,
            "loss": loss,
            "ink": vars(GREY if faint else colours[history.strategy]),
        }

    listed = []
    ended = [run.history for run in finals if run.ended and run.history.rows]
    for strategy, runs in by_strategy(ended).items():
        time, values = on_one_grid(runs, measure.name, axis="time", points=MOST_POINTS)
        losses = on_one_grid(runs, "loss", axis="time", points=MOST_POINTS)[1]
        name = f"{strategy}, mean of {len(runs)} runs" if len(runs) > 1 else strategy
        means = values.mean(axis=0), losses.mean(axis=0)
        listed.append(curve(runs[0], name, time, *means, ended=True))
    for run in shown:
        history, pilot = run.history, run in pilots
        if run.ended and not pilot:
            continue
        some = np.unique(np.linspace(0, history.rows - 1, MOST_POINTS).round().astype(int))
        kind = "pilot" if pilot else f"seed {history.seed}"
        name = f"{history.strategy}, {kind}, learning rate {history.learning_rate:g}"
        columns = (history.time[some], history.values(measure)[some], history.test_loss[some])
        listed.append(curve(history, name, *columns, ended=run.ended, pilot=pilot))
    return {
        "runs": listed,
        "hint": _curves_hint(listed, finals, pilots, deployed=bool(real)),
        "measure": measure.label,
        "percent": measure.percent,
        "clock": shown[0].history.clock,
    }


def _curves_hint(
    curves: Sequence[Mapping[str, object]],
    finals: list[RunSeen],
    pilots: list[RunSeen],
    *,
    deployed: bool,
) -> str:
    """What the curves are, and which are grey."""
    grey = any(curve["faint"] for curve in curves)
    if deployed:
        return "grey: the same plan in virtual time, at the speeds measured" if grey else ""
    parts = ["means over the finished runs of a strategy"]
    if any(not run.ended for run in finals):
        parts.append("unfinished runs one by one")
    if pilots:
        parts.append("grey: pilots")
    elif grey:
        parts.append("strong: the pick, its best rival and uniform routing")
    return "; ".join(parts)


def _strategies(runs: list[RunSeen]) -> list[dict[str, object]]:
    """Every strategy with the last evaluation of its runs, the best first."""
    seen = [run for run in runs if run.history.rows]
    grouped = by_strategy([run.history for run in seen])
    ended = Counter(run.history.strategy for run in seen if run.ended)
    colours = inks(grouped)
    rows = []
    for strategy, histories in sorted(grouped.items(), key=lambda group: _rank(group[1])):
        measure = histories[0].measure
        stale = [value for h in histories if math.isfinite(value := seen_staleness(h))]
        rows.append(
            {
                "name": strategy,
                "ink": vars(colours[strategy]),
                "runs": len(histories),
                "ended": ended[strategy],
                "value": final_text(histories, measure),
                "measure": measure.label,
                "staleness": float(np.mean(stale)) if stale else None,
            }
        )
    return rows


def _pilots(runs: list[RunSeen]) -> list[dict[str, object]]:
    """Every learning rate that pilots try, the best first: their values are on held-out data."""
    grouped: dict[tuple[str, float], list[History]] = {}
    for history in (run.history for run in runs if run.history.rows):
        grouped.setdefault((history.strategy, history.learning_rate), []).append(history)
    return [
        {
            "name": strategy,
            "learning_rate": rate,
            "value": final_text(histories, histories[0].measure),
            "measure": histories[0].measure.name,
        }
        for (strategy, rate), histories in sorted(
            grouped.items(), key=lambda group: (_rank(group[1]), *group[0])
        )
    ]


def _rank(runs: Sequence[History]) -> float:
    """A number that is smaller for what is better, and largest for what diverged."""
    mean = float(final(runs, runs[0].measure).mean)
    if math.isnan(mean):
        return math.inf
    return -mean if runs[0].measure.higher_is_better else mean


def _halving_table(halving: "Halving | None", criterion: str) -> dict[str, object] | None:
    """The best candidate of every strategy, those that went furthest first, with its scores by rung."""
    if halving is None:
        return None

    def name(strategy: int) -> str:
        names = halving.names
        return names[strategy] if strategy < len(names) else f"strategy {strategy + 1}"

    shown = [
        dict(zip(rung.scores, relative([*rung.scores.values()], criterion), strict=True))
        for rung in halving.rungs
    ]
    return {
        "scored_by": scored_by(criterion),
        "rungs": [rung.fraction for rung in halving.rungs],
        "ran": [len(rung.scores) for rung in halving.rungs],
        "gradients": halving.gradients,
        "rows": [
            {
                "name": name(best.strategy),
                "learning_rate": best.learning_rate,
                "scores": [scores.get(best) for scores in shown],
            }
            for best in halving.podium()
        ],
    }
