"""Names that are HTML: on every page they are text, and nothing of them is run, loaded or linked."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import sojourn as sj
from sojourn.live.explorer import Explorer
from sojourn.live.watcher import Watcher
from sojourn.report.plan import plan_report
from sojourn.report.runs import report_of
from tests.browser import needs_chromium, new_page

pytestmark = needs_chromium
NAMES = (
    "</script><script>window.ran=1</script>",
    "<img src=x onerror=window.ran=1>",
    '<a href="//example.invalid">c</a>',
    "<b>bold</b>",
    "\"'><svg onload=window.ran=1>",
    "{{ 7*7 }}${7*7}`",
)
FOREIGN = """() => [...document.querySelectorAll('body *')].filter(e =>
    e.matches('img, [onerror], [onload]') || /example.invalid/.test(e.href?.baseVal ?? e.href ?? '')
    || (e.children.length === 0 && ['bold', 'c'].includes(e.textContent)))
  .map(e => e.outerHTML.slice(0, 200))"""
"""Elements that a name has made: of Plotly's own markup, too, which is a part of HTML."""


def _rows(strategy: str, clock: str = "virtual") -> list[dict[str, Any]]:
    numbers = ("test_loss", "test_accuracy", "train_loss", "staleness")
    return [
        {"strategy": strategy, "seed": seed, "learning_rate": 0.1, "clock": clock, "round": k}
        | {"time": 5.0 * k, "diverged_at": None, "gradients": k, "updates": k}
        | dict.fromkeys(numbers, 0.5 + 0.1 * k - 0.01 * len(strategy))
        for seed in range(2 if clock == "virtual" else 1)
        for k in range(4)
    ]


def _write(path: Path, records: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("t") / "<img src=x onerror=window.ran=1>"
    folder.mkdir()
    _write(folder / "history.jsonl", [row for name in NAMES for row in _rows(name)])
    return folder


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("deployed")
    _write(folder / "history.jsonl", _rows(NAMES[0], "real"))
    tasks = [
        {"client": k % len(NAMES), "dispatched": k, "time": 1.0 + k, "service_seconds": 0.5}
        | {"staleness": 0, "used": True}
        for k in range(20)
    ]
    _write(folder / "tasks.jsonl", tasks)
    clients = [
        {"name": name, "number": k, "status": name, "waiting": 1, "used": 4, "refused": 0}
        for k, name in enumerate(NAMES)
    ]
    status = {"phase": "stopped", "clients": clients, "counts": {"routed": 20}, "error": NAMES[1]}
    (folder / "status.json").write_text(json.dumps(status))
    (folder / "events.log").write_text("".join(f"1.0\t{name}\t{name}: {name}\n" for name in NAMES))
    return folder


@contextmanager
def served(source: Watcher | Explorer) -> Iterator[str]:
    server = source.serve_on()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server.address
    server.shutdown()
    server.server_close()
    thread.join()


def check(browser: Any, address: str, ready: str) -> None:
    page = new_page(browser)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(address)
    page.wait_for_selector("body[data-ready=true]")
    page.wait_for_selector(ready, state="attached")
    page.evaluate("document.querySelectorAll('details').forEach(fold => { fold.open = true; })")
    page.wait_for_timeout(500.0)
    assert page.evaluate("window.ran") is None
    assert page.evaluate(FOREIGN) == []
    assert "onerror=window.ran=1" in page.evaluate("document.body.textContent")
    elsewhere = [u for u in asked if not u.startswith(("file:", "data:", "blob:", "http://127.0"))]
    assert elsewhere == []
    page.close()


@pytest.mark.parametrize("which", ["trained", "deployed"])
def test_pages_of_runs(browser: Any, request: Any, tmp_path: Path, which: str) -> None:
    report_of([request.getfixturevalue(which)]).write(tmp_path / "page.html", stills=False)
    check(browser, (tmp_path / "page.html").as_uri(), ".js-plotly-plot svg")


def test_the_page_of_a_plan(browser: Any, tmp_path: Path, hostile_fleet: sj.Fleet) -> None:
    plan = sj.plan(hostile_fleet, sj.Throughput(), concurrency=5)
    plan_report(plan).write(tmp_path / "page.html")
    check(browser, (tmp_path / "page.html").as_uri(), "svg")


@pytest.mark.parametrize("which", ["trained", "deployed"])
def test_the_live_view(browser: Any, request: Any, which: str) -> None:
    with served(Watcher(request.getfixturevalue(which))) as address:
        check(browser, address, "#curves .curve")


@pytest.fixture(scope="module")
def hostile_fleet() -> sj.Fleet:
    rates = [1.0 + k for k in range(len(NAMES))]
    return sj.Fleet(rates, names=list(NAMES))


def test_the_explorer(browser: Any, hostile_fleet: sj.Fleet) -> None:
    explorer = Explorer(hostile_fleet, NAMES[1])
    with served(explorer) as address:
        check(browser, address, "#timeline svg")
    explorer.close()
