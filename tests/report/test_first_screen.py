"""The pages of a demo, a tuning, a training, a plan and a deployment, as people first see them.

Every page is opened once: at three sizes, light and dark, then printed.
"""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from sojourn.report.runs import report_of
from sojourn.runs.folder import RunFolder
from tests.browser import (
    AXE,
    SCREENSHOTS,
    kept,
    needs_chromium,
    new_page,
    schemes,
    serious_violations,
)

pytestmark = needs_chromium
SIZES = {1440: 900, 1024: 768, 390: 844}
MOST_WORDS = 10
VERBS = {"Use", "Run", "Train", "Never", "Route", "Export", "Reached"}
LONG = "never-queue, half debiased, adaptive"
CAVEATS = (
    "Holds under 3 other conditions (service times are deterministic: 4 % better; service times are "
    "log-normal: 12 % worse; the slowest class is gone: 31 % worse)."
)


@pytest.fixture
def demo_page(tuned_folder: Path, pages: Path) -> Path:
    """A tuning as long in words as that of ``sojourn demo``."""
    page = pages / "demo.html"
    if page.exists():
        return page
    run = RunFolder(tuned_folder)
    for path in (run.experiment_path, run.history_path, run.summary_path):
        path.write_text(path.read_text().replace("each client", LONG))
    tuning = json.loads((tuned_folder / "tune.json").read_text())
    best, other = tuning["confirmed"]
    scores = {"scores": [score / 9 for score in best["scores"]], "learning_rate": 0.0025}
    confirmed = [{**best, "name": LONG, **scores}, best, other]
    tuning |= {"pick": LONG, "learning_rate": 0.0025, "confirmed": confirmed, "caveats": CAVEATS}
    (tuned_folder / "tune.json").write_text(json.dumps(tuning))
    return report_of([tuned_folder]).write(page, stills=False)


@pytest.fixture
def train_page(run_folder: Path, pages: Path) -> Path:
    page = pages / "train.html"
    if not page.exists():
        report_of([run_folder]).write(page, stills=False)
    return page


@pytest.fixture
def deployment_page(deployed_folder: Path, pages: Path) -> Path:
    page = pages / "deployment.html"
    if not page.exists():
        report_of([deployed_folder]).write(page, stills=False)
    return page


PLACES = """() => Object.fromEntries(
  ['h1', '.because', '.command', '.opening .drawing svg', '.opening .plot .main-svg'].map(name => {
    const box = document.querySelector(name).getBoundingClientRect();
    return [name, [Math.round(box.top), Math.round(box.bottom)]];
  }))"""
CUT = """() => [...document.querySelectorAll('h1, p, .chip, .plot, .drawing, .drawing svg')]
  .filter(e => e.getBoundingClientRect().right > innerWidth + 1 || e.scrollWidth > e.clientWidth + 1
    && getComputedStyle(e).overflowX !== 'visible')
  .concat([...document.querySelectorAll('.drawing svg text, .plot .main-svg text')].filter(t => {
    const box = t.getBoundingClientRect(), whole = t.closest('svg').getBoundingClientRect();
    return box.width && (box.left < whole.left - 1 || box.right > whole.right + 1
      || box.top < whole.top - 1 || box.bottom > whole.bottom + 1);
  })).map(e => e.textContent.trim().slice(0, 60))"""
"""What lies outside the window, or a text of a picture outside the picture."""
SPLIT = """() => [...document.querySelectorAll('p, td, .v')].filter(e => e.getClientRects().length)
  .flatMap(e => [...e.childNodes].filter(n => n.nodeType === 3 && n.textContent.includes('±')))
  .filter(node => [...node.textContent.matchAll(/[0-9.,]+\\s±\\s[0-9.,]+/g)].some(found => {
    const range = document.createRange();
    range.setStart(node, found.index);
    range.setEnd(node, found.index + found[0].length);
    return new Set([...range.getClientRects()].map(box => Math.round(box.top))).size > 1;
  })).map(node => node.textContent.slice(0, 60))"""
"""Texts in which a line breaks inside "a ± b"."""
OPEN = "open => document.querySelectorAll('details.fold').forEach(e => { e.open = open; })"
DRAWN = "() => [...document.querySelectorAll('.plot')].every(p => p.dataset.drawn === 'true')"


@pytest.mark.parametrize(
    "which",
    [
        "demo_page",  # a tuning, with the longest words
        pytest.param("tuned_page", marks=pytest.mark.slow),
        "train_page",
        "plan_page",
        "deployment_page",
    ],
)
def test_the_first_screen_has_answer_cause_and_curve(
    browser: Any, request: pytest.FixtureRequest, tmp_path: Path, which: str
) -> None:
    page = new_page(browser, viewport={"width": 1440, "height": 900}, color_scheme="light")
    complaints: list[str] = []
    page.on("console", lambda m: complaints.append(m.text) if m.type != "log" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(request.getfixturevalue(which).as_uri())
    page.wait_for_selector("body[data-ready=true]")
    title = page.locator("h1").inner_text().split()
    assert len(title) <= MOST_WORDS and title[0] in VERBS, title
    for width, height in SIZES.items():
        page.set_viewport_size({"width": width, "height": height})
        for scheme in schemes(page):
            if SCREENSHOTS:
                page.screenshot(path=str(kept(tmp_path, f"{which}-{width}-{scheme}.png")))
            # Drawings follow the size of the window in a later frame.
            page.wait_for_function(f"document.documentElement.scrollWidth <= {width}")
            assert page.evaluate(CUT) == [], (width, scheme)
        places = page.evaluate(PLACES)
        assert all(places[name][1] <= 0.55 * height for name in ("h1", ".because", ".command")), (
            width,
            places,
        )
        assert places[".opening .drawing svg"][0] < 0.6 * height, places
        if width == 1440:
            assert all(bottom <= height for _, bottom in places.values()), places
    page.evaluate(OPEN, True)
    page.wait_for_function(DRAWN)
    assert page.evaluate(SPLIT) == [], "on a phone"
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.set_viewport_size({"width": 1440, "height": 900})
    if AXE.is_file():
        for _ in schemes(page):
            assert serious_violations(page) == []
    page.evaluate(OPEN, False)
    check_paper(page, kept(tmp_path, f"{which}.pdf"))
    page.close()
    assert complaints == []


def check_paper(page: Any, paper: Path) -> None:
    """Printed from a dark screen: black on white, every part open, no button, no blank page."""
    page.emulate_media(media="print", color_scheme="dark")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.set_viewport_size({"width": 688, "height": 900})
    shown = "[...document.querySelectorAll('.chip, .switch, #copy, #theme')].filter(e => e.offsetWidth).length"
    assert page.evaluate(shown) == 0
    assert page.evaluate("[...document.querySelectorAll('details.fold')].every(e => e.open)")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    wide = ".plot svg.main-svg, .drawing svg, .scroll table"
    cut = f"[...document.querySelectorAll('{wide}')].filter(e => e.getBoundingClientRect().right > 689)"
    page.wait_for_function(f"() => {cut}.length === 0")
    assert page.evaluate(SPLIT) == [], "on paper"
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert not page.evaluate("[...document.querySelectorAll('details.fold')].some(e => e.open)")
    page.emulate_media(media="screen")
    page.pdf(path=str(paper), format="A4")
    words = [len(text.split()) for text in pdf_texts(paper)]
    assert len(words) > 1 and min(words) > 5, words


def pdf_texts(path: Path) -> list[str]:
    """The words of every page of a PDF; skipped where nothing reads them."""
    tool = shutil.which("pdftotext")
    if tool is None:
        pytest.skip("pdftotext is not installed")
    done = subprocess.run([tool, str(path), "-"], capture_output=True, text=True, check=True)
    return done.stdout.rstrip("\f").split("\f")
