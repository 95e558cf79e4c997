"""Pilots: what they say is what a replay gives, and none outlives its server."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import sojourn as sj
from sojourn.live.explorer import MOST_AT_ONCE, Explorer
from sojourn.live.pilot import ROWS, SEED
from sojourn.planning.search.exponent import exponent_routing
from sojourn.training.experiment.build import build_problem
from sojourn.training.experiment.experiment import Experiment
from tests.live.conftest import asking

FLEET = sj.built_in_fleet("three-clusters")
PATIENCE = 120.0


def until(what: Any, patience: float = PATIENCE) -> Any:
    """Wait for ``what()`` to be true, and give it back."""
    limit = time.monotonic() + patience
    while time.monotonic() < limit:
        found = what()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError("it never came true")


def test_a_try_is_a_replay_of_the_same_settings() -> None:
    explorer = Explorer(FLEET, "three-clusters")
    settings = {"exponent": 0.5, "concurrency": 12, "learning_rate": 0.05, "horizon": 40.0}
    begun = explorer.begin(settings)
    assert begun["words"] == "square-root routing, 12 tasks, unbiased, η 0.05"
    (found,) = until(lambda: [one for one in explorer.tries.listed() if one.end is not None])
    explorer.close()
    assert (found.end, found.error) == ("finished", None)
    network = sj.Network(FLEET, exponent_routing(FLEET, 0.5), 12)
    schedule = sj.simulate(network, time=40.0, seed=SEED, paired=True)
    experiment = Experiment(
        fleet_name="explored",
        fleet=FLEET,
        strategies=(),
        seeds=(SEED,),
        pilot_seeds=(),
        time=40.0,
        partition="dirichlet(0.5)",
    )
    expected = sj.replay(
        schedule,
        build_problem(experiment, SEED),
        sj.rules.GeneralizedAsyncSGD(),
        learning_rate=0.05,
        seed=SEED,
        evaluate_at=np.linspace(0.0, 40.0, ROWS + 1),
        refine=False,
        progress=False,
    )
    assert [row["round"] for row in found.rows] == expected.round.tolist()
    assert [row["time"] for row in found.rows] == expected.time.tolist()
    losses = [row["test_loss"] for row in found.rows]
    assert losses == pytest.approx(expected.test_loss.tolist(), rel=1e-3)
    assert found.curvature is not None
    assert explorer.view(settings)["summary"]["curvature"] == found.curvature


def test_at_most_a_few_run_at_once_and_one_can_be_stopped() -> None:
    explorer = Explorer(FLEET, "three-clusters")
    long = {"horizon": 1e5}
    numbers = [explorer.begin(long)["number"] for _ in range(MOST_AT_ONCE)]
    processes = [one.process for one in explorer.tries.listed()]
    with pytest.raises(sj.InvalidInput, match="wait for one to end, or stop it"):
        explorer.begin(long)
    explorer.stop({"number": numbers[0]})
    until(lambda: explorer.tries.listed()[0].end == "stopped")
    explorer.begin(long)
    processes.append(explorer.tries.listed()[-1].process)
    explorer.close()
    assert all(process.poll() is not None for process in processes)
    with pytest.raises(sj.InvalidInput):
        explorer.begin(long)


def test_what_cannot_be_trained_is_said() -> None:
    explorer = Explorer(sj.Fleet([1.0], counts=[5000]), "many")
    explorer.begin({"horizon": 0.01})
    (found,) = until(lambda: [one for one in explorer.tries.listed() if one.end is not None])
    explorer.close()
    assert found.end == "failed"
    assert "cannot be shared among 5000 clients" in (found.error or "")


@pytest.fixture
def command(tmp_path: Path) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """``sojourn explore`` as a person starts it, and the address that it prints.

    Its output goes into a pipe, which Python buffers: the address must be there while it serves.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "sojourn", "explore", "--no-open"],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("open http://127.0.0.1:")
    yield process, line.split()[1]
    process.kill()
    process.wait()
    process.stdout.close()


@pytest.mark.parametrize(
    "how", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
)
def test_killed_amid_a_pilot_it_leaves_no_process(
    command: tuple["subprocess.Popen[str]", str], how: signal.Signals
) -> None:
    process, address = command
    ask = asking(address, address.split("token=")[1])
    assert ask("try", {"horizon": 1e5})[0] == 200
    until(lambda: ask("tries")[1]["tries"][0]["done"] > 0)
    (pilot,) = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(how)
    process.wait(PATIENCE)
    until(lambda: not pilot.is_running() or pilot.status() == psutil.STATUS_ZOMBIE)
    if how == signal.SIGINT:
        assert process.returncode == 0
