"""Chromium, driven through its protocol, for the tests of pages."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

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
needs_chromium = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed"),
]


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    """One for all pages of a folder of tests, whose ``conftest.py`` imports this."""
    with started_browser() as started:
        yield started


@contextlib.contextmanager
def started_browser() -> Iterator[Any]:
    """Chromium for the length of the block; until its end nothing else here may run an event loop."""
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


PATIENCE = 300_000.0
"""Milliseconds: a page on a busy machine takes its time, and no test is about that."""


POLLING = 100.0
"""Milliseconds between looks at a whole page: at every frame it would be busy with nothing else."""


def new_page(browser: Any, **options: Any) -> Any:
    """A page that is waited for however busy the machine is."""
    page = browser.new_page(**options)
    page.set_default_timeout(PATIENCE)
    return page


SCREENSHOTS = os.environ.get("SOJOURN_SCREENSHOTS")
"""The folder for pictures of pages, if they are to be kept."""


def kept(tmp_path: Path, name: str) -> Path:
    """Where a picture of the page goes."""
    folder = Path(SCREENSHOTS or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    return folder / name


AXE = Path(
    os.environ.get(
        "SOJOURN_AXE", Path(__file__).parents[1] / "node_modules" / "axe-core" / "axe.min.js"
    )
)
needs_axe = pytest.mark.skipif(
    not AXE.is_file(), reason="axe-core is not installed: npm install axe-core"
)
"""axe-core is not installed with Sojourn: ``$SOJOURN_AXE`` may name ``axe.min.js``."""
VIOLATIONS = """async () => (await axe.run()).violations
  .filter(v => v.impact === 'serious' || v.impact === 'critical')
  .map(v => [v.id, v.nodes.length, v.nodes[0].html.slice(0, 120)])"""


def serious_violations(page: Any) -> list[Any]:
    """What axe-core finds wrong, of serious or critical impact: rule, number of places, the first of them."""
    page.evaluate(AXE.read_text(encoding="utf-8"))  # not a script tag: live pages forbid those
    found: list[Any] = page.evaluate(VIOLATIONS)
    return found


READABLE = """() => {
  const channel = c => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  const parts = text => text.match(/[\\d.]+/g).map(Number);
  const light = c => 0.2126 * channel(c[0]) + 0.7152 * channel(c[1]) + 0.0722 * channel(c[2]);
  const ground = e => {
    for (; e; e = e.parentElement) {
      const c = parts(getComputedStyle(e).backgroundColor);
      if (c.length === 3 || c[3] === 1) return c;
    }
    return [255, 255, 255];
  };
  const faint = [];
  for (const e of document.querySelectorAll('h1, h2, h3, p, td, th, dt, dd, li, button, summary, b, text')) {
    if (!e.textContent.trim() || !e.getClientRects().length) continue;
    const style = getComputedStyle(e);
    const svg = e instanceof SVGElement;
    const ink = parts(svg ? style.fill : style.color);
    const [a, b] = [light(ink), light(ground(svg ? e.closest('svg').parentElement : e))].sort();
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < (svg ? 3 : 4.5)) faint.push([ratio.toFixed(2), e.textContent.trim().slice(0, 40)]);
  }
  return faint;
}"""
"""Texts whose contrast with what is behind them is too small: 4.5, and 3 in figures (WCAG 2.2 AA)."""


def schemes(page: Any) -> Iterator[str]:
    """Light, then dark, each once every text is readable in it: figures are drawn anew some time after.

    A page with a text that stays faint fails.
    """
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        with contextlib.suppress(page_error()):
            page.wait_for_function(
                f"() => ({READABLE})().length === 0", timeout=60_000, polling=POLLING
            )
        assert page.evaluate(READABLE) == [], scheme
        yield scheme


CONTROLS = """() => [...new Set([...document.querySelectorAll('button, input, select, summary, .cell')].map(e =>
  e.id && e.id !== 'primary' ? e.id
  : e.name ? `${e.name}=${e.value}`
  : e.matches('.chip') ? 'chip'
  : e.matches('.cell') ? 'cell'
  : e.matches('summary') ? 'details'
  : Object.keys(e.dataset).length ? Object.entries(e.dataset).map(([k, v]) => /^\\d+$/.test(v) ? k : `${k}=${v}`).join(' ')
  : e.innerText))].sort()"""
"""Everything on a page that can be operated, by name: what a test must have clicked."""


BEYOND = (
    "[...document.querySelectorAll('.card, .tiles div, table, svg, h1, p')]"
    ".filter(e => e.getClientRects().length && e.getBoundingClientRect().right > 689)"
    ".map(e => e.outerHTML.slice(0, 80))"
)
"""What lies beyond the edge of paper."""


def printed_whole(page: Any, shot: Path) -> list[str]:
    """What a dark page has beyond the edge of paper, after checking that it is printed on white.

    The paper is kept in ``shot``, a PDF.
    """
    page.pdf(path=str(shot), format="A4")
    assert shot.read_bytes().startswith(b"%PDF")
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 688, "height": 900})
    page.evaluate("dispatchEvent(new Event('resize'))")
    white = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert white == "rgb(255, 255, 255)"
    with contextlib.suppress(page_error()):  # figures are drawn anew some time after the resize
        page.wait_for_function(f"() => {BEYOND}.length === 0", polling=POLLING)
    found: list[str] = page.evaluate(BEYOND)
    return found


def page_error() -> type[Exception]:
    """What waiting in vain raises."""
    from playwright.sync_api import TimeoutError as InVain

    found: type[Exception] = InVain
    return found
