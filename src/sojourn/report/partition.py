"""A picture of who holds what: samples per client and label."""

from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas
from numpy.typing import NDArray

from sojourn.files import replacing

_COLOUR = "#0064a4"
_LARGEST_DOT = 120.0


def draw_partition(table: NDArray[np.int64], path: Path, *, title: str) -> None:
    """Draw ``table`` (clients x labels) as dots whose area is the number of samples.

    ``path`` ends in ``.png`` or ``.svg``.
    """
    clients, labels = table.shape
    canvas = Canvas(
        figsize=(max(4.0, min(14.0, 1.6 + 0.28 * clients)), max(3.0, 1.2 + 0.22 * min(labels, 40))),
        layout="constrained",
    )
    FigureCanvasAgg(canvas)
    axes = canvas.add_subplot()
    client, label = np.nonzero(table)
    area = table[client, label] / max(1, int(table.max())) * _LARGEST_DOT
    axes.scatter(client, label, s=area, color=_COLOUR, linewidths=0)
    axes.set_xlim(-0.8, clients - 0.2)
    axes.set_ylim(-0.8, labels - 0.2)
    axes.set_xlabel("client")
    axes.set_ylabel("label")
    axes.set_title(
        f"{title}\nlargest dot: {int(table.max())} samples; clients hold "
        f"{int(table.sum(1).min())} to {int(table.sum(1).max())}",
        loc="left",
        fontsize=10,
    )
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    with replacing(path) as temporary:
        canvas.savefig(temporary, format=path.suffix.removeprefix("."), dpi=160)
