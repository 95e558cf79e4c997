"""Labels of single points: readable beside one another, and off the curves."""

from itertools import combinations, pairwise

import numpy as np
import pytest
from matplotlib import rc_context
from matplotlib.text import Annotation, Text

from sojourn.figures import matplotlib_figure
from sojourn.figures.figure import Figure, Series, View
from sojourn.figures.palette import GREY, inks
from sojourn.report.html import plotly_views

MARKS = {
    7: {
        "uniform": (0.1257, 6.0),
        "balanced": (2.158, 2766.0),
        "square-root": (0.5197, 103.3),
        "plan": (0.5711, 125.7),
    },
    30: {
        "uniform": (0.2291, 29.0),
        "balanced": (5.644, 13367.0),
        "square-root": (1.052, 568.2),
        "plan": (4.579, 8850.6),
    },
}
"""Throughput and staleness penalty of four routings of the three clusters, by concurrency."""


def frontier(concurrency: int) -> Figure:
    """A curve through the first and the last mark, and the marks."""
    marks = MARKS[concurrency]
    x = np.geomspace(0.05, 8.0, 30)
    (x0, y0), (x1, y1) = marks["uniform"], marks["square-root"]
    slope = np.log(y1 / y0) / np.log(x1 / x0)
    points = [Series(k, [a], [b], kind="points", text=(k,)) for k, (a, b) in marks.items()]
    line = Series("frontier", x, y0 * (x / x0) ** slope)
    view = View("throughput", "penalty", (line, *points), log_x=True, log_y=True)
    return Figure("frontier", "Frontier", "A rising line.", (view,))


@pytest.mark.parametrize("concurrency", sorted(MARKS))
def test_drawn_labels_cover_neither_one_another_nor_the_curve(concurrency: int) -> None:
    figure = frontier(concurrency)
    with rc_context(matplotlib_figure._STYLE):
        canvas = matplotlib_figure._draw(figure, figure.views[0])
        canvas.draw_without_rendering()
    (axes,) = canvas.axes
    drawn = {t.get_text(): t for t in axes.texts if isinstance(t, Annotation)}
    assert set(drawn) == {"frontier", *MARKS[concurrency]}
    boxes = {name: text.get_window_extent() for name, text in drawn.items()}
    for one, other in combinations(boxes, 2):
        assert not boxes[one].overlaps(boxes[other]), (one, other)
    curve = axes.transData.transform(axes.lines[0].get_xydata())
    dense = np.concatenate([np.linspace(a, b, 50) for a, b in pairwise(curve)])
    for name, box in boxes.items():
        inside = (dense > box.min).all(axis=1) & (dense < box.max).all(axis=1)
        assert not inside.any(), name
    for name in MARKS[concurrency]:
        assert drawn[name].get_color() != drawn["frontier"].get_color()


def test_labels_of_neighbours_stand_on_different_sides_on_the_page() -> None:
    (view,) = plotly_views(frontier(7))
    sides = {t["name"]: t["textposition"] for t in view["data"] if t["mode"] == "markers+text"}
    assert sides["uniform"] == ["bottom right"]
    assert sides["plan"] != sides["square-root"]


def test_a_label_that_is_crowded_out_stands_further_off_on_a_leader() -> None:
    points = [
        Series(f"routing {k}", [1.0 + 0.001 * k], [1.0], kind="points", text=(f"routing {k}",))
        for k in range(6)
    ]
    wide = Series("flat", [0.0, 2.0], [0.5, 1.5])
    view = View("x", "y", (wide, *points))
    with rc_context(matplotlib_figure._STYLE):
        canvas = matplotlib_figure._draw(
            Figure("f", "F", "Six points at one place.", (view,)), view
        )
        canvas.draw_without_rendering()
    texts = [t for t in canvas.axes[0].texts if isinstance(t, Annotation)]
    labels = [t for t in texts if t.get_text().startswith("routing")]
    assert len(labels) == 6
    assert [t.arrow_patch is not None for t in labels].count(True) >= 2
    boxes = [Text.get_window_extent(t) for t in labels]
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))


@pytest.mark.parametrize("letters", [8, 40])
def test_names_leave_room_for_the_curves_in_a_column_of_a_paper(letters: int) -> None:
    """3.3 x 2.2 inches: long names stand in a legend below, and nothing leaves the picture."""
    names = [
        f"{k} {'strategy of a long name, debiased, adaptive'[: letters - 2]}" for k in range(6)
    ]
    curves = [Series(name, [0.0, 1.0], [0.0, k + 1.0]) for k, name in enumerate(names)]
    view = View("time", "test accuracy", tuple(curves))
    figure = Figure("f", "", "Six curves.", (view,))
    with rc_context({**matplotlib_figure._STYLE, "font.size": matplotlib_figure.SMALL}):
        canvas = matplotlib_figure._draw(figure, view, (3.3, 2.2))
        canvas.draw_without_rendering()
    (axes,) = canvas.axes
    assert axes.bbox.width >= 0.5 * canvas.bbox.width
    assert axes.bbox.height >= 0.35 * canvas.bbox.height
    legend = [text for one in canvas.legends for text in one.get_texts()]
    texts = legend or [text for text in axes.texts if isinstance(text, Annotation)]
    assert bool(legend) == (letters == 40)
    assert {" ".join(text.get_text().split()) for text in texts} == set(map(str.strip, names))
    for text in texts:
        box = Text.get_window_extent(text)
        assert box.x0 >= 0 and box.x1 <= canvas.bbox.width + 0.5
        assert box.y0 >= 0 and box.y1 <= canvas.bbox.height + 0.5


@pytest.mark.parametrize("dpi", [72, 100, 160])
def test_twelve_names_stand_beside_the_curves_whole_at_every_resolution(dpi: int) -> None:
    names = [f"{k:02} generalized-async-sgd" for k in range(12)]
    curves = [
        Series(name, [0.0, 1.0], [0.0, 1.0 + 0.01 * k], weight="strong" if k < 2 else "thin")
        for k, name in enumerate(names)
    ]
    view = View("time", "test accuracy", tuple(curves))
    with rc_context({**matplotlib_figure._STYLE, "font.size": matplotlib_figure.SMALL}):
        canvas = matplotlib_figure._draw(Figure("f", "", "Twelve.", (view,)), view, (3.3, 2.2))
        canvas.dpi = dpi
        canvas.draw_without_rendering()
        boxes = [text.get_window_extent() for text in canvas.axes[0].texts]
    assert len(boxes) == 12
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))
    for box in boxes:
        assert box.x0 >= 0 and box.x1 <= canvas.bbox.width + 0.5
        assert box.y0 >= 0 and box.y1 <= canvas.bbox.height + 0.5


def test_nobody_in_colour_is_grey_beside_grey_curves() -> None:
    for name in ("delayed-nesterov", "ringmaster", "a", "b", "c", "d", "e", "f", "g", "h"):
        curves = Series(name, [0.0], [0.0]), Series("behind", [0.0], [0.0], weight="thin")
        found = View("x", "y", curves).inks()
        assert found[name].light not in (GREY.light, inks(["uniform"])["uniform"].light)
