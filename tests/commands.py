"""The command as a user types it, each time in a process of its own, without importing it anew.

A process that has imported all that the commands need waits for command lines and forks for each:
the child has the folder, environment, arguments, output and exit code that ``python -m sojourn``
would have there, and saves the seconds that imports take.
"""

import atexit
import contextlib
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import sojourn as sj

IMPORTED = [
    "matplotlib.pyplot",
    "sojourn.cli",
    "sojourn.planning.plan",
    "sojourn.planpage",
    "sojourn.reproduce.pages",
    "sojourn.train.experiment",
    "sojourn.tuning",
    "torch",
]
WIDE = {"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}


@dataclass(frozen=True)
class Finished:
    code: int
    out: str
    error: str


class Commands:
    """A process that waits for command lines."""

    def __init__(self, server: "subprocess.Popen[str]") -> None:
        assert server.stdin is not None
        assert server.stdout is not None
        self._orders, self._codes = server.stdin, server.stdout

    @classmethod
    @contextlib.contextmanager
    def started(cls) -> Iterator["Commands"]:
        with subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as server:
            yield cls(server)

    def run(self, folder: Path, *arguments: str, **environment: str) -> Finished:
        """``sojourn ARGUMENTS`` in ``folder``, wide enough that nothing wraps."""
        variables = {**os.environ, **WIDE, **environment}
        with tempfile.TemporaryDirectory() as where:
            said = [Path(where, name) for name in ("stdout", "stderr")]
            order = [arguments, str(folder), [str(path) for path in said], variables]
            self._orders.write(json.dumps(order) + "\n")
            self._orders.flush()
            child = None
            try:
                child = int(self._codes.readline())
                code = int(self._codes.readline())
            except BaseException:  # given up by a timeout: the next command has its own answer
                os.kill(child or int(self._codes.readline()), signal.SIGKILL)
                self._codes.readline()
                raise
            return Finished(code, *(path.read_text(encoding="utf-8") for path in said))


def serve() -> None:
    """Fork for every line of standard input; say the child's number, and its exit code in the end."""
    for name in IMPORTED:
        importlib.import_module(name)
    load_kernels()
    assert threading.active_count() == 1
    with os.fdopen(0, "rb", buffering=0) as orders:
        for line in iter(orders.readline, b""):
            child = os.fork()
            if child == 0:
                become(*json.loads(line))
            os.write(1, f"{child}\n".encode())
            _, status = os.waitpid(child, 0)
            os.write(1, f"{os.waitstatus_to_exitcode(status)}\n".encode())


def load_kernels() -> None:
    """Have what is compiled loaded, as it is by the first use."""
    network = sj.Network(sj.built_in_fleet("twenty"), [0.05] * 20, concurrency=5)
    sj.analyze(network)
    sj.replicate(network, rounds=200, replicates=2, seed=0, workers=1)
    sj.plan(network.fleet, sj.NoiseRate(), concurrency=5)


def become(
    arguments: list[str], folder: str, outputs: list[str], environment: dict[str, str]
) -> None:
    """Be the command, and end as it does, but for taking every imported module down again.

    Executors shut down with the threads, before anything registered with ``atexit`` waits for them.
    """
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for stream, path in enumerate(outputs, start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.path[0] = folder
    sys.argv = ["sojourn", *arguments]
    code: object = 0
    try:
        runpy.run_module("sojourn", run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        code = ended.code or 0
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 1)


if __name__ == "__main__":
    serve()
