"""A hundred megabytes of weights: what the server holds of them, and what is exported."""

import shutil
import sys
import time
import tracemalloc
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from sojourn.deployment.app import PACKAGE
from sojourn.deployment.export import export_model
from tests.deployment import large_task
from tests.deployment.flower_sessions import HERE, Session, server_processes, status_of
from tests.deployment.test_inprocess import run

CLIENTS, UPDATES = 3, 20
OPTIONS = {"updates": UPDATES, "evaluate-every": 10, "checkpoint-seconds": 1.0}


def check_export(folder: Path, status: dict[str, Any]) -> None:
    """It loads in plain PyTorch and evaluates as the run did."""
    export_model(folder, folder / "exported.safetensors")
    layer = large_task.model()
    layer.load_state_dict(safetensors.torch.load_file(folder / "exported.safetensors"))
    with torch.no_grad():
        found = float(layer(torch.ones(large_task.WIDTH)).sum())
    assert found == pytest.approx(status["loss"], rel=1e-4)


@pytest.mark.slow
def test_the_server_holds_little_more_than_the_versions_in_flight(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    large = large_task.Large(CLIENTS)

    def problem(clients: int, seed: int) -> large_task.Large:
        return large

    weights = large.gradient.nbytes
    tracemalloc.start()
    status = run(tmp_path, [lambda: 0.1] * CLIENTS, problem, **OPTIONS)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (status["updates"], status["counts"]["lost"]) == (UPDATES, 0)
    with capsys.disabled():
        sys.stdout.write(
            f"\n100 MB: peak {peak / weights:.2f} times the weights, {status['elapsed']} s\n"
        )
    assert peak <= (CLIENTS + 4) * weights
    check_export(tmp_path / "run", status)


@pytest.mark.slow
@pytest.mark.flower
@pytest.mark.xdist_group("flower")
@pytest.mark.timeout(3600)
@pytest.mark.skipif(sys.platform != "linux", reason="what a process holds is read as Linux says it")
def test_so_it_does_through_flower(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In real processes, Flower's buffers included: what the server held before counts as imports."""
    folder, before = tmp_path / "run", tmp_path / "before"
    session = Session(tmp_path / "flower", [0.0] * CLIENTS, resident=True)
    shutil.copy(HERE / "large_task.py", session.app / PACKAGE / "task.py")
    with (session.app / "pyproject.toml").open("a") as file:  # its last table is the task's own
        file.write(f'{large_task.MEMORY} = "{before}"\n')
    config = {
        **OPTIONS,
        "concurrency": CLIENTS,
        "first-deadline": 900.0,
        "shortest-deadline": 900.0,
        "learning-rate": 0.05,
    }
    peak = 0
    with session:
        session.submit(folder, clients=CLIENTS, **config)
        patience = time.monotonic() + 1800.0
        while not (folder / "weights.npy").exists():
            assert time.monotonic() < patience, "it has not come to its end"
            for process in server_processes():
                with suppress(OSError, StopIteration):
                    peak = max(peak, large_task.held(process, "VmHWM"))
            time.sleep(0.2)
        session.wait_until_finished(folder)
    status, weights = status_of(folder), 4 * large_task.WIDTH**2
    held = peak - int(before.read_text())
    with capsys.disabled():
        sys.stdout.write(
            f"\n100 MB through Flower: peak {held / weights:.2f} times the weights, "
            f"{UPDATES} updates in {status['elapsed']} s, counts {status['counts']}\n"
        )
    assert (status["updates"], status["counts"]["lost"]) == (UPDATES, 0)
    check_export(folder, status)
    assert held <= (CLIENTS + 4) * weights
