"""Folders as the commands write them, filled with made-up numbers."""

import json
from pathlib import Path

import numpy as np
import pytest

from sojourn.history import History
from sojourn.network import built_in_fleet, named_routing
from sojourn.report.curves import learning_figure
from sojourn.report.figure import Figure, Series, Table, View
from sojourn.report.verdict import Finding, Statement

FLEET = built_in_fleet("three-clusters")
SPEEDS = {"uniform": (0.26, 0.0021), "balanced": (5.6, 0.0007), "square-root": (1.9, 0.0016)}


def made_up_history(strategy: str, seed: int, *, end: float = 1000.0) -> History:
    """A learning curve that rises with rounds, at the strategy's speed."""
    speed, gain = SPEEDS.get(strategy, (1.0, 0.001))
    rng = np.random.default_rng([seed, len(strategy)])
    time = np.linspace(0.0, end, 41)
    rounds = np.round(speed * time).astype(int)
    accuracy = 0.1 + 0.75 * (1 - np.exp(-gain * time * 2)) + 0.01 * rng.standard_normal(41)
    return History(
        strategy=strategy,
        seed=seed,
        learning_rate=0.01,
        clock="virtual",
        round=rounds,
        time=time,
        test_loss=2.5 * (1.05 - accuracy),
        test_accuracy=accuracy,
        train_loss=2.5 * (1.05 - accuracy),
        staleness=np.full(41, 29.0),
        gradients=rounds,
        updates=rounds,
    )


@pytest.fixture
def histories() -> list[History]:
    """Three strategies with three seeds each."""
    return [made_up_history(strategy, seed) for strategy in SPEEDS for seed in range(3)]


@pytest.fixture
def run_folder(tmp_path: Path, histories: list[History]) -> Path:
    """A folder as ``sojourn train`` writes it."""
    folder = tmp_path / "digits <and> more"
    folder.mkdir()
    History.write(folder / "history.jsonl", histories)
    (folder / "experiment.toml").write_text('fleet = "three-clusters"\n')
    summary = {
        "provenance": {"sojourn": "0.1.0", "inputs": {"seed": 1}},
        "strategies": [
            {
                "name": name,
                "routing": named_routing(FLEET, name).tolist(),
                "concurrency": 30,
                "time_to": {"0.5": {}, "0.8": {}},
            }
            for name in SPEEDS
        ],
    }
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


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
        figures=(learning_figure("claim-6-iid", "Homogeneous", histories, mark_ours=True),),
    ).write(folder / "claim-6")
    return folder
