"""The page in a real browser: every figure drawn, switches that work, no request, no error."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reproduction.pages import reproduction_report as report_of
from tests.browser import CONTROLS, kept, needs_chromium, new_page, schemes
from tests.report.test_first_screen import CUT

pytestmark = needs_chromium
DESKTOP = {"width": 1280, "height": 900}
PHONE = {"width": 390, "height": 844}


@pytest.fixture
def report(reproduction: Path, run_folder: Path, pages: Path) -> Path:
    page = pages / "report.html"
    if not page.exists():
        report_of([reproduction, run_folder]).write(page, stills=False)
    return page


@pytest.fixture(scope="module")
def window(browser: Any) -> Iterator[Any]:
    """A window of a desktop's size, which writes down its complaints and what it asks for."""
    page = new_page(browser, viewport=DESKTOP, color_scheme="light")
    page.complaints, page.requests = [], []
    page.on("console", lambda m: page.complaints.append(m.text) if m.type != "log" else None)
    page.on("pageerror", lambda error: page.complaints.append(str(error)))
    page.on("request", lambda request: page.requests.append(request.url))
    yield page
    page.close()


@pytest.fixture
def opened(window: Any, report: Path) -> Iterator[Any]:
    """The page, opened once: whoever changes something changes it back.

    Fails on console errors and on any request but the file itself.
    """
    if window.url != report.as_uri():
        window.goto(report.as_uri())
        window.wait_for_selector("body[data-ready=true]")
    yield window
    asked = [url for url in window.requests if not url.startswith(("file:", "data:", "blob:"))]
    complaints = list(window.complaints)
    window.complaints.clear()
    assert (complaints, asked) == ([], [])


def open_all(page: Any) -> None:
    """Open every closed part, and wait until its figures are drawn."""
    page.evaluate(
        "document.querySelectorAll('details.fold').forEach(fold => { fold.open = true; })"
    )
    page.wait_for_function(
        "() => [...document.querySelectorAll('.plot')].every(p => p.dataset.drawn === 'true')"
    )


def close_all(page: Any) -> None:
    page.evaluate(
        "document.querySelectorAll('details.fold').forEach(fold => { fold.open = false; })"
    )


def visible_curves(page: Any, name: str) -> list[str]:
    return page.evaluate(
        "name => document.getElementById(name).data"
        ".filter(t => t.visible !== false && !t.meta.band).map(t => t.meta.strategy)",
        name,
    )


def test_every_figure_is_drawn(opened: Any) -> None:
    open_all(opened)
    plots = opened.query_selector_all(".plot")
    assert len(plots) == 6
    for plot in plots:
        assert plot.get_attribute("data-drawn") == "true"
        assert plot.query_selector_all("svg .trace, svg .point"), plot.get_attribute("id")
        assert len(plot.get_attribute("aria-label")) > 20
    close_all(opened)


def test_a_chip_hides_a_strategy_and_shows_it_again(opened: Any) -> None:
    chip = opened.locator('#claim-6 .chip[data-strategy="balanced"]')
    plot = opened.locator("section#claim-6 .plot").get_attribute("id")
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
    assert axis == "rounds (completed tasks)"
    opened.locator("#run-1").get_by_role("button", name="accuracy").click()
    opened.locator("#run-1").get_by_role("button", name="time", exact=True).click()
    opened.wait_for_selector('#run-1 .plot[data-view="accuracy time"]')


CLICKED = {
    "test_a_chip_hides_a_strategy_and_shows_it_again": ["chip"],
    "test_rounds_and_time_and_loss_are_switched": [
        "kind=axis value=rounds",
        "kind=axis value=time",
        "kind=metric value=accuracy",
        "kind=metric value=loss",
    ],
    "test_dark_and_light": ["theme"],
    "test_words_and_numbers_unfold": ["details"],
}


def test_no_control_is_left_out(opened: Any) -> None:
    assert opened.evaluate(CONTROLS) == sorted(name for names in CLICKED.values() for name in names)
    assert set(CLICKED) <= set(globals())


def test_words_and_numbers_unfold(opened: Any) -> None:
    words = opened.locator("#run-1 figure details").first
    assert not words.locator("table").is_visible()
    words.locator("summary").click()
    assert words.locator("table").is_visible()
    assert "%" in words.locator("table").inner_text()
    words.locator("summary").click()
    assert not words.locator("table").is_visible()


def test_dark_and_light(opened: Any) -> None:
    def background() -> str:
        return opened.evaluate("getComputedStyle(document.body).backgroundColor")

    light = background()
    opened.click("#theme")
    assert background() != light
    opened.reload()
    opened.wait_for_selector("body[data-ready=true]")
    assert background() != light, "the choice is kept"
    opened.click("#theme")
    assert background() == light


def test_nothing_is_cut_or_faint_at_any_size_nor_on_paper(
    browser: Any, report: Path, tmp_path: Path
) -> None:
    """On a phone, then in a window that is drawn wider (other tests open it in one), then printed.

    Dark by then, by the system's choice and by the reader's.
    """
    page = new_page(browser, viewport=PHONE, color_scheme="light")
    complaints: list[str] = []
    page.on("console", lambda m: complaints.append(m.text) if m.type != "log" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(report.as_uri())
    page.wait_for_selector("body[data-ready=true]")
    for width in (PHONE["width"], 1400):
        page.set_viewport_size({"width": width, "height": 844})
        for scheme in schemes(page):
            shot = kept(tmp_path, f"report-{width}-{scheme}.png")
            page.screenshot(path=str(shot), full_page=True)
            assert shot.stat().st_size > 20_000
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert page.evaluate(CUT) == []
    check_print(page, kept(tmp_path, "report-system.pdf"))
    page.evaluate("document.documentElement.dataset.theme = 'dark'")
    check_print(page, kept(tmp_path, "report-dark.pdf"))
    page.close()
    assert complaints == []


def check_print(page: Any, printed: Path) -> None:
    """A dark page is printed black on white, and nothing is hidden or beyond the edge of the paper."""
    page.emulate_media(media="print", color_scheme="dark")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.set_viewport_size({"width": 688, "height": 900})
    colours = page.evaluate(
        "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
    )
    assert colours == ["rgb(255, 255, 255)", "rgb(0, 0, 0)"]
    cut = page.evaluate(
        "[...document.querySelectorAll('.plot svg.main-svg, .drawing svg, .scroll table')]"
        ".filter(e => e.getBoundingClientRect().right > 689).map(e => e.className)"
    )
    assert cut == []
    hidden = page.evaluate(
        "[...document.querySelectorAll('.scroll')].filter(e => getComputedStyle(e).overflowX"
        " !== 'visible').length"
    )
    assert hidden == 0
    page.pdf(path=str(printed))
    assert printed.read_bytes().startswith(b"%PDF")


def test_every_switch_of_a_plan_page_works(browser: Any, plan_page: Path) -> None:
    page = new_page(browser, viewport={"width": 1400, "height": 900})
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(plan_page.as_uri())
    page.wait_for_selector("body[data-ready=true]")
    classes = page.locator("#classes-section")
    open_all(page)
    for metric in ("busy", "wait", "weight", "share"):
        classes.get_by_role("button", name=metric, exact=True).click()
        page.wait_for_selector(f'#classes[data-view="{metric}"]')
    for chip in page.query_selector_all(".chip"):
        chip.click()
        assert chip.get_attribute("aria-pressed") == "false"
        chip.click()
        assert chip.get_attribute("aria-pressed") == "true"
    inner = page.query_selector_all(".words > summary")
    for words in [*inner, *page.query_selector_all(".fold > summary")]:
        was_open = words.evaluate("e => e.parentElement.open")
        words.click()
        assert words.evaluate("e => e.parentElement.open") is not was_open
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.click("#theme")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before
    metrics = {f"kind=metric value={name}" for name in ("busy", "wait", "weight", "share")}
    assert set(page.evaluate(CONTROLS)) == metrics | {"chip", "copy", "details", "theme"}, (
        "all clicked"
    )
    drawn = page.evaluate(
        "[...document.querySelectorAll('.plot')].map(p => p.id + ' ' + p.dataset.drawn)"
    )
    cells = page.locator("#map svg rect title").count()
    page.close()
    assert drawn == ["tasks true", "classes true", "frontier true", "worth true"]
    assert cells == 21 * 12 + 12
    assert complaints == []


def test_a_table_wider_than_a_phone_keeps_its_first_column(opened: Any) -> None:
    opened.set_viewport_size(PHONE)
    left = opened.evaluate(
        "() => { const box = document.querySelector('#run-1 .scroll:has(> .data)');"
        "box.scrollLeft = 200;"
        "return [box.scrollLeft, box.querySelector('td').getBoundingClientRect().left"
        " - box.getBoundingClientRect().left]; }"
    )
    opened.set_viewport_size(DESKTOP)
    assert left == [200, 0]


def test_the_command_can_be_copied(browser: Any, tuned_page: Path) -> None:
    page = new_page(browser, viewport=DESKTOP)
    page.goto(tuned_page.as_uri())
    page.wait_for_selector("body[data-ready=true]")
    command = page.locator("#command").inner_text()
    page.click("#copy")
    page.wait_for_function(
        "() => document.getElementById('copy').textContent === 'Copied'"
        " || getSelection().toString().length > 0"
    )
    page.close()
    assert command.startswith("sojourn deploy init my-app --strategy ")


def test_a_tuned_page_opens_with_its_answer(browser: Any, tuned_page: Path) -> None:
    page = new_page(browser, viewport={"width": 1400, "height": 900})
    page.goto(tuned_page.as_uri())
    page.wait_for_selector("body[data-ready=true]")
    assert page.locator("h1").inner_text() == "Use square-root, learning rate 0.1"
    groups = page.locator(".group").all_inner_texts()
    assert groups[0] == "The pick, by final loss"
    assert len(groups) == 2
    open_all(page)
    assert page.locator("#race-1 h2").inner_text() == "How the strategy was chosen"
    names = page.evaluate(
        "document.getElementById('race-1').querySelector('.plot').data.map(t => t.name)"
    )
    page.close()
    assert names == ["others", "square-root, 0.1", "uniform, 0.1"]


def test_timelines_are_drawn_with_a_row_per_client(opened: Any) -> None:
    drawings = opened.query_selector_all("#timelines-1 svg.timeline")
    assert len(drawings) == 5
    for drawing in drawings:
        assert len(drawing.query_selector_all("rect.touch")) == 30
        assert drawing.query_selector_all("path.s0, path.s1")
        size = drawing.query_selector("text").evaluate("t => getComputedStyle(t).fontSize")
        assert size == "12px", "the rules of the drawing reach it"
    first = opened.query_selector("#timeline-1 svg.timeline")
    assert len(first.query_selector_all("rect.touch")) == 60, "the pick and uniform routing"
