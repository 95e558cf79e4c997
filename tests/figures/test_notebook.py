"""What a notebook shows: tables and pictures with the numbers of the values, and nothing unescaped."""

import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

from sojourn.errors import InvalidInput, UnknownName
from sojourn.figures.notebook import MOST_ROWS, table_html
from sojourn.fleet import Fleet, Network, built_in_fleet, uniform_routing
from sojourn.planning import frontier, plan
from sojourn.planning.objectives import Throughput
from sojourn.runs.history import Histories, History
from sojourn.simulation.simulate import simulate
from sojourn.theory.jackson import analyze

FLEET = built_in_fleet("three-clusters")


def shown(value: object) -> str:
    html: str = value._repr_html_()  # type: ignore[attr-defined]
    ET.fromstring(f"<div>{html}</div>")
    assert repr(value)[:20].replace("<", "&lt;") in html
    return html


def test_a_fleet_an_analysis_and_a_plan_are_tables_by_class() -> None:
    network = Network(FLEET, uniform_routing(FLEET), 30)
    analysis = analyze(network)
    for value in (FLEET, analysis):
        html = shown(value)
        assert html.count("<tr>") == 4
        for name in ("slow", "medium", "fast"):
            assert f">{name}</td>" in html
    assert f"{analysis.staleness[0]:.4g}" in shown(analysis)
    best = plan(FLEET, Throughput(), concurrency=30)
    html = shown(best)
    assert [f">{name}</td>" in html for name in best.comparison()] == [True] * 5
    assert ">never-queue</td>" in html


def test_networks_frontiers_and_lists_of_runs_are_tables() -> None:
    network = Network(FLEET, uniform_routing(FLEET), 30)
    html = shown(network)
    assert html.count("<tr>") == 4
    assert "0.0333" in html
    curve = frontier(FLEET, 5, points=3)
    html = shown(curve)
    assert html.count("<tr>") == 1 + 3 + len(curve.marks)
    assert "text-align:right" in html
    runs = Histories([made(3, seed) for seed in (0, 1)])
    assert runs._repr_html_().count("<tr>") == 3
    assert runs._repr_html_().count("<svg") == 2
    assert "20.0%" in runs._repr_html_()


def made(rows: int, seed: int = 0) -> History:
    column = np.arange(rows, dtype=float)
    return History(
        strategy="uniform",
        seed=seed,
        learning_rate=0.1,
        clock="virtual",
        round=np.arange(rows),
        time=column,
        test_loss=column,
        test_accuracy=column / 10,
        train_loss=column,
        staleness=column,
        gradients=np.arange(rows),
        updates=np.arange(rows),
    )


def test_names_are_escaped_and_long_tables_cut() -> None:
    assert "&lt;b&gt;" in shown(Fleet([1.0, 2.0], names=["<b>", "c"]))
    html = table_html("t", ["x"], [[str(k)] for k in range(MOST_ROWS + 5)])
    assert html.count("<td") == MOST_ROWS
    assert "and 5 more" in html


@pytest.mark.parametrize("rows", [1, 3])
def test_a_history_is_a_line_and_a_curve(rows: int) -> None:
    column, history = np.arange(rows, dtype=float), made(rows)
    html = shown(history)
    assert ("<svg" in html) == (rows > 1)
    assert (">20.0%<" in html) == (rows > 1), "the last value stands at the end of the curve"
    drawn = history.plot()
    assert [(view.metric, view.axis) for view in drawn.views][:2] == [
        ("accuracy", "time"),
        ("accuracy", "rounds"),
    ]
    np.testing.assert_array_equal(drawn.view("loss", "rounds").series[0].y, column)


def test_values_draw_themselves_with_their_own_numbers(tmp_path: Path) -> None:
    network = Network(FLEET, uniform_routing(FLEET), 30)
    analysis, best = analyze(network), plan(FLEET, Throughput(), concurrency=30)
    speed = FLEET.counts * FLEET.service_rates / FLEET.total_rate
    np.testing.assert_allclose(FLEET.plot().views[0].series[1].y, speed)
    np.testing.assert_allclose(analysis.plot().view("busy").series[0].y, analysis.utilization)
    assert [s.name for s in best.plot().views[0].series] == [
        "uniform routing",
        "never-queue",
        "best routing",
    ]
    curve = frontier(FLEET, 5, points=3)
    np.testing.assert_array_equal(curve.plot().views[0].series[0].x, curve.throughput)
    schedule = simulate(network, rounds=200, seed=1)
    assert schedule.plot().save(tmp_path / "t.svg").read_text().startswith("<svg")
    assert schedule.plot().save(tmp_path / "t.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(InvalidInput, match=r"end in \.svg or \.png"):
        schedule.plot().save(tmp_path / "t.gif")


def test_a_figure_is_saved_and_shown(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    figure = analyze(Network(FLEET, uniform_routing(FLEET), 30)).plot()
    assert figure.save(tmp_path / "f.png", metric="wait").read_bytes().startswith(b"\x89PNG")
    ET.fromstring(figure._repr_svg_())
    assert repr(figure).startswith("Figure('What each class gets', views share, busy, wait, weight")
    with pytest.raises(UnknownName, match="did you mean 'wait'"):
        figure.view("wiat")
