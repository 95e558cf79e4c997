"""What a company needs to run a deployment: metrics, logs, restarts, versions, service files."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from sojourn.deployment import transport as wire
from sojourn.deployment.app import write_app
from sojourn.deployment.inprocess import InProcessTransport
from sojourn.deployment.processes import Processes, free_port
from sojourn.deployment.run import serve
from sojourn.deployment.settings import read_settings
from sojourn.deployment.status import read_status, write_status
from sojourn.errors import InvalidInput
from sojourn.live.watcher import Watcher
from sojourn.version import __version__
from tests.deployment.fake_grid import FakeGrid
from tests.deployment.test_inprocess import problem, run, tasks_of


def test_prometheus_can_read_the_state_of_a_run(tmp_path: Path) -> None:
    port, answers = free_port(), []

    def scrape() -> float:
        if len(answers) < 1:
            address = f"http://127.0.0.1:{port}/metrics"
            with urllib.request.urlopen(address, timeout=30) as reply:
                answers.append(reply.read().decode())
        return 0.05

    run(tmp_path, [lambda: 0.05, scrape, lambda: 0.05], updates=60, **{"metrics-port": port})
    assert 'sojourn_replies_total{outcome="used"}' in answers[0]
    assert re.search(r'sojourn_client_alive\{client="client 1"\} [01]\.0', answers[0])
    assert "sojourn_heartbeat" in answers[0]
    with pytest.raises(OSError):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5)


SCRAPES = """
global:
  scrape_interval: 1s
scrape_configs:
  - job_name: sojourn
    static_configs:
      - targets: ["127.0.0.1:{port}"]
"""


QUERIES = (
    'sojourn_replies_total{outcome="used"} > 5',
    "sum(sojourn_client_alive)",
    'rate(sojourn_replies_total{outcome="used"}[30s]) > 0',
)


def asked_of_prometheus(port: int, query: str) -> list[dict[str, Any]]:
    """What Prometheus answers to a query; nothing while it starts."""
    address = f"http://127.0.0.1:{port}/api/v1/query?query={urllib.parse.quote(query)}"
    try:
        with urllib.request.urlopen(address, timeout=10) as reply:
            found: list[dict[str, Any]] = json.load(reply)["data"]["result"]
    except OSError:
        return []
    return found


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is not installed")
def test_prometheus_scrapes_a_run_and_answers_a_query(tmp_path: Path) -> None:
    """The run goes on slowly until Prometheus has seen some of its updates, and then to its end."""
    own, metrics, found = free_port(), free_port(), threading.Event()
    (tmp_path / "prometheus.yml").write_text(SCRAPES.format(port=metrics))
    answers: list[dict[str, Any]] = []

    def ask() -> None:
        give_up = time.monotonic() + 240.0
        for query in QUERIES:
            answer: list[dict[str, Any]] = []
            while not answer and time.monotonic() < give_up:
                answer = asked_of_prometheus(own, query)
                time.sleep(0.5)
            answers.extend(answer)
        found.set()

    command = [
        "prometheus",
        f"--config.file={tmp_path / 'prometheus.yml'}",
        f"--storage.tsdb.path={tmp_path / 'data'}",
        f"--web.listen-address=127.0.0.1:{own}",
    ]
    threading.Thread(target=ask, daemon=True).start()
    with Processes(os.environ, tmp_path / "logs") as processes:
        processes.start("prometheus", command)
        pace = lambda: 0.0 if found.is_set() else 0.2  # noqa: E731
        options = {"metrics-port": metrics, "largest-speed": 0.0, "evaluate-every": 1000}
        run(tmp_path, [pace] * 3, updates=1500, **options)
    used, alive, rate = answers
    assert used["metric"]["instance"] == f"127.0.0.1:{metrics}"
    assert float(used["value"][1]) > 5
    assert float(alive["value"][1]) == 3
    assert float(rate["value"][1]) > 0


def test_a_port_that_is_taken_is_said(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"metrics cannot be served at 203\.0\.113\.1:9400"):
        run(tmp_path, [lambda: 0.0], **{"metrics-port": 9400, "metrics-host": "203.0.113.1"})


def test_events_are_json_with_wall_clock_times(tmp_path: Path) -> None:
    before = datetime.now(UTC)
    run(tmp_path, [lambda: 0.0] * 2, updates=10, **{"json-log": True})
    lines = (tmp_path / "run" / "events.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert [record["kind"] for record in records] == ["joined", "joined"]
    for record in records:
        written = datetime.fromisoformat(record["time"])
        assert abs((written - before).total_seconds()) < 300
        assert record["level"] == "info" and record["client"] in (0, 1)


TEMPLATE = """
import sys
import threading
from pathlib import Path
from sojourn.deployment.inprocess import InProcessTransport
from sojourn.deployment.run import serve
from sojourn.deployment.settings import read_settings
from sojourn.deployment.status import read_status, write_status
from tests.deployment.fake_grid import FakeGrid
from tests.deployment.test_inprocess import problem
folder = Path(sys.argv[1])
given = {"clients": 3, "updates": int(sys.argv[2]), "predict": False, "resume": True}
settings = read_settings({**given, "run-folder": str(folder / "run")}, folder)
with InProcessTransport(problem, [lambda: 0.01] * 3) as transport:
    sys.exit(0 if serve(transport, problem, settings) or len(sys.argv) > 3 else 1)
"""


def start_server(folder: Path, updates: int, *stopped_is_fine: str) -> "subprocess.Popen[bytes]":
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", TEMPLATE, str(folder), str(updates), *stopped_is_fine]
    return subprocess.Popen(command, env=environment, cwd=Path(__file__).parents[2])


def wait_for_updates(folder: Path, updates: int) -> None:
    patience = time.monotonic() + 120
    while (read_status(folder / "run") or {}).get("updates", 0) < updates:
        assert time.monotonic() < patience
        time.sleep(0.05)


def test_a_polite_kill_writes_a_checkpoint_and_no_update_is_lost(tmp_path: Path) -> None:
    """A rolling restart under load: stopped and resumed, the run has every update once."""
    first = start_server(tmp_path, 1_000_000, "stopped is fine")
    wait_for_updates(tmp_path, 20)
    first.send_signal(signal.SIGTERM)
    assert first.wait(60) == 0
    status = read_status(tmp_path / "run")
    assert status is not None and status["phase"] == "stopped"
    applied = status["updates"]
    assert len(tasks_of(tmp_path)) == applied
    second = start_server(tmp_path, applied + 50)
    assert second.wait(120) == 0
    assert [task["index"] for task in tasks_of(tmp_path)] == list(range(applied + 50))
    final = read_status(tmp_path / "run")
    assert final is not None and final["phase"] == "finished"


def test_a_killed_server_is_not_said_to_run(tmp_path: Path) -> None:
    server = start_server(tmp_path, 1_000_000)
    wait_for_updates(tmp_path, 5)
    server.kill()
    server.wait()
    status = read_status(tmp_path / "run")
    assert status is not None and status["phase"] == "running", "it may have written a moment ago"
    status["heartbeat"] -= 60.0
    (tmp_path / "run" / "status.json").write_text(json.dumps(status))
    later = read_status(tmp_path / "run")
    assert later is not None and later["phase"] == "not running"
    seen = Watcher(tmp_path / "run").look()
    assert seen["state"] == "silent"
    assert "its server does not run" in seen["title"]
    assert "Resume it" in seen["text"]


def test_a_server_that_is_busy_has_a_heartbeat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An evaluation, a prediction or a slow disk may take longer than heartbeats are apart."""
    monkeypatch.setattr("sojourn.deployment.journal.HEARTBEAT_SECONDS", 0.05)
    beats: list[float] = []

    def look() -> float:
        beats.append(json.loads((tmp_path / "run" / "status.json").read_text())["heartbeat"])
        time.sleep(0.3)
        beats.append(json.loads((tmp_path / "run" / "status.json").read_text())["heartbeat"])
        return 0.0

    run(tmp_path, [look], updates=2, concurrency=1)
    assert beats[1] > beats[0]
    last = json.loads((tmp_path / "run" / "status.json").read_text())
    time.sleep(0.3)
    assert json.loads((tmp_path / "run" / "status.json").read_text()) == last, "it is over"


@pytest.mark.parametrize(
    ("version", "joins"), [(None, True), (__version__, True), ("99.0.0", False)]
)
def test_a_client_of_another_version_is_refused_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str | None, joins: bool
) -> None:
    class Elsewhere(InProcessTransport):
        def receive(self, waiting: Any, weights: Any) -> Any:
            for received in super().receive(waiting, weights):
                of_last = isinstance(received, wire.Identity) and received.client == 1
                if of_last:
                    received = wire.Identity(received.message, received.node, 1, version)
                yield received

    given = {"clients": 2, "updates": 20, "predict": False, "join-seconds": 1.0}
    settings = read_settings({**given, "run-folder": str(tmp_path / "run")}, tmp_path)
    with Elsewhere(problem, [lambda: 0.01] * 2) as transport:
        serve(transport, problem, settings)
    events = (tmp_path / "run" / "events.log").read_text()
    refused = f"runs Sojourn 99.0.0 and this server {__version__}: install the same version on both"
    assert (refused in events) == (not joins)
    assert ({task["client"] for task in tasks_of(tmp_path)} == {0, 1}) == joins


@pytest.fixture
def app(tmp_path: Path) -> Path:
    write_app(tmp_path / "app")
    return tmp_path / "app"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_takes_the_units(app: Path, tmp_path: Path) -> None:
    """With the programs where they are on this machine, and a user that exists."""
    units = []
    for unit in sorted((app / "ops").glob("*.service")):
        text = unit.read_text().replace("/opt/sojourn/bin", str(Path(sys.executable).parent))
        text = re.sub(r"/srv/sojourn(?=\s)", str(tmp_path), text).replace(
            "User=sojourn", "User=root"
        )
        (tmp_path / unit.name).write_text(text)
        units.append(str(tmp_path / unit.name))
    assert len(units) == 3
    environment = {**os.environ, "SYSTEMD_UNIT_PATH": f"{tmp_path}:"}
    command = ["systemd-analyze", "verify", "--man=no", *units]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    complaints = [line for line in done.stderr.splitlines() if "sojourn-" in line]
    assert not complaints, done.stderr


def test_containers_are_pinned_and_their_files_can_be_read(app: Path) -> None:
    compose = yaml.safe_load((app / "ops" / "compose.yaml").read_text())
    assert set(compose["services"]) == {"superlink", "client-0", "client-1", "client-2"}
    images = {service["image"] for service in compose["services"].values()}
    manifests = list(yaml.safe_load_all((app / "ops" / "kubernetes.yaml").read_text()))
    assert [each["kind"] for each in manifests] == [
        "PersistentVolumeClaim",
        "Deployment",
        "Service",
        "StatefulSet",
    ]
    for each in manifests:
        for container in each["spec"].get("template", {}).get("spec", {}).get("containers", []):
            images.add(container["image"])
    assert all(re.fullmatch(r"[a-z]+:\d+\.\d+\.\d+", image) for image in images)
    dockerfile = (app / "ops" / "Dockerfile").read_text()
    assert re.search(r"^FROM python:3\.\d+\.\d+-", dockerfile, re.MULTILINE)
    assert f'"sojourn[deploy,metrics]=={__version__}"' in dockerfile
    assert re.search(r'"flwr==[\d.]+"', dockerfile)


def test_a_status_of_a_failure_has_its_reason(tmp_path: Path) -> None:
    write_status(tmp_path, {"phase": "failed", "error": "no client has joined"})
    status = read_status(tmp_path)
    assert status is not None and (status["phase"], status["error"]) == (
        "failed",
        "no client has joined",
    )


def test_a_server_says_which_line_of_ones_own_code_failed(tmp_path: Path) -> None:
    """Flower keeps a server's traceback in its log, and `deploy local` shows the status."""
    from flwr.app import Context, RecordDict

    from sojourn.deployment.flower.apps import server_app

    def problem(clients: int, seed: int) -> Any:
        return clients / seed

    config = {"clients": 2, "updates": 1, "run-folder": str(tmp_path / "run")}
    context = Context(1, 0, {}, RecordDict(), config)
    with pytest.raises(ZeroDivisionError):
        server_app(problem)(FakeGrid(), context)
    status = read_status(tmp_path / "run")
    assert status is not None and status["phase"] == "failed"
    assert re.fullmatch(
        r"your code, test_operations.py, line \d+, in problem: ZeroDivisionError: division by zero",
        status["error"],
    )
