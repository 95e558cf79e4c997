"""`sojourn client` with real processes: warm, the same bits, failures per task, deaths."""

import importlib
import inspect
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest

from sojourn.deployment.app import PACKAGE, app_config, task_folder, write_app
from sojourn.deployment.flower.resident import (
    TALKING,
    WAITING,
    Progress,
    Worker,
    settle_tasks_of_ended_runs,
    start,
)
from sojourn.deployment.inprocess import InProcessTransport
from sojourn.deployment.local import LocalFlower, follow, run_in_process
from sojourn.deployment.run import serve
from sojourn.deployment.settings import read_settings
from sojourn.errors import InvalidInput
from tests.deployment import digits_task
from tests.deployment.flower_sessions import (
    LEARNING_RATE,
    Session,
    check_accounts,
    events_of,
    status_of,
)

pytestmark = [
    pytest.mark.xdist_group("flower"),
    pytest.mark.timeout(1800),
]
NO_DEADLINE = {"shortest-deadline": 600.0, "first-deadline": 600.0}


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    folder = tmp_path_factory.mktemp("resident")
    session = Session(folder, [0.0], client_app="recording_client_app", resident=True)
    with (session.app / "pyproject.toml").open("a") as settings:
        settings.write('record = ""\n')
    with session as started:
        yield started


def run(session: Session, folder: Path, updates: int, **config: Any) -> Path:
    """Submit a run of one client with one task in flight; where its processes are recorded."""
    record = folder / "record"
    given = {**NO_DEADLINE, "task.record": str(record), "concurrency": 1, **config}
    session.submit(folder, updates, clients=1, **given)
    return record


@pytest.mark.flower
def test_data_are_loaded_once_and_the_weights_are_the_same_to_the_bit(
    session: Session, tmp_path: Path
) -> None:
    """As with clients in one process, where nothing is encoded or sent."""
    record = run(session, tmp_path / "flower", 12)
    session.wait_until_finished(tmp_path / "flower")
    assert len(record.read_text().splitlines()) == 1
    check_accounts(tmp_path / "flower", 1)

    config = {"clients": 1, "updates": 12, "concurrency": 1, "learning-rate": LEARNING_RATE}
    given = {**config, "predict": False, "run-folder": str(tmp_path / "threads")}
    with InProcessTransport(digits_task.problem, [lambda: 0.0]) as transport:
        serve(transport, digits_task.problem, read_settings(given, tmp_path))
    np.testing.assert_array_equal(
        np.load(tmp_path / "flower" / "weights.npy"), np.load(tmp_path / "threads" / "weights.npy")
    )


@pytest.mark.slow
@pytest.mark.flower
def test_the_template_learns_the_same_weights_to_the_bit_every_way(tmp_path: Path) -> None:
    """A process per task, which is Flower's own way, `sojourn client` and a thread: one client each."""
    app = tmp_path / "app"
    write_app(app)
    config = {**NO_DEADLINE, "clients": 1, "updates": 6, "concurrency": 1, "predict": False}
    folders = {way: tmp_path / way for way in ("process per task", "sojourn client", "thread")}
    for way, resident in (("process per task", False), ("sojourn client", True)):
        with LocalFlower(folders[way] / "logs", resident=resident) as flower:
            flower.start_superlink()
            flower.start_supernode(0)
            number = flower.run(app, {**config, "run-folder": str(folders[way])})
            follow(flower, number, folders[way], lambda status: None)
    given = {**app_config(app), **config, "run-folder": str(folders["thread"])}
    run_in_process(app, read_settings(given, task_folder(app)), [0.0], lambda status: None)
    for way, folder in folders.items():
        assert status_of(folder)["counts"]["used"] == 6, way
    found = {way: np.load(folder / "weights.npy") for way, folder in folders.items()}
    assert len(np.unique(found["thread"])) > 1000, "weights that were trained"
    np.testing.assert_array_equal(found["process per task"], found["sojourn client"])
    np.testing.assert_array_equal(found["sojourn client"], found["thread"])


@pytest.mark.flower
def test_a_task_that_raises_fails_alone(session: Session, tmp_path: Path) -> None:
    """And its process stays: what comes after is done by the same one."""
    record = run(session, tmp_path, 20, patience=1000)
    session.wait_for(tmp_path, 5)
    (tmp_path / "broken").touch()
    session.wait_while(tmp_path, lambda status: status["counts"]["lost"] < 2)
    (tmp_path / "broken").unlink()
    session.wait_until_finished(tmp_path)
    assert len(record.read_text().splitlines()) == 1
    failed = [detail for _, kind, detail in events_of(tmp_path) if kind == "failed"]
    assert all("ZeroDivisionError" in detail and "told to" in detail for detail in failed)
    check_accounts(tmp_path, 1)


def client_processes(session: Session) -> tuple[psutil.Process, psutil.Process]:
    """The node and the worker of the client."""
    children = psutil.Process(session.flower.processes["client-0"].pid).children(recursive=True)
    [node] = [child for child in children if "node" in child.cmdline()]
    [worker] = [child for child in children if "work" in child.cmdline()]
    return node, worker


@pytest.mark.flower
def test_a_killed_worker_is_replaced_and_its_task_reported(
    session: Session, tmp_path: Path
) -> None:
    """By the next worker, without waiting for Flower's heartbeat; the node stays."""
    (tmp_path / "pause").touch()
    record = run(session, tmp_path, 12)
    wait = session.flower.wait_until
    wait((tmp_path / "paused").exists, what="no task has begun", seconds=600.0)
    node, worker = client_processes(session)
    worker.kill()
    (tmp_path / "pause").unlink()
    session.wait_until_finished(tmp_path)
    assert len(record.read_text().split()) == 2
    assert client_processes(session)[0] == node
    [failed] = [detail for _, kind, detail in events_of(tmp_path) if kind == "failed"]
    assert "the worker has died" in failed
    assert status_of(tmp_path)["counts"]["used"] == 12
    check_accounts(tmp_path, 1)


@pytest.mark.slow
@pytest.mark.flower
def test_a_worker_killed_while_it_talks_to_its_node_takes_it_along(
    session: Session, tmp_path: Path
) -> None:
    """The node would wait for ever for the rest of what was said."""
    run(session, tmp_path, 60)
    session.wait_for(tmp_path, 3)
    node, worker = client_processes(session)
    worker.suspend()
    handle = worker.cmdline()[-1]
    with Path(f"/proc/{worker.pid}/fd/{handle}").open("r+b") as file:
        Progress(file.fileno()).write(TALKING)
    worker.kill()
    session.wait_until_finished(tmp_path)
    assert client_processes(session)[0] != node
    assert status_of(tmp_path)["counts"]["used"] == 60
    check_accounts(tmp_path, 1)


@pytest.mark.slow
@pytest.mark.flower
def test_another_app_gets_another_process(session: Session, tmp_path: Path) -> None:
    run(session, tmp_path / "before", 3)
    session.wait_until_finished(tmp_path / "before")
    before = client_processes(session)[1].cmdline()
    with (session.app / PACKAGE / "task.py").open("a") as file:
        file.write("\nCHANGED = True\n")
    run(session, tmp_path / "after", 3)
    session.wait_until_finished(tmp_path / "after")
    assert status_of(tmp_path / "after")["counts"]["lost"] == 0
    assert client_processes(session)[1].cmdline() != before


@pytest.mark.flower
def test_it_ends_with_its_node(session: Session) -> None:
    """The last test of this session."""
    client = psutil.Process(session.flower.processes["client-0"].pid)
    children = client.children(recursive=True)
    [node] = [child for child in children if "node" in child.cmdline()]
    node.kill()
    _, alive = psutil.wait_procs([client, *children], timeout=60)
    assert not alive


def test_what_it_sets_itself_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"sojourn client sets --isolation itself; leave it out"):
        start(["--insecure", "--isolation=subprocess"])


def test_a_task_whose_run_has_ended_is_given_up_or_finished() -> None:
    inside = importlib.import_module("flwr.supernode.start_client_internal")
    parameters = inspect.signature(inside._pull_and_store_message).parameters
    assert "confirm_message_received" in parameters
    ended = inside.RunNotRunningException

    def pull_objects(ids: list[str], *, pull_object_fn: Any) -> dict[str, bytes]:
        return {name: pull_object_fn(name) for name in ids}

    def store(*, receive: Any, confirm_message_received: Any) -> int:
        confirm_message_received(1, receive())
        return 1

    def over(*arguments: object) -> bytes:
        raise ended

    confirmed: list[tuple[int, str]] = []
    flower = SimpleNamespace(
        pull_objects=pull_objects, _pull_and_store_message=store, RunNotRunningException=ended
    )
    settle_tasks_of_ended_runs(flower)
    assert flower.pull_objects(["a"], pull_object_fn=str.encode) == {"a": b"a"}
    with pytest.raises(ConnectionError, match="the run has ended"):
        flower.pull_objects(["a"], pull_object_fn=over)
    note = {"confirm_message_received": lambda *about: confirmed.append(about)}
    assert flower._pull_and_store_message(receive=lambda: "m", **note) == 1
    assert confirmed == [(1, "m")]
    over_now: Any = {"confirm_message_received": over}
    assert flower._pull_and_store_message(receive=lambda: "m", **over_now) == 1
    settle_tasks_of_ended_runs(SimpleNamespace())


def test_a_worker_outlives_a_task_that_its_node_gives_up() -> None:
    """Flower interrupts the process of such a task, which is refused its input."""

    def interrupted(client: object) -> None:
        raise KeyboardInterrupt

    class Heartbeat:
        def __init__(self, beat: object) -> None:
            """Nothing beats."""

        def start(self) -> None:
            """Nothing starts."""

        def stop(self) -> None:
            raise RuntimeError("Heartbeat sender is not running.")

    closed: list[str] = []
    with tempfile.TemporaryFile() as file:
        worker = Worker("127.0.0.1:1", Progress(file.fileno()))
        flower: Any = SimpleNamespace(
            clientapp=SimpleNamespace(pull_task_input=interrupted),
            heartbeat=SimpleNamespace(
                HeartbeatSender=Heartbeat, make_task_heartbeat_fn_http=lambda client: None
            ),
            client=lambda *who: SimpleNamespace(close=lambda: closed.append(who[-1])),
        )
        worker._flower = flower
        worker.work("token")
        assert (worker.progress.read(), closed) == (WAITING, ["token"])


def test_without_what_is_private_in_flower_it_is_an_ordinary_supernode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that cannot import ends; the command becomes Flower's own."""
    broken = tmp_path / "flwr"
    broken.mkdir()
    (broken / "__init__.py").write_text("raise ImportError('another version')")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    became: list[list[str]] = []

    def execvp(program: str, arguments: list[str]) -> None:
        became.append(arguments)
        raise SystemExit(0)

    monkeypatch.setattr(os, "execvp", execvp)
    begun = time.monotonic()
    with pytest.raises(SystemExit):
        start(["--insecure"])
    assert became == [["flower-supernode", "--insecure"]]
    assert time.monotonic() - begun < 120
