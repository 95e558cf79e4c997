"""Figures and tables as JSON, as ``finding.json`` stores them."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from sojourn.errors import InvalidFile
from sojourn.figures.figure import Figure, Series, Table, View
from sojourn.types import FloatArray

_VIEW = ("x_label", "y_label", "metric", "axis", "log_x", "log_y", "percent")
_ARRAYS = ("x", "y", "low", "high")


def figure_to_json(figure: Figure, digits: int = 6) -> dict[str, Any]:
    """A figure as JSON-ready values; numbers keep so many significant digits."""
    return {
        **{key: getattr(figure, key) for key in ("name", "title", "alt", "caption", "wide")},
        "views": [
            {
                **{key: getattr(view, key) for key in _VIEW},
                "categories": list(view.categories),
                "series": [_series_to_json(series, digits) for series in view.series],
            }
            for view in figure.views
        ],
    }


def figure_from_json(values: Mapping[str, Any]) -> Figure:
    """Read back what `figure_to_json` wrote."""
    try:
        views = tuple(_view_from_json(view) for view in values["views"])
        name, title, alt = (str(values[key]) for key in ("name", "title", "alt"))
        return Figure(name, title, alt, views, str(values["caption"]), bool(values["wide"]))
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidFile(f"a stored figure is not as Sojourn writes it: {error!r}") from error


def table_to_json(table: Table) -> dict[str, Any]:
    """A table as JSON-ready values."""
    rows = [list(row) for row in table.rows]
    return {"title": table.title, "note": table.note, "columns": list(table.columns), "rows": rows}


def table_from_json(values: Mapping[str, Any]) -> Table:
    """Read back what `table_to_json` wrote."""
    try:
        rows = tuple(tuple(map(str, row)) for row in values["rows"])
        columns = tuple(map(str, values["columns"]))
        return Table(columns, rows, title=str(values["title"]), note=str(values["note"]))
    except (KeyError, TypeError) as error:
        raise InvalidFile(f"a stored table is not as Sojourn writes it: {error!r}") from error


def _series_to_json(series: Series, digits: int) -> dict[str, Any]:
    values: dict[str, Any] = {"name": series.name, "label": series.label, "kind": series.kind}
    for key in _ARRAYS:
        array = getattr(series, key)
        values[key] = None if array is None else [_rounded(v, digits) for v in array.tolist()]
    values["text"] = list(series.text)
    return values


def _rounded(value: float, digits: int) -> float | None:
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None


def _view_from_json(values: Mapping[str, Any]) -> View:
    series = tuple(
        Series(
            s["name"],
            _array(s["x"]),
            _array(s["y"]),
            low=None if s["low"] is None else _array(s["low"]),
            high=None if s["high"] is None else _array(s["high"]),
            kind=s["kind"],
            label=s["label"],
            text=tuple(s["text"]),
        )
        for s in values["series"]
    )
    others = {key: values[key] for key in _VIEW}
    return View(series=series, categories=tuple(values["categories"]), **others)


def _array(values: list[float | None]) -> FloatArray:
    return np.array([math.nan if v is None else v for v in values], dtype=np.float64)
