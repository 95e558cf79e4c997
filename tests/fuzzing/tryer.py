"""A process that imports once and runs many inputs.

It may use little memory, and is killed and started again if an input keeps it busy without a word.
Busy is what its processor time says, so that a slow or crowded machine is not taken for a hang.
"""

import contextlib
import json
import locale
import multiprocessing as mp
import os
import resource
import shutil
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPConnection
from multiprocessing.connection import Connection
from pathlib import Path

from sojourn.live.server import TOKEN_HEADER, LocalServer
from tests.fuzzing.folders import made_folders
from tests.fuzzing.inputs import Case
from tests.fuzzing.values import CONSTANTS, EXPERIMENT, FLEET, LOG, ROUTING, TRACE

SILENT_PROCESSOR_SECONDS = 20.0
"""Without a word. Twice ten seconds: libraries use both of two cores."""
BUSY_PROCESSOR_SECONDS = 60.0
"""In all, for work that is long and says so: then it is ended."""
SILENT_SECONDS = 180.0
"""For what waits and does not compute, such as for a pipe, however crowded the machine."""
LENIENT = "backslashreplace"
"""As standard error is written."""
IN_ASCII = locale.getpreferredencoding(False).lower() in ("ascii", "us-ascii", "ansi_x3.4-1968")
ENCODING, ERRORS = ("ascii", "strict") if IN_ASCII else ("utf-8", LENIENT)
"""What the terminal can show: nothing but ASCII, in a locale that says so."""
MOST_BYTES = 12 * 2**30
SPARE = os.environ.get("FUZZING_SPARE_MEGABYTES")
"""How much memory commands may take beside what is imported, if it is little."""


@dataclass(frozen=True)
class Outcome:
    """How it ended: ``code`` is ``None`` for what should not happen, which ``error`` then tells."""

    code: int | None
    error: str
    left_over: tuple[str, ...] = ()


class Tryer:
    """Runs cases in a process of its own, each in a fresh folder."""

    def __init__(self) -> None:
        self._context = mp.get_context("fork")
        self._process: mp.process.BaseProcess | None = None
        self._pipe: Connection | None = None

    def __enter__(self) -> "Tryer":
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def run(self, case: Case) -> Outcome:
        """Try it; no word for so long counts as a failure."""
        if self._process is None or not self._process.is_alive():
            self._start()
        assert self._pipe is not None
        folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
        try:
            _furnish(folder, case)
            said = folder / ".said"
            self._pipe.send((case.arguments, str(folder)))
            gave_up = self._waits(said)
            if gave_up is not None:
                self._stop()
                return gave_up
            try:
                code, error = self._pipe.recv()
            except (EOFError, ConnectionResetError):
                self._stop()
                return Outcome(None, "the process died")
            left = tuple(str(p.relative_to(folder)) for p in folder.rglob(".*") if p != said)
            return Outcome(code, error, left)
        finally:
            _unlock(folder)
            shutil.rmtree(folder, ignore_errors=True)

    def _waits(self, said: Path) -> Outcome | None:
        """How it is given up: silent for too long, or busy and saying so; ``None`` if it ended."""
        assert self._pipe is not None and self._process is not None
        first = last = _processor_seconds(self._process.pid)
        spoke, words = time.monotonic(), 0
        while not self._pipe.poll(0.2):
            used, now = _processor_seconds(self._process.pid), time.monotonic()
            size = said.stat().st_size if said.exists() else 0
            if size != words:
                spoke, words, last = now, size, used
            if used - last > SILENT_PROCESSOR_SECONDS or now - spoke > SILENT_SECONDS:
                return None if self._pipe.poll(0) else Outcome(None, "silent for too long")
            if used - first > BUSY_PROCESSOR_SECONDS:
                return None if self._pipe.poll(0) else Outcome(0, "busy, and says so")
        return None

    def _start(self) -> None:
        ours, theirs = self._context.Pipe()
        self._process = self._context.Process(target=_serve, args=(theirs,), daemon=True)  # type: ignore[attr-defined]
        self._process.start()
        theirs.close()
        self._pipe = ours

    def _stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = None


def prepare() -> None:
    """What the processes share: run folders to spoil, and libraries that take seconds to import."""
    import sojourn.planning
    import sojourn.training.experiment.run  # noqa: F401
    from sojourn._support.memory import reserve_for_linear_algebra

    reserve_for_linear_algebra()  # so that it is no part of what is left to spare
    made_folders()


def _processor_seconds(process: int | None) -> float:
    try:
        fields = (
            Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        )
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _furnish(folder: Path, case: Case) -> None:
    (folder / "fleet.csv").write_text(FLEET)
    (folder / "routing.csv").write_text(ROUTING)
    (folder / "trace.csv").write_text(TRACE)
    (folder / "log.csv").write_text(LOG)
    (folder / "constants.toml").write_text(CONSTANTS)
    (folder / "experiment.toml").write_text(EXPERIMENT)
    (folder / "binary.csv").write_bytes(bytes(range(256)) * 8)
    (folder / "binary.toml").write_bytes(bytes(range(256)) * 8)
    (folder / "empty.csv").touch()
    (folder / "empty.toml").touch()
    (folder / "folder.csv").mkdir()
    os.mkfifo(folder / "fifo.csv")
    os.mkfifo(folder / "fifo.toml")
    made = made_folders()
    for name in case.folders:
        for path, content in made[name].items():
            place = folder / name / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
    (folder / "plan.toml").write_bytes(made["planned"]["plan.toml"])
    for name, given in case.files.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.unlink(missing_ok=True)
        if given is None:
            os.mkfifo(place)
        else:
            place.write_bytes(given)
    (folder / "locked").mkdir(mode=0o500)


def _unlock(folder: Path) -> None:
    with contextlib.suppress(OSError):
        (folder / "locked").chmod(0o700)


def _ask(server: LocalServer, *, open_browser: bool, say: Callable[[str], None]) -> None:
    """Ask a page's server, over its port, what lies in the folder ``ask``, and how things look."""
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        named = [(path.name, path.read_bytes()) for path in sorted(Path("ask").glob("*"))]
        for name, question in [*named, ("look", b"{}"), ("look", b"{}")]:
            http = HTTPConnection("127.0.0.1", server.server_port, timeout=SILENT_SECONDS)
            http.request("POST", f"/api/{name}", question, {TOKEN_HEADER: server.token})
            reply = http.getresponse()
            text = reply.read().decode()
            http.close()
            if reply.status not in (200, 400, 404, 422):
                raise RuntimeError(f"{name}: {reply.status} {text}")
            json.loads(text, parse_constant=_not_json)
            say(text[:1000])
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _not_json(word: str) -> None:
    raise RuntimeError(f"{word} is no JSON")


def _own_bytes() -> int:
    pages = Path("/proc/self/statm").read_text(encoding="utf-8").split()[0]
    return int(pages) * resource.getpagesize()


def _limit_memory(most: int) -> None:
    """For each case anew: what those before it left behind is no part of what it may take."""
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))


def _serve(pipe: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**28, 2**28))
    from sojourn.__main__ import main
    from sojourn.live import server

    server.serve = _ask  # what else would serve for ever
    warnings.resetwarnings()  # as in a program of its own, not as in the tests
    while True:
        arguments, folder = pipe.recv()
        os.chdir(folder)
        sys.argv = ["sojourn", *arguments]
        code: int | None = 0
        error = ""
        with (
            Path(folder, ".said").open("w", buffering=1, encoding=ENCODING, errors=ERRORS) as said,
            contextlib.redirect_stdout(said),
            contextlib.redirect_stderr(said),
        ):
            try:
                _limit_memory(MOST_BYTES if SPARE is None else _own_bytes() + int(SPARE) * 2**20)
                main()
            except SystemExit as exit_:
                code = exit_.code if isinstance(exit_.code, int) else 0
            except BaseException:
                _limit_memory(resource.RLIM_INFINITY)
                code, error = None, traceback.format_exc(limit=-6)
            finally:
                _limit_memory(resource.RLIM_INFINITY)
        error = error or Path(folder, ".said").read_text(encoding="utf-8")[-2000:]
        os.chdir("/")
        pipe.send((code, error))
