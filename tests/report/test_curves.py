"""Means and bands over seeds."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose

from reproduction.stored import figure_from_json, figure_to_json
from sojourn.figures.figure import Series, View
from sojourn.figures.labels import spread
from sojourn.figures.palette import inks
from sojourn.report.outcomes import (
    final_text,
    learning_figure,
    seen_staleness,
    time_text,
)
from sojourn.runs.history import History
from sojourn.runs.measure import Measure
from sojourn.types import FloatArray


def line(seed: int, slope: float, *, end: float = 10.0) -> History:
    time = np.linspace(0.0, end, 6)
    return History(
        strategy="uniform",
        seed=seed,
        learning_rate=0.1,
        clock="virtual",
        round=np.arange(6) * 10,
        time=time,
        test_loss=np.ones(6),
        test_accuracy=slope * time,
        train_loss=np.ones(6),
        staleness=[math.nan, 1.0, 2.0, 3.0, 4.0, 5.0],
        gradients=[0, 10, 20, 30, 40, 60],
        updates=np.arange(6) * 10,
    )


def over_seeds(runs: list[History], axis: str, **options: float) -> tuple[FloatArray, ...]:
    (curve,) = learning_figure("f", "F", runs, **options).view("accuracy", axis).series
    assert curve.low is not None
    assert curve.high is not None
    return curve.x, curve.y, (curve.high - curve.low) / 2


def test_mean_and_standard_error_over_seeds_on_a_common_grid() -> None:
    runs = [line(0, 0.01), line(1, 0.03, end=8.0)]
    grid, mean, error = over_seeds(runs, "time")
    assert grid[-1] == 10.0, "the shorter run is held"
    both = grid <= 8.0
    assert_allclose(mean[both], 0.02 * grid[both])
    assert_allclose(error[both], 0.02 * grid[both] / 2)
    assert mean[-1] == pytest.approx(np.mean([run.final_accuracy for run in runs]))


def test_curves_are_held_to_the_horizon() -> None:
    runs = [line(0, 0.01), line(1, 0.03, end=8.0)]
    grid, mean, _ = over_seeds(runs, "time", horizon=12.0)
    assert grid[-1] == 12.0
    assert mean[-1] == pytest.approx(0.17)


def test_the_band_is_one_standard_error_and_of_a_loss_symmetric_in_logarithms() -> None:
    runs = [replace(line(k, 0.01), test_loss=np.full(6, loss)) for k, loss in enumerate((1, 4))]
    view = next(v for v in learning_figure("f", "F", runs).views if v.metric == "loss")
    (series,) = view.series
    assert series.low is not None
    assert series.high is not None
    assert_allclose(series.low * series.high, series.y**2)
    assert_allclose(series.high / series.y, math.exp(math.log(4) / 2))


def test_with_strong_strategies_the_rest_is_thin_and_the_first_alone_has_a_band() -> None:
    runs = [replace(line(k, 0.01), strategy=name) for name in "abcd" for k in (0, 1)]
    view = learning_figure("f", "F", runs, strong=["c", "a"]).views[0]
    assert {s.name: s.weight for s in view.series} == {
        "b": "thin",
        "d": "thin",
        "a": "strong",
        "c": "pick",
    }
    assert [s.name for s in view.series if s.low is not None] == ["c"]
    inks = view.inks()
    assert inks["b"] == inks["d"] != inks["c"] != inks["a"]


def test_rounds_are_kept_as_they_were_evaluated() -> None:
    grid, mean, _ = over_seeds([line(0, 0.01), line(1, 0.03)], "rounds")
    assert grid.tolist() == [0, 10, 20, 30, 40, 50]
    assert_allclose(mean, 0.02 * np.linspace(0, 10, 6))


def test_staleness_is_weighted_by_tasks() -> None:
    assert seen_staleness(line(0, 0.01)) == pytest.approx((10 + 20 + 30 + 40 + 100) / 60)


def test_texts_give_standard_errors_and_missed_targets() -> None:
    runs = [line(0, 0.01), line(1, 0.03)]
    assert final_text(runs, runs[0].measure) == "20.0 ± 10.0%"
    assert time_text(runs, 0.2) == "1 of 2 seeds reached it"


def test_a_metric_that_only_some_strategies_have_is_unknown_of_the_others() -> None:
    private = replace(line(0, 0.01), metrics={"epsilon": np.linspace(0.0, 3.0, 6)})
    assert [final_text([run], Measure("epsilon")) for run in (private, line(0, 0.01))] == ["3", "–"]


def test_a_figure_survives_its_file(histories: list[History]) -> None:
    figure = learning_figure("f", "Title", histories)
    again = figure_from_json(figure_to_json(figure))
    assert figure_to_json(again) == figure_to_json(figure)
    assert [view.axis for view in again.views] == ["time", "rounds", "time", "rounds"]


def test_the_words_name_the_best_first(histories: list[History]) -> None:
    alt = learning_figure("f", "Title", histories).alt
    told = alt.removeprefix("Test accuracy at the end, best first: ").rstrip(".").split("; ")
    assert len(told) == 5
    shares = [float(re.search(r"([0-9.]+) ±", text)[1]) for text in told]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > shares[-1]


def test_bars_begin_at_zero_and_curves_stay_inside() -> None:
    bars = View("x", "y", (Series("a", [0, 1], [3.0, 5.0], kind="bars"),))
    assert bars.range_of_y()[0] == 0.0
    curve = Series("a", [0, 1], [1.0, 2.0], low=[-100.0, 1.0], high=[2.0, 100.0])
    low, high = View("x", "y", (curve,)).range_of_y()
    assert -1.0 < low < 1.0
    assert 2.0 < high < 3.0


def test_strategies_keep_their_colours() -> None:
    alone = inks(["balanced"])["balanced"]
    assert inks(["new", "uniform", "balanced"])["balanced"] == alone
    together = inks(["uniform", "balanced", "square-root", "plan", "new"])
    assert len({ink.light for ink in together.values()}) == 5


def test_labels_are_moved_apart() -> None:
    placed = spread([10.0, 10.0, 10.0, 100.0], 15.0)
    assert placed == [-5.0, 10.0, 25.0, 100.0]
