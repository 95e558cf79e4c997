"""What a run folder looks like now, as the live view shows it: a sentence, curves, rungs, clients."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sojourn.analysis import analyze
from sojourn.dispatch import POLICIES, Policy
from sojourn.errors import InvalidInput, SojournError
from sojourn.history import History
from sojourn.live.following import Follower, RunSeen
from sojourn.live.page import page
from sojourn.live.server import LocalServer
from sojourn.network import Fleet, Network
from sojourn.palette import inks
from sojourn.report.outcomes import final_text
from sojourn.report.sections import seen_staleness
from sojourn.report.verdict import verdict_of

PATIENCE = 90.0
"""Seconds without a word after which a run is said to be silent."""
MOST_POINTS = 300
MOST_SEEDS = 1_000_000
LEAST_PROGRESS = 0.005
"""What must have been done while watching, before the time left is guessed from it."""


class Watcher:
    """Looks at one folder, again and again, and writes nothing there."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        if not path.is_dir():
            raise InvalidInput(f"'{path}' is no folder: name the --out of train, tune or deploy")
        self.path, self._clock = path, clock
        self.follower = Follower(path)
        self._begun: tuple[float, float] | None = None

    def serve_on(self, port: int = 0) -> LocalServer:
        """The server of this view, not yet serving."""
        about = {"folder": self.path.resolve().name}
        return LocalServer(page("watch", about), {"look": self.look}, port=port)

    def look(self, asked: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """How it stands now."""
        follower = self.follower
        follower.hear()
        runs = follower.runs()
        status, tuning, race = follower.status, follower.tuning, follower.race
        kind = "deploy" if status else "tune" if tuning or race else "train"
        if status:
            told = self._deployment(status, runs)
        elif tuning or race:
            told = self._tuning(tuning, race, runs)
        else:
            told = self._training(runs)
        changed = follower.changed_at()
        age = None if changed is None else max(0.0, self._clock() - changed)
        if told["state"] == "running" and age is not None and age > self._patience():
            told["state"] = "silent"
            told["text"] += (
                " Nothing was written for a while: if it was ended, the same command goes on where "
                "it was (train with --resume)."
            )
        over = kind == "train" and told["state"] == "finished"
        drawn = self._confirming(runs) if over else runs
        return {
            "kind": kind,
            "age": age,
            "left": self._left(told.get("fraction"), told["state"], status),
            "curves": _curves(drawn),
            "strategies": _strategies(
                drawn, _seeds(follower.experiment) if kind == "train" else []
            ),
            "race": _race_table(race),
            "clients": [] if status is None else self._clients(status),
            "events": follower.events,
            **told,
        }

    def _patience(self) -> float:
        """Checkpoints are far between where the experiment says so."""
        seconds = self.follower.experiment.get("checkpoint-seconds", 30.0)
        return max(PATIENCE, 3.0 * float(seconds))

    def _left(
        self, fraction: float | None, state: str, status: Mapping[str, Any] | None
    ) -> float | None:
        """Seconds left, at the pace of a deployment or as seen while watching; ``None``: unknown."""
        if state != "running":
            self._begun = None
            return None
        if status is not None:
            pace, missing = status.get("throughput") or 0.0, _missing(status)
            return missing / pace if pace > 0 and missing is not None else None
        if fraction is None:
            return None
        now = self._clock()
        if self._begun is None or fraction < self._begun[1]:
            self._begun = now, fraction
        done = fraction - self._begun[1]
        return (1.0 - fraction) * (now - self._begun[0]) / done if done > LEAST_PROGRESS else None

    def _confirming(self, runs: list[RunSeen]) -> list[RunSeen]:
        """The runs that a verdict is about: without pilots, which tried learning rates before."""
        seeds = _seeds(self.follower.experiment)
        return [run for run in runs if run.history.seed in seeds] or runs

    def _training(self, runs: list[RunSeen]) -> dict[str, Any]:
        table = self.follower.experiment
        total = _expected(table)
        done = sum(run.ended for run in runs)
        if not table and not runs:
            return {
                "state": "waiting",
                "title": "Nothing is here yet",
                "text": "The page fills as soon as something is written.",
                "fraction": None,
            }
        if self.follower.summary and (total is None or done >= total):
            finals = [run.history for run in self._confirming(runs)]
            verdict = verdict_of(finals, table.get("targets", ()))
            return {
                "state": "finished",
                "title": verdict.headline,
                "text": verdict.sentence,
                "fraction": 1.0,
            }
        parts = sum(1.0 if run.ended else _part(run.history, table) for run in runs)
        return {
            "state": "running",
            "title": f"{done} of {total or 'some'} runs are done",
            "text": _leader(runs),
            "fraction": parts / total if total else None,
        }

    def _tuning(self, tuning: Mapping[str, Any], race: Any, runs: list[RunSeen]) -> dict[str, Any]:
        if tuning:
            return {
                "state": "finished",
                "title": f"Use {tuning['pick']} at learning rate {tuning['learning_rate']:g}",
                "text": tuning["sentence"],
                "fraction": 1.0,
            }
        rungs = race.rungs
        if rungs[-1].fraction >= 1.0:
            title = "The race is over: the best are confirmed on fresh seeds"
            text = _leader(runs) if runs else "The first confirming runs are under way."
        else:
            done = f"{len(rungs)} rung{'s' if len(rungs) > 1 else ''}"
            title = f"{done} of the race done, to {rungs[-1].fraction:.3g} of the horizon"
            text = f"{len(rungs[-1].scores)} candidates ran so far; the best go on."
        return {"state": "running", "title": title, "text": text, "fraction": None}

    def _deployment(self, status: Mapping[str, Any], runs: list[RunSeen]) -> dict[str, Any]:
        phase, updates, of = status["phase"], status.get("updates"), status.get("of")
        state = {"finished": "finished", "failed": "failed"}.get(phase, "running")
        if state == "failed":
            title, text = "The deployment failed", str(status.get("error", ""))
        elif updates is None or of is None or "clients" not in status:
            title, text = phase.capitalize(), ""
        else:
            alive = sum(client["status"] == "alive" for client in status["clients"])
            title = f"{updates:,} of {of:,} updates: {phase}"
            text = f"{alive} of {len(status['clients'])} clients are alive. {_leader(runs)}"
        if state == "finished" and runs:
            verdict = verdict_of([run.history for run in runs])
            title, text = verdict.headline, verdict.sentence
        seen = self.follower.clients.values()
        tasks = sum(client.tasks for client in seen)
        predicted = None if status.get("concurrency") is None else _in_flight(status) - 1.0
        return {
            "state": state,
            "title": title,
            "text": text,
            "fraction": updates / of if updates is not None and of else None,
            "staleness": sum(c.staleness for c in seen) / tasks if tasks else None,
            "predicted_staleness": predicted,
            "throughput": status.get("throughput"),
            "counts": status.get("counts"),
        }

    def _clients(self, status: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Every client: alive, its queue, its speed and staleness beside what theory says of them, and
        what it sends: how large, how far as others do, how fast beside what is plausible.
        """
        theory = _theory(status)
        rows = []
        for number, client in enumerate(status.get("clients", ())):
            seen = self.follower.clients.get(number)
            rate, planned = client.get("rate"), client.get("planned")
            rows.append(
                {
                    "name": client["name"],
                    "status": client["status"],
                    "waiting": client["waiting"],
                    "used": client["used"],
                    "refused": client["refused"],
                    "rate": rate,
                    "planned": planned,
                    "against_plan": rate / planned if rate and planned else None,
                    "staleness": None if seen is None else seen.mean,
                    "predicted": theory.get(number),
                    **{key: client.get(key) for key in ("norm", "agreement", "speed")},
                }
            )
        return rows


def _in_flight(status: Mapping[str, Any]) -> int:
    """Tasks among the clients; never more than one each where nobody may queue."""
    alive = sum(client["status"] == "alive" for client in status.get("clients", ()))
    tasks = int(status["concurrency"])
    policy = POLICIES.get(str(status.get("policy")))
    return min(tasks, max(alive, 1)) if policy is not None and policy.one_task_each else tasks


def _theory(status: Mapping[str, Any]) -> dict[int, float]:
    """The staleness of every living client in steady state, at the speeds estimated by now."""
    known = [
        (number, client["rate"], client["routing"])
        for number, client in enumerate(status.get("clients", ()))
        if client["status"] == "alive" and client.get("rate") and client.get("routing") is not None
    ]
    policy = POLICIES.get(str(status.get("policy")))
    if policy is None or policy.analysis is Policy.analysis:
        return {}
    if not known or status.get("concurrency") is None:
        return {}
    numbers, rates, routing = zip(*known, strict=True)
    try:
        share = np.array(routing) / (sum(routing) or 1.0)
        network = Network(Fleet(rates), share, _in_flight(status))
        found = analyze(network, policy()).staleness
    except SojournError:
        return {}
    return dict(zip(numbers, found.tolist(), strict=True))


def _missing(status: Mapping[str, Any]) -> int | None:
    updates, of = status.get("updates"), status.get("of")
    return None if updates is None or of is None else max(0, of - updates)


def _seeds(table: Mapping[str, Any]) -> Sequence[Any]:
    seeds = table.get("seeds", [])
    if isinstance(seeds, int):
        return range(min(seeds, MOST_SEEDS))
    return seeds if isinstance(seeds, list) else []


def _expected(table: Mapping[str, Any]) -> int | None:
    """How many runs an experiment has, pilots included; ``None`` where it is not known."""
    strategies, seeds = table.get("strategy", []), _seeds(table)
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


def _leader(runs: list[RunSeen]) -> str:
    """Who is ahead, by the last row of every run."""
    rows = [run.history for run in runs if math.isfinite(run.history.final)]
    if not rows:
        return "No evaluation was written yet."
    measure = rows[0].measure
    best = (max if measure.higher_is_better else min)(rows, key=lambda history: history.final)
    unit = "seconds" if best.clock == "real" else "units of time"
    reached = f"{measure.label} {measure.text(best.final)} after {best.time[-1]:.4g} {unit}."
    if len({history.strategy for history in rows}) == 1:
        return reached[0].upper() + reached[1:]
    return f"The best so far is {best.strategy}: {reached}"


def _curves(runs: list[RunSeen]) -> dict[str, Any]:
    """Every run as a curve of what it is judged by, and of the loss."""
    shown = [run for run in runs if run.history.rows]
    if not shown:
        return {"runs": [], "measure": "accuracy", "percent": True, "clock": "virtual"}
    measure = shown[0].history.measure
    colours = inks(dict.fromkeys(run.history.strategy for run in shown))
    listed = []
    for run in shown:
        history = run.history
        pick = np.unique(np.linspace(0, history.rows - 1, MOST_POINTS).round().astype(int))
        listed.append(
            {
                "strategy": history.strategy,
                "name": f"{history.strategy}, seed {history.seed}, η {history.learning_rate:g}",
                "ended": run.ended,
                "time": history.time[pick].tolist(),
                "value": history.values(measure)[pick].tolist(),
                "loss": history.test_loss[pick].tolist(),
                "ink": vars(colours[history.strategy]),
            }
        )
    return {
        "runs": listed,
        "measure": measure.label,
        "percent": measure.percent,
        "clock": shown[0].history.clock,
    }


def _strategies(runs: list[RunSeen], seeds: Sequence[Any]) -> list[dict[str, Any]]:
    """Every strategy, and while there are pilots every learning rate that they try by itself."""
    grouped: dict[tuple[str, float | None], list[RunSeen]] = {}
    for run in runs:
        if run.history.rows:
            pilot = bool(seeds) and run.history.seed not in seeds
            tried = run.history.learning_rate if pilot else None
            grouped.setdefault((run.history.strategy, tried), []).append(run)
    colours = inks(dict.fromkeys(strategy for strategy, _ in grouped))
    rows = []
    for (strategy, tried), own in grouped.items():
        histories = [run.history for run in own]
        stale = [value for h in histories if math.isfinite(value := seen_staleness(h))]
        rows.append(
            {
                "name": strategy if tried is None else f"{strategy}, pilot at {tried:g}",
                "ink": vars(colours[strategy]),
                "runs": len(own),
                "ended": sum(run.ended for run in own),
                "value": final_text(histories, histories[0].measure),
                "measure": histories[0].measure.label,
                "staleness": float(np.mean(stale)) if stale else None,
            }
        )
    return rows


def _race_table(race: Any) -> dict[str, Any] | None:
    """The best candidate of every strategy, those that went furthest first, with its scores by rung."""
    if race is None:
        return None

    def name(strategy: int) -> str:
        return race.names[strategy] if strategy < len(race.names) else f"strategy {strategy + 1}"

    return {
        "rungs": [rung.fraction for rung in race.rungs],
        "ran": [len(rung.scores) for rung in race.rungs],
        "gradients": race.gradients,
        "rows": [
            {
                "name": name(best.strategy),
                "learning_rate": best.learning_rate,
                "scores": [rung.scores.get(best) for rung in race.rungs],
            }
            for best in race.podium()
        ],
    }
