"""``sojourn deploy`` as a user types it."""

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from sojourn.errors import InvalidFile
from sojourn.runs.history import History
from tests.commands import Finished
from tests.deployment.flower_sessions import flower_processes

Run = Callable[..., Finished]


def test_init_writes_an_app_that_can_be_read(run: Run, tmp_path: Path) -> None:
    done = run("deploy", "init", "my-app")
    assert done.code == 0
    assert "sojourn deploy local my-app" in done.error
    table = tomllib.loads((tmp_path / "my-app" / "pyproject.toml").read_text())
    config = table["tool"]["flwr"]["app"]["config"]
    assert all("_" not in key for key in config)
    for name in ("README.md", "federated/task.py", "federated/server_app.py"):
        assert (tmp_path / "my-app" / name).exists()


def test_init_takes_a_strategy_and_a_problem(run: Run, tmp_path: Path) -> None:
    (tmp_path / "fleet.csv").write_text("name,service_rate,count\nslow,1,4\nfast,5,2\n")
    run("plan", "fleet.csv", "--out", "plan.toml")
    run("new", "mine")
    done = run(
        *("deploy", "init", "app", "--strategy", "plan.toml", "--problem", "mine/problem.py"),
    )
    assert done.code == 0, done.error
    assert "plan.toml gives no learning rate: set 'learning-rate'" in done.out
    assert "sojourn deploy local app --clients 3" in done.error
    assert (tmp_path / "app/federated/plan.toml").read_text() == (
        tmp_path / "plan.toml"
    ).read_text()
    task = (tmp_path / "app/federated/task.py").read_text()
    assert task == (tmp_path / "mine/problem.py").read_text()
    table = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())
    config = table["tool"]["flwr"]["app"]["config"]
    assert (config["clients"], config["strategy"]) == (6, "plan.toml")
    missing = run("deploy", "local", "app", "--clients", "2", "--in-process")
    assert "the plan gives no learning rate" in missing.error
    (tmp_path / "half.py").write_text("import math\ndef problem(:\n")
    waits = (tmp_path / "plan.toml").read_text().replace('"never-queue"', '"restart"')
    (tmp_path / "stops.toml").write_text(waits)
    (tmp_path / "model.py").write_text("def get_problem():\n    pass\n")
    for wrong, words in (
        (("--strategy", "nowhere.toml"), "nowhere.toml: cannot be read"),
        (("--strategy", "stops.toml"), "stops.toml: the policy 'restart' waits"),
        (("--problem", "model.py"), "no function 'problem' in it; there are get_problem"),
        (("--strategy", "fleet.csv"), "fleet.csv"),
        (("--problem", "half.py"), "half.py: cannot be read as Python (line 2: "),
    ):
        refused = run("deploy", "init", "other", *wrong)
        assert (refused.code, words in refused.error) == (2, True), refused.error
        assert not (tmp_path / "other").exists()


OWN = """
from dataclasses import dataclass
from sojourn.dispatch import Chooser, Policy
from sojourn.rules import GeneralizedAsyncSGD, ServerState
from lib.discount import discount


@dataclass(frozen=True)
class Discounted:
    power: float = 0.5
    name, sends, policy = "discounted", "gradient", "never-queue"
    local_steps, local_learning_rate, proximal = 1, None, 0.0

    def begin(self, weights, clients):
        return ServerState(weights)

    def apply(self, state, arrival, *, learning_rate, clients, concurrency):
        step = learning_rate * discount(arrival.staleness, self.power)
        return state.updated(state.weights - arrival.update.dtype.type(step) * arrival.update), True


@dataclass(frozen=True)
class FirstIdle(Policy):
    name, one_task_each = "first-idle", True

    def chooser(self, random):
        return _FirstIdle()


class _FirstIdle(Chooser):
    def choose(self, view, finisher):
        return min((c for c in view.living if not view.tasks(c)), default=None)


usual = Discounted(power=1.0)
built_in = GeneralizedAsyncSGD()
"""
OWN_PROBLEM = """
import torch
from sojourn.training import Problem
from own_model import model


def problem(clients, seed):
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(40 * clients, 3, generator=random)
    y = (x.sum(1) > 0).long()
    return Problem(model(), list(zip(x.split(40), y.split(40))), (x, y), batch_size=8)
"""
OWN_MODEL = """
import torch


def model():
    layer = torch.nn.Linear(3, 2)
    torch.nn.init.zeros_(layer.weight)
    torch.nn.init.zeros_(layer.bias)
    return layer
"""


def write_own(folder: Path, rule: str = '{ name = "own:Discounted", power = 0.8 }') -> None:
    """A strategy with a rule and a policy of one's own, which import more, and such a problem."""
    (folder / "lib").mkdir(parents=True)
    (folder / "lib" / "__init__.py").touch()
    (folder / "lib" / "discount.py").write_text("def discount(s, p):\n    return (1 + s) ** -p\n")
    (folder / "own.py").write_text(OWN)
    (folder / "problem.py").write_text(OWN_PROBLEM)
    (folder / "own_model.py").write_text(OWN_MODEL)
    (folder / "strategy.toml").write_text(
        "concurrency = 3\nlearning-rate = 0.1\n"
        "classes = [{ count = 2, service-rate = 1.0, routing = 0.2 },"
        " { count = 2, service-rate = 5.0, routing = 0.3 }]\n"
        f'[strategy]\npolicy = "own:FirstIdle"\nrule = {rule}\n'
    )


def packed(app: Path, folder: Path) -> Path:
    """The app as Flower packs it and another machine unpacks it."""
    from flwr.cli.build import build_fab_from_disk

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a library that Flower uses
        fab = build_fab_from_disk(app)
    with zipfile.ZipFile(io.BytesIO(fab)) as archive:
        archive.extractall(folder)
    return folder


INIT = ("--trust", "deploy", "init", "app")
OF_MINE = ("--strategy", "mine/strategy.toml", "--problem", "mine/problem.py")


@pytest.mark.parametrize(
    "rule", ['{ name = "own:Discounted", power = 0.8 }', '"own:usual"', '"own:built_in"']
)
def test_an_app_has_the_rule_the_policy_and_the_model_of_ones_own(
    run: Run, tmp_path: Path, rule: str
) -> None:
    """Packed by Flower and unpacked where the folder that they were written in is not."""
    pytest.importorskip("flwr")
    write_own(tmp_path / "mine", rule)
    done = run(*INIT, *OF_MINE)
    assert done.code == 0, done.error
    assert "installed here" not in done.out
    for name in ("own.py", "lib/__init__.py", "lib/discount.py", "own_model.py"):
        assert f"wrote app/federated/{name}" in done.out
    unpacked = packed(tmp_path / "app", tmp_path / "elsewhere" / "app")
    shutil.rmtree(tmp_path / "mine")
    shutil.rmtree(tmp_path / "app")
    more = ("--in-process", "--clients", "3", "--updates", "30")
    done = run("deploy", "local", str(unpacked), *more, "--out", "results")
    assert done.code == 0, done.error
    assert "30 updates from 3 clients" in done.out
    results = tmp_path / "results"
    deployed, predicted = json.loads((results / "summary.json").read_text())["strategies"]
    assert deployed["policy"] == predicted["policy"] == "first-idle"
    assert (results / "extensions" / "own.py").read_text() == OWN
    shutil.rmtree(tmp_path / "elsewhere")
    for trust, words in (
        (
            (),
            "Speed and staleness are not predicted: results/experiment.toml: [[strategy]] number 1: the code",
        ),
        (("--trust",), "simulated with exponential times at the speeds"),
    ):
        shown = run(*trust, "report", "results", "--no-stills")
        assert shown.code == 0, shown.error
        assert "Next: sojourn deploy export results model.safetensors" in shown.error
        assert words in (tmp_path / "report.html").read_text(encoding="utf-8")


@pytest.mark.flower
@pytest.mark.xdist_group("flower")
@pytest.mark.timeout(1800)
def test_flower_runs_the_rule_the_policy_and_the_model_of_ones_own(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Server and clients have nothing but the app that Flower packs."""
    homes = tmp_path / "homes"
    homes.mkdir()
    monkeypatch.setenv("TMPDIR", str(homes))
    run: Run = request.getfixturevalue("run")
    write_own(tmp_path / "mine")
    done = run(*INIT, *OF_MINE)
    assert done.code == 0, done.error
    shutil.rmtree(tmp_path / "mine")
    done = run("deploy", "local", "app", "--clients", "2", "--updates", "6")
    assert done.code == 0, done.error
    assert "6 updates from 2 clients" in done.out
    summary = json.loads((tmp_path / "app-run" / "summary.json").read_text())
    assert summary["provenance"]["inputs"]["rule"] == {"name": "own:Discounted", "power": 0.8}
    assert (tmp_path / "app-run" / "extensions" / "lib" / "discount.py").exists()
    assert flower_processes(homes) == []


def test_a_csv_file_of_an_app_is_named_by_its_full_path(run: Run, tmp_path: Path) -> None:
    """Flower packs none: `deploy local` names the one beside task.py, and a server says what it misses."""
    from sojourn.deployment.app import app_config, task_folder, unpacked_files
    from sojourn.deployment.settings import read_settings

    run("deploy", "init", "app")
    path = tmp_path / "app" / "pyproject.toml"
    path.write_text(path.read_text().replace('fleet = ""', 'fleet = "fleet.csv"'))
    with pytest.raises(InvalidFile, match="Flower packs no CSV files into an app"):
        read_settings(app_config(tmp_path / "app"), task_folder(tmp_path / "app"))
    fleet = tmp_path / "app" / "federated" / "fleet.csv"
    fleet.write_text("service_rate\n1\n2\n4\n")
    given = unpacked_files(tmp_path / "app")
    assert given == {"fleet": str(fleet)}
    settings = read_settings({**app_config(tmp_path / "app"), **given}, tmp_path)
    assert settings.strategy.network.fleet.service_rates.tolist() == [1.0, 2.0, 4.0]
    done = run("deploy", "local", "app", "--updates", "5", "--in-process")
    assert done.code == 0, done.error


def test_init_says_what_an_app_cannot_have(run: Run, tmp_path: Path) -> None:
    """A module that is missing, whose name is taken, or that Flower leaves out."""
    write_own(tmp_path / "mine")
    strategy = tmp_path / "mine" / "strategy.toml"
    named, module_text = strategy.read_text(), (tmp_path / "mine" / "own.py").read_text()
    for module, said in (
        ("nowhere", "the module 'nowhere' cannot be imported"),
        ("task", "the app has another federated/task.py"),
        ("own_test", "Flower leaves test_*.py and *_test.py out of an app"),
    ):
        if module != "nowhere":
            (tmp_path / "mine" / f"{module}.py").write_text(module_text)
        strategy.write_text(named.replace("own:", f"{module}:"))
        done = run("--trust", "deploy", "init", "app", "--strategy", "mine/strategy.toml")
        assert (done.code, said in done.error) == (2, True), done.error
        assert "mine/strategy.toml" in done.error
        assert not (tmp_path / "app").exists()


def test_init_names_modules_that_have_to_be_installed(tmp_path: Path) -> None:
    write_own(tmp_path / "mine")
    (tmp_path / "installed").mkdir()
    for name in ("own.py", "lib"):
        shutil.move(tmp_path / "mine" / name, tmp_path / "installed" / name)
    paths = [str(tmp_path / "installed"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    done = subprocess.run(
        [
            sys.executable,
            *[
                "-m",
                "sojourn",
                "--trust",
                "deploy",
                "init",
                "app",
                "--strategy",
                "mine/strategy.toml",
            ],
        ],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "The strategy needs own, installed here and not copied" in done.stdout
    assert not (tmp_path / "app" / "federated" / "own.py").exists()


def test_the_template_says_every_setting_and_its_default(tmp_path: Path) -> None:
    from dataclasses import fields

    from sojourn.deployment.app import app_config, task_folder, write_app
    from sojourn.deployment.settings import Settings, read_settings

    write_app(tmp_path / "app")
    config = app_config(tmp_path / "app")
    settings = read_settings(config, task_folder(tmp_path / "app"))
    names = {field.name for field in fields(Settings)}
    names -= {"rates_known", "rehearsed_of", "listed"}
    made = {"guard", "privacy"}
    of = {"screen", "largest_update", "largest_speed", "quarantine_refused", "quarantine_agreement"}
    of |= {f"privacy_{name}" for name in ("clip", "noise", "delta", "epsilon")}
    of_strategy = {"fleet", "routing", "policy", "rule", "concurrency"}
    said = {key.replace("-", "_").split(".")[0] for key in config}
    assert said == (names - made) | of | of_strategy
    least = {key: config[key] for key in ("clients", "updates", "concurrency", "learning-rate")}
    bare = read_settings(least, tmp_path)
    for name in names - {"task"}:
        assert getattr(settings, name) == getattr(bare, name)
    assert settings.task == {"test-fraction": 0.2}


def test_the_template_takes_a_plan_as_it_is(tmp_path: Path) -> None:
    import sojourn as sj
    from sojourn.deployment.app import app_config, task_folder, write_app
    from sojourn.deployment.settings import read_settings

    write_app(tmp_path / "app")
    path = tmp_path / "app" / "pyproject.toml"
    path.write_text(path.read_text().replace('strategy = ""', 'strategy = "plan.toml"'))
    constants = sj.LearningConstants(2.3, 10.0, 1.0, 1.0)
    plan = sj.plan(sj.Fleet([0.1, 0.5, 1.0]), sj.TimeToAccuracy(constants, 0.5), concurrency=5)
    plan.write(task_folder(tmp_path / "app") / "plan.toml")
    settings = read_settings(app_config(tmp_path / "app"), task_folder(tmp_path / "app"))
    assert settings.strategy.concurrency == 5
    assert settings.learning_rate == plan.learning_rate
    assert settings.strategy.network.client_routing == pytest.approx(plan.client_routing)
    sj.plan(sj.Fleet([0.1, 0.5, 1.0]), sj.NoiseRate()).write(
        task_folder(tmp_path / "app") / "plan.toml"
    )
    with pytest.raises(sj.InvalidFile, match="the plan gives no learning rate"):
        read_settings(app_config(tmp_path / "app"), task_folder(tmp_path / "app"))


def test_init_keeps_out_of_a_folder_that_is_in_use(run: Run, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    done = run("deploy", "init", ".")
    assert done.code == 2
    assert "not empty" in done.error
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(
    ("change", "arguments", "said"),
    [
        (("patience = 3", "patienc = 3"), (), "did you mean 'patience'"),
        (("updates = 200", "updates = 0"), (), "'updates' must be at least 1; it is 0"),
        (('routing = ""', 'routing = "balanced"'), (), "adapt = true"),
        (('rule = ""', 'rule = "fedavg"'), (), "synchronous"),
        (('strategy = ""', 'strategy = "plan.toml"'), (), "plan.toml: cannot be read"),
        (("", ""), ("--clients", "0"), "'clients' must be at least 1"),
        (("", ""), ("--pause", "1,2"), "it has 2"),
        (("", ""), ("--pause", "soon"), "it is 'soon'"),
        (("", ""), ("--resume",), "holds no checkpoint"),
    ],
)
def test_mistakes_are_said_before_anything_starts(
    run: Run, tmp_path: Path, change: tuple[str, str], arguments: tuple[str, ...], said: str
) -> None:
    run("deploy", "init", "app")
    path = tmp_path / "app" / "pyproject.toml"
    path.write_text(path.read_text().replace(*change))
    done = run("deploy", "local", "app", *arguments)
    assert done.code == 2
    assert said in done.error
    assert "Traceback" not in done.error
    assert not (tmp_path / "app-run").exists()


def test_a_folder_that_is_no_app_is_said(run: Run) -> None:
    done = run("deploy", "local", ".")
    assert done.code == 2
    assert "sojourn deploy init DIR" in done.error


@pytest.mark.slow
@pytest.mark.flower
@pytest.mark.xdist_group("flower")
@pytest.mark.timeout(1800)
def test_local_runs_stops_on_interruption_and_resumes(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """The template as it is written, with torch: interrupted after an update, then resumed."""
    home, homes = tmp_path / "home", tmp_path / "homes"
    home.mkdir()
    homes.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("TMPDIR", str(homes))
    run: Run = request.getfixturevalue("run")
    run("deploy", "init", "app")
    pyproject = tmp_path / "app" / "pyproject.toml"
    quick = pyproject.read_text().replace("checkpoint-seconds = 30.0", "checkpoint-seconds = 1.0")
    pyproject.write_text(quick)
    command = [sys.executable, "-m", "sojourn", "deploy", "local", "app", "--clients", "2"]
    environment = {**os.environ, "COLUMNS": "200"}
    with (tmp_path / "said.txt").open("w") as said:
        child = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=said, stdout=said)
    status = tmp_path / "app-run" / "status.json"
    patience = time.monotonic() + 600
    while not status.exists() or json.loads(status.read_text()).get("updates", 0) < 1:
        assert time.monotonic() < patience
        assert child.poll() is None, (tmp_path / "said.txt").read_text()
        time.sleep(0.5)
    time.sleep(2.0)
    child.send_signal(signal.SIGINT)
    assert child.wait(60) == 130
    assert "--resume" in (tmp_path / "said.txt").read_text()
    assert flower_processes(homes) == []

    updates = json.loads(status.read_text())["updates"] + 3
    more = ("--updates", str(updates), "--resume")
    done = run("deploy", "local", "app", "--clients", "2", *more)
    assert done.code == 0, done.error
    assert flower_processes(homes) == []
    assert not (home / ".flwr").exists()
    deployed, predicted = History.read(tmp_path / "app-run" / "history.jsonl")
    assert (deployed.clock, predicted.clock) == ("real", "virtual")
    assert deployed.round[-1] == predicted.round[-1] == updates
    summary = json.loads((tmp_path / "app-run" / "summary.json").read_text())
    assert [entry["name"] for entry in summary["strategies"]] == ["deployed", "predicted"]
    shown = run("report", "app-run")
    assert shown.code == 0, shown.error


def test_an_app_runs_in_one_process_without_flower(run: Run, tmp_path: Path) -> None:
    run("deploy", "init", "app")
    done = run("deploy", "local", "app", "--updates", "60", "--in-process", "--out", "results")
    assert done.code == 0, done.error
    assert "Export the model: test accuracy" in done.out
    assert "60 updates from 3 clients" in done.out
    assert len((tmp_path / "results" / "tasks.jsonl").read_text().splitlines()) == 60
    assert not (tmp_path / "results" / "logs").exists()


def test_a_rehearsal_says_what_differs_from_the_whole(tmp_path: Path) -> None:
    from sojourn.cli.deploy import _rehearsal_text
    from sojourn.deployment.settings import read_settings
    from sojourn.fleet import Fleet

    Fleet([1.0, 2.0, 8.0], counts=[100, 100, 100], names=["a", "b", "c"]).to_csv(
        tmp_path / "fleet.csv"
    )
    config = {"clients": 3, "updates": 1, "concurrency": 300, "fleet": "fleet.csv"}
    given = {**config, "policy": "never-queue", "rehearse": True}
    settings = read_settings(given, tmp_path)
    assert settings.rehearsed_of is not None
    text = _rehearsal_text(settings, settings.rehearsed_of)
    assert (
        "3 of the strategy's 300 clients (a 51, b 51, c 51), and 3 of 300 tasks in flight" in text
    )
    assert "11 updates per time unit where the whole makes 1.1e+03" in text
    assert "staleness of about 2 updates instead of 299" in text
