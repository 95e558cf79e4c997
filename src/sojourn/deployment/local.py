"""A whole Flower deployment on this machine: SuperLink, SuperNodes, one run."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sojourn.deployment.app import load_problem
from sojourn.deployment.processes import Processes, free_port, handling, listens
from sojourn.deployment.settings import PARTITION, PAUSE
from sojourn.deployment.status import ENDED, RunStatus, read_status
from sojourn.errors import InvalidInput, SojournError

if TYPE_CHECKING:
    from sojourn.deployment.settings import Settings

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
"""Flower asks nobody outside, and installs nothing."""

FASTER_POLLING = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.6"}
"""Flower looks for tasks to start once a second otherwise."""
SUPERLINK = "superlink"
SERVER_LOG = "server.log"
START_SECONDS = 300.0
"""Long, for a busy machine; what has ended is not waited for."""
SILENCE_SECONDS = 20.0
"""Without news from the server, after which Flower is asked whether it still runs."""


class LocalFlower:
    """SuperLink and SuperNodes on loopback, on free ports, with a Flower home of their own.

    With ``resident`` clients are those of ``sojourn client``, which stay between tasks; without,
    Flower starts a process for each task. Use it as a context manager: on leaving, however it is
    left, everything it started is ended.
    """

    def __init__(
        self,
        logs: Path,
        *,
        environment: Mapping[str, str] | None = None,
        resident: bool = False,
    ) -> None:
        self.resident = resident
        self.home = Path(tempfile.mkdtemp(prefix="sojourn-flower-"))
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        scripts = str(Path(sys.executable).parent)
        self.environment = {
            **os.environ,
            **FASTER_POLLING,
            **QUIET,
            "PATH": f"{scripts}{os.pathsep}{os.environ.get('PATH', '')}",
            "FLWR_HOME": str(self.home),
            "OMP_NUM_THREADS": "1",
            **(environment or {}),
        }
        self.processes = Processes(self.environment, logs)
        self.configure({"address": self.address, "insecure": True})

    def configure(self, connection: Mapping[str, object]) -> None:
        """Say how the ``flwr`` command reaches the SuperLink."""
        lines = [f"{key} = {json.dumps(value)}" for key, value in connection.items()]
        text = "\n".join(['[superlink]\ndefault = "local"', "[superlink.local]", *lines, ""])
        (self.home / "config.toml").write_text(text, encoding="utf-8")

    def start_superlink(
        self, arguments: Sequence[str] = ("--insecure",), *, host: str = "127.0.0.1"
    ) -> None:
        """Start the SuperLink, on loopback unless another ``host`` is given, until it listens."""
        command = ["flower-superlink", *arguments, "--host", host, "--port", str(self.port)]
        child = self.processes.start(SUPERLINK, command)
        self.wait_until(
            lambda: listens(self.port),
            what="the SuperLink did not start",
            alive=lambda: child.poll() is None,
        )

    def start_supernode(
        self,
        client: int,
        *,
        name: str | None = None,
        pause: float = 0.0,
        config: str = "",
        arguments: Sequence[str] = ("--insecure",),
    ) -> None:
        """Start the SuperNode of a client, which sleeps ``pause`` seconds in every task.

        ``config`` is added to the node's configuration, ``arguments`` to the command.
        """
        settings = f"{PARTITION}={client} {PAUSE}={float(pause)!r} {config}".strip()
        command = self.supernode_command([*arguments, "--node-config", settings])
        self.processes.start(name or f"client-{client}", command)

    def supernode_command(
        self, arguments: Sequence[str], *, superlink: str | None = None
    ) -> list[str]:
        """What starts a SuperNode that reaches the SuperLink at its own address, or at another."""
        command = [*arguments, "--superlink", superlink or self.address]
        if self.resident:
            return [sys.executable, "-m", "sojourn", "client", *command]
        return ["flower-supernode", *command, "--port", str(free_port())]

    def run(self, app: Path, config: Mapping[str, object], arguments: Sequence[str] = ()) -> int:
        """Submit a run of the app, with ``config`` over its own; the number of the run."""
        pairs = " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())
        said = self.flwr(
            "run", str(app), "local", "--run-config", pairs, *arguments, "--format", "json"
        )
        answer = _json_in(said)
        if not answer.get("success"):
            raise SojournError(f"Flower did not take the app: {answer.get('error-message', said)}")
        return int(answer["run-id"])

    def run_status(self, run: int) -> str:
        """What Flower says about a run, such as ``running`` or ``finished:failed``."""
        said = _json_in(self.flwr("list", "local", "--run-id", str(run), "--format", "json"))
        runs = said.get("runs") or [{}]
        return str(runs[0].get("status", "unknown"))

    def save_server_log(self, run: int) -> str:
        """Write what the server of a run printed beside the other logs; the last error in it, if any.

        Flower keeps it in the SuperLink's memory.
        """
        try:
            said = self.flwr("log", str(run), "local", "--show")
        except subprocess.TimeoutExpired:
            return ""
        (self.processes.logs / SERVER_LOG).write_text(said, encoding="utf-8")
        errors = re.findall(r"^[\w.]*(?:Error|Exception)\b.*", said, re.MULTILINE)
        return errors[-1].strip()[:500] if errors else ""

    def flwr(self, *arguments: str) -> str:
        """Run the ``flwr`` command; what it printed."""
        done = subprocess.run(
            ["flwr", *arguments],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
        )
        return done.stdout or done.stderr

    def wait_until(
        self,
        condition: Callable[[], bool],
        *,
        what: str,
        seconds: float = START_SECONDS,
        alive: Callable[[], bool] = lambda: True,
    ) -> None:
        """Wait for ``condition``; ``what`` is said if it does not come true."""
        patience = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > patience or not alive():
                raise SojournError(f"{what}: see the logs in {self.processes.logs}")
            time.sleep(0.1)

    def stop(self) -> None:
        """End everything, and remove Flower's home; who interrupts again has to wait."""
        with handling(signal.SIG_IGN, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            self.processes.stop()
            shutil.rmtree(self.home, ignore_errors=True)

    def __enter__(self) -> "LocalFlower":
        return self

    def __exit__(self, *raised: object) -> None:
        self.stop()


def run_in_process(
    app: Path,
    settings: "Settings",
    pauses: Sequence[float],
    show: Callable[[RunStatus], None],
) -> bool:
    """Run an app with clients as threads of this process, without Flower, and show how it stands.

    False if it was asked to stop before its end; then there is a checkpoint to resume from.
    """
    from sojourn.deployment.inprocess import InProcessTransport
    from sojourn.deployment.run import serve

    problem, over = load_problem(app), threading.Event()
    show({"phase": f"starting {len(pauses)} clients in this process"})

    def keep_showing() -> None:
        last = None
        while not over.wait(0.2):
            if (status := read_status(settings.run_folder)) is not None and status != last:
                last = status
                show(status)

    threading.Thread(target=keep_showing, daemon=True).start()
    paces = [lambda seconds=seconds: seconds for seconds in pauses]
    try:
        with (
            _computing_as_a_process(),
            InProcessTransport(problem, paces, config=settings.task) as transport,
        ):
            return serve(transport, problem, settings)
    finally:
        over.set()


@contextmanager
def _computing_as_a_process() -> Iterator[None]:
    """Have PyTorch use one thread, as the processes of `LocalFlower` do: then the weights are the same.

    How a sum is rounded depends on the number of threads. A task that has not imported PyTorch by now
    need not have it.
    """
    if "torch" not in sys.modules:
        yield
        return
    from sojourn.training.experiment.jobs import using_threads

    with using_threads(1):
        yield


def follow(flower: LocalFlower, run: int, folder: Path, show: Callable[[RunStatus], None]) -> None:
    """Show how a run stands, and which programs have ended, until it is over; raises if it failed."""
    heard_at, last = time.monotonic(), None
    while True:
        status, ended = read_status(folder), flower.processes.dead()
        if status is not None and (status, ended) != last:
            heard_at, last = time.monotonic(), (status, ended)
            show({**status, "ended": ended})
            if status["phase"] == "finished":
                return
            if status["phase"] == "failed":
                raise InvalidInput(status["error"])
            if status["phase"] == "stopped":
                raise SojournError("the server was asked to stop. Go on with --resume.")
        if SUPERLINK in ended or len(ended) == len(flower.processes) - 1 > 0:
            who = "the SuperLink has" if SUPERLINK in ended else "all SuperNodes have"
            raise SojournError(
                f"{who} ended; the logs in {flower.processes.logs} say why. Go on with --resume."
            )
        if time.monotonic() - heard_at > SILENCE_SECONDS:
            heard_at = time.monotonic()
            said = flower.run_status(run)
            if said.startswith("finished"):
                status = read_status(folder)  # Flower takes seconds to answer
                if status is not None and status["phase"] in ENDED:
                    continue
                reason = flower.save_server_log(run)
                raise SojournError(
                    f"the server ended without finishing the run (Flower says {said}); see "
                    f"{flower.processes.logs / SERVER_LOG}{f': {reason}' if reason else ''}. Go on "
                    "with --resume."
                )
        time.sleep(0.2)


def _json_in(text: str) -> dict[str, Any]:
    try:
        answer: dict[str, Any] = json.loads(text[text.index("{") :])
    except ValueError as error:
        raise SojournError(f"Flower answered what cannot be read: {text.strip()[:500]}") from error
    return answer
