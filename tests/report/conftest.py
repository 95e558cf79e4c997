"""A run made by ``sojourn train``, and findings about made-up claims, as a report is given them."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.commands import Commands

from sojourn.constants import LearningConstants
from sojourn.estimate import Estimate
from sojourn.figure import Figure, Series, Table, View
from sojourn.history import History
from sojourn.network import built_in_fleet
from sojourn.optimize import NoiseRate, PerRound
from sojourn.planning import plan
from sojourn.planpage import plan_report
from sojourn.report.curves import learning_figure
from sojourn.reproduce.pages import report_of
from sojourn.reproduce.palette import marked_label
from sojourn.reproduce.verdict import Finding, Statement

FLEET = built_in_fleet("three-clusters")
STRATEGIES = ("uniform", "balanced", "square-root", "plan", "each client")
SPEED = FLEET.expand(FLEET.service_rates) ** 0.25
EXPERIMENT = f"""\
fleet = "three-clusters"
data = "digits"
model = "mlp"
rounds = 120
concurrency = 30
learning-rate = 0.1
seeds = 3
evaluate-every = 20
targets = [0.2, 0.8]
strategies = ["uniform", "balanced", "square-root", "plan.toml"]

[[strategy]]
name = "each client"
routing = {(SPEED / SPEED.sum()).tolist()}
"""
"""The plan puts one slow or fast client apart from its class; the last strategy lists all thirty."""


@pytest.fixture(scope="session")
def trained(commands: Commands, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small run, trained once by the command."""
    where = tmp_path_factory.mktemp("trained")
    constants = LearningConstants(1.0, 1.0, 1.0, 1.0)
    split = plan(FLEET, PerRound(constants, learning_rate=0.01, rounds=1000), concurrency=30)
    assert split.network.fleet.classes > FLEET.classes
    split.write(where / "plan.toml")
    (where / "experiment.toml").write_text(EXPERIMENT, encoding="utf-8")
    done = commands.run(where, "train", "experiment.toml", "--out", "run")
    assert done.code == 0, done.error
    return where / "run"


@pytest.fixture
def run_folder(tmp_path: Path, trained: Path) -> Path:
    """A copy of that folder, under a name that HTML must not take for its own."""
    return Path(shutil.copytree(trained, tmp_path / "digits <and> more"))


@pytest.fixture
def histories(trained: Path) -> list[History]:
    """Five strategies with three seeds each."""
    return History.read(trained / "history.jsonl")


@pytest.fixture
def tuned_folder(run_folder: Path) -> Path:
    """The same with the answer of a tuning beside it, as ``sojourn tune`` writes it."""
    runs: dict[str, list[History]] = {}
    for history in History.read(run_folder / "history.jsonl"):
        runs.setdefault(history.strategy, []).append(history)
    confirmed = []
    for name in ("square-root", "uniform"):
        scores = [float(run.test_loss[-1]) for run in runs[name]]
        confirmed.append(
            {
                "name": name,
                "learning_rate": 0.1,
                "baseline": name == "uniform",
                "score": Estimate.from_samples(scores).to_table(),
                "scores": scores,
            }
        )

    def rung(fraction: float, gradients: int, diverged: int, *candidates: Any) -> dict[str, Any]:
        entries = [{"name": n, "learning_rate": r, "score": s} for n, r, s in candidates]
        return {
            "fraction": fraction,
            "gradients": gradients,
            "diverged": diverged,
            "candidates": entries,
        }

    square, uniform, other = ("square-root", 0.1), ("uniform", 0.1), ("balanced", 0.2)
    tuning = {
        "sentence": "square-root is best, we say.",
        "criterion": "final loss",
        "pick": "square-root",
        "learning_rate": 0.1,
        "tied": [],
        "confirmed": confirmed,
        "race": [
            rung(0.5, 700, 1, (*square, 0.9), (*uniform, 1.1), (*other, 2.0)),
            rung(1.0, 300, 0, (*square, 0.5), (*uniform, 0.8)),
        ],
        "gradients": 1000,
        "seconds": 2.5,
    }
    (run_folder / "tune.json").write_text(json.dumps(tuning), encoding="utf-8")
    return run_folder


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where pages are that are written once and looked at by many tests."""
    return tmp_path_factory.mktemp("pages")


@pytest.fixture
def tuned_page(tuned_folder: Path, pages: Path) -> Path:
    page = pages / "tuned.html"
    if not page.exists():
        report_of([tuned_folder]).write(page, stills=False)
    return page


@pytest.fixture(scope="session")
def plan_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a plan, as ``sojourn plan --page`` writes it."""
    best = plan(FLEET, NoiseRate())
    return plan_report(best).write(tmp_path_factory.mktemp("plan") / "plan.html", stills=False)


@pytest.fixture
def reproduction(tmp_path: Path, histories: list[History]) -> Path:
    """A folder as ``sojourn reproduce`` writes it: two claims, one of them a training claim."""
    folder = tmp_path / "reproduction"
    x = np.linspace(0.05, 0.95, 60)
    curves = View(
        "probability of the slow client",
        "third term of G",
        (
            Series("speeds 1, 1.2", x, 1 / (x * (1 - x))),
            Series("speeds 1, 10", x, 2 / (x * (1 - x))),
            Series("minimum", [0.5], [4.0], kind="points", text=("minimum",)),
        ),
        log_y=True,
    )
    bars = View(
        "clients",
        "share of tasks",
        (
            Series("uniform", [0, 1, 2], [0.33, 0.33, 0.34], kind="bars"),
            Series("balanced", [0, 1, 2], [0.01, 0.09, 0.9], kind="bars"),
        ),
        percent=True,
        categories=("slow", "medium", "fast"),
    )
    Finding(
        claim="1",
        title="The third term of G against the routing of the slow client",
        source="Figure 1",
        checked="Computed exactly for every probability.",
        scale="paper",
        statements=(
            Statement("It has its minimum near one.", "At 0.95.", "reproduces"),
            Statement("It is 7 times larger.", "9.3 times.", "does not reproduce", "steady state"),
        ),
        figures=(
            Figure("claim-1-term", "Third term of G", "Two curves with a minimum.", (curves,)),
            Figure("claim-1-bars", "Where tasks go", "Two sets of bars.", (bars,)),
        ),
        tables=(Table(("routing", "G"), (("uniform", "1.2"),), title="Values"),),
        provenance={"sojourn": "0.1.0"},
    ).write(folder / "claim-1")
    Finding(
        claim="6",
        title="KMNIST against time",
        source="Figure 4",
        checked="Trained.",
        scale="quick",
        reduced="three seeds instead of ten.",
        statements=(Statement("Best.", "Not run.", "data not found"),),
        figures=(learning_figure("claim-6-iid", "Homogeneous", histories, label=marked_label),),
    ).write(folder / "claim-6")
    return folder
