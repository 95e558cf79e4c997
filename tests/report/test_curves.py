"""Means and bands over seeds."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose

from sojourn.figure import Figure, Series, View, spread
from sojourn.history import History
from sojourn.palette import inks
from sojourn.report.curves import learning_figure, mean_and_deviation
from sojourn.report.sections import results_table, seen_staleness


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


def test_mean_and_deviation_over_seeds_on_a_common_grid() -> None:
    runs = [line(0, 0.01), line(1, 0.03, end=8.0)]
    grid, mean, deviation = mean_and_deviation(runs, "test_accuracy", axis="time")
    assert grid[-1] == 10.0, "the shorter run is held"
    both = grid <= 8.0
    assert_allclose(mean[both], 0.02 * grid[both])
    assert_allclose(deviation[both], 0.02 * grid[both] / math.sqrt(2))
    assert mean[-1] == pytest.approx(np.mean([run.final_accuracy for run in runs]))


def test_curves_are_held_to_the_horizon() -> None:
    runs = [line(0, 0.01), line(1, 0.03, end=8.0)]
    grid, mean, _ = mean_and_deviation(runs, "test_accuracy", axis="time", horizon=12.0)
    assert grid[-1] == 12.0
    assert mean[-1] == pytest.approx(0.17)


def test_the_band_of_a_loss_is_symmetric_in_logarithms() -> None:
    runs = [replace(line(k, 0.01), test_loss=np.full(6, loss)) for k, loss in enumerate((1, 4))]
    view = next(v for v in learning_figure("f", "F", runs).views if v.metric == "loss")
    (series,) = view.series
    assert series.low is not None
    assert series.high is not None
    assert_allclose(series.low * series.high, series.y**2)
    assert_allclose(series.high / series.y, math.exp(math.log(4) / math.sqrt(2)))


def test_rounds_are_kept_as_they_were_evaluated() -> None:
    grid, mean, _ = mean_and_deviation(
        [line(0, 0.01), line(1, 0.03)], "test_accuracy", axis="rounds"
    )
    assert grid.tolist() == [0, 10, 20, 30, 40, 50]
    assert_allclose(mean, 0.02 * np.linspace(0, 10, 6))


def test_staleness_is_weighted_by_tasks() -> None:
    assert seen_staleness(line(0, 0.01)) == pytest.approx((10 + 20 + 30 + 40 + 100) / 60)


def test_the_table_gives_standard_errors_and_missed_targets() -> None:
    table = results_table([line(0, 0.01), line(1, 0.03)], targets=[0.2])
    row = dict(zip(table.columns, table.rows[0], strict=True))
    assert row["final test accuracy"] == "20.0 ± 10.0%"
    assert row["time to 20%, units"] == "1 of 2 seeds reached it"


def test_a_figure_survives_its_file(histories: list[History]) -> None:
    figure = learning_figure("f", "Title", histories)
    again = Figure.from_json(figure.to_json())
    assert again.to_json() == figure.to_json()
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
