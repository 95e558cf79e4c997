"""Real Flower sessions for the tests: an app, a SuperLink, SuperNodes, and what a run left."""

import json
import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from sojourn.deployment.app import PACKAGE, write_app
from sojourn.deployment.checkpoint import restore_checkpoint
from sojourn.deployment.dispatcher import Dispatcher
from sojourn.deployment.local import LocalFlower
from sojourn.deployment.processes import descendants
from sojourn.deployment.status import read_status
from sojourn.rules import GeneralizedAsyncSGD
from tests.deployment import digits_task

HERE = Path(__file__).parent
LEARNING_RATE = 0.1
CONCURRENCY = 6


def make_app(folder: Path, client_app: str) -> Path:
    """The template, with a task for quick clients and clients that misbehave if told to."""
    write_app(folder)
    package = folder / PACKAGE
    (package / "task.py").write_text((HERE / "digits_task.py").read_text())
    (package / "client_app.py").write_text((HERE / f"{client_app}.py").read_text())
    return folder


class Session:
    """A LocalFlower with some clients, and runs of the digits app on it.

    ``configs`` is what the nodes of some clients are told, which ``client_app`` understands;
    ``environment`` is what Flower's processes find besides. With ``lasting`` the SuperLink keeps what
    it knows on disk, which takes it twice the time; ``resident`` clients stay between tasks.
    """

    def __init__(
        self,
        folder: Path,
        pauses: list[float],
        configs: dict[int, str] | None = None,
        client_app: str = "hostile_client_app",
        environment: dict[str, str] | None = None,
        *,
        lasting: bool = False,
        resident: bool = False,
    ) -> None:
        self.folder, self.pauses, self.configs = folder, pauses, configs or {}
        self.app = make_app(folder / "app", client_app)
        self.flower = LocalFlower(folder / "logs", environment=environment, resident=resident)
        self.kept = ("--database", str(folder / "flower.sqlite")) if lasting else ()

    def __enter__(self) -> "Session":
        try:
            self.start_superlink()
            for client in range(len(self.pauses)):
                self.start_client(client)
        except BaseException:
            self.flower.stop()
            raise
        return self

    def __exit__(self, *raised: object) -> None:
        self.flower.stop()

    def start_superlink(self) -> None:
        self.flower.start_superlink(("--insecure", *self.kept))

    def start_client(self, client: int) -> None:
        config = self.configs.get(client, "")
        self.flower.start_supernode(client, pause=self.pauses[client], config=config)

    def submit(self, run: Path, updates: int, *, clients: int = 3, **config: Any) -> int:
        """Start a run; nodes of clients beyond ``clients`` are strangers to it."""
        (run / "status.json").unlink(missing_ok=True)
        given = {
            "clients": clients,
            "updates": updates,
            "learning-rate": LEARNING_RATE,
            "concurrency": CONCURRENCY,
            "run-folder": str(run),
            "predict": False,
        }
        return self.flower.run(self.app, {**given, **config})

    def wait_for(self, run: Path, updates: int, seconds: float = 600.0) -> None:
        """Wait until so many updates were applied."""
        self._wait(run, lambda status: status.get("updates", 0) >= updates, seconds)

    def wait_until_finished(self, run: Path, seconds: float = 600.0) -> None:
        self._wait(run, lambda status: status["phase"] == "finished", seconds)

    def wait_while(self, run: Path, condition: Any, seconds: float = 600.0) -> None:
        self._wait(run, lambda status: not condition(status), seconds)

    def _wait(self, run: Path, condition: Any, seconds: float) -> None:
        def reached() -> bool:
            status = read_status(run)
            assert status is None or status["phase"] != "failed", status
            return status is not None and condition(status)

        self.flower.wait_until(reached, what=f"{run.name} did not get there", seconds=seconds)

    def kill_server(self) -> None:
        """SIGKILL to whatever runs the ServerApp."""
        servers = server_processes()
        assert servers, "no server process found"
        for process in servers:
            os.kill(process, signal.SIGKILL)

    def stop_run(self, number: int) -> None:
        """Ask Flower to stop a run, and wait until its server has ended."""
        self.flower.flwr("stop", str(number), "local")
        self.flower.wait_until(lambda: not server_processes(), what="the server goes on")


def server_processes() -> list[int]:
    """Whatever runs the ServerApp, started from here."""
    return [process for process in descendants([os.getpid()]) if runs_server(process)]


def runs_server(process: int) -> bool:
    """Whether that is its name; one that has ended and is not waited for has no command line."""
    with suppress(OSError):
        about = Path(f"/proc/{process}")
        name = (about / "comm").read_text().strip()
        return name == "flwr-serverapp" and bool((about / "cmdline").read_bytes())
    return False


def tasks_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "tasks.jsonl").read_text().splitlines()]


def status_of(run: Path) -> dict[str, Any]:
    status = read_status(run)
    assert status is not None
    return status


def check_accounts(run: Path, concurrency: int) -> None:
    """Every task ever routed is accounted for, and each update applied is a task of its own.

    The status of a run that was stopped may be a second older than its record of tasks.
    """
    status, tasks = status_of(run), tasks_of(run)
    counts = status["counts"]
    waiting = sum(client["waiting"] for client in status["clients"])
    if status["phase"] == "finished":
        assert len(tasks) == counts["used"]
    assert len(tasks) >= counts["used"]
    assert len(tasks) == len({task["task"] for task in tasks})
    assert [task["index"] for task in tasks] == list(range(len(tasks)))
    over = sum(counts[name] for name in ("used", "refused", "lost", "withdrawn"))
    in_flight = counts["routed"] - over
    assert in_flight + status["held"] == concurrency
    assert waiting >= in_flight


def events_of(run: Path) -> list[tuple[float, str, str]]:
    """When, what kind, and what was said, of every event."""
    lines = (run / "events.log").read_text().splitlines()
    return [(float(at), kind, said) for at, kind, said in (line.split("\t", 2) for line in lines)]


def last_checkpoint(run: Path, clients: int, concurrency: int) -> Dispatcher:
    """The server as it was at its last checkpoint."""
    dispatcher = Dispatcher(
        np.zeros(650, dtype=np.float32),
        rule=GeneralizedAsyncSGD(),
        routing=[1 / clients] * clients,
        concurrency=concurrency,
        learning_rate=LEARNING_RATE,
    )
    restore_checkpoint(run / "checkpoint.npz", dispatcher)
    return dispatcher


def replayed_weights(run: Path, clients: int) -> np.ndarray:
    """The model that the tasks in the record make, each applied once, in their order."""
    problems = [digits_task.Softmax(x, y) for x, y in digits_task.shares(clients)]
    versions = [problems[0].initial_weights()]
    for task in tasks_of(run):
        sent = versions[task["version"]]
        _, gradient = problems[task["client"]].loss_and_gradient(sent, 0, 0, 0)
        step = LEARNING_RATE / (task["clients"] * task["probability"])
        used = gradient.astype(np.float32)
        if task["scale"] != 1.0:
            used = used * np.float32(task["scale"])
        versions.append(versions[-1] - step * used)
    return versions[-1]


def check_none_is_left(folder: Path, seconds: float = 60.0) -> None:
    """Flower's processes with a home inside ``folder`` end by themselves."""
    patience = time.monotonic() + seconds
    while (left := flower_processes(folder)) and time.monotonic() < patience:
        time.sleep(0.1)
    assert left == []


def flower_processes(folder: Path) -> list[str]:
    """The commands that still run with a Flower home inside ``folder``."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environment = (process / "environ").read_bytes()
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if f"\0FLWR_HOME={folder}".encode() in b"\0" + environment:
            found.append(command)
    return found
