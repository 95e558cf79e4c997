"""The page of a plan: its numbers are those of the package, its verdict that of what is compared."""

import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

import sojourn as sj
from sojourn._support.numbers import number
from sojourn.figures.heatmap import Heatmap
from sojourn.fleet import square_root_routing
from sojourn.report.plan import plan_report
from sojourn.theory.jackson.classes import MOST_SHOWN, by_class

FLEET = sj.built_in_fleet("three-clusters")
CONSTANTS = sj.LearningConstants(15, 1, 3, 10)


@pytest.fixture(scope="module")
def plan() -> sj.Plan:
    return sj.plan(FLEET, sj.NoiseRate())


@pytest.fixture(scope="module")
def report(plan: sj.Plan) -> sj.Report:
    return plan_report(plan)


def test_the_verdict_has_the_numbers_of_analyze_and_of_the_floor(
    plan: sj.Plan, report: sj.Report
) -> None:
    now = sj.analyze(sj.Network(FLEET, sj.uniform_routing(FLEET), 30))
    floor = sj.noise_floor(FLEET, 30)
    said = report.sections[0].lead
    assert f"noise rate of {number(plan.value)}" in said
    assert f"(uniform routing: {number(now.noise_rate)})" in said
    assert f"noise rate of {number(floor)}, the least of any policy" in said
    assert report.title == "Never queue, 30 tasks in flight"
    assert report.because == (
        "It makes 48 times as many updates per time unit as uniform routing, which has "
        f"{number(now.noise_rate / floor, 2)} times its noise rate; the best routing has "
        f"{number(plan.value / floor, 2)} times."
    )


def test_one_plan_has_one_noise_rate_on_its_page() -> None:
    """What is optimised knows neither laws nor absences; what is said of it does."""
    law, there, away = ["lognormal(sigma=1.2)"] * 3, [9.0] * 3, [1.0] * 3
    fleet = sj.Fleet([0.1, 1.0, 3.0], [4, 4, 4], law=law, mean_up=there, mean_down=away)
    plan = sj.plan(fleet, sj.NoiseRate(), concurrency=12)
    known = sj.analyze(plan.network).noise_rate
    assert plan.value != pytest.approx(known, rel=0.02)
    report = plan_report(plan)
    said = " ".join(section.lead for section in report.sections)
    rates = re.findall(r"the best routing has a noise rate of ([\d.]+\d)", said)
    assert set(rates) == {number(known)}
    notes = " ".join(table.note for section in report.sections for table in section.tables)
    assert number(plan.value) not in said + report.because + notes
    assert "These are approximations" in said and "Computed for exponential" in notes


def test_the_verdict_changes_with_what_is_done_now(plan: sj.Plan, report: sj.Report) -> None:
    other = plan_report(plan, now=square_root_routing(FLEET))
    assert "what is done now, which has 1.7 times its noise rate" in other.because
    assert other.because != report.because


def test_a_class_that_is_split_is_put_together_again() -> None:
    split = sj.plan(FLEET, sj.PerTime(CONSTANTS, 0.01, 0), concurrency=30)
    assert split.network.is_split
    found = by_class(sj.analyze(split.network))
    assert found.share.shape == (3,)
    assert found.share.sum() == pytest.approx(1.0)
    assert found.weight @ found.share == pytest.approx(1.0)
    assert found.staleness @ found.share == pytest.approx(29.0)
    assert found.share[2] == pytest.approx(split.client_routing[20:].sum())


def test_every_number_of_the_table_is_drawn(report: sj.Report) -> None:
    classes = next(section for section in report.sections if section.anchor == "classes-section")
    (figure,), (table,) = classes.figures, classes.tables
    drawn = {view.metric: {s.name: s.y for s in view.series} for view in figure.views}
    assert list(drawn) == ["share", "busy", "wait", "weight"]
    for name, _, share, busy, *_ in table.rows:
        label, way = name.split(", ")
        k = figure.views[0].categories.index(label)
        assert share == f"{drawn['share'][way][k]:.1%}"
        assert busy == f"{drawn['busy'][way][k]:.1%}"


def test_the_worth_is_that_of_sensitivity(plan: sj.Plan, report: sj.Report) -> None:
    worth = next(section for section in report.sections if section.anchor == "worth")
    for row, found in zip(worth.tables[0].rows, sj.sensitivity(plan), strict=True):
        assert row[0] == found.name
        assert found.without_one is not None
        assert row[1] == f"{100 * (found.without_one / found.now - 1):+.2g}%"


@pytest.mark.parametrize(
    "objective, words",
    [
        (sj.Throughput(), "the best routing has a throughput of"),
        (sj.TimeToAccuracy(CONSTANTS, 1.0), "the best routing has a time to the accuracy of"),
    ],
)
def test_other_objectives_have_a_page(objective: sj.Objective, words: str) -> None:
    plan = sj.plan(FLEET, objective, concurrency=5)
    report = plan_report(plan)
    assert words in report.sections[0].lead
    assert len(report.sections) == 5


def test_where_never_queueing_is_not_known_the_routing_is_recommended() -> None:
    slow_server = sj.plan(FLEET, sj.NoiseRate(), concurrency=6, server_rate=20.0)
    report = plan_report(slow_server)
    assert report.title == "Route as planned, 6 tasks in flight"
    assert report.because.startswith("Uniform routing has ")
    assert report.because.endswith(" times its noise rate.")


def test_many_classes_and_links_have_a_page() -> None:
    fleet = sj.Fleet(np.exp(np.arange(1, 31) / 10), uplink=np.full(30, 0.5))
    report = plan_report(sj.plan(fleet, sj.NoiseRate(), concurrency=6, server_rate=20.0))
    assert f"Of 30 classes, {MOST_SHOWN} are shown" in report.sections[1].tables[0].note
    assert "the least of any policy" not in report.sections[0].lead


def test_the_map_is_well_formed_and_shades_follow_the_numbers() -> None:
    times = np.array([[1.0, 1.1, 9.0], [1.3, 2.0, np.inf]])
    drawn = Heatmap(
        np.array([0.0, 0.5, 1.0]),
        np.array([1.0, 9.0]),
        times,
        "x",
        "y",
        [(0.0, "0")],
        {"a<b": (0, 1)},
    )
    svg = drawn.to_svg()
    ET.fromstring(svg)
    assert "a&lt;b" in svg
    cells = re.findall(r'<rect class="(\w+)"[^>]*><title>([^<]*)<', svg)
    assert cells == [
        ("s5", "1 times the best"),
        ("s4", "1.1 times the best"),
        ("s0", "9 times the best"),
        ("s3", "1.3 times the best"),
        ("s2", "2 times the best"),
        ("open", "out of reach"),
    ]
