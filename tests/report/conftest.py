"""A run made by ``sojourn train``, and findings about made-up claims, as a report is given them."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reproduction.pages import reproduction_report as report_of
from reproduction.palette import marked_label
from reproduction.verdict import Finding, Statement
from sojourn._support.estimate import Estimate
from sojourn.dispatch import Routed
from sojourn.figures.figure import Figure, Series, Table, View
from sojourn.fleet import Network, built_in_fleet, uniform_routing
from sojourn.planning import plan
from sojourn.planning.objectives import NoiseRate, PerRound
from sojourn.report.outcomes import learning_figure
from sojourn.report.plan import plan_report
from sojourn.runs.folder import RunFolder
from sojourn.runs.history import History
from sojourn.simulation.simulate import simulate
from sojourn.theory.constants import LearningConstants
from tests.browser import browser
from tests.commands import Commands

__all__ = ["browser"]

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
    split.write(where / "plan.toml", Routed())
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
    RunFolder(run_folder).ledger.path.unlink(missing_ok=True)  # made by hand: no digests to keep
    return run_folder


@pytest.fixture
def deployed_folder(tmp_path: Path) -> Path:
    """Sixty updates of thirty clients, as a server writes them."""
    folder = tmp_path / "deployed"
    folder.mkdir()
    schedule = simulate(Network(FLEET, uniform_routing(FLEET), 30), rounds=60, seed=1)
    rounds = np.arange(0, 61, 10)
    accuracy = 0.9 - 0.8 * np.exp(-rounds / 20)
    loss = -np.log(accuracy)
    history = History(
        strategy="deployed",
        seed=0,
        learning_rate=0.1,
        clock="real",
        round=rounds,
        time=np.concatenate([[0.0], schedule.time])[rounds],
        test_loss=loss,
        test_accuracy=accuracy,
        train_loss=loss,
        staleness=np.full(rounds.size, 9.0),
        gradients=rounds,
        updates=rounds,
    )
    run = RunFolder(folder)
    run.write_history([history])
    run.write_summary({"strategies": [{"name": "deployed", "time_to": {}}]})
    names = [f"client {k}" for k in range(FLEET.size)]
    counts = {"routed": 90, "used": 60, "refused": 2, "late": 1, "lost": 0}
    run.status_path.write_text(
        json.dumps(
            {
                "phase": "finished",
                "counts": counts,
                "clients": [
                    {"name": name, "number": k, "status": "alive", "used": 2, "refused": 0}
                    for k, name in enumerate(names)
                ],
            }
        )
    )
    lines = zip(
        schedule.client.tolist(), schedule.dispatched.tolist(), schedule.time.tolist(), strict=True
    )
    run.tasks_path.write_text(
        "".join(
            json.dumps({"client": c, "dispatched": d, "time": t, "service_seconds": None}) + "\n"
            for c, d, t in lines
        )
    )
    run.ledger.path.unlink(missing_ok=True)
    return folder


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
    return plan_report(best, command="sojourn explore three-clusters").write(
        tmp_path_factory.mktemp("plan") / "plan.html", stills=False
    )


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
