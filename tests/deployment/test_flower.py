"""Real Flower processes on loopback: order, staleness, deaths, crashes, hostility, keys."""

import io
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from sojourn.cli.deploy import _picture
from sojourn.deployment.local import LocalFlower
from sojourn.fleet import Fleet, Network
from sojourn.rules import GeneralizedAsyncSGD
from sojourn.simulation.simulate import simulate
from sojourn.theory.floor import target_rates
from sojourn.training.replay.replay import replay
from tests.browser import CHROMIUM, started_browser
from tests.deployment import digits_task
from tests.deployment.flower_sessions import (
    CONCURRENCY,
    LEARNING_RATE,
    Session,
    check_accounts,
    check_none_is_left,
    events_of,
    last_checkpoint,
    replayed_weights,
    status_of,
    tasks_of,
)
from tests.deployment.warm import warm_commands
from tests.live.test_explore_page import Page
from tests.live.test_watch_page import watching

pytestmark = [
    pytest.mark.flower,
    pytest.mark.xdist_group("flower"),
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not Path("/proc").exists(), reason="looks for processes in /proc"),
]

NO_DEADLINE = {"shortest-deadline": 600.0, "first-deadline": 600.0}
"""Where nobody dies: on a busy machine a task may take minutes."""
Say = Callable[[str], None]


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    """Show what was measured, whether or not the test passes."""

    def show(text: str) -> None:
        with capsys.disabled():
            sys.stdout.write(f"{text}\n")

    return show


@pytest.fixture(scope="module", autouse=True)
def nothing_is_left_behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Flower's homes are made in a folder of their own, so that its processes can be told."""
    homes = tmp_path_factory.mktemp("homes")
    before, tempfile.tempdir = tempfile.tempdir, str(homes)
    yield
    tempfile.tempdir = before
    check_none_is_left(homes)
    assert list(homes.iterdir()) == []


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with warm_commands(tmp_path_factory.mktemp("warm")) as environment:
        yield environment


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory, warm: dict[str, str]) -> Iterator[Session]:
    """Three clients with different service times and a hostile fourth, for several runs."""
    folder = tmp_path_factory.mktemp("flower")
    pauses, hostile = [0.0, 0.5, 1.5, 0.0], {3: "hostile=true"}
    with Session(folder, pauses, hostile, environment=warm) as started:
        yield started


def test_a_real_run_is_the_closed_network_of_the_theory(
    session: Session, tmp_path: Path, say: Say
) -> None:
    updates = 24
    session.submit(tmp_path, updates, **{"evaluate-every": 10}, **NO_DEADLINE)
    session.wait_for(tmp_path, 8)
    under_way = on_terminal(status_of(tmp_path))
    session.wait_until_finished(tmp_path)
    assert re.search(r"running, \d+/24 updates in \d+ s, .*about \d+ s left", under_way)
    assert "━" in under_way and "client 2" in under_way
    assert " left" not in on_terminal(status_of(tmp_path))
    check_accounts(tmp_path, CONCURRENCY)
    tasks = tasks_of(tmp_path)

    for client in range(3):
        ordinals = [task["ordinal"] for task in tasks if task["client"] == client]
        assert ordinals == sorted(ordinals)

    in_flight = last_checkpoint(tmp_path, 3, CONCURRENCY).tasks.values()
    ages = [updates - task.dispatched for task in in_flight]
    passed = sum(task["staleness"] for task in tasks) + sum(ages)
    assert passed == updates * (CONCURRENCY - 1)
    staleness = np.array([task["staleness"] for task in tasks[CONCURRENCY:]], dtype=float)
    mean, error = staleness.mean(), batch_error(staleness)
    assert abs(mean - (CONCURRENCY - 1)) < 4 * error

    np.testing.assert_allclose(
        np.load(tmp_path / "weights.npy"), replayed_weights(tmp_path, 3), rtol=1e-3, atol=1e-5
    )
    history = [json.loads(line) for line in (tmp_path / "history.jsonl").read_text().splitlines()]
    deployed = history[-1]["test_accuracy"]
    seconds = [client["seconds"] for client in status_of(tmp_path)["clients"]]
    virtual = virtual_accuracies(seconds, updates)
    spread = np.std(virtual, ddof=1) * np.sqrt(1 + 1 / len(virtual))
    assert abs(deployed - np.mean(virtual)) < 4 * spread
    say(
        f"staleness {mean:.2f} +- {error:.2f} (m - 1 = 5); accuracy {deployed:.3f}, "
        f"in virtual time {np.mean(virtual):.3f} (sd {np.std(virtual):.3f}); seconds per task "
        + ", ".join(f"{s:.1f}" for s in seconds)
    )


def on_terminal(status: dict[str, Any]) -> str:
    """What `sojourn deploy local` shows of it: a line, the bar, the clients."""
    file = io.StringIO()
    Console(file=file, width=120).print(_picture(status))
    return file.getvalue()


def batch_error(values: np.ndarray, batches: int = 6) -> float:
    """The standard error of a mean of dependent values, from means of batches."""
    means = [batch.mean() for batch in np.array_split(values, batches)]
    return float(np.std(means, ddof=1) / np.sqrt(batches))


def virtual_accuracies(seconds: list[float], updates: int) -> list[float]:
    problem = digits_task.problem(3, 0)
    network = Network(Fleet(1 / np.array(seconds)), [1 / 3] * 3, CONCURRENCY)
    return [
        replay(
            simulate(network, rounds=updates, seed=seed),
            problem,
            GeneralizedAsyncSGD(),
            learning_rate=LEARNING_RATE,
            seed=0,
            evaluate_every=updates,
        ).final_accuracy
        for seed in range(20)
    ]


LONGEST_DEADLINE = 20.0
"""Seconds. Flower misses a node no earlier than 37 s after its death: 60 s after its last heartbeat,
which are at most 22.5 s apart."""
REFUSALS = ("not finite", "shape is (17,)", "above the largest allowed", "names task", "float16")
"""What is said of each kind of reply that the hostile client sends."""


def test_a_killed_and_a_hostile_client(session: Session, tmp_path: Path, say: Say) -> None:
    """Client 1 is killed and comes back; client 3 sends nothing that may be used.

    It sends NaN, a wrong shape, 1e30, an answer that names another task, and half precision.
    """

    def refused(why: str) -> bool:
        events = (tmp_path / "events.log").read_text().splitlines()
        return any(why in line and "client 3" in line for line in events)

    options = {"patience": 5, "shortest-deadline": 8.0, "longest-deadline": LONGEST_DEADLINE}
    number = session.submit(tmp_path, 200, clients=4, **options)
    session.wait_for(tmp_path, 5)
    session.wait_while(tmp_path, lambda status: not is_at_work(status["clients"][1]))
    session.flower.processes.kill("client-1")
    killed = status_of(tmp_path)["elapsed"]
    session.wait_while(tmp_path, lambda status: status["clients"][1]["status"] == "alive")
    noticed, how, said = next(
        event
        for event in events_of(tmp_path)
        if event[0] > killed and event[1] in ("overdue", "left") and "client 1:" in event[2]
    )
    assert how == "overdue", said
    known = [client["used"] for client in status_of(tmp_path)["clients"]]
    session.wait_while(
        tmp_path, lambda status: any(status["clients"][i]["used"] == known[i] for i in (0, 2))
    )
    before = status_of(tmp_path)["clients"][1]["used"]
    session.start_client(1)
    session.wait_while(tmp_path, lambda status: status["clients"][1]["used"] == before)
    session.wait_while(tmp_path, lambda status: not all(map(refused, REFUSALS)))
    session.stop_run(number)

    last = status_of(tmp_path)
    check_accounts(tmp_path, CONCURRENCY)
    tasks = tasks_of(tmp_path)
    assert last["clients"][3]["used"] == 0
    _, accuracy = digits_task.problem(4, 0).evaluate(replayed_weights(tmp_path, 4))
    assert accuracy > 0.7
    say(
        f"death noticed after {noticed - killed:.0f} s ({said}); "
        f"{last['counts']}; accuracy {accuracy:.3f} after {len(tasks)} updates"
    )


def is_at_work(client: dict[str, Any]) -> bool:
    """Whether a client is known to have a task, another after it, and to have done one before."""
    return client["status"] == "alive" and client["waiting"] >= 2 and client["seconds"] is not None


KEPT_OFTEN = {"checkpoint-seconds": 1.0, "evaluate-every": 5, **NO_DEADLINE}


def test_a_killed_server_loses_nothing(session: Session, tmp_path: Path, say: Say) -> None:
    session.submit(tmp_path, 9, **KEPT_OFTEN)
    session.wait_while(tmp_path, lambda status: not kept_tasks(tmp_path))
    session.kill_server()
    kept = kept_tasks(tmp_path)
    session.submit(tmp_path, 9, resume=True, **KEPT_OFTEN)
    check_nothing_is_lost(session, tmp_path, kept)
    say(f"{len(kept)} updates kept of a killed server; 9 in all")


@pytest.mark.slow
def test_a_killed_superlink_loses_nothing(tmp_path: Path, warm: dict[str, str], say: Say) -> None:
    run, pauses = tmp_path / "run", [0.0, 0.5, 1.5]
    with Session(tmp_path / "flower", pauses, environment=warm, lasting=True) as session:
        session.submit(run, 9, **KEPT_OFTEN)
        session.wait_while(run, lambda status: not kept_tasks(run))
        session.flower.processes.kill("superlink")
        kept = kept_tasks(run)
        session.start_superlink()
        session.submit(run, 9, resume=True, **KEPT_OFTEN)
        check_nothing_is_lost(session, run, kept)
    say(f"{len(kept)} updates kept of a killed SuperLink; 9 in all")


def check_nothing_is_lost(session: Session, run: Path, kept: list[dict[str, Any]]) -> None:
    """A run of 9 updates that was broken off when those were ``kept`` goes on to its end."""
    session.wait_until_finished(run)
    check_accounts(run, CONCURRENCY)
    tasks = tasks_of(run)
    assert len(tasks) == 9
    assert 0 < len(kept) < 9
    assert tasks[: len(kept)] == kept
    np.testing.assert_allclose(
        np.load(run / "weights.npy"), replayed_weights(run, 3), rtol=1e-3, atol=1e-5
    )


def kept_tasks(run: Path) -> list[dict[str, Any]]:
    """The record of the updates that are in the last checkpoint, if there is one yet."""
    if not (run / "checkpoint.npz").exists():
        return []
    used = last_checkpoint(run, 3, CONCURRENCY).counts.used
    tasks = tasks_of(run)[:used]
    assert len(tasks) == used
    return tasks


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
def test_a_run_is_watched_to_its_end_without_a_reload(session: Session, tmp_path: Path) -> None:
    run = tmp_path / "watched"
    run.mkdir()
    session.submit(run, 25)
    with watching(run) as address, started_browser() as browser:
        made = Page(browser, address)
        made.page.set_default_timeout(600_000)
        made.page.evaluate("window.notReloaded = true")
        made.until("/ of 25 updates: running/.test(document.getElementById('title').innerText)")
        made.until("document.querySelectorAll('#clients tbody tr').length === 3")
        session.wait_until_finished(run)
        made.page.wait_for_selector("body[data-state=finished]")
        assert made.page.evaluate("window.notReloaded") is True
        used = made.page.locator("#clients tbody tr td:nth-child(4)").all_inner_texts()
        assert sum(map(int, used)) == 25
        made.close()


@pytest.mark.slow
def test_nobody_queues_and_duty_cycles_follow_a_slowdown(tmp_path: Path, say: Say) -> None:
    """Two tasks for three clients alike; then one of them takes ten times as long.

    After its first slow task, and some time into the second, the estimate still remembers the quick
    ones: its share has gone two fifths of the way, at least, to what theory says of the new speeds.
    """
    run, slowness = tmp_path / "run", tmp_path / "slow"
    slowing = {0: f'slow-file="{slowness}"'}
    with Session(tmp_path / "flower", [0.0] * 3, slowing, "slowing_client_app") as session:
        number = session.submit(
            run,
            1000,
            policy="never-queue",
            concurrency=2,
            **{"replan-every": 2, "shortest-deadline": 300.0, "first-deadline": 300.0},
        )
        session.wait_while(run, lambda status: min(c["used"] for c in status["clients"]) < 2)
        usual = float(np.mean([t["service_seconds"] for t in tasks_of(run) if t["client"] == 0]))
        slowness.write_text(str(9.0 * usual))
        session.wait_while(run, lambda status: not slow_tasks(run, usual))
        session.wait_for(run, len(tasks_of(run)) + 5)
        session.stop_run(number)
    check_accounts(run, concurrency=2)
    tasks = tasks_of(run)
    assert {task["clients"] for task in tasks} == {3}

    finished: dict[int, int] = {}
    for task in tasks:  # sent only when the client's task before had been completed
        assert task["dispatched"] > finished.get(task["client"], -1)
        finished[task["client"]] = task["index"]

    seconds = [[t["service_seconds"] for t in tasks if t["client"] == i] for i in (1, 2)]
    slow = float(np.mean(slow_tasks(run, usual)))
    rates = target_rates(Fleet([1 / slow, *(1 / np.mean(each) for each in seconds)]), 2)
    theory = float(rates[0] / rates.sum())
    after = share_of_the_first(tasks)
    assert theory < after < theory + 0.6 * (1 / 3 - theory)
    say(
        f"a task of client 0 took {usual:.1f} s, then {slow:.1f} s; its share fell from 0.333 "
        f"to {after:.3f}, theory {theory:.3f}; {len(tasks)} updates in {tasks[-1]['time']:.0f} s"
    )


def slow_tasks(run: Path, usual: float) -> list[float]:
    """How long the tasks of client 0 took that took far longer than usual."""
    taken = [task["service_seconds"] for task in tasks_of(run) if task["client"] == 0]
    return [seconds for seconds in taken if seconds > 5 * usual]


def share_of_the_first(tasks: list[dict[str, Any]]) -> float:
    """What the shares of clients 1 and 2, as of their last tasks, leave to client 0."""
    last = {task["client"]: task["probability"] for task in tasks}
    return float(1.0 - last[1] - last[2])


@pytest.mark.skipif(
    shutil.which("openssl") is None or shutil.which("ssh-keygen") is None,
    reason="openssl and ssh-keygen are not both installed",
)
def test_only_registered_nodes_join_over_tls(tmp_path: Path, warm: dict[str, str]) -> None:
    certificates = make_certificates(tmp_path)
    with LocalFlower(tmp_path / "logs", environment=warm) as flower:
        ca = str(certificates / "ca.crt")
        flower.configure({"address": flower.address, "root-certificates": ca})
        flower.start_superlink(
            (
                f"--ssl-ca-certfile={ca}",
                f"--ssl-certfile={certificates / 'server.crt'}",
                f"--ssl-keyfile={certificates / 'server.key'}",
                "--enable-supernode-auth",
            )
        )
        known, stranger = make_key(tmp_path, "known"), make_key(tmp_path, "stranger")
        registered = flower.flwr(
            "supernode", "register", f"{known}.pub", "local", "--format", "json"
        )
        assert json.loads(registered[registered.index("{") :])["success"], registered

        secure = ("--root-certificates", ca, "--auth-supernode-private-key")
        flower.start_supernode(0, name="known", arguments=(*secure, str(known)))
        flower.start_supernode(1, name="stranger", arguments=(*secure, str(stranger)))
        flower.start_supernode(2, name="plaintext", arguments=("--insecure", "--max-retries", "2"))

        def online() -> int:
            said = flower.flwr("supernode", "list", "local", "--format", "json")
            nodes = json.loads(said[said.index("{") :])["nodes"]
            return sum(node["status"] == "online" for node in nodes)

        flower.wait_until(
            lambda: online() == 1, what="the registered node did not join", seconds=600.0
        )
        flower.wait_until(
            lambda: {"stranger", "plaintext"} <= set(flower.processes.dead()),
            what="a node that is not registered was not turned away",
            seconds=600.0,
        )
        assert online() == 1
        assert "known" not in flower.processes.dead()


def make_certificates(folder: Path) -> Path:
    """A certificate authority and a server certificate for loopback, made with openssl."""
    where = folder / "certificates"
    where.mkdir()
    (where / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
    for command in (
        "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=test-ca -keyout ca.key -out ca.crt",
        "req -newkey rsa:2048 -nodes -subj /CN=localhost -keyout server.key -out server.csr",
        "x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 "
        "-extfile names -out server.crt",
    ):
        subprocess.run(
            ["openssl", *command.split()], cwd=where, check=True, capture_output=True, timeout=60
        )
    return where


def make_key(folder: Path, name: str) -> Path:
    """A key pair for a node, made with ssh-keygen."""
    path = folder / name
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", str(path)],
        check=True,
        capture_output=True,
        timeout=60,
    )
    return path
