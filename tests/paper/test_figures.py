"""Every figure of the paper has a section with its axes and routings, and what we chose is marked."""

import json
from pathlib import Path

import pytest

from reproduction.figures import ROUTINGS, figure_sections, left_over, read_figures
from reproduction.kept import findings_in
from reproduction.pages import reproduction_report
from reproduction.statements import read_statements
from reproduction.verdict import Finding
from sojourn.errors import InvalidFile

RESULTS = Path(__file__).parents[2] / "experiments" / "paper" / "results" / "standard"


@pytest.fixture(scope="module")
def findings() -> list[Finding]:
    return findings_in(RESULTS)


def test_all_eleven_figures_have_a_section_that_marks_what_is_ours(
    findings: list[Finding],
) -> None:
    assert [figure.number for figure in read_figures()] == list(range(1, 12))
    sections = figure_sections(findings)
    for figure, section in zip(read_figures(), sections, strict=True):
        assert section.figures, figure
        assert figure.ours and f"Ours: {figure.ours[0]}" in section.notes[1]
    page = reproduction_report([RESULTS])
    anchors = [section.anchor for section in page.sections]
    assert [a for a in anchors if a.startswith("figure-")] == [f"figure-{k}" for k in range(1, 12)]
    names = [figure.name for figure in page.figures]
    assert len(set(names)) == len(names)


def test_training_is_drawn_against_the_papers_axis_with_its_routings_alone(
    findings: list[Finding],
) -> None:
    for figure, section in zip(read_figures(), figure_sections(findings), strict=True):
        for drawn in section.figures:
            if not figure.axis:
                continue
            assert {(view.metric, view.axis) for view in drawn.views} == {
                ("accuracy", figure.axis),
                ("loss", figure.axis),
            }
            wanted = ROUTINGS[:3] if figure.axis == "rounds" else ROUTINGS
            for view in drawn.views:
                assert tuple(curve.name for curve in view.series) == wanted
                assert all(curve.low is not None for curve in view.series)
            assert "square-root" not in drawn.alt
            assert "one standard deviation" in drawn.caption


def test_each_drawing_belongs_to_one_figure_or_stays_with_its_claim(
    findings: list[Finding],
) -> None:
    known = read_figures()
    for finding in findings:
        kept = {figure.name for figure in left_over(finding)}
        for one in finding.figures:
            owners = [figure.number for figure in known if figure.has(one)]
            assert len(owners) == 1 or (not owners and one.name in kept), one.name
            ours = any(s.name in ("square-root", "plan") for v in one.views for s in v.series)
            assert ours <= (one.name in kept)


def test_figures_and_statements_speak_of_the_same_claims() -> None:
    for figure in read_figures():
        drawn = {pattern.split("-")[1] for pattern in figure.shows}
        named = {s.claim for s in read_statements() if f"Figure {figure.number}" in s.results}
        assert drawn <= named, figure


def test_an_axis_that_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "figures.toml"
    path.write_text(
        '[[figure]]\nnumber = 1\nline = 2\ntitle = "t"\nprinted = "p"\nours = []\nshows = []\naxis = "x"\n'
    )
    with pytest.raises(InvalidFile, match="must be rounds or time"):
        read_figures(path)


def test_bands_of_the_saved_run_are_standard_deviations(findings: list[Finding]) -> None:
    """Against the standard errors of the tables, with the numbers of runs that the record names."""
    record = json.loads((RESULTS / "reproduction.json").read_text())["trials"]["runs"]
    (finding,) = [one for one in findings if one.claim == "6"]
    for table, drawn in zip(finding.tables, finding.figures, strict=True):
        cell = drawn.name.removeprefix("claim-6-").replace("0-5", "0.5")
        errors = {row[0]: float(row[2].split("±")[1]) / 100 for row in table.rows}
        for curve in drawn.views[0].series:
            assert curve.high is not None
            deviation = errors[curve.label] * record[cell][curve.name] ** 0.5
            width = float(curve.high[-1] - curve.y[-1])
            assert width > 0.5 * deviation, "an error would be less than half of it"
