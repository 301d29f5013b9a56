"""Plots as SVG text: lines, dots with whiskers, small ones in a row.

Separate from what is plotted. Colours are classes of the page's style, so that one picture reads in light and
in dark.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from router.studies.html.axis import Axis, written
from router.studies.html.style import STYLES

Point = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One line.

    Attributes:
        style: number of its colour and dashes; the same policy has the same in all plots.
        halves: half widths of confidence intervals, one for each point; None for none. Empty: none at all.
        dots: points are marked.
        tip: what is shown beside the name when the pointer rests on it.
    """

    name: str
    points: Sequence[Point]
    style: int
    halves: Sequence[float | None] = ()
    dots: bool = False
    tip: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """Size of a plot and its margins, in units of its own."""

    width: int = 420
    height: int = 260
    left: int = 54
    right: int = 12
    top: int = 10
    bottom: int = 42

    def x(self, part: float) -> float:
        return self.left + part * (self.width - self.left - self.right)

    def y(self, part: float) -> float:
        return self.height - self.bottom - part * (self.height - self.top - self.bottom)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One dot with its whiskers, beside a name."""

    name: str
    value: float
    half: float | None
    style: int
    tip: str = ""


PLOT = Frame()
SMALL = Frame(width=300, height=180, left=40, right=8, top=8, bottom=38)
_ROW = 21
_ROWS_WIDTH = 560
_LETTER = 7
"""About the width of one letter of a name."""
_MOST_LETTERS = 44
_NARROW = 50
"""Without room for it the vertical axis has no label; the text above says what it is."""


def lines(series: Sequence[Series], x: Axis, y: Axis, label: str, frame: Frame = PLOT) -> str:
    """Lines over two axes.

    Args:
        label: what is seen, for those who do not see it.
    """
    parts = [*_grid(x, y, frame), *(_line(each, x, y, frame) for each in series)]
    return _svg("curves", parts, frame, label)


def rows(made: Sequence[Row], x: Axis, label: str) -> str:
    """A row for each dot; a line where the first one stands."""
    longest = max((len(_shown(row.name)) for row in made), default=0)
    frame = Frame(
        width=_ROWS_WIDTH, height=_ROW * len(made) + 54, left=_LETTER * longest + 20, top=8, right=24
    )
    parts = list(_vertical_grid(x, frame))
    if made:
        at = frame.x(x.place(made[0].value))
        parts.append(f'<path class="base" d="M{at:.1f} {frame.top}V{frame.height - frame.bottom}"/>')
    for index, row in enumerate(made):
        parts.append(_row(row, x, frame, frame.top + _ROW * (index + 0.5)))
    return _svg("rows", parts, frame, label)


# --- the pieces -------------------------------------------------------------------------------------------


def _svg(kind: str, parts: Sequence[str], frame: Frame, label: str) -> str:
    box = f"0 0 {frame.width} {frame.height}"
    return (
        f'<svg class="{kind}" viewBox="{box}" role="img" aria-label="{escape(label)}" '
        f'xmlns="http://www.w3.org/2000/svg">{"".join(parts)}</svg>'
    )


def _grid(x: Axis, y: Axis, frame: Frame) -> Iterator[str]:
    yield from _vertical_grid(x, frame)
    for value in y.ticks():
        at = frame.y(y.place(value))
        yield f'<path class="grid" d="M{frame.left} {at:.1f}H{frame.width - frame.right}"/>'
        yield _text(frame.left - 6, at + 4, written(value), "end")
    if frame.left < _NARROW:
        return
    middle = (frame.top + frame.height - frame.bottom) / 2
    yield (
        f'<text class="axis" transform="translate(13 {middle:.1f}) rotate(-90)" text-anchor="middle">'
        f"{escape(y.label)}</text>"
    )


def _vertical_grid(x: Axis, frame: Frame) -> Iterator[str]:
    bottom = frame.height - frame.bottom
    for value in x.ticks():
        at = frame.x(x.place(value))
        yield f'<path class="grid" d="M{at:.1f} {frame.top}V{bottom}"/>'
        yield _text(at, bottom + 16, written(value), "middle")
    yield _text((frame.left + frame.width - frame.right) / 2, frame.height - 6, x.label, "middle", "axis")


def _text(x: float, y: float, words: str, anchor: str, kind: str = "tick") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _line(series: Series, x: Axis, y: Axis, frame: Frame) -> str:
    places = [(frame.x(x.place(a)), frame.y(y.place(b))) for a, b in series.points]
    path = "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in places) if places else ""
    whiskers = [
        _whisker(place[0], frame.y(y.place(value - half)), frame.y(y.place(value + half)))
        for place, (_, value), half in zip(places, series.points, series.halves, strict=False)
        if half is not None
    ]
    dots = [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3.2"/>' for a, b in places] if series.dots else []
    return _group(series.style, series.name, series.tip, [f'<path d="{path}"/>', *whiskers, *dots])


def _whisker(at: float, low: float, high: float) -> str:
    left = f"{at - 3:.1f}"
    return (
        f'<path class="whisker" d="M{at:.1f} {low:.1f}V{high:.1f}M{left} {low:.1f}h6M{left} {high:.1f}h6"/>'
    )


def _shown(name: str) -> str:
    """As much of it as leaves room for a plot; the whole is shown when the pointer rests on it."""
    return name if len(name) <= _MOST_LETTERS else f"{name[: _MOST_LETTERS - 1]}…"


def _row(row: Row, x: Axis, frame: Frame, at: float) -> str:
    parts = [_text(frame.left - 8, at + 4, _shown(row.name), "end", "name")]
    if row.half is not None:
        low, high = frame.x(x.place(row.value - row.half)), frame.x(x.place(row.value + row.half))
        parts.append(
            f'<path class="whisker" d="M{low:.1f} {at:.1f}H{high:.1f}'
            f'M{low:.1f} {at - 4:.1f}v8M{high:.1f} {at - 4:.1f}v8"/>'
        )
    parts.append(f'<circle cx="{frame.x(x.place(row.value)):.1f}" cy="{at:.1f}" r="4"/>')
    return _group(row.style, row.name, row.tip, parts)


def _group(style: int, name: str, tip: str, parts: Sequence[str]) -> str:
    words = f"{name}: {tip}" if tip else name
    return f'<g class="s s{style % STYLES}"><title>{escape(words)}</title>{"".join(parts)}</g>'
