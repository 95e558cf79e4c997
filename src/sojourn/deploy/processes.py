"""Child processes that never outlive their parent's interest in them."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

GRACE_SECONDS = 6.0


class Processes:
    """Starts children, each the leader of a process group of its own, and ends them all.

    Ending a child ends its group and its descendants, and so whatever it has started, even what has
    moved to a group of its own. Nothing else is ever signalled.
    """

    def __init__(self, environment: Mapping[str, str], logs: Path) -> None:
        self.environment = dict(environment)
        self.logs = logs
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._offspring: set[int] = set()
        logs.mkdir(parents=True, exist_ok=True)

    def start(self, name: str, command: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start ``command``; what it says goes to ``<logs>/<name>.log``."""
        with (self.logs / f"{name}.log").open("ab") as log:
            child = subprocess.Popen(
                list(command),
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._children[name] = child
        return child

    def __getitem__(self, name: str) -> subprocess.Popen[bytes]:
        return self._children[name]

    def dead(self) -> list[str]:
        """The names of children that have ended."""
        return [name for name, child in self._children.items() if child.poll() is not None]

    def kill(self, name: str) -> None:
        """Kill a child at once, and its group; what is left of its offspring ends with `stop`."""
        child = self._children.pop(name)
        self._offspring |= descendants([child.pid])
        _signal_group(child.pid, signal.SIGKILL)
        child.wait()

    def stop(self) -> None:
        """End every child and all its offspring: politely, and after some seconds at once."""
        children = list(self._children.values())
        groups = [child.pid for child in children]
        offspring = self._offspring | descendants(groups)
        for group in groups:
            _signal_group(group, signal.SIGTERM)
        patience = time.monotonic() + GRACE_SECONDS
        for child in children:
            with suppress(subprocess.TimeoutExpired):
                child.wait(max(0.0, patience - time.monotonic()))
        offspring |= descendants([*groups, *offspring])
        for group in groups:
            _signal_group(group, signal.SIGKILL)
        for process in offspring:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        for child in children:
            child.wait()
        self._children.clear()
        self._offspring.clear()

    def __enter__(self) -> "Processes":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def free_port() -> int:
    """A port on loopback that nobody uses at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def listens(port: int) -> bool:
    """Whether somebody answers on a port of loopback."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def descendants(ancestors: Sequence[int]) -> set[int]:
    """Every process that one of ``ancestors`` has started, directly or not, and that still runs."""
    table = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True)
    children: dict[int, list[int]] = {}
    for line in table.stdout.splitlines():
        process, parent = (int(field) for field in line.split())
        children.setdefault(parent, []).append(process)
    found: set[int] = set()
    waiting = list(ancestors)
    while waiting:
        fresh = [process for process in children.get(waiting.pop(), []) if process not in found]
        found.update(fresh)
        waiting += fresh
    return found


def _signal_group(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
