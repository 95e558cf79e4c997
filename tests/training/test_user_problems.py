"""Problems as users write them: the same bytes by `train`, `tune`, --jobs 2, kill -9 and --resume, on Dask

workers in two network namespaces of which one is killed, and through the deployment's dispatcher.
"""

import importlib
import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import distributed
import numpy as np
import pytest

import sojourn as sj
from sojourn.deployment.client import build
from sojourn.deployment.inprocess import InProcessTransport
from sojourn.deployment.run import serve
from sojourn.deployment.settings import read_settings
from sojourn.errors import InvalidInput, SojournError
from sojourn.fleet import Fleet, Network
from sojourn.rules import FedBuff
from sojourn.runs.history import History
from sojourn.simulation.simulate import simulate
from sojourn.training import Problem
from sojourn.training.experiment import engines
from sojourn.training.experiment.engines import DaskEngine, LocalEngine
from sojourn.training.experiment.experiment import Experiment
from sojourn.training.experiment.run import run_experiment
from tests.deployment.namespaces import why_not
from tests.training.cluster import apart, namespaces
from tests.training.tasks import augmented_images

TASKS = Path(__file__).parent / "tasks"
CLIENTS = {
    "augmented_images": 4,
    "adapter": 4,
    "by_writer": 5,
    "natural_ids": 5,
    "lazy_clients": 1000,
}
ROUNDS = {"lazy_clients": 150}
PATIENCE = 120.0
NEEDED = {"natural_ids": ("datasets", "flwr_datasets")}


QUICK = "augmented_images"
"""The task that is run with every change; the others are slow tests."""


@pytest.fixture(
    params=[pytest.param(name, marks=[pytest.mark.slow] * (name != QUICK)) for name in CLIENTS]
)
def task(request):
    for package in NEEDED.get(request.param, ()):
        pytest.importorskip(package)
    yield request.param
    sys.modules.pop(request.param, None)


def written(folder: Path, task: str, **changes: object) -> Path:
    shutil.copy(TASKS / f"{task}.py", folder)
    rows = f"service_rate,count\n1.0,{CLIENTS[task] - 1}\n3.0,1\n"
    (folder / "fleet.csv").write_text(rows)
    values = {"rounds": ROUNDS.get(task, 120), "seeds": 2, "evaluate-every": 30, **changes}
    (folder / "e.toml").write_text(
        f'fleet = "fleet.csv"\nproblem = "{task}:problem"\n'
        + "".join(f"{key} = {value}\n" for key, value in values.items())
        + "threads = 1\nconcurrency = 4\nlearning-rate = 0.01\nkeep-weights = true\n"
        "checkpoint-seconds = 0.0\nbatched = false\n"
        '[[strategy]]\nname = "buffered"\nrule = { name = "fedbuff", buffer-size = 2 }\n'
        'policy = "idle"\nlocal-steps = 2\n'
    )
    return folder / "e.toml"


def files(folder: Path) -> dict[str, bytes]:
    found = [folder / "history.jsonl", *sorted((folder / "weights").iterdir())]
    return {path.name: path.read_bytes() for path in found}


@pytest.mark.processes
@pytest.mark.timeout(2 * PATIENCE)
def test_two_processes_and_a_run_that_was_killed_give_the_same_bytes(
    task, commands, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    experiment = Experiment.read(written(tmp_path, task))
    run_experiment(experiment, tmp_path / "one", LocalEngine())
    whole = files(tmp_path / "one")
    assert len(whole) == 3
    run_experiment(experiment, tmp_path / "two", LocalEngine(jobs=2))
    assert files(tmp_path / "two") == whole
    process = commands.start(tmp_path, "--trust", "train", "e.toml", "--out", "killed")
    deadline = time.monotonic() + PATIENCE
    while not list(tmp_path.glob("killed/cells/*.checkpoint")) and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.kill()
    process.wait()
    run_experiment(experiment, tmp_path / "killed", LocalEngine(), resume=True)
    assert files(tmp_path / "killed") == whole


@pytest.mark.slow
@pytest.mark.timeout(10 * PATIENCE)
def test_tuning_recommends_what_can_be_trained_and_goes_on_where_it_was_killed(task, tmp_path):
    """The strategy file that `tune` writes, killed once on the way, is run by `train`.

    Few candidates make it short. The budget is long, as the time to load counts on a busy machine.
    """
    written(tmp_path, task)
    setting = (
        f'fleet = "fleet.csv"\nproblem = "{task}:problem"\nrounds = {ROUNDS.get(task, 120)}\n'
        "threads = 1\nconcurrency = 4\n"
    )
    candidates = "".join(
        f'[[strategy]]\nname = "{name}"\nrule = "{name}"\nlearning-rate = [0.003, 0.01]\n'
        for name in ("async-sgd", "fedbuff")
    )
    (tmp_path / "t.toml").write_text(setting + candidates)
    sojourn = (sys.executable, "-m", "sojourn", "--trust")
    command = (*sojourn, "tune", "t.toml", "--budget", "5m", "--jobs", "2", "--out", "tuned")
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 4 * PATIENCE
    while not list(tmp_path.glob("tuned/**/*.jsonl")):
        assert process.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.kill()
    process.wait()
    subprocess.run(command, cwd=tmp_path, check=True, stdout=subprocess.DEVNULL)
    answer = json.loads((tmp_path / "tuned/tune.json").read_text())
    assert answer
    (tmp_path / "run.toml").write_text(
        setting + 'seeds = 1\nstrategies = ["tuned/strategy.toml"]\n'
    )
    command = (*sojourn, "train", "run.toml", "--out", "trained")
    subprocess.run(command, cwd=tmp_path, check=True, stdout=subprocess.DEVNULL)
    (history,) = History.read(tmp_path / "trained/history.jsonl")
    assert history.diverged_at is None
    assert history.test_loss[-1] < history.test_loss[0]


REASON = why_not() if sys.platform == "linux" else "network namespaces are Linux's"
in_namespaces = pytest.mark.skipif(REASON is not None, reason=str(REASON))


@pytest.mark.slow
@pytest.mark.timeout(10 * PATIENCE)
@in_namespaces
def test_workers_in_two_namespaces_of_which_one_is_killed_give_the_same_bytes(
    task, tmp_path, monkeypatch
):
    """Workers have folders of their own, which hold neither the user's modules nor the results."""
    monkeypatch.chdir(tmp_path)
    experiment = Experiment.read(written(tmp_path, task, rounds=240, seeds=4))
    run_experiment(experiment, tmp_path / "here", LocalEngine())
    (tmp_path / "dask").mkdir()
    with (
        namespaces(2) as joined,
        apart(tmp_path / "dask", joined) as (address, workers),
        distributed.Client(address, set_as_default=False) as look,
    ):
        caught = []

        def kill_one_at_work() -> None:
            while not (tmp_path / "there/cells").is_dir():
                time.sleep(0.01)
            while not caught:
                busy = {at: keys for at, keys in look.processing().items() if keys}
                caught.extend(keys for at, keys in busy.items() if joined[1][2] in at)
            workers[1].kill()

        killer = threading.Thread(target=kill_one_at_work, daemon=True)
        killer.start()
        run_experiment(experiment, tmp_path / "there", DaskEngine(address))
        killer.join()
        assert [worker.poll() is None for worker in workers] == [True, False]
    assert caught
    assert files(tmp_path / "there") == files(tmp_path / "here")


READS = """
import torch
from pathlib import Path
from sojourn.training import Problem

def problem(clients, seed):
    x = torch.load(Path(__file__).parent / "samples.pt")
    return Problem(torch.nn.Linear(2, 2), [(x, x[:, 0].long())] * clients, (x, x[:, 0].long()))
"""


@pytest.mark.slow
@pytest.mark.timeout(10 * PATIENCE)
@in_namespaces
def test_what_a_worker_in_a_namespace_lacks_is_said(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "installed").mkdir()
    (tmp_path / "installed/package_of_here.py").touch()
    monkeypatch.syspath_prepend(tmp_path / "installed")
    path = written(tmp_path, "by_writer")
    (tmp_path / "dask").mkdir()
    with namespaces(1) as joined, apart(tmp_path / "dask", joined) as (address, _):
        whose = rf"on the Dask worker tcp://{joined[0][2]}:\d+: "
        for text, message in (
            (READS, r"FileNotFoundError: .*samples\.pt.*data and installed packages are not"),
            (
                "import package_of_here\n" + READS,
                r".*No module named 'package_of_here'.*must be there",
            ),
        ):
            (tmp_path / "by_writer.py").write_text(text)
            with pytest.raises(InvalidInput, match=whose + message):
                run_experiment(Experiment.read(path), tmp_path / "out", DaskEngine(address))
            assert not (tmp_path / "out").exists()
    blocked = tmp_path / "blocked"
    blocked.mkdir()
    (blocked / "sojourn.py").write_text("raise ModuleNotFoundError('no', name='sojourn')")
    (tmp_path / "bare").mkdir()
    with (
        namespaces(1) as joined,
        apart(tmp_path / "bare", joined, PYTHONPATH=str(blocked)) as (address, _),
        pytest.raises(SojournError, match="cannot import sojourn"),
    ):
        run_experiment(Experiment.read(path), tmp_path / "out", DaskEngine(address))
    sys.modules.pop("by_writer", None)


def test_what_a_dask_worker_lacks_is_said_with_its_name(monkeypatch):
    class Worker:
        address = "tcp://10.0.0.7:1234"

    monkeypatch.setattr(distributed, "get_worker", Worker)

    def raising(error):
        raise error

    version, run = sj.__version__, engines._on_worker
    assert run(version, max, 3, 5) == 5
    with pytest.raises(SojournError, match=r"worker tcp://10.0.0.7:1234 has version .* and this"):
        run("0.0.1", max, 3, 5)
    with pytest.raises(InvalidInput, match=r"10.0.0.7:1234: FileNotFoundError: x.csv. Modules be"):
        run(version, raising, FileNotFoundError("x.csv"))
    with pytest.raises(InvalidInput, match=r"10.0.0.7:1234: time is short$"):
        run(version, raising, InvalidInput("time is short"))
    with pytest.raises(ZeroDivisionError):
        run(version, raising, ZeroDivisionError())
    assert engines._lacks_sojourn(ModuleNotFoundError("no", name="sojourn.training"))
    assert not engines._lacks_sojourn(RuntimeError("no"))


def function_of(task: str) -> Callable[..., Problem]:
    """What a deployment is given: servers cannot average buffers."""
    module = importlib.import_module(f"tests.training.tasks.{task}")
    return getattr(module, "deployed", module.problem)


def deployed(
    function: Callable[..., Problem], folder: Path, clients: int, **config: object
) -> dict:
    """The status of a run with clients as threads, through the dispatcher."""
    given = {
        "clients": clients,
        "learning-rate": 0.01,
        "rule.name": "fedbuff",
        "rule.local-steps": 2,
        "predict": False,
        "run-folder": str(folder / "run"),
        **config,
    }
    with InProcessTransport(function, [lambda: 0.0] * clients) as transport:
        serve(transport, function, read_settings(given, folder))
    return json.loads((folder / "run/status.json").read_text())


@pytest.mark.slow
@pytest.mark.timeout(10 * PATIENCE)
def test_the_dispatcher_trains_them_and_accounts_for_every_task(task, tmp_path):
    clients = CLIENTS[task]
    updates = max(200, clients)
    every = {"evaluate-every": updates // 4}
    status = deployed(function_of(task), tmp_path, clients, updates=updates, **every)
    counts = status["counts"]
    over = sum(counts[name] for name in ("used", "dropped", "refused", "lost", "withdrawn"))
    assert (status["phase"], counts["used"], counts["refused"]) == ("finished", updates, 0)
    assert counts["routed"] - over + status["held"] == clients
    assert "failed" not in (tmp_path / "run/events.log").read_text()
    (history,) = History.read(tmp_path / "run/history.jsonl")
    assert history.test_loss[-1] < history.test_loss[0]


def deployed_and_replayed(function: Callable[..., Problem], folder: Path) -> list[tuple]:
    """Name, and both ends, of every tensor that one client trains: by the dispatcher, in the replay."""
    updates = 12
    deployed(function, folder, 1, updates=updates, seed=3, **{"rule.buffer-size": 1})
    problem = build(function, 1, 3, None)
    assert isinstance(problem, Problem)
    network = Network(Fleet([1.0]), [1.0], 1)
    schedule = simulate(network, rounds=updates, seed=3, work=2.0)
    expected = sj.replay(
        schedule, problem, FedBuff(buffer_size=1, local_steps=2), learning_rate=0.01, seed=3
    )
    ends = np.cumsum([shape.numel() for shape in problem.parameter_shapes.values()])[:-1]
    found = np.load(folder / "run/weights.npy"), expected.weights[: problem.dimension]
    parts = (np.split(weights, ends) for weights in found)
    return list(zip(problem.parameter_shapes, *parts, strict=True))


@pytest.mark.parametrize("task", ["augmented_images", "adapter", "by_writer", "lazy_clients"])
def test_one_client_through_the_dispatcher_equals_the_replay(task, tmp_path):
    """AdamW, batch normalisation, random transforms, frozen weights, records and lazy data.

    To rounding: updates travel in the precision of the weights, and in the replay in double. A bias
    before batch normalisation has no gradient but rounding, which AdamW takes for one.
    """
    for name, found, expected in deployed_and_replayed(function_of(task), tmp_path):
        if (task, name) != ("augmented_images", "0.bias"):
            np.testing.assert_allclose(found, expected, rtol=0.0, atol=1e-6, err_msg=name)


def test_in_double_precision_the_dispatcher_equals_the_replay_to_the_bit(tmp_path):
    for name, found, expected in deployed_and_replayed(
        augmented_images.deployed_in_double, tmp_path
    ):
        np.testing.assert_array_equal(found, expected, err_msg=name)


def test_a_device_that_is_not_there_is_said_before_anything_is_written(tmp_path, monkeypatch):
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is one here")
    monkeypatch.chdir(tmp_path)
    path = written(tmp_path, "by_writer")
    path.write_text('device = "cuda"\n' + path.read_text())
    with pytest.raises(InvalidInput, match="device 'cuda' is not on this machine"):
        run_experiment(Experiment.read(path), tmp_path / "out", LocalEngine())
    assert not (tmp_path / "out").exists()
    sys.modules.pop("by_writer")


def test_the_precision_of_an_experiment_is_that_of_its_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = written(tmp_path, "by_writer")
    usual = run_experiment(Experiment.read(path), tmp_path / "usual", LocalEngine())
    path.write_text('precision = "bfloat16"\ndevice = "cpu"\n' + path.read_text())
    experiment = Experiment.read(path)
    assert (experiment.device, experiment.precision) == ("cpu", "bfloat16")
    other = run_experiment(experiment, tmp_path / "other", LocalEngine())
    assert Experiment.read(tmp_path / "other/experiment.toml").precision == "bfloat16"
    assert usual["strategies"] != other["strategies"]
    sys.modules.pop("by_writer")


def test_partitions_of_flower_datasets_are_clients(tmp_path):
    """The example of docs/your-data.md, where its packages are installed."""
    pytest.importorskip("flwr_datasets")
    pytest.importorskip("datasets")
    page = (Path(__file__).parents[2] / "docs/your-data.md").read_text()
    (code,) = (block for block in page.split("```python\n")[1:] if "NaturalIdPartitioner" in block)
    names: dict = {}
    exec(code.split("```")[0], names)
    problem = names["problem"](4, 1)
    assert problem.clients == 4
    assert problem.train_sizes == [10] * 4
    assert problem.gradient(problem.initial_weights(), 3, 0, 1).shape == (10,)
