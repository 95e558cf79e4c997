"""Where cells run makes no difference to what they give; and a killed worker loses nothing."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import distributed
import pytest
from joblib import cpu_count
from joblib.externals.loky import get_reusable_executor

from sojourn.config import Table
from sojourn.errors import InvalidFile, InvalidInput, SojournError, UnknownName
from sojourn.train.engines import DaskEngine, LocalEngine, make_engine
from sojourn.train.experiment import experiment_from_table
from sojourn.train.run import run_experiment


def small(folder, **changes):
    values = {
        "fleet": "three-clusters",
        "rounds": 100,
        "concurrency": 30,
        "learning-rate": 0.05,
        "seeds": 2,
        "strategies": ["uniform", "balanced"],
        "batched": False,
        "threads": 1,
        **changes,
    }
    return experiment_from_table(Table(values, "e.toml"), folder)


class Recorded:
    """Progress, written down."""

    def __init__(self):
        self.phases = {}

    def start(self, phase, total, done):
        self.current = phase
        self.phases[phase] = [total, done]

    def advance(self, amount):
        self.phases[self.current][1] += amount


def test_processes_give_the_same_histories_as_one(tmp_path):
    experiment = small(tmp_path)
    alone, together = Recorded(), Recorded()
    run_experiment(experiment, tmp_path / "one", LocalEngine(), progress=alone)
    run_experiment(experiment, tmp_path / "two", LocalEngine(jobs=2), progress=together)
    one, two = ((tmp_path / name / "history.jsonl").read_bytes() for name in ("one", "two"))
    assert one == two
    assert alone.phases["runs"] == pytest.approx([400, 400])
    assert together.phases["runs"] == pytest.approx([400, 400])


def test_what_is_finished_is_not_run_again(tmp_path):
    experiment = small(tmp_path)
    folder = tmp_path / "out"
    run_experiment(experiment, folder, LocalEngine())
    before = (folder / "history.jsonl").read_bytes()
    (folder / "history.jsonl").unlink()
    kept = sorted((folder / "cells").iterdir())
    lost, stamps = kept[0], [path.stat().st_mtime_ns for path in kept[1:]]
    lost.unlink()
    progress = Recorded()
    run_experiment(experiment, folder, LocalEngine(), resume=True, progress=progress)
    assert (folder / "history.jsonl").read_bytes() == before
    assert [path.stat().st_mtime_ns for path in kept[1:]] == stamps
    assert progress.phases["runs"] == pytest.approx([400, 400])


def test_folders_are_not_mixed(tmp_path):
    folder = tmp_path / "out"
    run_experiment(small(tmp_path, rounds=10), folder, LocalEngine())
    with pytest.raises(InvalidFile, match="made by another experiment: its 'rounds' differs"):
        run_experiment(small(tmp_path, rounds=11), folder, LocalEngine(), resume=True)
    with pytest.raises(InvalidInput, match=r"exists and is not empty. Give another"):
        run_experiment(small(tmp_path, rounds=10), folder, LocalEngine())
    (folder / "experiment.toml").unlink()
    with pytest.raises(InvalidInput, match=r"no experiment.toml to resume"):
        run_experiment(small(tmp_path, rounds=10), folder, LocalEngine(), resume=True)


def test_threads_are_divided_among_jobs():
    cores = cpu_count()
    assert LocalEngine(1).threads() == cores
    assert LocalEngine(cores).threads() == 1
    assert LocalEngine(10 * cores).threads() == 1


def test_engines_by_name():
    assert make_engine("local", jobs=3) == LocalEngine(3)
    assert make_engine("dask", scheduler="tcp://a:1") == DaskEngine("tcp://a:1")
    with pytest.raises(UnknownName, match="did you mean 'dask'"):
        make_engine("dsk")
    with pytest.raises(InvalidInput, match="needs the address"):
        make_engine("dask")
    with pytest.raises(InvalidInput, match="goes with --engine dask"):
        make_engine("local", scheduler="tcp://a:1")
    with pytest.raises(InvalidInput, match="--jobs must be at least 1"):
        make_engine("local", jobs=0)


def test_a_scheduler_that_does_not_answer_is_said(tmp_path):
    with pytest.raises(InvalidInput, match=r"no Dask scheduler answers at 'tcp://127.0.0.1:1'"):
        run_experiment(small(tmp_path), tmp_path / "out", DaskEngine("tcp://127.0.0.1:1"))


DEADLY = """
import os, signal
import torch
from sojourn.train import Problem

def deadly(clients, seed):
    if seed == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    x, y = torch.ones(4, 2), torch.zeros(4, dtype=torch.long)
    return Problem(torch.nn.Linear(2, 2), [(x, y)] * clients, (x, y), batch_size=2)
"""


def test_a_dead_process_is_said_and_the_rest_is_kept(tmp_path, monkeypatch):
    (tmp_path / "deadly_problem.py").write_text(DEADLY)
    monkeypatch.chdir(tmp_path)
    get_reusable_executor().shutdown()
    experiment = small(tmp_path, problem="deadly_problem:deadly", rounds=5)
    with pytest.raises(SojournError, match=r"worker process ended unexpectedly.*--resume"):
        run_experiment(experiment, tmp_path / "out", LocalEngine(jobs=2))


SLOW = """
import os, time
from pathlib import Path
import torch
from sojourn.train import Problem

def slow(clients, seed):
    with Path("begun.txt").open("a") as file:
        file.write(f"{os.getpid()}\\n")
    time.sleep(float(os.environ.get("SLOWLY", 0)))
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(40, 3, generator=generator)
    y = (x.sum(1) > 0).long()
    model = torch.nn.Linear(3, 2)
    with torch.no_grad():
        model.weight.fill_(0.1)
        model.bias.zero_()
    return Problem(model, [(x, y)] * clients, (x, y), batch_size=8)
"""


@pytest.fixture
def cluster(tmp_path):
    """A real scheduler and two real workers on loopback: ``(address, workers)``."""
    environment = {**os.environ, "SLOWLY": "1.5", "OMP_NUM_THREADS": "1"}
    options = {"cwd": tmp_path, "env": environment}
    options |= {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    file = tmp_path / "scheduler.json"
    local = ["--host", "127.0.0.1", "--no-dashboard"]

    def start(module, *arguments):
        command = [sys.executable, "-m", f"distributed.cli.{module}", *arguments, *local]
        return subprocess.Popen(command, **options)

    processes = [start("dask_scheduler", "--port", "0", "--scheduler-file", str(file))]
    try:
        address = _when_written(file)
        worker = ("dask_worker", address, "--no-nanny", "--nthreads", "1")
        processes += [start(*worker), start(*worker)]
        yield address, processes[1:]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _when_written(file: Path) -> str:
    end = time.monotonic() + 30
    while time.monotonic() < end:
        try:
            return json.loads(file.read_text())["address"]
        except (OSError, ValueError):
            time.sleep(0.05)
    raise AssertionError("the Dask scheduler did not start")


@pytest.mark.timeout(120)
def test_a_killed_dask_worker_loses_nothing(tmp_path, monkeypatch, cluster):
    address, workers = cluster
    (tmp_path / "slow_problem.py").write_text(SLOW)
    monkeypatch.chdir(tmp_path)
    experiment = small(tmp_path, problem="slow_problem:slow", rounds=40)
    run_experiment(experiment, tmp_path / "local", LocalEngine())
    begun = tmp_path / "begun.txt"
    begun.unlink()
    with distributed.Client(address, set_as_default=False) as client:
        client.wait_for_workers(2, timeout=40)
    by_pid = {worker.pid: worker for worker in workers}

    def kill_the_first_that_begins():
        while not (begun.exists() and begun.read_text().endswith("\n")):
            time.sleep(0.01)
        by_pid[int(begun.read_text().split()[0])].kill()

    watcher = threading.Thread(target=kill_the_first_that_begins)
    watcher.start()
    run_experiment(experiment, tmp_path / "dask", DaskEngine(address))
    watcher.join()
    assert sorted(worker.poll() is None for worker in workers) == [False, True]
    assert len(begun.read_text().split()) == 4 + 1
    local, dask = ((tmp_path / name / "history.jsonl").read_bytes() for name in ("local", "dask"))
    assert dask == local
