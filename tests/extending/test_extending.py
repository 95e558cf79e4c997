"""The examples of docs/extending.md, as a stranger uses them: files beside an experiment."""

import pickle
import shutil
import sys
import time
import tomllib
from pathlib import Path

import numpy as np
import pytest

import sojourn as sj
from sojourn._support.extensions import load_extension
from sojourn.deployment.dispatcher import Dispatcher
from sojourn.errors import InvalidFile
from sojourn.testing import (
    check_law_conforms,
    check_objective_conforms,
    check_policy_conforms,
    check_rule_conforms,
)
from sojourn.training.experiment.engines import DaskEngine, LocalEngine
from sojourn.training.experiment.experiment import Experiment
from sojourn.training.experiment.run import run_experiment
from tests.training.cluster import PATIENCE, dask_cluster

DOCS = Path(__file__).parents[2] / "docs"
EXAMPLES = sorted((DOCS / "examples").glob("*.py"))
LONGEST = 31

EXPERIMENT = """
fleet = "three-clusters"
partition = "dirichlet"
rounds = {rounds}
concurrency = 12
learning-rate = 0.05
seeds = 2
batched = false
threads = 1
evaluate-every = 100
checkpoint-seconds = 0.0

[[strategy]]
name = "all three"
rule = {{ name = "last_gradients:LastGradients", decay = 0.99 }}
policy = {{ name = "shortest_wait:ShortestWait", longest = 3 }}
law = {{ name = "bimodal:Bimodal", often = 0.2, slow = 5.0 }}

[[strategy]]
name = "planned"
routing = "plan.toml"
rule = "last_gradients:LastGradients"
"""


def own(name, what, **knobs):
    """What an example defines."""
    return load_extension(name, what, DOCS / "examples")(**knobs)


def rule(**knobs):
    return own("last_gradients:LastGradients", "rule", **knobs)


def policy(**knobs):
    return own("shortest_wait:ShortestWait", "policy", **knobs)


@pytest.fixture(scope="module")
def plan_text(commands, tmp_path_factory):
    """A plan for the objective that simulates, as the command writes it."""
    folder = tmp_path_factory.mktemp("planning")
    shutil.copy(DOCS / "examples" / "measured_pace.py", folder)
    command = ["plan", "three-clusters", "--objective", "measured_pace:MeasuredPace"]
    options = ["--time", "40", "--concurrency", "12", "--out", "plan.toml"]
    done = commands.run(folder, *command, *options)
    assert done.code == 0, done.error
    return (folder / "plan.toml").read_text()


@pytest.fixture
def work(tmp_path, plan_text):
    """A folder with the examples and an experiment; commands run in another."""
    folder = tmp_path / "source"
    folder.mkdir()
    (tmp_path / "elsewhere").mkdir()
    for example in EXAMPLES:
        shutil.copy(example, folder)
    (folder / "plan.toml").write_text(plan_text)
    (folder / "e.toml").write_text(EXPERIMENT.format(rounds=400))
    return folder


def test_the_page_shows_the_files():
    page = (DOCS / "extending.md").read_text()
    assert len(EXAMPLES) == 5
    for example in EXAMPLES:
        assert example.read_text() in page, f"{example.name} is not shown as it is"
        assert len(example.read_text().splitlines()) <= LONGEST


@pytest.mark.parametrize(
    ("check", "name", "knobs"),
    [
        (check_rule_conforms, "last_gradients:LastGradients", {"decay": 0.9}),
        (check_policy_conforms, "shortest_wait:ShortestWait", {}),
        (check_policy_conforms, "shortest_wait:ShortestWait", {"longest": 1}),
        (check_law_conforms, "bimodal:Bimodal", {"often": 0.3, "slow": 4.0}),
        (check_objective_conforms, "measured_pace:MeasuredPace", {"time": 30.0}),
    ],
)
def test_each_conforms(check, name, knobs):
    check(own(name, "extension", **knobs))


def test_policy_and_law_drive_the_simulator(work):
    strategy = Experiment.read(work / "e.toml").strategies[0]
    schedule = sj.simulate(strategy.network, strategy.scenario, rounds=4000, seed=1)
    assert schedule.scenario.law_text == "bimodal(often=0.2, slow=5)"
    counts = np.bincount(schedule.client, minlength=30)
    assert counts[20:].min() > counts[:10].max(), "fast clients are done sooner, and get more"
    schedule.write(work / "schedule")
    again = sj.Schedule.read(work / "schedule")
    assert again.scenario == schedule.scenario


@pytest.mark.processes
@pytest.mark.timeout(2 * PATIENCE)
def test_killed_resumed_in_processes_and_run_again_from_its_folder(commands, work):
    elsewhere = work.parent / "elsewhere"
    run_experiment(Experiment.read(work / "e.toml"), work / "whole", LocalEngine())
    whole = (work / "whole" / "history.jsonl").read_bytes()
    killed = commands.start(elsewhere, "train", "../source/e.toml", "--out", "killed")
    cells = elsewhere / "killed" / "cells"
    end = time.monotonic() + PATIENCE
    while not any(cells.glob("all-three*.checkpoint")):
        assert killed.poll() is None, killed.wait()
        assert time.monotonic() < end
        time.sleep(0.01)
    killed.kill()
    killed.wait()
    assert not (elsewhere / "killed" / "history.jsonl").exists()
    again = ["train", "../source/e.toml", "--out", "killed", "--resume"]
    done = commands.run(elsewhere, *again)
    assert done.code == 0, done.error
    assert (elsewhere / "killed" / "history.jsonl").read_bytes() == whole
    kept = {path.name for path in (elsewhere / "killed" / "extensions").iterdir()}
    assert kept == {path.name for path in EXAMPLES if path.stem != "scaffold"}
    for example in work.glob("*.py"):
        example.unlink()
    kept = Experiment.read(elsewhere / "killed" / "experiment.toml")
    run_experiment(kept, elsewhere / "third", LocalEngine(jobs=2))
    assert (elsewhere / "third" / "history.jsonl").read_bytes() == whole


@pytest.mark.timeout(2 * PATIENCE)
def test_dask_needs_no_folder_in_common(commands, work):
    (work / "e.toml").write_text(EXPERIMENT.format(rounds=60))
    experiment = Experiment.read(work / "e.toml")
    run_experiment(experiment, work / "local", LocalEngine())
    away = work.parent / "away"
    work.rename(away)
    with dask_cluster(commands, away.parent / "elsewhere", workers=1) as (address, _):
        run_experiment(experiment, away / "dask", DaskEngine(address))
        changed = away / "last_gradients.py"
        changed.write_text(changed.read_text().replace("table.mean(0)", "2 * table.mean(0)"))
        edited = Experiment.read(away / "e.toml")
        run_experiment(edited, away / "edited", DaskEngine(address))
    local, dask, other = (
        (away / name / "history.jsonl").read_bytes() for name in ("local", "dask", "edited")
    )
    assert dask == local
    assert other != local, "a worker that lives on must not use the rule of before"


def test_another_rule_under_the_same_name_is_not_resumed(work):
    (work / "e.toml").write_text(EXPERIMENT.format(rounds=20))
    run_experiment(Experiment.read(work / "e.toml"), work / "out", LocalEngine())
    module = work / "last_gradients.py"
    module.write_text("# A comment changes nothing.\n" + module.read_text())
    asked = Experiment.read(work / "e.toml")
    run_experiment(asked, work / "out", LocalEngine(), resume=True)
    module.write_text(module.read_text().replace("table.mean(0)", "2 * table.mean(0)"))
    with pytest.raises(
        InvalidFile, match=r"'last_gradients.py', which it runs, says something else now"
    ):
        run_experiment(Experiment.read(work / "e.toml"), work / "out", LocalEngine(), resume=True)


def test_rule_and_policy_in_a_deployment():
    server = Dispatcher(
        np.zeros(3),
        rule=rule(),
        policy=policy(longest=2),
        routing=[0.25] * 4,
        concurrency=5,
        learning_rate=0.1,
        service_rates=[1.0, 1.0, 1.0, 20.0],
    )
    for client in range(4):
        server.joined(client, now=0.0)
    server.start(now=0.0)
    server.left(3, now=0.5)
    assert [len(client.queue) + len(client.out) for client in server.clients] == [2, 2, 1, 0]
    for t in range(20):
        task = server.tasks[min(number for client in server.clients for number in client.out)]
        if t == 10:
            server.joined(3, now=10.0)
        server.completed(task.number, np.full(3, 1.0 + task.client), now=1.0 + t)
        assert server.held + len(server.tasks) == 5
        assert max(len(client.queue) + len(client.out) for client in server.clients) <= 2
    assert server.clients[3].used > 0
    table = server.state.arrays["table"]
    assert table[:, 0].tolist() == [1.0, 2.0, 3.0, 4.0]


def test_the_objective_is_planned_written_and_read_back(work, plan_text):
    assert tomllib.loads(plan_text)["objective"] == {
        "name": "measured_pace:MeasuredPace",
        "time": 40.0,
    }
    plan = sj.Plan.read(work / "plan.toml")
    assert plan.objective.time == 40.0
    uniform = sj.Network(plan.fleet, sj.uniform_routing(plan.fleet), 12)
    assert plan.value > plan.objective.evaluate(uniform).value
    plan.write(work / "again.toml")
    assert sj.Plan.read(work / "again.toml").network == plan.network


LAW = """
from dataclasses import dataclass

import numpy as np
from pkg.rates import deeper


@dataclass(frozen=True)
class Own:
    name = "own"

    def sample(self, random, size):
        return np.full(size, deeper.ONE)
"""


def test_what_a_module_imports_from_beside_it_goes_with_it(tmp_path):
    folder = tmp_path / "here"
    (folder / "pkg").mkdir(parents=True)
    (folder / "pkg" / "__init__.py").write_text("")
    (folder / "pkg" / "rates.py").write_text("from . import deeper\n")
    (folder / "pkg" / "deeper.py").write_text("import json\n\nONE = 1.0\n")
    (folder / "own_laws.py").write_text(LAW)
    (folder / "not_used.py").write_text("")
    text = 'law = "own_laws:Own"\nfleet = "twenty"\nrounds = 5\nlearning-rate = 0.1\n'
    (folder / "e.toml").write_text(text + 'strategies = ["uniform"]\n')
    experiment = Experiment.read(folder / "e.toml")
    carried = {"own_laws.py", "pkg/__init__.py", "pkg/rates.py", "pkg/deeper.py"}
    assert set(experiment.extensions.files) == carried
    data = pickle.dumps(experiment)
    shutil.rmtree(folder)
    for module in ("own_laws", "pkg", "pkg.rates", "pkg.deeper"):
        del sys.modules[module]
    arrived = pickle.loads(data)
    (law,) = arrived.strategies[0].scenario.law
    assert law.sample(None, 2).tolist() == [1.0, 1.0]
    assert arrived.folder != folder
    assert pickle.loads(pickle.dumps(arrived)).strategies[0].scenario.law == (law,)


def test_observed_durations_are_a_law(tmp_path):
    (tmp_path / "fleet.csv").write_text("name,count,service_rate\nslow,2,0.5\nfast,3,2\n")
    (tmp_path / "seen.csv").write_text("class,duration\nslow,1\nslow,3\nfast,5\n")
    text = 'fleet = "fleet.csv"\nrounds = 5\nlearning-rate = 0.1\nstrategies = ["uniform"]\n'
    laws = []
    for law in (
        'trace = "seen.csv"',
        'law = { name = "trace", file = "seen.csv" }',
        'law = [{ name = "trace", file = "seen.csv" }, "deterministic"]',
    ):
        (tmp_path / "e.toml").write_text(f"{law}\n{text}")
        experiment = Experiment.read(tmp_path / "e.toml")
        laws.append(experiment.strategies[0].scenario.law)
    slow, fast = sj.read_trace(tmp_path / "seen.csv", experiment.fleet)
    assert laws == [(slow, fast), (slow, fast), (slow, sj.Law("deterministic"))]
    (tmp_path / "e.toml").write_text(f'trace = "seen.csv"\nlaw = "gamma"\n{text}')
    with pytest.raises(InvalidFile, match="leave out 'law'"):
        Experiment.read(tmp_path / "e.toml")
