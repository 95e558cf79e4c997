"""The command as a user types it, each time in a process of its own, without importing it anew.

A process that has imported all that the commands need waits for command lines and forks for each:
the child has the folder, environment, arguments, output and exit code that ``python -m sojourn``
would have there, and saves the seconds that imports take.
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import sojourn as sj
from tests.compiling_once import compile_one_at_a_time

ROOT = Path(__file__).resolve().parents[1]
IMPORTED = [
    "matplotlib.pyplot",
    "sojourn.cli",
    "sojourn.planning.plan",
    "sojourn.report.plan",
    "sojourn.report.runs",
    "sojourn.training.experiment",
    "sojourn.tuning",
    "torch",
]
OUTPUTS = ("stdout", "stderr")
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
        self._orders, self._answers = server.stdin, server.stdout

    @classmethod
    @contextlib.contextmanager
    def started(cls) -> Iterator["Commands"]:
        with subprocess.Popen(
            [sys.executable, "-m", __name__],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as server:
            yield cls(server)

    def start(
        self, folder: Path, *arguments: str, module: str = "sojourn", **environment: str
    ) -> "Started":
        """``sojourn ARGUMENTS``, or another module, in ``folder``, which goes on by itself."""
        where = Path(tempfile.mkdtemp(dir=folder, prefix=".said-"))
        return Started(self, self._begin(folder, where, arguments, environment, module), where)

    def run(self, folder: Path, *arguments: str, **environment: str) -> Finished:
        """``sojourn ARGUMENTS`` in ``folder``, wide enough that nothing wraps."""
        with tempfile.TemporaryDirectory() as where:
            child = self._begin(folder, Path(where), arguments, environment)
            try:
                code = self.ask("wait", child)
            except BaseException:  # given up by a timeout: the next command has its own answer
                os.kill(child, signal.SIGKILL)
                self._answers.readline()
                raise
            assert code is not None
            return finished(code, Path(where))

    def said(self, folder: Path, *arguments: str, **environment: str) -> str:
        """All that ``sojourn ARGUMENTS`` says in ``folder``, in the order in which it is said."""
        with tempfile.TemporaryDirectory() as where:
            together = Path(where, OUTPUTS[0])
            (Path(where) / OUTPUTS[1]).symlink_to(together)
            self.ask("wait", self._begin(folder, Path(where), arguments, environment))
            return together.read_text(encoding="utf-8")

    def _begin(
        self,
        folder: Path,
        where: Path,
        arguments: tuple[str, ...],
        environment: dict[str, str],
        module: str = "sojourn",
    ) -> int:
        variables = {**os.environ, **WIDE, **environment}
        outputs = [str(where / name) for name in OUTPUTS]
        child = self.ask("begin", module, arguments, str(folder), outputs, variables)
        assert child is not None
        return child

    def ask(self, *order: object) -> int | None:
        """The number that the process answers; ``None`` for a child that has not ended."""
        self._orders.write(json.dumps(order) + "\n")
        self._orders.flush()
        said = self._answers.readline().strip()
        return int(said) if said else None


class Started:
    """A command that goes on by itself; what it says is in files in ``where``."""

    def __init__(self, commands: Commands, pid: int, where: Path) -> None:
        self._commands, self.pid, self._where = commands, pid, where
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Its exit code, if it has ended."""
        if self.returncode is None:
            self.returncode = self._commands.ask("poll", self.pid)
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        """Signal it, unless it has ended; until it is asked for its code, its number is its own."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self) -> Finished:
        """How it ended, once it has."""
        while self.poll() is None:
            time.sleep(0.01)
        assert self.returncode is not None
        return finished(self.returncode, self._where)


def finished(code: int, where: Path) -> Finished:
    return Finished(code, *((where / name).read_text(encoding="utf-8") for name in OUTPUTS))


def serve() -> None:
    """Fork for every command; say the child's number, and when it is asked for, its exit code.

    Children that are left in the end are killed.
    """
    children: set[int] = set()
    for name in IMPORTED:
        with contextlib.suppress(ImportError):  # a base installation has no torch
            importlib.import_module(name)
    compile_one_at_a_time()
    load_kernels()
    assert threading.active_count() == 1
    gc.freeze()  # what forks share is not looked at, and so not copied, by their collectors
    with os.fdopen(0, "rb", buffering=0) as orders:
        for line in iter(orders.readline, b""):
            kind, *order = json.loads(line)
            if kind == "begin":
                importlib.import_module(order[0])
                child = os.fork()
                if child == 0:
                    become(*order)
                children.add(child)
                os.write(1, f"{child}\n".encode())
                continue
            child, status = os.waitpid(order[0], os.WNOHANG if kind == "poll" else 0)
            children.discard(child)
            os.write(1, f"{os.waitstatus_to_exitcode(status) if child else ''}\n".encode())
    for child in children:
        os.kill(child, signal.SIGKILL)


def load_kernels() -> None:
    """Have what is compiled loaded, as it is by the first use."""
    network = sj.Network(sj.built_in_fleet("twenty"), [0.05] * 20, concurrency=5)
    sj.analyze(network)
    sj.replicate(network, rounds=200, replicates=2, seed=0, workers=1)
    sj.plan(network.fleet, sj.NoiseRate(), concurrency=5)


def become(
    module: str,
    arguments: list[str],
    folder: str,
    outputs: list[str],
    environment: dict[str, str],
) -> None:
    """Be the command, and end as it does, but for taking every imported module down again.

    Executors shut down with the threads, before anything registered with ``atexit`` waits for them.
    """
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for stream, path in enumerate(outputs, start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.path[0] = folder
    sys.argv = [module, *arguments]
    code: object = 0
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
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
