"""The live view in a real browser: follows without a reload, at every size, light and dark."""

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sojourn.live.watcher import HALVING, Watcher
from sojourn.runs.folder import RunFolder
from sojourn.tuning.tune import tune
from tests.browser import (
    CONTROLS,
    kept,
    needs_axe,
    needs_chromium,
    printed_whole,
    schemes,
    serious_violations,
)
from tests.deployment.test_server import Deployment
from tests.live.conftest import write_race
from tests.live.test_explore_page import Page

LONG = "never-queue, half debiased, adaptive, of forty"
pytestmark = needs_chromium


@contextmanager
def watching(folder: Path) -> Iterator[str]:
    """The address of a view of ``folder``."""
    server = Watcher(folder).serve_on()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server.address
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A deployment that was cut off before its end, one client dead."""
    folder = tmp_path_factory.mktemp("deployed")
    deployment = Deployment(folder, updates=80, **{"evaluate-every": 5})
    deployment.run()
    return folder


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tuned")
    tune(write_race(folder), folder / "out")
    return folder / "out"


@pytest.fixture(scope="module")
def trained(tuned: Path) -> Path:
    """The confirming runs of that tuning alone, as a training leaves them, with a long name."""
    folder = Path(shutil.copytree(tuned, tuned.parent / "trained"))
    run = RunFolder(folder)
    for path in (run.tuning_path, folder / HALVING, run.ledger.path):
        path.unlink()
    for path in (run.experiment_path, run.history_path, run.summary_path, *run.finished_cells):
        path.write_text(path.read_text().replace('"busy"', f'"{LONG}"'))
    return folder


CUT = """[...document.querySelectorAll('.card, .tiles div, h1, p, button, pre, .chart')]
  .filter(e => e.offsetParent !== null && e.closest('.scroll') === null
    && e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML.slice(0, 80))"""


FIRST = """['#title', '#text', '#timeline svg', '#curves svg'].map(name => [name,
  Math.round(document.querySelector(name).getBoundingClientRect().bottom)])
  .filter(([, bottom]) => bottom <= 0 || bottom > 900)"""
"""What a wide window does not show without scrolling."""
OUTSIDE = """[...document.querySelectorAll('#timeline svg text, #curves svg text')].filter(t => {
  const box = t.getBoundingClientRect(), whole = t.closest('svg').getBoundingClientRect();
  return box.left < whole.left - 1 || box.right > whole.right + 1 || box.bottom > whole.bottom + 1;
}).map(t => t.textContent)"""


@pytest.mark.parametrize("which", ["deployed", "tuned", "trained"])
def test_nothing_overflows_is_cut_or_faint(
    browser: Any, request: Any, tmp_path: Path, which: str
) -> None:
    """At three sizes, light and dark; a wide window shows verdict, timeline and curves at once."""
    with watching(request.getfixturevalue(which)) as address:
        made = Page(browser, address, viewport={"width": 1440, "height": 900})
        page = made.page
        page.wait_for_selector("#curves .curve")
        page.wait_for_selector("#timeline svg")
        assert page.evaluate(FIRST) == []
        for width, height in ((1440, 900), (1024, 768), (390, 844)):
            page.set_viewport_size({"width": width, "height": height})
            made.until(
                "Math.abs(document.querySelector('#curves svg').viewBox.baseVal.width"
                " - Math.max(300, document.getElementById('curves').clientWidth)) < 2"
            )
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert page.evaluate(CUT) == []
            assert page.evaluate(OUTSIDE) == []
            for scheme in schemes(page):
                shot = kept(tmp_path, f"watch-{which}-{width}-{scheme}.png")
                page.screenshot(path=str(shot), full_page=True)
                assert shot.stat().st_size > 15_000
        page.get_by_role("button", name="loss").click()
        made.until(
            "document.querySelector('#curves svg').getAttribute('aria-label').includes('loss')"
        )
        page.click("#primary")
        made.until(
            "!document.querySelector('#curves svg').getAttribute('aria-label').includes('loss')"
        )
        before = page.evaluate("getComputedStyle(document.body).backgroundColor")
        page.click("#theme")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before
        assert page.evaluate(CONTROLS) == ["metric=loss", "metric=value", "theme"], "all clicked"
        made.close()


@pytest.mark.parametrize("which", ["deployed", "tuned"])
def test_it_is_printed_on_white_and_whole(
    browser: Any, request: Any, tmp_path: Path, which: str
) -> None:
    with watching(request.getfixturevalue(which)) as address:
        made = Page(browser, address, color_scheme="dark")
        made.page.wait_for_selector("#curves .curve")
        made.page.wait_for_selector("#timeline svg")
        assert printed_whole(made.page, kept(tmp_path, f"watch-{which}.pdf")) == []
        made.close()


@needs_axe
@pytest.mark.parametrize("which", ["deployed", "tuned"])
def test_it_has_no_serious_violation_of_accessibility(
    browser: Any, request: Any, which: str
) -> None:
    with watching(request.getfixturevalue(which)) as address:
        made = Page(browser, address)
        made.page.wait_for_selector("#curves .curve")
        made.page.wait_for_selector("#timeline svg")
        assert serious_violations(made.page) == []
        made.page.close()


def test_what_is_shown_of_a_deployment(browser: Any, deployed: Path) -> None:
    with watching(deployed) as address:
        made = Page(browser, address, viewport={"width": 1400, "height": 900})
        rows = made.page.locator("#clients tbody tr").all_inner_texts()
        assert len(rows) == 3
        assert all("alive" in row for row in rows)
        assert "theory: 5" in made.page.locator("#tiles").inner_text()
        assert made.page.locator("#race-card").is_hidden()
        made.close()


def test_what_is_shown_of_a_race(browser: Any, tuned: Path) -> None:
    with watching(tuned) as address:
        made = Page(browser, address, viewport={"width": 1400, "height": 900})
        assert made.page.locator("#title").inner_text().startswith("Use ")
        head = made.page.locator("#race th").all_inner_texts()
        assert head[2:] == [*(f"to 1/{k} of the run" for k in (8, 4, 2)), "to the end"]
        assert made.page.locator("#race tbody tr").count() == 2
        assert made.page.locator("#clients-card").is_hidden()
        made.close()


class Paused(Deployment):
    """Stops in the middle until it is told to go on."""

    def __init__(self, folder: Path, **config: Any) -> None:
        super().__init__(folder, **config)
        self.reached, self.go_on = threading.Event(), threading.Event()

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        if self.dispatcher.counts.used >= 30 and not self.go_on.is_set():
            self.journal.status(self.server.elapsed, "running")
            self.reached.set()
            assert self.go_on.wait(120)


def test_it_follows_without_a_reload(browser: Any, tmp_path: Path) -> None:
    deployment = Paused(tmp_path, updates=60)
    runs = threading.Thread(target=deployment.run_and_finish)
    runs.start()
    assert deployment.reached.wait(120)
    with watching(tmp_path) as address:
        made = Page(browser, address, viewport={"width": 1400, "height": 900})
        made.until("document.getElementById('title').innerText.includes('of 60 updates: running')")
        made.page.evaluate("window.notReloaded = true")
        with (tmp_path / "tasks.jsonl").open("ab") as file:
            file.write(b'{"half')
        made.page.wait_for_timeout(1500)
        deployment.go_on.set()
        runs.join(120)
        made.until("document.getElementById('title').innerText.includes('60 of 60 updates')")
        assert made.page.evaluate("window.notReloaded") is True
        assert made.page.locator("#problem").is_hidden()
        made.close()
