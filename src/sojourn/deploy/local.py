"""A whole Flower deployment on this machine: SuperLink, SuperNodes, and one run of an app."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sojourn.config import parse_toml
from sojourn.deploy.processes import Processes, free_port, listens, undisturbed
from sojourn.deploy.settings import PARTITION, PAUSE
from sojourn.errors import InvalidFile, InvalidInput, SojournError
from sojourn.files import read_text
from sojourn.runfolder import RunFolder

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
"""Flower asks nobody outside, and installs nothing."""

FASTER_POLLING = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.6"}
SUPERLINK = "superlink"
START_SECONDS = 300.0
"""Long, for a busy machine; what has ended is not waited for."""
SILENCE_SECONDS = 20.0


class LocalFlower:
    """SuperLink and SuperNodes on loopback, on free ports, with a Flower home of their own.

    Use it as a context manager: on leaving, however it is left, everything it started is ended.
    """

    def __init__(self, logs: Path, *, environment: Mapping[str, str] | None = None) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="sojourn-flower-"))
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        scripts = str(Path(sys.executable).parent)
        settings = {
            "PATH": f"{scripts}{os.pathsep}{os.environ.get('PATH', '')}",
            "FLWR_HOME": str(self.home),
            "OMP_NUM_THREADS": "1",
        }
        self.environment = {
            **os.environ,
            **FASTER_POLLING,
            **settings,
            **QUIET,
            **(environment or {}),
        }
        self.processes = Processes(self.environment, logs)
        self.configure({"address": self.address, "insecure": True})

    def configure(self, connection: Mapping[str, Any]) -> None:
        """Say how the ``flwr`` command reaches the SuperLink."""
        lines = [f"{key} = {json.dumps(value)}" for key, value in connection.items()]
        text = "\n".join(['[superlink]\ndefault = "local"', "[superlink.local]", *lines, ""])
        (self.home / "config.toml").write_text(text, encoding="utf-8")

    def start_superlink(self, arguments: Sequence[str] = ("--insecure",)) -> None:
        """Start the SuperLink and wait until it listens."""
        command = ["flower-superlink", *arguments, "--host", "127.0.0.1", "--port", str(self.port)]
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
        command = ["flower-supernode", *arguments, "--superlink", self.address]
        command += ["--port", str(free_port()), "--node-config", settings]
        self.processes.start(name or f"client-{client}", command)

    def run(self, app: Path, config: Mapping[str, Any], arguments: Sequence[str] = ()) -> int:
        """Submit a run of the app, with ``config`` over its own; the number of the run."""
        pairs = " ".join(f"{key}={_toml(value)}" for key, value in config.items())
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
        with undisturbed():
            self.processes.stop()
            shutil.rmtree(self.home, ignore_errors=True)

    def __enter__(self) -> "LocalFlower":
        return self

    def __exit__(self, *raised: object) -> None:
        self.stop()


def app_config(app: Path) -> dict[str, Any]:
    """The run configuration in an app's ``pyproject.toml``, nested keys joined by dots."""
    path = app / "pyproject.toml"
    try:
        text = read_text(path, encoding="utf-8")
    except InvalidFile as error:
        raise InvalidFile(f"{error}. Make an app with: sojourn deploy init DIR") from error
    config: Any = parse_toml(text, str(path))
    for name in ("tool", "flwr", "app", "config"):
        config = config.get(name) if isinstance(config, dict) else None
    if not isinstance(config, dict):
        raise InvalidFile(f"{path}: there is no [tool.flwr.app.config], so it is no app")
    return _flat(config)


def task_folder(app: Path) -> Path:
    """Where an app keeps ``task.py``, and the files that its configuration names."""
    found = sorted(app.glob("*/task.py"))
    if not found:
        raise InvalidFile(f"{app}: there is no task.py in it, so it is no app of Sojourn's")
    return found[0].parent


def read_status(folder: Path) -> dict[str, Any] | None:
    """How a run stands, if it has said so yet."""
    try:
        status: dict[str, Any] = json.loads(RunFolder(folder).status_path.read_text("utf-8"))
    except (OSError, json.JSONDecodeError):
        return None
    return status


def follow(
    flower: LocalFlower, run: int, folder: Path, show: Callable[[dict[str, Any]], None]
) -> None:
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
        if SUPERLINK in ended or len(ended) == len(flower.processes) - 1 > 0:
            who = "the SuperLink has" if SUPERLINK in ended else "all SuperNodes have"
            raise SojournError(
                f"{who} ended; the logs in {flower.processes.logs} say why. Go on with --resume."
            )
        if time.monotonic() - heard_at > SILENCE_SECONDS:
            heard_at = time.monotonic()
            said = flower.run_status(run)
            if said.startswith("finished"):
                raise SojournError(
                    f"the server ended without finishing the run (Flower says {said}); see the "
                    f"logs in {flower.processes.logs}. Go on with --resume."
                )
        time.sleep(0.2)


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def _toml(value: Any) -> str:
    return json.dumps(value)


def _json_in(text: str) -> dict[str, Any]:
    try:
        answer: dict[str, Any] = json.loads(text[text.index("{") :])
    except ValueError as error:
        raise SojournError(f"Flower answered what cannot be read: {text.strip()[:500]}") from error
    return answer
