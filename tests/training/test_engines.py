"""Where cells run makes no difference to what they give; and a killed worker loses nothing."""

import inspect
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
from distributed.scheduler import KilledWorker
from joblib import cpu_count
from joblib.externals.loky import get_reusable_executor, process_executor

from sojourn._support.configuration import Table
from sojourn.errors import InvalidFile, InvalidInput, SojournError, UnknownName
from sojourn.runs.history import History
from sojourn.training.experiment.engines import (
    DaskEngine,
    LocalEngine,
    following,
    make_engine,
    note,
)
from sojourn.training.experiment.experiment import Experiment, experiment_from_table
from sojourn.training.experiment.jobs import Job, run_jobs
from sojourn.training.experiment.run import prepare_folder, run_experiment
from tests.training.cluster import PATIENCE, dask_cluster


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
    values = {key: value for key, value in values.items() if value is not None}
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


@pytest.mark.processes
def test_processes_give_the_same_histories_as_one(tmp_path):
    experiment = small(tmp_path)
    alone, together = Recorded(), Recorded()
    run_experiment(experiment, tmp_path / "one", LocalEngine(), progress=alone)
    run_experiment(experiment, tmp_path / "two", LocalEngine(jobs=2), progress=together)
    one, two = ((tmp_path / name / "history.jsonl").read_bytes() for name in ("one", "two"))
    assert one == two
    assert alone.phases["runs"] == pytest.approx([400, 400])
    assert together.phases["runs"] == pytest.approx([400, 400])


@pytest.mark.processes
def test_progress_of_other_processes_is_heard_while_they_run(tmp_path, monkeypatch):
    monkeypatch.setattr("sojourn.training.experiment.engines.SECONDS_BETWEEN_LOOKS", 0.01)
    heard = []
    with following(2, lambda place, done: heard.append((place, done))) as path:
        tell = note(path, 1)
        for fraction in (0.25, 0.75):
            tell(fraction)
            before = len(heard)
            while len(heard) < before + 4:
                time.sleep(0.01)
    assert {(1, 0.25), (1, 0.75), (0, 0.0)} <= set(heard)
    assert not path.exists()
    parts = []
    experiment = small(tmp_path, rounds=3000)
    cells = [Job(0, 0, (0.05,)), Job(0, 1, (0.05,))]
    engine = LocalEngine(jobs=2)
    experiment = prepare_folder(experiment, tmp_path / "out", engine, resume=False)
    run = engine.run(experiment, cells, tmp_path / "out", lambda cell, done: parts.append(done))
    assert len(list(run)) == 2
    assert any(0 < part < 1 for part in parts)


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
    with pytest.raises(InvalidFile, match="made by another experiment: its 'batch-size' differs"):
        run_experiment(
            small(tmp_path, rounds=10, **{"batch-size": 7}), folder, LocalEngine(), resume=True
        )
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
    with pytest.raises(InvalidInput, match="--jobs 1099511627776 would take"):
        make_engine("local", jobs=2**40)


def test_a_scheduler_that_does_not_answer_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr("sojourn.training.experiment.engines.CONNECT_SECONDS", 1)
    with pytest.raises(InvalidInput, match=r"no Dask scheduler answers at 'tcp://127.0.0.1:1'"):
        run_experiment(small(tmp_path), tmp_path / "out", DaskEngine("tcp://127.0.0.1:1"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "cnn"}, "cnn"),
        ({"problem": "not_there:f"}, "cannot be imported"),
        ({"data": "cifar-10", "data-dir": "."}, "cifar-10 is not on this machine"),
        ({"rounds": None, "time": 1e-9}, "no task completes within time 1e-09 under 'uniform'"),
    ],
)
def test_a_mistake_leaves_no_folder_behind(tmp_path, monkeypatch, changes, message):
    monkeypatch.delenv("SOJOURN_DATA", raising=False)
    with pytest.raises(SojournError, match=message):
        run_experiment(small(tmp_path, **changes), tmp_path / "out", LocalEngine())
    assert not (tmp_path / "out").exists()


def test_one_choice_between_plain_and_batched_for_all_runs(tmp_path, monkeypatch):
    """Made for the first run, kept in the folder, and the same for a run made up for later."""
    monkeypatch.setattr("sojourn.training.problem.gradients.TRIAL_ROUNDS", 1)
    monkeypatch.setattr("sojourn.training.problem.gradients.SHORTEST_RUN", 2)
    monkeypatch.setattr("sojourn.training.problem.gradients.HEAVY_TASK", float("inf"))
    monkeypatch.setattr("sojourn.training.problem.gradients.WORTHWHILE", float("inf"))
    experiment, folder = small(tmp_path, rounds=60, batched=None), tmp_path / "out"
    summary = run_experiment(experiment, folder, LocalEngine())
    assert summary["provenance"]["inputs"]["experiment"]["batched"] is True
    assert Experiment.read(folder / "experiment.toml").batched is True
    before = (folder / "history.jsonl").read_bytes()
    max((folder / "cells").iterdir()).unlink()
    monkeypatch.setattr("sojourn.training.problem.gradients.WORTHWHILE", 0.0)
    run_experiment(experiment, folder, LocalEngine(), resume=True)
    assert (folder / "history.jsonl").read_bytes() == before
    run_experiment(experiment, tmp_path / "other", LocalEngine())
    assert Experiment.read(tmp_path / "other" / "experiment.toml").batched is False
    with pytest.raises(InvalidFile, match="its 'batched' differs"):
        plain = small(tmp_path, rounds=60, batched=False)
        run_experiment(plain, folder, LocalEngine(), resume=True)


OWN = """
import torch
from sojourn.training import Problem

def own(clients, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(40, 3, generator=generator)
    y = (x.sum(1) > 0).long()
    model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.{layer}, torch.nn.Linear(8, 2))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, generator=generator)
    return Problem(model, [(x, y)] * clients, (x, y), batch_size=8)
"""


def write_own(folder, module, layer):
    (folder / f"{module}.py").write_text(OWN.replace("{layer}", layer))
    sys.modules.pop(module, None)


def test_a_problem_that_has_changed_is_not_gone_on_with(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    experiment = small(tmp_path, problem="own_problem_in_time:own", rounds=10)
    write_own(tmp_path, "own_problem_in_time", "ReLU()")
    run_experiment(experiment, tmp_path / "out", LocalEngine())
    run_experiment(experiment, tmp_path / "out", LocalEngine(), resume=True)
    write_own(tmp_path, "own_problem_in_time", "Tanh()")
    with pytest.raises(InvalidFile, match="made with another problem: for seed 0"):
        run_experiment(experiment, tmp_path / "out", LocalEngine(), resume=True)
    sys.modules.pop("own_problem_in_time")


def test_threads_of_one_process_do_not_share_random_numbers(tmp_path, monkeypatch):
    """As on a Dask worker; dropout draws from a generator that all threads have in common."""
    monkeypatch.chdir(tmp_path)
    write_own(tmp_path, "own_problem_with_dropout", "Dropout(0.5)")
    experiment = small(tmp_path, problem="own_problem_with_dropout:own", rounds=60)
    cells = [
        (experiment, Job(strategy, seed, (0.05,)), None) for strategy in (0, 1) for seed in (0, 1)
    ]
    one_by_one = [run_jobs([cell])[0][0].test_loss.tolist() for cell in cells]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda cell: run_jobs([cell])[0][0], cells))
    assert [history.test_loss.tolist() for history in together] == one_by_one
    sys.modules.pop("own_problem_with_dropout")


def test_dask_workers_that_die_of_the_same_work_are_said(tmp_path):
    class Future:
        def result(self):
            raise KilledWorker("run_jobs", None, 3)

    with pytest.raises(SojournError, match=r"several Dask workers of 'tcp://a:1' ended.*--resume"):
        DaskEngine("tcp://a:1")._result(Future(), "What was finished is kept in out: ")


def test_a_process_that_loky_replaces_is_not_taken_for_a_leak(tmp_path, monkeypatch):
    message = "A worker stopped while some jobs were given to the "
    assert message in inspect.getsource(process_executor)
    called = []

    class Parallel:
        def __init__(self, **options):
            pass

        def __call__(self, jobs):
            warnings.warn(f"{message}executor.", UserWarning, stacklevel=1)
            called.append(len(list(jobs)))
            return iter(())

    monkeypatch.setattr("joblib.Parallel", Parallel)
    cells = [Job(0, 0, (0.05,)), Job(0, 1, (0.05,))]
    run = LocalEngine(jobs=2).run(small(tmp_path), cells, tmp_path, lambda cell, done: None)
    assert list(run) == []
    assert called == [2]


DEADLY = """
import os, signal, time
from pathlib import Path
import torch
from sojourn.training import Problem

def deadly(clients, seed):
    if seed == 1 and not Path("spared").exists():
        while len(list(Path("out/cells").glob("*.jsonl"))) < 2:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    x, y = torch.ones(4, 2), torch.zeros(4, dtype=torch.long)
    model = torch.nn.Linear(2, 2)
    torch.nn.init.ones_(model.weight)
    torch.nn.init.zeros_(model.bias)
    return Problem(model, [(x, y)] * clients, (x, y), batch_size=2)
"""


def test_a_dead_process_is_said_and_the_rest_is_kept(tmp_path, monkeypatch):
    (tmp_path / "deadly_problem.py").write_text(DEADLY)
    monkeypatch.chdir(tmp_path)
    get_reusable_executor().shutdown()
    experiment = small(tmp_path, problem="deadly_problem:deadly", rounds=5)
    with pytest.raises(SojournError, match=r"worker process ended unexpectedly.*--resume"):
        run_experiment(experiment, tmp_path / "out", LocalEngine(jobs=2))
    kept = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out/cells").glob("*.jsonl")}
    assert sorted(kept) == ["balanced_seed-0_rate-0.05.jsonl", "uniform_seed-0_rate-0.05.jsonl"]
    (tmp_path / "spared").touch()
    run_experiment(experiment, tmp_path / "out", LocalEngine(), resume=True)
    assert len(History.read(tmp_path / "out" / "history.jsonl")) == 4
    for name, when in kept.items():
        assert (tmp_path / "out" / "cells" / name).stat().st_mtime_ns == when
    sys.modules.pop("deadly_problem")


SLOW = """
import os, time
from pathlib import Path
import torch
from sojourn.training import Problem

def slow(clients, seed):
    with Path("begun.txt").open("a") as file:
        file.write(f"{os.getpid()}\\n")
    first_look = Path("begun.txt").read_text().count("\\n") == 1
    while "WAIT_FOR" in os.environ and not first_look and not Path(os.environ["WAIT_FOR"]).exists():
        time.sleep(0.02)
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(40, 3, generator=generator)
    y = (x.sum(1) > 0).long()
    model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Dropout(), torch.nn.Linear(8, 2))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, generator=generator)
    return Problem(model, [(x, y)] * clients, (x, y), batch_size=8)
"""


@pytest.fixture
def cluster(commands, tmp_path):
    """What the problem ``SLOW`` begins after the first look ends only when there is a file ``killed``."""
    with dask_cluster(commands, tmp_path, workers=2, WAIT_FOR="killed") as address_and_workers:
        yield address_and_workers


@pytest.mark.timeout(2 * PATIENCE)
def test_a_killed_dask_worker_loses_nothing(tmp_path, monkeypatch, cluster):
    address, workers = cluster
    (tmp_path / "slow_problem.py").write_text(SLOW)
    monkeypatch.chdir(tmp_path)
    experiment = small(tmp_path, problem="slow_problem:slow", rounds=40)
    run_experiment(experiment, tmp_path / "local", LocalEngine())
    begun = tmp_path / "begun.txt"
    begun.unlink()
    by_pid = {worker.pid: worker for worker in workers}

    def kill_the_first_that_begins_a_cell():
        while not (begun.exists() and begun.read_text().count("\n") > 1):
            time.sleep(0.01)
        first = by_pid[int(begun.read_text().split()[1])]
        first.kill()
        first.wait()
        (tmp_path / "killed").touch()

    watcher = threading.Thread(target=kill_the_first_that_begins_a_cell, daemon=True)
    watcher.start()
    run_experiment(experiment, tmp_path / "dask", DaskEngine(address))
    watcher.join()
    assert sorted(worker.poll() is None for worker in workers) == [False, True]
    # A problem is built twice, to see that it is the same, and once for each seed in a process.
    builds = begun.read_text().split()
    assert set(builds) == {str(worker.pid) for worker in workers}
    assert len(builds) > 2 * len({str(worker.pid) for worker in workers})
    local, dask = ((tmp_path / name / "history.jsonl").read_bytes() for name in ("local", "dask"))
    assert dask == local
