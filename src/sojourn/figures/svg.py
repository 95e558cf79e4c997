"""What hand-drawn pictures (timelines and maps) share: shades, style, legend, frame."""

from collections.abc import Iterable, Iterator, Sequence
from html import escape

EDGES = (3, 10, 30, 100, 300)
"""Staleness, in rounds, at which the shade changes."""
LIGHT = ("#bfdcec", "#8cc0dd", "#559fc9", "#2c78ab", "#164f7d", "#08263f")
DARK = ("#1f3f56", "#2a5a7a", "#38789f", "#4f9ac4", "#79b9df", "#a9d7f2")
QUEUE = ("#c2410c", "#ff9b5c")
LETTER, LINE = 8.0, 18.0
Entry = tuple[str, str, float, int]
"""Class, text, horizontal place and line of an entry of a legend."""


def legend_entries(texts: Sequence[tuple[str, str]], left: float, right: float) -> list[Entry]:
    """Where the entries of a legend stand, as many in a line as there is room for.

    >>> legend_entries([("s0", "fresh"), ("idle", "idle")], 10.0, 80.0)
    [('s0', 'fresh', 10.0, 0), ('idle', 'idle', 10.0, 1)]
    """
    x, line, entries = left, 0, []
    for kind, text in texts:
        wide = 30.0 + LETTER * len(text)
        if x + wide > right:
            x, line = left, line + 1
        entries.append((kind, text, x, line))
        x += wide
    return entries


def legend(entries: Iterable[Entry], top: float) -> Iterator[str]:
    """A swatch and its text for every entry."""
    for kind, text, x, line in entries:
        y = top + line * LINE
        yield f'<rect class="{kind} swatch" x="{x:.1f}" y="{y - 9:.1f}" width="14" height="9"/>'
        yield f'<text class="key" x="{x + 18:.1f}" y="{y:.1f}">{escape(text)}</text>'


def level_name(level: int) -> str:
    """What a shade of staleness means."""
    if level == 0:
        return f"< {EDGES[0]}"
    return f"{EDGES[level - 1]}+" if level == len(EDGES) else f"to {EDGES[level]}"


def picture(
    kind: str,
    width: float,
    height: float,
    entries: Sequence[Entry],
    words: str,
    parts: Iterable[str],
    styled: bool,
) -> str:
    """The parts in their frame; not ``styled``, the colours are left to the page around it.

    ``height`` is that of the picture without its legend.
    """
    height += (1 + entries[-1][-1]) * LINE
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="{kind}" viewBox="0 0 {width:g} '
        f'{height:g}" role="img" aria-label="{escape(words)}">'
    ]
    if styled:
        lines += [STYLE, f'<rect class="page" width="{width:g}" height="{height:g}"/>']
    return "\n".join([*lines, *filter(None, parts), "</svg>"])


def _rules(side: int, shades: Sequence[str]) -> str:
    ink, line, page = (("#38404d", "#d9d6d0", "#ffffff"), ("#c3cad5", "#39414e", "#11141a"))[side]
    idle = ("#f3f1ed", "#1d222b")[side]
    levels = "".join(f".timeline .s{k}{{fill:{shade}}}" for k, shade in enumerate(shades))
    return (
        f".timeline text{{fill:{ink}}}.timeline .axis{{stroke:{line}}}.timeline .page{{fill:{page}}}"
        f".timeline .idle{{fill:{idle}}}.timeline .idle.swatch{{stroke:{line}}}"
        f".timeline .queue{{fill:{QUEUE[side]}}}"
        f".timeline .open{{fill:none;stroke:{ink}}}.timeline .mark{{fill:{QUEUE[side]};stroke:{page}}}"
        f".timeline .on{{fill:{ink};stroke:{page}}}{levels}"
    )


SHAPES = (
    ".timeline text{font:12px system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif}"
    ".timeline .head{font-weight:650;font-size:14px}.timeline .name{text-anchor:end}"
    ".timeline .tick{text-anchor:middle}.timeline .axis{fill:none}.timeline .open{stroke-width:.7}"
    ".timeline .touch{fill:transparent}.timeline .mark{stroke-width:2}"
    ".timeline .on{font-weight:650;paint-order:stroke;stroke-width:4px;stroke-linejoin:round}"
    ".timeline .left{text-anchor:end}"
)
LIGHT_RULES, DARK_RULES = _rules(0, LIGHT), _rules(1, DARK)
STYLE = f"<style>{SHAPES}{LIGHT_RULES}@media (prefers-color-scheme: dark){{{DARK_RULES}}}</style>"
