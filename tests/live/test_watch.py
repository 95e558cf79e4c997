"""The live view of a folder: follows what is written, survives what is half written, writes nothing."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sojourn.cli import look
from sojourn.deployment.status import RunStatus
from sojourn.errors import InvalidInput
from sojourn.figures.palette import GREY, inks
from sojourn.live.watcher import (
    PATIENCE,
    Follower,
    Lines,
    RunSeen,
    Standing,
    Watcher,
    _halving_table,
)
from sojourn.report.runs import report_of
from sojourn.report.verdict import run_verdict, verdict_of
from sojourn.runs.folder import RunFolder
from sojourn.runs.history import History
from sojourn.runs.measure import ACCURACY
from sojourn.tuning.runner import HalvingRunner
from sojourn.tuning.successive_halving import Candidate, Halving, Rung
from sojourn.tuning.tune import tune
from tests.commands import Commands
from tests.deployment.test_server import Deployment
from tests.live.conftest import write_race
from tests.live.test_tries import until
from tests.report.test_verdict import run as made

EXPERIMENT = """\
fleet = "three-clusters"
data = "digits"
model = "mlp"
time = 1500
concurrency = 30
learning-rate = 0.05
seeds = 2
evaluate-every = 20
refine = false
checkpoint-seconds = 0
strategies = ["uniform", "square-root"]
"""


ENDS = {"plan": 0.8, "uniform": 0.7}


def contents(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.mark.slow
def test_a_training_that_runs_is_killed_and_resumed(commands: Commands, tmp_path: Path) -> None:
    train = partial(commands.start, tmp_path, "train", "experiment.toml", "--out", "run")
    (tmp_path / "experiment.toml").write_text(EXPERIMENT)
    run = tmp_path / "run"
    first = train()
    try:
        until(lambda: (run / "experiment.toml").exists() or first.poll() is not None)
        watcher = Watcher(run)
        # As it comes: the curve of a run that is not finished grows.
        rows = lambda: max([0, *(len(c["time"]) for c in unfinished(watcher.look()))])  # noqa: E731
        some = until(rows)
        until(lambda: rows() > some or first.poll() is not None)
    finally:
        first.kill()
        first.wait()
    found = watcher.look()
    assert found["kind"] == "train"
    assert found["state"] == "running"
    assert found["title"].endswith(" of 4 runs are done")
    assert 0 < found["fraction"] < 1
    before = contents(run)
    late = Watcher(run, clock=lambda: time.time() + 2 * PATIENCE).look()
    assert late["state"] == "silent"
    assert "--resume" in late["text"]
    assert contents(run) == before, "nothing is written by who only looks"
    assert train("--resume").wait().code == 0
    done = watcher.look()
    histories = RunFolder(run).histories
    verdict = run_verdict(RunFolder(run).read())
    assert done["state"] == "finished"
    assert (done["title"], done["text"]) == (verdict.title, verdict.because)
    assert (len(done["curves"]["runs"]), len(histories)) == (2, 4)
    assert dict(done["groups"]) == {h: list(names) for h, names in verdict.groups.items()}
    assert done["command"] == verdict.next_command
    for curve in done["curves"]["runs"]:
        own = [h for h in histories if h.strategy == curve["strategy"]]
        assert curve["value"][-1] == pytest.approx(np.mean([h.final_accuracy for h in own]))
        assert curve["loss"][-1] == pytest.approx(np.mean([h.test_loss[-1] for h in own]))


def unfinished(found: dict[str, Any]) -> list[dict[str, Any]]:
    return [curve for curve in found["curves"]["runs"] if not curve["ended"]]


def test_the_time_left_is_that_of_the_pace_seen(tmp_path: Path) -> None:
    now = 0.0
    watcher = Watcher(tmp_path, clock=lambda: now)
    assert watcher._left(Standing("running", "", "", 0.2), None) is None
    now = 30.0
    assert watcher._left(Standing("running", "", "", 0.5), None) == pytest.approx(50.0)
    assert watcher._left(Standing("silent", "", "", 0.5), None) is None
    deployed: RunStatus = {"throughput": 4.0, "updates": 60, "of": 100}
    assert watcher._left(Standing("running", "", ""), deployed) == 10.0


def test_a_folder_in_which_nothing_is_yet(tmp_path: Path) -> None:
    assert Watcher(tmp_path).look()["state"] == "waiting"
    later = Watcher(tmp_path / "later")
    assert later.look()["state"] == "waiting", "the folder is not there yet"
    (tmp_path / "file").touch()
    with pytest.raises(InvalidInput, match="is no folder"):
        Watcher(tmp_path / "file")


def test_pilots_of_a_training_stand_by_themselves_and_not_beside_its_verdict(tmp_path) -> None:
    finals = [made(name, seed, 10.0, end) for name, end in ENDS.items() for seed in (0, 1)]
    pilots = [replace(made(name, 7, 10.0, 0.3), learning_rate=0.5) for name in ENDS]
    runs = [RunSeen(history, ended=True) for history in [*pilots, *finals]]

    class Given(Follower):
        experiment = {"seeds": [0, 1], "strategy": [{"learning-rate": 0.1}] * 2}  # noqa: RUF012
        has_summary = False

        def runs(self) -> list[RunSeen]:
            return runs

    watcher = Watcher(tmp_path)
    watcher.follower = Given(tmp_path)
    under_way = watcher.look()
    assert [row["name"] for row in under_way["strategies"]] == list(ENDS)
    assert [(row["name"], row["learning_rate"]) for row in under_way["pilots"]] == [
        (name, 0.5) for name in sorted(ENDS)
    ]
    grey = [curve for curve in under_way["curves"]["runs"] if curve["faint"]]
    assert len(grey) == len(pilots)
    assert {curve["ink"]["light"] for curve in grey} == {GREY.light}
    Given.has_summary = True
    RunFolder(tmp_path).write_history(finals)
    over = watcher.look()
    assert over["state"] == "finished"
    assert over["text"] == verdict_of(finals).because
    assert [row["name"] for row in over["strategies"]] == list(ENDS)
    assert over["strategies"][0]["value"] == "80.0 ± 0.0%"
    assert "80.0% test accuracy" in over["text"]
    assert [curve["strategy"] for curve in over["curves"]["runs"]] == list(ENDS)
    assert over["pilots"] == []
    page = inks(ENDS)
    assert {c["strategy"]: c["ink"]["light"] for c in over["curves"]["runs"]} == {
        name: page[name].light for name in ENDS
    }, "the colours of the report"


def test_a_file_that_memory_does_not_hold_is_not_called_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who asks is told what the error says, and not that nothing is there yet."""

    def too_large(*_: object, **__: object) -> list[History]:
        raise MemoryError

    (tmp_path / "history.jsonl").write_text("{}\n")
    monkeypatch.setattr(History, "read", too_large)
    with pytest.raises(MemoryError):
        Watcher(tmp_path).look()


def test_half_written_lines_are_left_for_later(tmp_path: Path) -> None:
    lines = Lines(tmp_path / "tasks.jsonl")
    assert lines.fresh() == ([], False)
    with lines.path.open("wb", buffering=0) as file:
        file.write(b'{"a": 1}\n{"b"')
        assert lines.fresh() == ([b'{"a": 1}'], False)
        assert lines.fresh() == ([], False)
        file.write(b": 2}\n")
        assert lines.fresh() == ([b'{"b": 2}'], False)
    lines.path.write_bytes(b"anew\n")
    assert lines.fresh() == ([b"anew"], True)


class Watched(Deployment):
    """A deployment in virtual time that is looked at all the while."""

    def __init__(self, folder: Path, **config: Any) -> None:
        super().__init__(folder, **config)
        self.watcher = Watcher(folder)
        self.looks: list[dict[str, Any]] = []

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        if int(self.server.elapsed * 10) % 50 == 0:
            self.looks.append(self.watcher.look())


def test_a_deployment_from_its_first_update_to_the_end(tmp_path: Path) -> None:
    deployment = Watched(tmp_path, updates=150)
    deployment.run_and_finish()
    running = [look for look in deployment.looks if look.get("fraction")]
    fractions = [look["fraction"] for look in running]
    assert fractions == sorted(fractions)
    last = running[-1]
    assert last["kind"] == "deploy"
    assert last["left"] is not None
    assert last["predicted_staleness"] == 5.0
    assert last["staleness"] == pytest.approx(5.0, abs=1.0), "m - 1, but for the beginning"
    assert [client["status"] for client in last["clients"]] == ["alive"] * 3
    tasks = deployment.tasks()
    own = [task["staleness"] for task in tasks if task["client"] == 2]
    watcher = deployment.watcher
    watcher.look()
    seen = watcher.follower.clients[2]
    assert (seen.tasks, seen.mean) == (len(own), sum(own) / len(own))
    slow, quick = last["clients"][2], last["clients"][0]
    assert slow["rate"] < quick["rate"]
    assert all(client["norm"] > 0 and client["agreement"] > 0 for client in last["clients"])
    assert slow["predicted"] > quick["predicted"], "who is slow is stale, by theory"


def test_a_deployment_whose_files_are_half_there(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path, updates=60)
    deployment.run()
    watcher = Watcher(tmp_path)
    whole = watcher.look()
    assert whole["state"] == "running"
    status = tmp_path / "status.json"
    for name in ("status.json", "history.jsonl"):
        path = tmp_path / name
        text = path.read_bytes()
        for cut in (0, 1, len(text) // 2, len(text) - 2):
            path.write_bytes(text[:cut])
            os.utime(path, ns=(cut + 1, cut + 1))
            found = watcher.look()
            assert found["kind"] == "deploy"
            assert found["fraction"] == whole["fraction"], "what it held before, until it is whole"
        path.write_bytes(text)
    with (tmp_path / "tasks.jsonl").open("ab") as file:
        file.write(b'{"client": 0, "stal')
    assert watcher.look()["staleness"] == whole["staleness"]
    status.write_text(json.dumps({"phase": "failed", "error": "no client came"}))
    failed = watcher.look()
    assert (failed["state"], failed["text"]) == ("failed", "no client came")


def test_a_history_that_is_being_written_is_read_up_to_its_last_line(tmp_path: Path) -> None:
    Deployment(tmp_path, updates=30, **{"evaluate-every": 10}).run()
    path = tmp_path / "history.jsonl"
    (whole,) = History.read(path)
    path.write_text(path.read_text()[:-20])
    (part,) = History.read(path, partial=True)
    assert part.rows == whole.rows - 1
    with pytest.raises(InvalidInput):
        History.read(path)


def drawn_on_the_page(folder: Path) -> str:
    """The timelines in the first screen of the folder's page."""
    return report_of([folder]).sections[0].drawings[0].svg


def test_the_timeline_of_a_deployment_is_that_of_its_page(tmp_path: Path) -> None:
    """Also of clients who have left since; lines that are no task are left out."""
    Deployment(tmp_path, updates=30, **{"evaluate-every": 10}).run_and_finish()
    watcher = Watcher(tmp_path)
    assert watcher.timeline() == {"of": "", "svg": ""}, "nobody has looked yet"
    watcher.look()
    assert watcher.timeline() == {"of": "30 tasks", "svg": drawn_on_the_page(tmp_path)}
    task = json.loads((tmp_path / "tasks.jsonl").read_text().splitlines()[-1])
    odd = [
        {"client": -1},
        {"dispatched": -7},
        {"time": "inf"},
        {"service_seconds": float("nan")},
        {"client": []},
    ]
    with (tmp_path / "tasks.jsonl").open("a") as file:
        file.writelines(json.dumps(task | wrong) + "\n" for wrong in odd)
        file.write(json.dumps(task | {"client": 77}) + "\n")
    watcher.look()
    drawn = watcher.timeline()
    assert drawn["of"] == "31 tasks"
    assert ">client 77<" in drawn["svg"]


def test_a_race_rung_by_rung(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_race(tmp_path)
    (tmp_path / "out").mkdir()
    watcher, looks = Watcher(tmp_path / "out"), []
    keep = HalvingRunner._save

    def kept(self: HalvingRunner, *given: Any) -> None:
        keep(self, *given)
        looks.append(watcher.look())

    monkeypatch.setattr(HalvingRunner, "_save", kept)
    tuned = tune(path, tmp_path / "out")
    assert [len(look["race"]["rungs"]) for look in looks] == [1, 2, 3, 4]
    assert {row["name"] for row in looks[0]["race"]["rows"]} == {"busy", "routed"}
    assert looks[0]["title"] == "1 rung of successive halving done, to 0.125 of the run"
    done = watcher.look()
    assert (done["kind"], done["state"]) == ("tune", "finished")
    assert (done["title"], done["text"]) == (tuned.verdict.title, tuned.verdict.because)
    assert done["title"].startswith(f"Use {tuned.pick.name}, learning rate")
    order = [tuned.halving.names[candidate.strategy] for candidate in tuned.halving.podium()]
    assert [row["name"] for row in done["race"]["rows"]] == order
    assert watcher.timeline() == {"of": tuned.pick.name, "svg": drawn_on_the_page(tmp_path / "out")}


def test_rungs_of_a_race_to_a_target_show_no_interpolated_time() -> None:
    rung = Rung(0.5, {Candidate(0, 0.1): (31.5,), Candidate(1, 0.1): (63.0,)})
    halving = Halving([rung], {0: (0.1,), 1: (0.1,)}, ("busy", "routed"))
    table = _halving_table(halving, ACCURACY.time_to(0.8))
    assert table is not None
    assert table["scored_by"] == "time to 80% (smallest = 1)"
    assert [row["scores"] for row in table["rows"]] == [[1.0], [2.0]]
    table = _halving_table(halving, "final test loss")
    assert table is not None
    assert [row["scores"] for row in table["rows"]] == [[31.5], [63.0]]


def test_the_command_says_where_it_is_and_ends_quietly(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "sojourn", "watch", str(tmp_path), "--no-open"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith("open http://127.0.0.1:")
    process.send_signal(signal.SIGINT)
    out, error = process.communicate(timeout=120)
    assert (process.returncode, out) == (0, "ended\n")
    assert error.startswith("Next: sojourn report ")


def test_whatever_lies_in_the_folder_the_page_is_answered(tmp_path: Path) -> None:
    """A pipe and an endless device in place of files, and a status that somebody edited."""
    os.mkfifo(tmp_path / "tasks.jsonl")
    os.mkfifo(tmp_path / "summary.json")
    (tmp_path / "events.log").symlink_to("/dev/zero")
    (tmp_path / "history.jsonl").symlink_to("/dev/zero")
    (tmp_path / "tune.json").write_text("[" * 100_000)
    watcher = Watcher(tmp_path)
    for status in ("{}", '{"phase": 1}', '{"phase": "running", "clients": [{}]}', "{", "[" * 9999):
        (tmp_path / "status.json").write_text(status)
        assert watcher.look()["state"] == "waiting"
    (tmp_path / "status.json").write_text('{"phase": "waiting for clients"}')
    assert watcher.look()["title"] == "Waiting for clients"


@pytest.mark.parametrize("missing", ["concurrency", "routing"])
def test_a_status_without_what_theory_needs_is_shown_without_theory(
    tmp_path: Path, missing: str
) -> None:
    Deployment(tmp_path, updates=60).run()
    path = tmp_path / "status.json"
    status = json.loads(path.read_text())
    assert Watcher(tmp_path).look()["clients"][0]["predicted"] is not None
    for table in (status, *status["clients"]):
        table.pop(missing, None)
    path.write_text(json.dumps(status))
    assert [client["predicted"] for client in Watcher(tmp_path).look()["clients"]] == [None] * len(
        status["clients"]
    )


def test_a_folder_that_is_not_there_yet_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sojourn.live.server.serve", lambda page, **_: page.server_close())
    look.watch(tmp_path / "run", open_browser=False)
    assert "run is not there yet: the page waits for it" in capsys.readouterr().out
