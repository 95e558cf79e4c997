"""The wheel alone: built, installed without extras outside the source tree, and used."""

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

EXPERIMENT = """
fleet = "three-clusters"
rounds = 10
concurrency = 5
learning-rate = 0.05
strategies = ["uniform"]
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """A fresh environment that holds the wheel and what it asks for."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, "wheel", "--no-deps", "-w", folder, ROOT], check=True)
    (wheel,) = folder.glob("sojourn-*.whl")
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv" / "bin" / "python"
    pip[0] = str(python)
    subprocess.run([*pip, "install", "-c", ROOT / "constraints.txt", wheel], check=True)
    return python.parent


@pytest.fixture
def run(environment, tmp_path):
    """Run a program of the environment in an empty folder, away from the source."""
    variables = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}

    def run(program, *arguments):
        return subprocess.run(
            [environment / program, *arguments],
            cwd=tmp_path,
            env=variables,
            capture_output=True,
            text=True,
        )

    return run


def test_it_is_the_wheel_that_runs(run):
    done = run("python", "-c", "import sojourn; print(sojourn.__file__)")
    assert "site-packages" in done.stdout
    missing = run("python", "-c", "import torch")
    assert "No module named 'torch'" in missing.stderr


def test_analyze(run):
    done = run("sojourn", "analyze", "three-clusters", "--concurrency", "30", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["throughput"] > 0


def test_plan(run, tmp_path):
    goal = ("--objective", "throughput", "--concurrency", "30")
    done = run("sojourn", "plan", "three-clusters", *goal, "--out", "plan.toml")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "plan.toml").exists()


def test_simulate(run, tmp_path):
    size = ("--concurrency", "30", "--rounds", "1000")
    done = run("sojourn", "simulate", "three-clusters", *size, "--out", "schedule")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "schedule" / "schedule.json").exists()


@pytest.mark.parametrize("statement", ["sojourn.replay", "sojourn.training.Problem"])
def test_what_needs_torch_names_the_extra(run, statement):
    done = run("python", "-c", f"import sojourn; {statement}")
    assert "MissingExtra" in done.stderr
    assert "sojourn[train]" in done.stderr


def test_train_names_the_extra(run, tmp_path):
    (tmp_path / "experiment.toml").write_text(EXPERIMENT)
    done = run("sojourn", "train", "experiment.toml", "--out", "out")
    assert done.returncode == 2
    assert "sojourn[train]" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()
