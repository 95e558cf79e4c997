"""Timelines on the page and in files: who computes what when, under every strategy."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from sojourn.errors import InvalidInput
from sojourn.files import replacing
from sojourn.report.sections import Drawing, Section
from sojourn.timeline import LIGHT, QUEUE, Timeline, timelines_svg

PAGE_WIDTH = 400.0
"""Of a timeline on the page: as wide as a phone, so that it is whole there too."""


def timeline_section(index: int, name: str, timelines: Mapping[str, Timeline]) -> Section:
    """The beginning of a run under each of its strategies, over the same time."""
    until = next(iter(timelines.values())).until
    return Section(
        anchor=f"timeline-{index}",
        title="Who computes what when",
        kicker=name,
        lead=f"The first {until:.3g} units of time, simulated. A row per client; a bar is a task "
        "being computed, the stronger its shade the staler its gradient; a gap is a client without work; orange "
        "below a bar are tasks that wait for this client.",
        drawings=tuple(
            Drawing(
                name=f"timeline-{index}-{k}",
                title=strategy,
                alt=timeline.in_words(),
                svg=timeline.to_svg(styled=False, width=PAGE_WIDTH),
                file=timeline.to_svg(strategy),
                caption=timeline.in_words() + ".",
            )
            for k, (strategy, timeline) in enumerate(timelines.items(), start=1)
        ),
    )


def save_timelines(panels: Sequence[tuple[str, Timeline]], path: Path) -> Path:
    """Draw timelines side by side into ``path``, which ends in ``.svg`` or ``.png``."""
    if path.suffix == ".svg":
        with replacing(path) as temporary:
            temporary.write_text(timelines_svg(panels) + "\n", encoding="utf-8")
    elif path.suffix == ".png":
        _save_png(panels, path)
    else:
        raise InvalidInput(f"'{path}': the picture must end in .svg or .png")
    return path


def _save_png(panels: Sequence[tuple[str, Timeline]], path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    rows = max(len(timeline.rows()) for _, timeline in panels)
    size = (7.2 * len(panels), 1.4 + 0.15 * rows)
    canvas = Canvas(figsize=size, layout="constrained")
    FigureCanvasAgg(canvas)
    longest = max(1, *(timeline.longest_queue() for _, timeline in panels))
    for k, (title, timeline) in enumerate(panels, start=1):
        axes = canvas.add_subplot(1, len(panels), k)
        place = {client: row for row, client in enumerate(timeline.rows())}
        levels = timeline.levels()
        for client, row in place.items():
            own = np.flatnonzero((timeline.client == client) & (timeline.begin < timeline.until))
            begin, end = timeline.begin[own], np.minimum(timeline.end[own], timeline.until)
            spans = np.column_stack([begin, end - begin]).tolist()
            colours = [LIGHT[level] if level >= 0 else "#ffffff" for level in levels[own].tolist()]
            axes.broken_barh(
                spans, (row, 0.58), facecolors=colours, edgecolor="white", linewidth=0.2
            )
        for client, at, count in timeline.queues():
            if client in place:
                base = place[client] + 0.97
                axes.fill_between(
                    at,
                    base,
                    base - 0.36 * np.minimum(1.0, count / longest),
                    step="post",
                    color=QUEUE[0],
                    linewidth=0,
                )
        axes.set_xlim(0, timeline.until)
        axes.set_ylim(len(place), 0)
        axes.set_yticks([])
        axes.set_xlabel("time (virtual units)")
        axes.set_ylabel("client")
        axes.set_title(title, loc="left", fontsize=11, fontweight="bold")
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
    with replacing(path) as temporary:
        canvas.savefig(temporary, format="png", dpi=160)
