"""``sojourn deploy`` as a user types it."""

import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

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
    (tmp_path / "model.py").write_text("def get_problem():\n    pass\n")
    for wrong, words in (
        (("--strategy", "nowhere.toml"), "nowhere.toml: cannot be read"),
        (("--problem", "model.py"), "no function 'problem' in it; there are get_problem"),
        (("--strategy", "fleet.csv"), "fleet.csv"),
    ):
        refused = run("deploy", "init", "other", *wrong)
        assert (refused.code, words in refused.error) == (2, True), refused.error
        assert not (tmp_path / "other").exists()


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
