"""The same app in Flower's simulation, which is built on Ray."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.deployment.flower_sessions import check_accounts, replayed_weights, status_of, tasks_of

ROOT = Path(__file__).resolve().parents[2]
LOOPBACK_ONLY = ["unshare", "-n", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]


def can_isolate() -> bool:
    """Whether a network with nothing but loopback can be made here."""
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        return False
    return subprocess.run([*LOOPBACK_ONLY, "true"], capture_output=True).returncode == 0


@pytest.mark.slow
@pytest.mark.flower
@pytest.mark.timeout(900)
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")
@pytest.mark.skipif(not can_isolate(), reason="no loopback-only network can be made (unshare, ip)")
def test_the_app_runs_unchanged_in_simulation(tmp_path: Path) -> None:
    """Ray would look for cloud services, so it runs where only loopback can be reached."""
    command = [
        *LOOPBACK_ONLY,
        sys.executable,
        "-m",
        "tests.deployment.simulated_run",
        str(tmp_path),
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=800)
    run = tmp_path / "run"
    check_accounts(run, 6)
    assert status_of(run)["counts"]["used"] == 40
    for client in range(3):
        ordinals = [task["ordinal"] for task in tasks_of(run) if task["client"] == client]
        assert ordinals == sorted(ordinals)
    np.testing.assert_allclose(
        np.load(run / "weights.npy"), replayed_weights(run, 3), rtol=1e-3, atol=1e-5
    )
