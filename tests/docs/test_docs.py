"""The documentation as a reader has it: complete without a network, every link and name in place."""

import importlib.util
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

import sojourn as sj
from tests.browser import needs_axe, needs_chromium, new_page, serious_violations
from tests.docs.conftest import DOCS

pytestmark = [pytest.mark.docs, pytest.mark.timeout(1500)]
LEAST_FIGURES = 10
README_LINES, README_COLUMNS = 170, 88
NARROWEST_CELL = 7
"""Characters of a table's column on a phone."""


def chromium(test: Any) -> Any:
    """Skipped, and says so, where there is no browser."""
    for mark in needs_chromium:
        test = mark(test)
    return test


class Links(HTMLParser):
    """The links of a page, what it loads, and the places in it that can be linked to."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.places: set[str] = set()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        self.places |= {value for key in ("id", "name") if (value := given.get(key))}
        if tag == "a" and given.get("href"):
            self.links.append(str(given["href"]))
        if tag in ("script", "img", "iframe") and given.get("src"):
            self.loads.append(str(given["src"]))
        if tag == "link" and given.get("rel") == "stylesheet":
            self.loads.append(str(given["href"]))


def read(page: Path) -> Links:
    parser = Links()
    parser.feed(page.read_text(encoding="utf-8"))
    return parser


def test_no_link_is_broken_and_nothing_is_loaded_from_elsewhere(built: Path) -> None:
    pages = {path: read(path) for path in built.rglob("*.html")}
    broken = []
    for path, found in pages.items():
        assert [url for url in found.loads if urlsplit(url).scheme or url.startswith("//")] == []
        for url in [*found.links, *found.loads]:
            parts = urlsplit(url)
            if parts.scheme:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.exists():
                broken.append((path.name, url))
            elif parts.fragment and target in pages:
                place = unquote(parts.fragment)
                if place not in pages[target].places:
                    broken.append((path.name, url))
    assert broken == []


def test_figures_come_from_sessions(built: Path) -> None:
    asked = sum(
        len(re.findall(r"^```\{plotted\}", page.read_text(encoding="utf-8"), re.MULTILINE))
        for page in DOCS.rglob("*.md")
    )
    shown = {
        Path(url).name
        for page in built.rglob("*.html")
        for url in read(page).loads
        if url.endswith(".svg") and "_images" in url
    }
    drawn = [name for name in shown if re.search(r"-\d+\.svg$", name)]
    assert len(drawn) == asked >= LEAST_FIGURES
    for name in drawn:
        assert "<svg" in (built / "_images" / name).read_text(encoding="utf-8")[:2000]


def test_every_public_name_has_an_entry_under_its_public_name(built: Path) -> None:
    pages = sorted((built / "api").glob("*.html"))
    assert len(pages) > 8, "one page per group"
    places = {place for page in pages for place in read(page).places}
    names = {name for name in sj.__all__ if not name.startswith("_")}
    packages = {"rules", "train", "training"}
    assert {name for name in names - packages if f"sojourn.{name}" not in places} == set()
    assert {"module-sojourn.rules", "module-sojourn.training"} <= places


def test_types_are_written_as_in_the_source(built: Path) -> None:
    for page in (built / "api").glob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert "_NestedSequence" not in text, page.name
        assert "&lt;factory&gt;" not in text, page.name
    assert "ArrayLike" in (built / "api" / "fleets.html").read_text(encoding="utf-8")


def test_readme_is_short_and_its_code_fits_a_screen() -> None:
    text = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= README_LINES
    blocks = re.findall(r"^```\w*\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert blocks
    code = [line for block in blocks for line in block.splitlines()]
    assert [line for line in code if len(line) > README_COLUMNS] == []


def test_every_example_of_ones_own_data_has_at_most_thirty_lines() -> None:
    page = (DOCS / "your-data.md").read_text(encoding="utf-8")
    blocks = [block.split("```")[0].split("\n") for block in page.split("```python\n")[1:]]
    assert len(blocks) == 5
    assert max(sum(bool(line) for line in block) for block in blocks) <= 30


def test_every_command_has_a_table_of_its_options(built: Path) -> None:
    spec = importlib.util.spec_from_file_location("sessions", DOCS / "sessions.py")
    assert spec is not None and spec.loader is not None
    sessions = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sessions)
    sources = "\n".join(path.read_text(encoding="utf-8") for path in DOCS.rglob("*.md"))
    pages = "\n".join(path.read_text(encoding="utf-8") for path in built.rglob("*.html"))
    for name, command in sessions.commands().items():
        assert f"```{{options}} {name}\n" in sources, (
            f"no page lists the options of 'sojourn {name}'"
        )
        for param in command.params:
            if param.param_type_name == "option" and param.name != "help":
                assert f">{param.opts[0]}" in pages or f"{param.opts[0]}</span>" in pages, (
                    param.opts
                )


def test_no_copyright_of_nobody_and_no_raw_formula(built: Path) -> None:
    for path in built.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        assert "Copyright &#169;" not in text and "Copyright ©" not in text
        assert not re.search(r"<script[^>]*mathjax", text, re.IGNORECASE)
    theory = (built / "theory.html").read_text(encoding="utf-8")
    assert theory.count("<math ") > 80
    assert not re.search(r"\\(frac|sum|mathrm|sqrt)", re.sub(r"<script.*?</script>", "", theory))


@pytest.fixture
def offline(browser: Any) -> Iterator[Any]:
    context = browser.new_context(offline=True, viewport={"width": 1400, "height": 900})
    yield context
    context.close()


@chromium
def test_pages_are_whole_with_the_network_off(offline: Any, built: Path) -> None:
    page = new_page(offline)
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    for path in sorted(built.rglob("*.html")):
        page.goto(path.as_uri())
        for width in (390, 1024, 1400):
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate("document.documentElement.scrollWidth") <= width, path.name
            # Tables of a terminal keep their columns on a phone, and scroll, by the keyboard too.
            scrolls = ":not(.highlight-console pre[tabindex]):not(.highlight-text pre[tabindex])"
            cut = page.evaluate(
                f"[...document.querySelectorAll('pre{scrolls if width == 390 else ''}')]"
                ".filter(e => e.scrollWidth > e.clientWidth + 1)"
                ".map(e => e.textContent.slice(0, 60))"
            )
            assert cut == [], (path.name, width)
        broken = page.evaluate(
            "Promise.all([...document.images].filter(i => i.checkVisibility()).map(i => i.decode()"
            ".then(() => null, () => i.src))).then(all => all.filter(Boolean))"
        )
        assert broken == [], path.name
    page.close()
    assert complaints == []


@chromium
def test_formulas_are_drawn(offline: Any, built: Path) -> None:
    page = new_page(offline)
    page.goto((built / "theory.html").as_uri())
    sizes = page.evaluate(
        "[...document.querySelectorAll('math')].map(m => m.getBoundingClientRect())"
        ".map(b => [b.width, b.height])"
    )
    fraction = page.evaluate(
        "(() => { const [a, b] = document.querySelector('math mfrac').children;"
        "return a.getBoundingClientRect().bottom <= b.getBoundingClientRect().top + 1; })()"
    )
    page.close()
    assert len(sizes) > 80
    assert all(width > 2 and height > 5 for width, height in sizes)
    assert fraction, "a numerator stands above its denominator"


@chromium
def test_search_finds_without_a_network(offline: Any, built: Path) -> None:
    page = new_page(offline)
    page.goto((built / "search.html").as_uri() + "?q=staleness")
    page.wait_for_selector("#search-results li a", timeout=60_000)
    page.wait_for_selector("#search-results li .context")
    found = page.locator("#search-results li a").all_inner_texts()
    excerpts = page.locator("#search-results li .context").all_inner_texts()
    page.close()
    assert len(found) > 3
    assert len(excerpts) > 3 and all("staleness" in text.lower() for text in excerpts)


@chromium
def test_tables_scroll_on_a_phone_instead_of_breaking_words(offline: Any, built: Path) -> None:
    page = new_page(offline)
    for name in ("theory.html", "strategies.html", "paper.html", "commands/train.html"):
        page.goto((built / name).as_uri())
        heights = {}
        for width in (1440, 390):
            page.set_viewport_size({"width": width, "height": 900})
            heights[width] = page.evaluate("document.querySelector('article').scrollHeight")
        narrow = page.evaluate(
            "(least) => [...document.querySelectorAll('article table td, article table th')]"
            ".filter(c => c.checkVisibility()).map(c => {"
            "const probe = document.createElement('span'); probe.textContent = '0'.repeat(least);"
            "probe.style.position = 'absolute'; probe.style.visibility = 'hidden';"
            "c.appendChild(probe); const need = probe.getBoundingClientRect().width; probe.remove();"
            "return [c.textContent.slice(0, 30), c.getBoundingClientRect().width - need]; })"
            ".filter(([, spare]) => spare < 0)",
            NARROWEST_CELL,
        )
        assert narrow == [], name
        if name == "theory.html":
            assert heights[390] < 2 * heights[1440]
    page.close()


@chromium
def test_code_is_copied_without_prompts(browser: Any, built: Path) -> None:
    context = browser.new_context(viewport={"width": 1400, "height": 900})
    page = new_page(context)
    page.goto((built / "index.html").as_uri())
    page.evaluate(
        "document.execCommand = (what) => { window.copied = document.activeElement.value; return true; };"
        "navigator.clipboard && (navigator.clipboard.writeText = async (text) => { window.copied = text; })"
    )
    button = page.locator("div.highlight-python button.copybtn").first
    button.click(force=True)
    page.wait_for_function("window.copied !== undefined", timeout=10_000)
    copied = page.evaluate("window.copied")
    context.close()
    assert copied.startswith("import sojourn as sj")
    assert ">>>" not in copied


@chromium
@needs_axe
@pytest.mark.parametrize(
    "name",
    [
        "index",
        "tutorial",
        "theory",
        "strategies",
        "glossary",
        "commands/tune",
        "api/fleets",
        "search",
    ],
)
def test_a_page_has_no_serious_violation_of_accessibility(
    browser: Any, built: Path, name: str
) -> None:
    page = new_page(browser, viewport={"width": 1280, "height": 900})
    page.goto((built / f"{name}.html").as_uri())
    violations = serious_violations(page)
    page.close()
    assert violations == []
