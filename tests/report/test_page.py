"""The page as a file: complete without a network, escaped, and one thing written once."""

import math
import re
from pathlib import Path

import pytest

from reproduction.pages import collect, reproduction_report as report_of
from reproduction.verdict import Finding, Statement
from sojourn._support.estimate import Estimate
from sojourn.errors import InvalidFile
from sojourn.figures import matplotlib_figure
from sojourn.figures.figure import Figure, Series, View
from sojourn.figures.palette import inks
from sojourn.report import Report, Section
from sojourn.report.html import chips, dot_cells


def test_the_page_is_self_contained(reproduction: Path, run_folder: Path, tmp_path: Path) -> None:
    page = report_of([reproduction, run_folder]).write(tmp_path / "report.html", stills=False)
    html = page.read_text(encoding="utf-8")
    tags = re.sub(r"<script.*?</script>", "", html, flags=re.DOTALL)
    assert not re.search(r'(src|href)="(?!#|data:)', tags)
    assert "@import" not in tags
    assert html.count("plotly.js (basic - minified) v") == 1
    assert len(html) < 2_000_000
    assert "digits &lt;and&gt; more" in html
    assert "digits <and>" not in html


def test_verdicts_come_first(reproduction: Path, tmp_path: Path) -> None:
    html = report_of([reproduction]).write(tmp_path / "r.html", stills=False).read_text()
    body = html[html.index("<main") :]
    assert body.index('class="verdicts"') < body.index('class="plot"')
    assert "reproduces in part" in body
    assert "data not found" in body
    assert "checks the trend, not the number" in body


def test_chips_have_the_colours_of_the_figures() -> None:
    views = [
        View("x", "y", tuple(Series(name, [0, 1], [0, 1]) for name in names))
        for names in (("descent", "lowest"), ("paper", "exact", "simulated"))
    ]
    shown = [Figure(f"f{k}", "F", "Lines.", (view,)) for k, view in enumerate(views)]
    found = {chip["name"]: chip["light"] for chip in chips(Section("a", "A", figures=tuple(shown)))}
    for view in views:
        drawn = inks(series.name for series in view.series)
        assert {name: found[name] for name in drawn} == {k: ink.light for k, ink in drawn.items()}


def test_a_sentence_about_many_cases_is_written_once(tmp_path: Path) -> None:
    says = "It is better."
    told = [Statement(says, f"By {k}.", "reproduces", "at the end", f"case {k}") for k in (1, 2)]
    untold = [
        Statement(says, "Not run.", "inconclusive", "at the end", f"case {k}") for k in range(3, 21)
    ]
    alone = Statement("It is unique.", "It is.", "reproduces")
    finding = Finding("8", "t", "s", "c", "quick", (*told, *untold, alone))
    finding.write(tmp_path / "claim-8")
    html = report_of([tmp_path]).write(tmp_path / "r.html", stills=False).read_text()
    table = html[html.index('class="statements"') :]
    table = table[: table.index("</table>")]
    assert table.count(says) == 1
    assert table.count("Reading: at the end") == 1
    assert table.count("Not run.") == 1
    assert "18 cases" in table
    assert "case 3; case 4; case 5" in table
    assert table.count("<tr") == 1 + 1 + 2 + 1 + 1
    assert "21 statements: 3 reproduced, 18 inconclusive" in html


def test_stills_stand_beside_the_page(run_folder: Path, tmp_path: Path) -> None:
    report_of([run_folder]).write(tmp_path / "report.html")
    files = {path.name for path in (tmp_path / "report-figures").iterdir()}
    views = ("accuracy-time", "accuracy-rounds", "loss-time", "loss-rounds")
    drawn = {f"learning-1-{view}" for view in views} | {"routing-1", "staleness-1"}
    stills = {f"{name}.{kind}" for name in drawn for kind in ("png", "svg")}
    timelines = {"timeline-1.svg"} | {f"timeline-1-{k}.svg" for k in range(1, 6)}
    assert files == stills | timelines
    png = (tmp_path / "report-figures" / "learning-1-accuracy-time.png").read_bytes()
    assert png.startswith(b"\x89PNG")
    svg = (tmp_path / "report-figures" / "learning-1-accuracy-time.svg").read_text()
    assert "Test accuracy at the end" in svg


def test_many_stills_are_the_same_whoever_draws_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = 6
    monkeypatch.setattr(matplotlib_figure, "MANY", many)
    view = View("x", "y", (Series("uniform", [0, 1], [0, 1]),))
    figures = tuple(Figure(f"f-{k}", "F", "A line.", (view,)) for k in range(many))
    report = Report("Many", (Section("a", "A", figures=figures),))
    said: list[str] = []
    report.write(tmp_path / "many.html", jobs=2, say=said.append)
    assert said == [f"drawing {many} pictures, as PNG and as SVG ..."]
    assert len(list((tmp_path / "many-figures").iterdir())) == 2 * many
    some = (figures[0], figures[many // 2], figures[-1])
    Report("Some", (Section("a", "A", figures=some),)).write(tmp_path / "alone.html")
    alone = sorted((tmp_path / "alone-figures").iterdir())
    assert len(alone) == 2 * len(some)
    for path in alone:
        assert (tmp_path / "many-figures" / path.name).read_bytes() == path.read_bytes()


def test_a_cell_shows_its_mean_and_error_on_the_scale_of_its_column() -> None:
    estimates = [Estimate(1.0, 0.5), Estimate(3.0, 0.0), Estimate(math.nan, math.nan)]
    first, second, third = dot_cells(estimates, ["1.0 ± 0.5", "<3>", "not reached"])
    assert "1.0&nbsp;±&nbsp;0.5" in first
    assert 'd="M4.0 6H40.8"' in first
    assert 'cx="96.0"' in second
    assert "&lt;3&gt;" in second
    assert third == "not reached"
    assert dot_cells([estimates[0]], ["alone"]) == ["alone"], "one value needs no scale"


def test_a_report_is_a_value() -> None:
    report = Report("Nothing <yet>", (Section("a", "One part", lead="Words."),))
    assert repr(report) == "Report('Nothing <yet>', 1 section, 0 figures)"
    html = report.to_html()
    assert "Nothing &lt;yet&gt;" in html
    assert "One part" in html
    assert 'class="verdicts"' not in html[html.index("<main") :]


def test_runs_under_a_finding_are_not_listed_again(reproduction: Path, run_folder: Path) -> None:
    run_folder.rename(reproduction / "claim-6" / "iid")
    findings, runs = collect([reproduction])
    assert [finding.claim for finding in findings] == ["1", "6"]
    assert runs == []


def test_a_folder_with_nothing_in_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidFile, match="nothing to report"):
        report_of([tmp_path])
    with pytest.raises(InvalidFile, match="not a folder"):
        collect([tmp_path / "absent"])


def test_a_damaged_finding_is_refused(reproduction: Path) -> None:
    (reproduction / "claim-1" / "finding.json").write_text('{"claim": "1"}')
    with pytest.raises(InvalidFile, match="not a finding"):
        collect([reproduction])
