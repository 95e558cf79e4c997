"""Server, SuperLink, worker and client killed at random moments: the updates of a run left alone.

One client with one task in flight, whose gradients are over all its samples: whatever was lost and
done again, the model after u updates is the same to the bit. Each is killed in a run of its own, so that
these can be run one by one, and all four in one more. ``SOJOURN_KILLS`` says how often, ``SOJOURN_SEED``
draws other moments, and after ``SOJOURN_SECONDS`` a run is killed no more and ends.
"""

import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from sojourn.deployment.inprocess import InProcessTransport
from sojourn.deployment.local import SUPERLINK
from sojourn.deployment.run import serve
from sojourn.deployment.settings import read_settings
from sojourn.deployment.status import read_status
from tests.deployment import digits_task
from tests.deployment.flower_sessions import (
    CONCURRENCY,
    LEARNING_RATE,
    Session,
    check_accounts,
    replayed_weights,
    server_processes,
    status_of,
    tasks_of,
)
from tests.deployment.warm import warm_commands

pytestmark = [
    pytest.mark.xdist_group("flower"),
    pytest.mark.timeout(7200),
    pytest.mark.slow,
    pytest.mark.flower,
]

KILLS, SEED = int(os.environ.get("SOJOURN_KILLS", "3")), int(os.environ.get("SOJOURN_SEED", "0"))
SECONDS = float(os.environ.get("SOJOURN_SECONDS", "inf"))
ALL = ("worker", "client", "server", "SuperLink")
ENDLESS = 100_000
NO_DEADLINE = {"shortest-deadline": 600.0, "first-deadline": 600.0}
TASK_SECONDS, LONGEST_WAIT_SECONDS = 1.0, 4.0
"""What a task takes, so that most kills come upon one; and the longest wait for a kill after an update."""
OFTEN = {
    "concurrency": 1,
    "checkpoint-seconds": 0.2,
    "evaluate-every": ENDLESS,
    "shortest-deadline": 5.0,
    "first-deadline": 20.0,
    "patience": 1000,
    "join-seconds": 900.0,
}


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Flower's commands without their imports, and clients without torch, which this task does not need."""
    without = tmp_path_factory.mktemp("without")
    (without / "torch.py").write_text("raise ImportError('not for clients')\n")
    with warm_commands(tmp_path_factory.mktemp("warm")) as environment:
        yield {**environment, "PYTHONPATH": str(without)}


@pytest.fixture
def session(tmp_path: Path, warm: dict[str, str]) -> Iterator[Session]:
    folder = tmp_path / "flower"
    with Session(folder, [TASK_SECONDS], environment=warm, lasting=True, resident=True) as started:
        yield started


class Deaths:
    """A run that is killed and goes on."""

    def __init__(self, session: Session, run: Path, **config: Any) -> None:
        self.session, self.run = session, run
        self.config = {**OFTEN, "clients": 1, **config}
        self.submit(ENDLESS)

    def submit(self, updates: int) -> None:
        resume = (self.run / "checkpoint.npz").exists()
        self.number = self.session.submit(self.run, updates, resume=resume, **self.config)

    def updates(self) -> int:
        status = read_status(self.run)
        assert status is None or status["phase"] != "failed", status
        return len(tasks_of(self.run)) if (self.run / "tasks.jsonl").exists() else 0

    def wait_for_more(self) -> None:
        """Until the run has got further than it was."""
        before = self.updates()
        text = f"no update after {before}"
        self.session.flower.wait_until(lambda: self.updates() > before, what=text, seconds=900.0)

    def kill_server(self) -> None:
        self.session.kill_server()
        wait = self.session.flower.wait_until
        wait(lambda: not server_processes(), what="the server goes on")
        self.submit(ENDLESS)

    def kill_superlink(self) -> None:
        self.session.flower.processes.kill(SUPERLINK)
        for process in server_processes():  # it would wait for the SuperLink, and be a second one
            os.kill(process, signal.SIGKILL)
        self.session.start_superlink()
        self.submit(ENDLESS)

    def workers(self) -> list[psutil.Process]:
        client = psutil.Process(self.session.flower.processes["client-0"].pid)
        return [child for child in client.children(recursive=True) if "work" in child.cmdline()]

    def kill_worker(self) -> None:
        self.session.flower.wait_until(lambda: bool(self.workers()), what="there is no worker")
        for worker in self.workers():
            worker.kill()

    def kill_client(self) -> None:
        self.session.flower.processes.kill("client-0")
        self.session.start_client(0)

    def finish(self) -> None:
        """Let it come to an end soon, by a polite stop and a last resume."""
        self.session.stop_run(self.number)
        self.submit(len(tasks_of(self.run)) + 5)
        self.session.wait_until_finished(self.run, seconds=900.0)


def check_as_uninterrupted(run: Path, folder: Path) -> None:
    """The same number of updates in one process that nobody kills: the same weights to the bit."""
    check_accounts(run, 1)
    updates = status_of(run)["counts"]["used"]
    config = {"clients": 1, "updates": updates, "concurrency": 1, "learning-rate": LEARNING_RATE}
    given = {**config, "predict": False, "run-folder": str(folder)}
    with InProcessTransport(digits_task.problem, [lambda: 0.0]) as transport:
        serve(transport, digits_task.problem, read_settings(given, folder.parent))
    np.testing.assert_array_equal(np.load(run / "weights.npy"), np.load(folder / "weights.npy"))


@pytest.mark.parametrize("kinds", [*((kind,) for kind in ALL), ALL], ids="-".join)
def test_killed_at_random_moments_it_applies_the_same_updates(
    kinds: tuple[str, ...],
    session: Session,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run, moments = tmp_path / "run", random.Random(SEED)
    deaths = Deaths(session, run)
    kill: dict[str, Callable[[], None]] = {
        "worker": deaths.kill_worker,
        "client": deaths.kill_client,
        "server": deaths.kill_server,
        "SuperLink": deaths.kill_superlink,
    }
    each = KILLS if len(kinds) == 1 else max(1, KILLS // 10)
    order = [kind for kind in kinds for _ in range(each)]
    moments.shuffle(order)
    over, killed = time.monotonic() + SECONDS, Counter[str]()
    for kind in order:
        if time.monotonic() > over and killed:
            break
        deaths.wait_for_more()
        time.sleep(moments.uniform(0.0, LONGEST_WAIT_SECONDS))
        begun, before = time.monotonic(), deaths.updates()
        kill[kind]()
        deaths.wait_for_more()
        killed[kind] += 1
        with capsys.disabled():
            seconds = time.monotonic() - begun
            said = f"{kind} killed after {before} updates, continued after {seconds:.1f} s"
            sys.stdout.write(f"{killed.total()} of {len(order)}: {said}\n")
            sys.stdout.flush()
    deaths.finish()
    check_as_uninterrupted(run, tmp_path / "alone")
    with capsys.disabled():
        sys.stdout.write(f"killed {dict(killed)}; same updates: {status_of(run)['counts']}\n")


def test_a_rolling_restart_under_load_loses_no_update(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The server is told to stop again and again while three clients work, and resumed.

    By Flower's own command: what is told to stop a warm one is its program, and that ends it at once.
    """
    run = tmp_path / "run"
    with Session(tmp_path / "flower", [0.0, 0.1, 0.3], resident=True) as session:
        deaths = Deaths(session, run, clients=3, concurrency=CONCURRENCY, **NO_DEADLINE)
        over, restarts = time.monotonic() + SECONDS, 0
        while restarts < KILLS and (time.monotonic() < over or not restarts):
            restarts += 1
            deaths.wait_for_more()
            for process in server_processes():
                os.kill(process, signal.SIGTERM)
            session.flower.wait_until(lambda: not server_processes(), what="the server goes on")
            assert status_of(run)["phase"] == "stopped"
            before = tasks_of(run)
            deaths.submit(ENDLESS)
            deaths.wait_for_more()
            assert tasks_of(run)[: len(before)] == before
        deaths.finish()
    check_accounts(run, CONCURRENCY)
    counts = status_of(run)["counts"]
    with capsys.disabled():
        sys.stdout.write(f"{restarts} rolling restarts: {counts}\n")
    assert counts["lost"] == counts["refused"] == 0
    np.testing.assert_allclose(
        np.load(run / "weights.npy"), replayed_weights(run, 3), rtol=1e-3, atol=1e-5
    )
