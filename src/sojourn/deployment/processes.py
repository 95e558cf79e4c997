"""Child processes that never outlive their parent's interest in them."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TypeAlias

GRACE_SECONDS = 6.0

Handler: TypeAlias = Callable[[int, FrameType | None], object] | signal.Handlers

TIED = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGTERM)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
os.execvp(sys.argv[2], sys.argv[2:])
"""
"""Becomes the command in its arguments, having asked Linux (``PR_SET_PDEATHSIG`` is 1) for a
polite kill when its parent dies, in whatever way; it may have died already."""


class Processes:
    """Starts children, each the leader of a process group of its own, and ends them all.

    Ending a child ends its group and its descendants, and so whatever it has started, even what has
    moved to a group of its own. Nothing else is ever signalled. On Linux children end politely by
    themselves if this process is killed.
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
                [*tied(), *command],
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

    def __len__(self) -> int:
        return len(self._children)

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

    def __exit__(self, *raised: object) -> None:
        self.stop()


@contextmanager
def handling(handler: Handler, *numbers: signal.Signals) -> Iterator[None]:
    """Within, these signals go to ``handler``.

    Only the main thread can see to that, and only it is ever disturbed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)


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


def descendants(ancestors: Iterable[int]) -> set[int]:
    """Every process that one of ``ancestors`` has started, directly or not, and that still runs."""
    import psutil  # not above: writing an app needs none of the extra's libraries

    found: set[int] = set()
    for ancestor in ancestors:
        with suppress(psutil.Error):
            found |= {child.pid for child in psutil.Process(ancestor).children(recursive=True)}
    return found


def tied() -> list[str]:
    """What to put before a command so that it ends with this process; nothing but on Linux."""
    if sys.platform != "linux":
        return []
    return [sys.executable, "-I", "-S", "-c", TIED, str(os.getpid())]


def _signal_group(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
