"""Flower on this machine: what is said when a program of it ends, and how it is stopped."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from sojourn.cli.deploy import _check_results
from sojourn.deployment import local
from sojourn.deployment.flower.apps import client_app
from sojourn.deployment.flower.transport import FlowerTransport
from sojourn.deployment.local import LocalFlower, _computing_as_a_process, follow
from sojourn.deployment.run import serve
from sojourn.deployment.settings import read_settings
from sojourn.errors import InvalidInput, SojournError
from tests.deployment.fake_grid import FakeGrid, Node
from tests.deployment.test_processes import alive
from tests.deployment.test_server import problem
from tests.deployment.test_settings import LEAST

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]
END = [sys.executable, "-c", ""]

STUBBORN = """
import signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
sys.stdout.write("stubborn")
sys.stdout.flush()
time.sleep(600)
"""

INTERRUPTED = f"""
import sys, time
from pathlib import Path
from sojourn.deployment import local, processes
processes.GRACE_SECONDS = 2.0
logs = Path(sys.argv[1])
with local.LocalFlower(logs) as flower:
    child = flower.processes.start("stubborn", [sys.executable, "-c", {STUBBORN!r}])
    while (logs / "stubborn.log").read_text() != "stubborn":
        time.sleep(0.05)
    sys.stdout.write(f"{{child.pid}} {{flower.home}}\\n")
    sys.stdout.flush()
    time.sleep(600)
"""


@pytest.fixture(autouse=True)
def homes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def started(logs: Path, **commands: list[str]) -> LocalFlower:
    flower = LocalFlower(logs)
    for name, command in commands.items():
        flower.processes.start(name, command)
    return flower


@pytest.mark.parametrize(
    ("superlink", "node", "said"),
    [(END, SLEEP, "the SuperLink has ended"), (SLEEP, END, "all SuperNodes have ended")],
)
def test_a_run_that_cannot_go_on_is_given_up(
    tmp_path: Path, superlink: list[str], node: list[str], said: str
) -> None:
    with (
        started(tmp_path / "logs", superlink=superlink, node=node) as flower,
        pytest.raises(SojournError, match=said),
    ):
        follow(flower, 1, tmp_path, lambda status: None)


@pytest.mark.parametrize(
    ("written", "said"),
    [({"phase": "failed", "error": "the model has buffers"}, "has buffers"), (None, "Flower says")],
)
def test_the_reason_of_a_failure_is_told_that_came_while_flower_was_asked(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    written: dict[str, str] | None,
    said: str,
) -> None:
    """Flower takes seconds to say that a run is over, in which its server may say why."""
    monkeypatch.setattr(local, "SILENCE_SECONDS", 0.0)

    def run_status(_: LocalFlower, run: int) -> str:
        if written is not None:
            (tmp_path / "status.json").write_text(json.dumps(written))
        return "finished:failed"

    monkeypatch.setattr(LocalFlower, "run_status", run_status)
    with (
        started(tmp_path / "logs", superlink=SLEEP, node=SLEEP) as flower,
        pytest.raises(SojournError, match=said),
    ):
        follow(flower, 1, tmp_path, lambda status: None)


def test_the_last_error_of_a_server_is_said_and_its_log_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that cannot import its task writes no status."""
    said = "Traceback ...\nModuleNotFoundError: No module named 'x'\n\nFor more information, visit: y\n"
    monkeypatch.setattr(local, "SILENCE_SECONDS", 0.0)
    monkeypatch.setattr(LocalFlower, "run_status", lambda self, run: "finished:failed")
    monkeypatch.setattr(LocalFlower, "flwr", lambda self, *arguments: said)
    with (
        started(tmp_path / "logs", superlink=SLEEP, node=SLEEP) as flower,
        pytest.raises(
            SojournError, match=r"server.log: ModuleNotFoundError: No module named 'x'. Go on"
        ),
    ):
        follow(flower, 1, tmp_path, lambda status: None)
    assert (tmp_path / "logs" / "server.log").read_text() == said


def test_a_node_that_ended_is_shown(tmp_path: Path) -> None:
    shown: list[dict[str, Any]] = []
    (tmp_path / "status.json").write_text(json.dumps({"phase": "running"}))

    def show(status: dict[str, Any]) -> None:
        shown.append(status)
        if status["ended"]:
            (tmp_path / "status.json").write_text(json.dumps({"phase": "finished"}))

    with started(tmp_path / "logs", superlink=SLEEP, first=SLEEP, second=END) as flower:
        follow(flower, 1, tmp_path, show)
    assert shown[-1] == {"phase": "finished", "ended": ["second"]}


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_who_interrupts_twice_still_leaves_nothing(tmp_path: Path, second: signal.Signals) -> None:
    command = [sys.executable, "-c", INTERRUPTED, str(tmp_path / "logs")]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as parent:
        assert parent.stdout is not None
        child, home = parent.stdout.readline().split()
        parent.send_signal(signal.SIGINT)
        time.sleep(0.5)
        parent.send_signal(second)
        parent.communicate(timeout=240)
    assert not alive(int(child))
    assert not Path(home).exists()


def test_a_simulation_has_no_nodes_to_miss(tmp_path: Path) -> None:
    (tmp_path / "status.json").write_text(json.dumps({"phase": "running"}))
    seen: list[dict[str, Any]] = []

    def show(status: dict[str, Any]) -> None:
        seen.append(status)
        (tmp_path / "status.json").write_text(json.dumps({"phase": "finished"}))

    with started(tmp_path / "logs", superlink=SLEEP) as flower:
        follow(flower, 1, tmp_path, show)
    assert [status["phase"] for status in seen] == ["running", "finished"]


def test_what_was_interrupted_before_its_first_checkpoint_can_be_resumed(tmp_path: Path) -> None:
    results = tmp_path / "run"
    with pytest.raises(InvalidInput, match="no checkpoint"):
        _check_results(results, resume=True)
    (results / "logs").mkdir(parents=True)
    _check_results(results, resume=True)
    with pytest.raises(InvalidInput, match="--resume to go on"):
        _check_results(results, resume=False)


def test_beginning_anew_in_place_of_resuming_is_said(tmp_path: Path) -> None:
    config = {**LEAST, "run-folder": str(tmp_path), "resume": True}
    settings, grid, app = read_settings(config, tmp_path), FakeGrid(), client_app(problem)
    grid.nodes = {100 + client: Node(client, app, 1.0) for client in range(settings.clients)}
    transport = FlowerTransport(grid, clock=grid.clock, sleep=grid.sleep)
    serve(transport, problem, settings, clock=grid.clock)
    assert "no checkpoint yet: the run begins anew" in (tmp_path / "events.log").read_text()
    assert json.loads((tmp_path / "status.json").read_text())["phase"] == "finished"


def test_clients_in_one_process_round_as_processes_do() -> None:
    """PyTorch sums with as many threads as it has, and rounds accordingly; a client's process has one."""
    before, seen = torch.get_num_threads(), []
    torch.set_num_threads(2)
    try:
        with _computing_as_a_process():
            client = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
            client.start()
            client.join()
        assert (seen, torch.get_num_threads()) == ([1], 2)
    finally:
        torch.set_num_threads(before)
