"""The page in a real browser: every figure drawn, switches that work, no request, no error."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sojourn.reproduce.pages import report_of

CHROMIUM = shutil.which("chromium")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def report(reproduction: Path, run_folder: Path, tmp_path: Path) -> Path:
    return report_of([reproduction, run_folder]).write(tmp_path / "report.html", stills=False)


@pytest.fixture
def opened(browser: Any, report: Path) -> Iterator[Any]:
    """The page at desktop width; fails on console errors and on any request but the file itself."""
    page = browser.new_page(viewport={"width": 1280, "height": 900}, color_scheme="light")
    complaints: list[str] = []
    requests: list[str] = []
    page.on("console", lambda m: complaints.append(m.text) if m.type != "log" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(report.as_uri())
    page.wait_for_selector("body[data-ready=true]")
    yield page
    page.close()
    assert complaints == []
    assert [url for url in requests if not url.startswith(("file:", "data:", "blob:"))] == []


def visible_curves(page: Any, name: str) -> list[str]:
    return page.evaluate(
        "name => document.getElementById(name).data"
        ".filter(t => t.visible !== false && !t.meta.band).map(t => t.meta.strategy)",
        name,
    )


def test_every_figure_is_drawn(opened: Any) -> None:
    plots = opened.query_selector_all(".plot")
    assert len(plots) == 6
    for plot in plots:
        assert plot.get_attribute("data-drawn") == "true"
        assert plot.query_selector_all("svg .trace, svg .point"), plot.get_attribute("id")
        assert len(plot.get_attribute("aria-label")) > 20


def test_a_chip_hides_a_strategy_and_shows_it_again(opened: Any) -> None:
    chip = opened.locator('#run-1 .chip[data-strategy="balanced"]')
    plot = opened.locator("section#run-1 .plot").get_attribute("id")
    assert "balanced" in visible_curves(opened, plot)
    chip.click()
    opened.wait_for_function(
        "name => document.getElementById(name).data.some(t => t.visible === false)", arg=plot
    )
    assert visible_curves(opened, plot) == ["uniform", "square-root", "plan", "each client"]
    assert chip.get_attribute("aria-pressed") == "false"
    chip.click()
    opened.wait_for_function(
        "name => document.getElementById(name).data.every(t => t.visible !== false)", arg=plot
    )


def test_rounds_and_time_and_loss_are_switched(opened: Any) -> None:
    plot = opened.locator("section#run-1 .plot")
    assert plot.get_attribute("data-view") == "accuracy time"
    opened.locator("#run-1").get_by_role("button", name="rounds").click()
    opened.wait_for_selector('#run-1 .plot[data-view="accuracy rounds"]')
    opened.locator("#run-1").get_by_role("button", name="loss").click()
    opened.wait_for_selector('#run-1 .plot[data-view="loss rounds"]')
    axis = plot.evaluate("plot => plot.layout.xaxis.title.text")
    assert axis == "rounds"


def test_dark_and_light(opened: Any) -> None:
    def background() -> str:
        return opened.evaluate("getComputedStyle(document.body).backgroundColor")

    light = background()
    opened.click("#theme")
    assert background() != light
    opened.reload()
    opened.wait_for_selector("body[data-ready=true]")
    assert background() != light, "the choice is kept"


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_screenshots_without_sideways_scrolling(
    browser: Any, report: Path, tmp_path: Path, width: int, scheme: str
) -> None:
    page = browser.new_page(viewport={"width": width, "height": 844}, color_scheme=scheme)
    page.goto(report.as_uri())
    page.wait_for_selector("body[data-ready=true]")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    shot = tmp_path / f"report-{width}-{scheme}.png"
    page.screenshot(path=str(shot), full_page=True)
    page.close()
    assert shot.stat().st_size > 20_000


def test_prints_to_pdf(browser: Any, report: Path, tmp_path: Path) -> None:
    page = browser.new_page(color_scheme="dark")
    page.goto(report.as_uri())
    page.wait_for_selector("body[data-ready=true]")
    page.pdf(path=str(tmp_path / "report.pdf"))
    page.close()
    assert (tmp_path / "report.pdf").read_bytes().startswith(b"%PDF")
