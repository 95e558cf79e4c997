"""Killed at random moments, or left without disk, and run again: the result of a run left alone.

Processes are forked from one that has imported what takes seconds to import. How long a kill waits
is drawn up to about the time that a whole run takes, so most kills come in the middle of it; one
that comes too late does not count, and a fresh run is begun.
"""

import contextlib
import ctypes
import io
import json
import multiprocessing as mp
import os
import random
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sojourn._support import ledger
from sojourn.rules import Arrival
from sojourn.runs.folder import RunFolder
from tests.fuzzing.values import EXPERIMENT, FLEET
from tests.small_claims import set_prices, use_small_claims

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
KEPT_OFTEN = EXPERIMENT.replace("checkpoint-seconds = 30.0", "checkpoint-seconds = 0.0")
SEVERAL_RATES = (
    KEPT_OFTEN.replace("learning-rate = 0.1", "learning-rate = [0.03, 0.1, 0.3]")
    .replace("batched = false", "batched = true\nlockstep = true")
    .replace("rounds = 12", "rounds = 200")
    .replace("evaluate-every = 6", "evaluate-every = 20")
)
"""Most of its time goes into pilots, in lockstep."""
DIFFERENT_EVERY_TIME = ("provenance", "seconds", "created", "elapsed_seconds")
UPDATES = 60


@dataclass(frozen=True)
class Work:
    """Something that can be killed: ``run`` does it in the current folder, ``result`` looks at it."""

    run: Callable[[], None]
    result: Callable[[], Any]
    experiment: str = KEPT_OFTEN


def _command(*arguments: str) -> None:
    from sojourn.cli import main

    sys.argv = ["sojourn", *arguments]
    main()


def _train() -> None:
    resume = ["--resume"] if Path("run/experiment.toml").exists() else []
    _command("train", "experiment.toml", "--out", "run", *resume)


def _reproduce() -> None:
    from sojourn.figures import matplotlib_figure

    use_small_claims(Path("claims").absolute())
    set_prices(Path("run"))
    matplotlib_figure.save_all = lambda *given, **more: []  # it would take most of the time
    _command("reproduce", "--out", "run", "--jobs", "1")


def _deployment(**config: Any) -> Any:
    from tests.deployment.test_server import Deployment

    Path("run").mkdir(exist_ok=True)
    settings = {"updates": UPDATES, "checkpoint-seconds": 0.5, **config}
    return Deployment(Path("run").absolute(), **settings)


def _deployed() -> None:
    _deployment(resume=Path("run/checkpoint.npz").exists()).server.run()


def _applied() -> list[int]:
    """The updates that the record says were used, of which the model is made to the bit.

    Whose they are depends on the clock, which goes on while nobody is there to look at it.
    """
    kept = _deployment(resume=True)
    lines = Path("run/tasks.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    tasks = [(record["client"], record["ordinal"]) for record in records]
    assert len({record["task"] for record in records}) == len(set(tasks)) == len(tasks)
    used = [record for record in records if record["used"]]
    np.testing.assert_array_equal(
        remade(used, kept.learnable, kept.dispatcher), kept.dispatcher.state.weights
    )
    kept.journal.close()
    return [record["index"] for record in used]


def remade(used: list[dict[str, Any]], problem: Any, server: Any) -> np.ndarray:
    """The model that the updates of a record make under a server's rule, computed from its tasks."""
    state = server.rule.begin(np.asarray(problem.initial_weights()).copy(), problem.clients)
    sent = {0: state.weights}
    for record in used:
        weights = sent[record["version"]]
        _, gradient = problem.loss_and_gradient(weights, record["client"], record["ordinal"], 0)
        arrival = Arrival(
            _scaled(np.asarray(gradient), record["scale"]),
            weights,
            client=record["client"],
            staleness=record["staleness"],
            share=record["probability"],
            divisor=record["divisor"],
        )
        state, _ = server.rule.apply(
            state,
            arrival,
            learning_rate=server.learning_rate,
            clients=problem.clients,
            concurrency=server.concurrency,
        )
        sent[state.version] = state.weights
    return state.weights


def _scaled(update: np.ndarray, scale: float) -> np.ndarray:
    return update if scale == 1.0 else (update * scale).astype(update.dtype)


def _files(*patterns: str) -> Callable[[], dict[str, Any]]:
    def read() -> dict[str, Any]:
        paths = [path for pattern in patterns for path in sorted(Path("run").glob(pattern))]
        return {str(path): _content(path) for path in paths}

    return read


def _content(path: Path) -> Any:
    if path.name == ledger.NAME:
        return _recorded(path.parent)
    if path.suffix != ".json":
        return path.read_bytes()
    return _lasting(json.loads(path.read_text(encoding="utf-8")))


def _recorded(folder: Path) -> dict[str, str | None]:
    """The files that the folder's ledger names, and how they differ: digests are of times, too."""
    lines = filter(None, (folder / ledger.NAME).read_text(encoding="utf-8").splitlines())
    names = {json.loads(line)["file"] for line in lines}
    return {name: ledger.Ledger(folder).difference(folder / name) for name in names}


def _lasting(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _lasting(v) for k, v in value.items() if k not in DIFFERENT_EVERY_TIME}
    return [_lasting(entry) for entry in value] if isinstance(value, list) else value


SIMULATE = ("simulate", "fleet.csv", "--concurrency", "5", "--rounds", "400000", "--out", "run")
WORKS = {
    "train": Work(_train, _files("history.jsonl", "cells/*.jsonl")),
    "pilots": Work(_train, _files("*.json", "history.jsonl", "cells/*.jsonl"), SEVERAL_RATES),
    "tune": Work(
        lambda: _command("tune", "experiment.toml", "--out", "run"),
        _files("tune.json", "history.jsonl"),
    ),
    "reproduce": Work(
        _reproduce, _files("*.json", "claim-*/*.json", "cells/**/*.json", "cells/**/*.jsonl")
    ),
    "simulate": Work(lambda: _command(*SIMULATE), _files("*.npy", "schedule.json")),
    "deployed server": Work(_deployed, _applied),
}


def _child(work: Work, folder: Path, prepare: Callable[[], None]) -> None:
    """What it says is kept in memory until its end, since a disk may be full or locked."""
    os.chdir(folder)
    said = os.open("said.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    text = io.StringIO()
    prepare()
    code = 0
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        try:
            work.run()
        except SystemExit as exit_:
            code = exit_.code if isinstance(exit_.code, int) else 0
        except KeyboardInterrupt:
            code = 130
        except Exception as error:
            from sojourn.errors import SojournError

            text.write(f"{type(error).__name__}: {error}\n")
            code = 2 if isinstance(error, SojournError | OSError) else 3
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    os.write(said, text.getvalue().encode())
    os._exit(code)


def _nothing() -> None:
    """No preparation: the disk is as it is."""


def _unprivileged() -> None:
    """Give up what opens every folder to root: CAP_DAC_OVERRIDE, in capset(2)."""
    libc = ctypes.CDLL(None, use_errno=True)
    header, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    assert libc.capget(header, sets) == 0
    sets[0] &= ~(1 << 1)
    assert libc.capset(header, sets) == 0


class Stage:
    """Where one kind of work is run again and again."""

    def __init__(self, work: Work, folder: Path) -> None:
        import sojourn.cli
        import sojourn.figures.matplotlib_figure
        import sojourn.report.runs
        import sojourn.training.experiment.run
        import sojourn.tuning.tune  # noqa: F401
        import tests.deployment.test_server  # noqa: F401

        self.work, self.folder = work, folder
        (folder / "fleet.csv").write_text(FLEET)
        (folder / "experiment.toml").write_text(work.experiment)

    def clear(self) -> None:
        shutil.rmtree(self.folder / "run", ignore_errors=True)
        (self.folder / "said.txt").unlink(missing_ok=True)

    def start(self, prepare: Callable[[], None] = _nothing) -> Any:
        process = mp.get_context("fork").Process(
            target=_child, args=(self.work, self.folder, prepare)
        )
        process.start()
        return process

    def finish(self, prepare: Callable[[], None] = _nothing) -> Any:
        """Run to the end; what came of it."""
        process = self.start(prepare)
        process.join()
        said = (self.folder / "said.txt").read_text(encoding="utf-8")
        assert process.exitcode == 0, said[-2000:]
        with contextlib.chdir(self.folder):
            return self.work.result()

    def check_sentence(self, code: int | None) -> None:
        """It went well, or it was said what was wrong."""
        said = (self.folder / "said.txt").read_text(encoding="utf-8")
        assert code in (0, 2), (code, said[-2000:])
        assert "Traceback" not in said, said[-3000:]
        assert code == 0 or said.strip(), "it ended without a word"


def check_kills(name: str, folder: Path, kills: int, seed: int) -> None:
    """Kill it ``kills`` times while it runs; results are compared on the way.

    How many found something written is said: `simulate` writes when all is computed.
    """
    draw = random.Random(seed)
    stage = Stage(WORKS[name], folder)
    whole = stage.finish()
    assert whole
    stage.clear()
    begun = time.monotonic()  # what is compiled has been by now
    assert stage.finish() == whole
    whole_seconds = lasted = time.monotonic() - begun
    stage.clear()
    hit = midway = compared = 0
    while hit < kills:
        process = stage.start()
        process.join(draw.uniform(0.0, 1.1 * lasted))
        ended = not process.is_alive()
        lasted *= 0.8 if ended else 1.05  # other work on the machine comes and goes
        if not ended:
            os.kill(process.pid, draw.choice(SIGNALS))
            hit += 1
            process.join()
            midway += any(path.is_file() for path in (folder / "run").rglob("*"))
        if ended or draw.random() < 0.3:
            assert stage.finish() == whole
            compared += 1
            said = (folder / "said.txt").read_text(encoding="utf-8")
            assert "Traceback" not in said, said[-3000:]
            stage.clear()
    assert stage.finish() == whole
    sys.stdout.write(
        f"{name}: a whole run took {whole_seconds:.1f} s; {hit} kills, {midway} of them with something "
        f"written; {compared + 1} results compared\n"
    )


@pytest.mark.parametrize("name", ["pilots", "simulate", "deployed server"])
def test_killed_and_run_again(name: str, tmp_path: Path) -> None:
    check_kills(name, tmp_path, 2, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("quarter", range(4))
@pytest.mark.parametrize("name", WORKS)
def test_killed_a_hundred_times(name: str, quarter: int, tmp_path: Path) -> None:
    check_kills(name, tmp_path, 25, seed=2 + quarter)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.skipif(sys.platform != "linux", reason="limits another process")
@pytest.mark.parametrize("name", WORKS)
def test_without_disk_it_says_so_and_nothing_is_lost(name: str, tmp_path: Path) -> None:
    """From a moment drawn at random no file may grow beyond a limit, as on a disk that is full."""
    draw = random.Random(3)
    stage = Stage(WORKS[name], tmp_path)
    whole = stage.finish()
    largest = max(path.stat().st_size for path in (tmp_path / "run").rglob("*") if path.is_file())
    stage.clear()
    begun = time.monotonic()
    assert stage.finish() == whole
    lasted = time.monotonic() - begun
    stage.clear()
    refused = 0
    for attempt in range(6):
        process = stage.start()
        process.join(draw.uniform(0.0, 0.8 * lasted))
        limit = draw.randrange(largest) if attempt % 2 else 0
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        process.join()
        refused += process.exitcode == 2
        stage.check_sentence(process.exitcode)
        if draw.random() < 0.5:
            assert stage.finish() == whole
            stage.clear()
    assert stage.finish() == whole
    assert refused, "none came while something was written"


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.skipif(sys.platform != "linux", reason="gives up a privilege of Linux")
@pytest.mark.parametrize("name", WORKS)
def test_a_folder_that_becomes_read_only_loses_nothing(name: str, tmp_path: Path) -> None:
    """At moments drawn at random nobody may write to the run's folders any more, and then again."""
    draw = random.Random(4)
    stage = Stage(WORKS[name], tmp_path)
    begun = time.monotonic()
    whole = stage.finish(_unprivileged)
    lasted = time.monotonic() - begun
    stage.clear()
    refused = 0
    for _ in range(6):
        process = stage.start(_unprivileged)
        process.join(draw.uniform(0.0, 0.8 * lasted))
        closed = _lock(tmp_path)
        process.join()
        for path in closed:
            path.chmod(0o755)
        refused += process.exitcode == 2
        stage.check_sentence(process.exitcode)
        if draw.random() < 0.5:
            assert stage.finish(_unprivileged) == whole
            stage.clear()
    assert stage.finish(_unprivileged) == whole
    assert refused, "none came while something was written"


def _lock(folder: Path) -> list[Path]:
    """Close the folder of the run and all in it, those deepest first."""
    closed = [folder, *(path for path in folder.rglob("*") if path.is_dir())]
    for path in reversed(closed):
        with contextlib.suppress(FileNotFoundError):
            path.chmod(0o555)
    return closed


def test_killed_before_the_experiment_is_written_it_begins_anew(tmp_path: Path) -> None:
    there = RunFolder(tmp_path / "run")
    assert there.empty
    there.cells.mkdir(parents=True)
    (there.path / "fleet.csv").write_text(FLEET)
    (there.path / ".experiment.toml.x1y2").touch()
    assert there.empty, "nothing was computed"
    (there.path / "notes.txt").touch()
    assert not there.empty, "somebody else's"
    (there.path / "notes.txt").unlink()
    (there.cells / "uniform_seed-0.jsonl").touch()
    assert not there.empty
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "fleet.csv").write_text(FLEET)
    assert not RunFolder(tmp_path / "own").empty, "not made by a run"


def test_a_plan_that_a_killed_run_left_half_written_is_none(tmp_path: Path) -> None:
    """It is in no line of the ledger, and would be taken for one that was edited."""
    plan = RunFolder(tmp_path).plan_path("uniform")
    plan.parent.mkdir(exist_ok=True)
    plan.touch()
    plan.with_name(f".{plan.name}.0123abcd.toml").touch()
    assert list(RunFolder(tmp_path).plans) == [plan.stem]
