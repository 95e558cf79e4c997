"""The explorer in a real browser: every control works, at every size, light and dark."""

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import sojourn as sj
from sojourn.live.explorer import Explorer
from sojourn.live.server import LocalServer
from tests.browser import (
    CONTROLS,
    kept,
    needs_axe,
    needs_chromium,
    new_page,
    printed_whole,
    schemes,
    serious_violations,
)

pytestmark = needs_chromium
FLEET = sj.built_in_fleet("three-clusters")
CLICKED = {
    "test_every_slider_and_choice_changes_what_is_shown": "count rate speed debias exponent norm "
    "rate-exact tasks tasks-exact reset dispatch=routed dispatch=planned dispatch=never-queue "
    "goal=noise-rate goal=time-to-accuracy",
    "test_a_cell_of_the_map_takes_one_there": "cell",
    "test_use_this_leads_to_the_least_noise": "use",
    "test_the_address_keeps_the_state_and_the_pins": "pin Go_there Unpin",
    "test_a_plan_and_a_fleet_are_saved": "save-strategy save-fleet",
    "test_a_try_of_other_data_is_stopped_and_the_command_copied": "copy partition horizon try Stop",
    "test_tries_are_drawn_as_they_run_and_two_browsers_see_them": "Remove metric=accuracy metric=loss",
    "test_dark_is_kept": "theme",
}
"""Every control of the page, under the test that operates it."""


class Page:
    """A page of the explorer that complains about every message in the console."""

    def __init__(self, browser: Any, address: str, **viewport: Any) -> None:
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page = new_page(browser, accept_downloads=True, **viewport)
        self.page.on("console", lambda m: self.complaints.append(m.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(address)
        self.page.wait_for_selector("body[data-ready=true]")

    def until(self, function: str) -> None:
        self.page.wait_for_function(f"() => {function}")

    def tile(self, label: str) -> str:
        return self.page.locator("#tiles div", has_text=label).locator("dd").first.inner_text()

    def check(self) -> None:
        """Nothing was complained about, and nobody else was asked for anything."""
        complaints = list(self.complaints)
        self.complaints.clear()
        elsewhere = [u for u in self.requests if not u.startswith(("http://127.0.0.1", "blob:"))]
        assert (complaints, elsewhere) == ([], [])

    def close(self) -> None:
        self.page.close()
        self.check()


@pytest.fixture(scope="module")
def window(browser: Any, server: LocalServer) -> Iterator[Page]:
    made = Page(browser, server.address, viewport={"width": 1400, "height": 900})
    yield made
    made.close()


@pytest.fixture
def opened(window: Page) -> Iterator[Page]:
    """The page, opened once, as it was when it was opened."""
    title = window.page.locator("#title").inner_text()
    yield window
    window.page.locator("#reset").click()
    window.until(f"document.getElementById('title').innerText === {json.dumps(title)}")
    window.check()


@pytest.mark.parametrize("width", [1440, 1024, 390])
def test_nothing_overflows_is_cut_or_faint(
    browser: Any, server: LocalServer, tmp_path: Path, width: int
) -> None:
    made = Page(
        browser,
        f"{server.address}#d=never-queue&pin=m%3D7",
        viewport={"width": width, "height": 844},
    )
    page = made.page
    page.wait_for_selector("#compared[data-rows='2']")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    cut = page.evaluate(
        "[...document.querySelectorAll('.card, .tiles div, h1, button, input, select, pre, .chart')]"
        ".filter(e => e.offsetParent !== null && e.closest('.scroll') === null"
        " && e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML.slice(0, 80))"
    )
    assert cut == []
    clipped = page.evaluate(
        "[...document.querySelectorAll('.choice span, .tiles dd, .tiles dt, h1, .live button')]"
        ".filter(e => e.scrollWidth > e.clientWidth + 1 && e.clientWidth).map(e => e.innerText)"
    )
    assert clipped == []
    for scheme in schemes(page):
        shot = kept(tmp_path, f"explore-{width}-{scheme}.png")
        page.screenshot(path=str(shot), full_page=True)
        assert shot.stat().st_size > 20_000
    made.close()


def test_the_first_screen_has_advice_map_and_timeline(browser: Any, server: LocalServer) -> None:
    made = Page(browser, server.address, viewport={"width": 1440, "height": 900})
    made.page.wait_for_selector("body[data-answered] #timeline svg")
    bottoms = made.page.evaluate(
        "['#title', '#use', '#map svg', '#timeline svg']"
        ".map(name => document.querySelector(name).getBoundingClientRect().bottom)"
    )
    assert all(0 < bottom <= 900 for bottom in bottoms), bottoms
    made.close()


@needs_axe
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_has_no_serious_violation_of_accessibility(
    browser: Any, server: LocalServer, scheme: str
) -> None:
    made = Page(browser, f"{server.address}#pin=m%3D7", color_scheme=scheme)
    made.page.wait_for_selector("#compared[data-rows='2']")
    assert serious_violations(made.page) == []
    made.page.close()


def test_it_is_printed_on_white_and_whole(
    browser: Any, server: LocalServer, tmp_path: Path
) -> None:
    made = Page(browser, f"{server.address}#pin=m%3D7", color_scheme="dark")
    made.page.wait_for_selector("#compared[data-rows='2']")
    assert printed_whole(made.page, kept(tmp_path, "explore.pdf")) == []
    made.close()


def test_every_slider_and_choice_changes_what_is_shown(opened: Page) -> None:
    page = opened.page
    assert opened.tile("updates per time unit") == "0.229"
    page.locator("#tasks-exact").fill("10")
    opened.until("location.hash.includes('m=10')")
    slower = sj.analyze(sj.Network(FLEET, sj.uniform_routing(FLEET), 10)).throughput
    opened.until(f"document.querySelector('#tiles dd').innerText === '{slower:.3g}'")
    page.locator("#tasks").focus()
    page.keyboard.press("ArrowRight")
    opened.until("document.getElementById('tasks-exact').value === '11'")
    page.locator("#exponent").fill("0.5")
    opened.until("document.getElementById('command').innerText.includes('square-root')")
    for control, value, short in (
        ("#rate-exact", "0.3", "lr=0.3"),
        ("#debias", "0.4", "b=0.4"),
        ("[data-rate='0']", "0.05", "r=0.05"),
        ("[data-count='2']", "4", "c=10%2C10%2C4"),
        ("[data-speed='1']", "0", "r=0.05%2C1%2C1"),
    ):
        page.locator(control).fill(value)
        opened.until(f"location.hash.includes('{short}')")
    page.locator("#rate").focus()
    page.keyboard.press("ArrowLeft")
    opened.until("!location.hash.includes('lr=0.3&')")
    page.locator("[name=goal][value=time-to-accuracy]").check()
    page.locator("#norm").fill("0.8")
    page.wait_for_selector("#tiles div:nth-child(6)")
    page.locator("[name=goal][value=noise-rate]").check()
    opened.until("location.hash.includes('t=0.8') && !location.hash.includes('g=')")
    page.locator("[name=dispatch][value=planned]").check()
    opened.until("document.getElementById('exponent').disabled")
    page.locator("[name=dispatch][value=never-queue]").check()
    opened.until("document.querySelector('#map .line-you') !== null")
    opened.until("document.getElementById('command').innerText.includes('never-queue')")
    page.locator("[name=dispatch][value=routed]").check()
    opened.until("!document.getElementById('exponent').disabled")
    page.locator("#reset").click()
    opened.until("location.hash.replace('#', '') === ''")
    assert page.locator("#problem").is_hidden()


def test_a_cell_of_the_map_takes_one_there(opened: Page) -> None:
    opened.page.locator("#map .cell").nth(4).click()
    opened.until("location.hash.includes('m=1&') && location.hash.includes('a=0.25')")
    # The map is drawn after the numbers, so it may still show the settings before.
    opened.until("document.querySelectorAll('#map .you').length === 1")
    assert opened.page.locator("#map .best").count() == 1


def test_the_map_is_read_by_keyboard_and_touch(opened: Page) -> None:
    page = opened.page
    page.locator("#map svg").focus()
    for key in ("ArrowRight", "ArrowUp"):
        page.keyboard.press(key)
    said = page.locator("#map-value").inner_text()
    assert "noise rate" in said
    # A map that is drawn anew keeps the focus and the square.
    page.evaluate(
        "document.querySelector('#map svg').id = 'before'; dispatchEvent(new Event('resize'))"
    )
    opened.until("document.getElementById('before') === null")
    page.keyboard.press("ArrowRight")
    assert page.locator("#map-value").inner_text() != said
    page.locator("#map .cell").last.dispatch_event("pointerdown")
    assert page.locator("#map-value").inner_text().startswith("never queue, ")
    assert page.locator("#map-legend li").count() >= 3


def test_use_this_leads_to_the_least_noise(opened: Page) -> None:
    assert (
        opened.page.locator("#title").inner_text().startswith("Never queue: noise 3.54 times lower")
    )
    opened.page.locator("#use").click()
    opened.page.wait_for_selector(".verdict.done")
    assert opened.page.locator("#use").is_hidden()
    assert opened.tile("noise rate") == "1.23"


def test_the_address_keeps_the_state_and_the_pins(browser: Any, server: LocalServer) -> None:
    first = Page(browser, server.address)
    first.page.locator("#pin").click()
    first.page.locator("#tasks-exact").fill("17")
    first.page.wait_for_selector("#compared[data-rows='2']")
    first.until("location.hash.includes('m=17') && location.hash.includes('pin=')")
    address = first.page.url
    first.close()
    second = Page(browser, address)
    assert second.page.locator("#tasks-exact").input_value() == "17"
    second.page.wait_for_selector("#compared[data-rows='2']")
    second.page.get_by_role("button", name="Go there").click()
    second.until("document.getElementById('tasks-exact').value === '30'")
    second.page.get_by_role("button", name="Unpin").click()
    second.page.wait_for_selector("#compared[data-rows='1']")
    second.close()


def test_a_plan_and_a_fleet_are_saved(opened: Page, tmp_path: Path) -> None:
    for button, name in (("#save-strategy", "strategy.toml"), ("#save-fleet", "fleet.csv")):
        with opened.page.expect_download() as begun:
            opened.page.locator(button).click()
        assert begun.value.suggested_filename == name
        begun.value.save_as(tmp_path / name)
    plan = tomllib.loads((tmp_path / "strategy.toml").read_text())
    assert plan["concurrency"] == 30
    assert plan["learning-rate"] == 0.02
    assert (tmp_path / "fleet.csv").read_text().startswith("service_rate,count,name")


def test_a_mistake_is_said_and_forgotten(opened: Page) -> None:
    opened.page.evaluate("location.hash = 'a=7'")
    opened.page.wait_for_selector("#problem:not([hidden])")
    assert "the exponent must be" in opened.page.locator("#problem").inner_text()
    opened.page.locator("#reset").click()
    opened.page.wait_for_selector("#problem", state="hidden")
    # What the browser itself says of a refused question is no fault of the page.
    opened.complaints[:] = [text for text in opened.complaints if "422" not in text]


def test_tries_are_drawn_as_they_run_and_two_browsers_see_them(
    browser: Any, explorer: Explorer, server: LocalServer
) -> None:
    one = Page(browser, f"{server.address}#h=30", viewport={"width": 1400, "height": 900})
    two = Page(browser, f"{server.address}#m=5", viewport={"width": 390, "height": 844})
    one.page.locator("#try").click()
    one.page.wait_for_selector("#tries li")
    one.page.wait_for_selector("#curves .curve")
    one.page.wait_for_selector("#tries li[data-end=finished]")
    one.page.wait_for_selector("#tiles dd:has-text('measured on the digits')")
    two.page.wait_for_selector("#tries li[data-end=finished]")
    assert two.page.locator("#tasks-exact").input_value() == "5", "their settings are their own"
    one.page.get_by_role("button", name="loss").click()
    one.until("document.querySelector('#curves svg').getAttribute('aria-label').includes('loss')")
    one.page.get_by_role("button", name="accuracy").click()
    one.until("!document.querySelector('#curves svg').getAttribute('aria-label').includes('loss')")
    one.page.get_by_role("button", name="Remove try").click()
    one.page.wait_for_selector("#tries li", state="detached")
    two.close()
    one.close()


def test_a_try_of_other_data_is_stopped_and_the_command_copied(opened: Page) -> None:
    page = opened.page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.locator("#copy").click()
    page.wait_for_selector("#copy:has-text('Copied')")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == page.locator("#command").inner_text()
    page.locator("#partition").select_option("by-speed")
    page.locator("#horizon").fill("5000")
    opened.until("location.hash.includes('p=by-speed') && location.hash.includes('h=5000')")
    page.locator("#try").click()
    page.wait_for_selector("#tries li[data-end=running]")
    assert "digits go with speed" in page.locator("#tries li").inner_text()
    page.get_by_role("button", name="Stop try").click()
    page.wait_for_selector("#tries li[data-end=running]", state="detached")
    page.get_by_role("button", name="Remove try").click()
    page.wait_for_selector("#tries li", state="detached")


def test_no_control_is_left_out(browser: Any, server: LocalServer) -> None:
    made = Page(browser, f"{server.address}#g=time-to-accuracy&pin=m%3D7")
    made.page.wait_for_selector("#compared[data-rows='2']")
    there = set(made.page.evaluate(CONTROLS))
    made.close()
    clicked = {name.replace("_", " ") for names in CLICKED.values() for name in names.split()}
    come_with_a_try = {"Stop", "Remove"}
    assert there - come_with_a_try == clicked - come_with_a_try
    assert set(CLICKED) <= set(globals())


def test_dark_is_kept(opened: Page) -> None:
    before = opened.page.evaluate("getComputedStyle(document.body).backgroundColor")
    opened.page.click("#theme")
    assert opened.page.evaluate("getComputedStyle(document.body).backgroundColor") != before
    opened.page.reload()
    opened.page.wait_for_selector("body[data-ready=true]")
    assert opened.page.evaluate("getComputedStyle(document.body).backgroundColor") != before
    opened.page.click("#theme")
    assert opened.page.evaluate("getComputedStyle(document.body).backgroundColor") == before


def test_an_invalid_value_is_marked_at_its_field(opened: Page) -> None:
    page = opened.page
    for field, wrong, right, range_ in (
        ("#tasks-exact", "-5", "7", "1 to 1,000,000"),
        ("#rate-exact", "0", "0.1", "above 0"),
        ("[data-rate='0']", "0", "0.5", "above 0"),
        ("[data-count='0']", "1.5", "3", "whole number"),
    ):
        before = page.evaluate("location.hash")
        page.fill(field, wrong)
        assert page.get_attribute(field, "aria-invalid") == "true"
        assert range_ in page.locator(".wrong").inner_text()
        assert page.evaluate("location.hash") == before, "the settings stay as they were"
        page.fill(field, right)
        assert page.evaluate("location.hash") != before
        assert page.get_attribute(field, "aria-invalid") == "false"
        assert page.locator(".wrong").count() == 0
