"""A page of text, tables and plots, as one file: no network, no script.

Separate from what the page says: here is only how it is written down.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from router import __version__
from router.studies.grid import Field, Grid
from router.studies.html.plots import Plot, Styles
from router.studies.html.style import STYLES, page_style, plot_style

_LEGEND_LEFT, _LEGEND_WIDTH, _LEGEND_ROW = 46, 124, 18
_WORDS = {1: "worse", -1: "better"}


def page(title: str, facts: Iterable[tuple[str, str]], body: Iterable[str]) -> str:
    """The whole file.

    Args:
        facts: what was run, a line each.
    """
    words = "".join(
        f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>"
        for name, value in (*facts, ("version", f"Pointsman {__version__}"))
    )
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{escape(title)}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>\n{page_style()}</style>\n</head>\n<body>\n<main>\n<h1>{escape(title)}</h1>\n"
        f"<dl>{words}</dl>\n{chr(10).join(body)}\n</main>\n</body>\n</html>\n"
    )


def section(title: str, level: int = 2) -> str:
    """A heading."""
    return f"<h{level}>{escape(title)}</h{level}>"


def note(text: str) -> str:
    """A paragraph beside the matter."""
    return f'<p class="note">{escape(text)}</p>'


def table(grid: Grid) -> str:
    """A table, with its title above it."""
    head = "".join(f"<th>{escape(name)}</th>" for name in (grid.corner, *grid.columns))
    width = len(grid.columns)
    rows = "".join(
        f"<tr><td>{escape(name)}</td>{''.join(map(_field, fields))}{'<td></td>' * (width - len(fields))}</tr>"
        for name, fields in grid.rows
    )
    title = section(grid.title, 3) if grid.title else ""
    return f'{title}<div class="wide"><table><tr>{head}</tr>{rows}</table></div>'


def _field(field: Field) -> str:
    half = f" <small>±{escape(field.half)}</small>" if field.half else ""
    kind = f' class="{_WORDS[field.sign]}"' if field.sign else ""
    return f"<td{kind}>{escape(field.text)}{half}</td>"


def meanings(title: str, words: Iterable[tuple[str, str]]) -> str:
    """What names mean, folded away until it is wanted."""
    items = "".join(f"<dt>{escape(name)}</dt><dd>{escape(meaning)}</dd>" for name, meaning in words)
    return f"<details><summary>{escape(title)}</summary><dl>{items}</dl></details>"


def plots(made: Iterable[Plot], *, small: bool = False) -> str:
    """Pictures beside and below each other, two or four in pairs; "" for none."""
    pictures = list(made)
    kind = " small" if small else " pairs" if len(pictures) in {2, 4} else ""
    figures = "".join(
        f"<figure><figcaption>{escape(each.title)} <small>{escape(each.remark)}</small></figcaption>"
        f"{each.svg}</figure>"
        for each in pictures
    )
    return f'<div class="plots{kind}">{figures}</div>' if figures else ""


def keys(styles: Styles) -> str:
    """Which line is whose. Resting on a name dims all others."""
    items = "".join(
        f'<li class="key s{index % STYLES}"><svg viewBox="0 0 28 10"><path d="M0 5H28"/></svg>'
        f"<span>{escape(policy)}</span></li>"
        for policy, index in styles.items()
    )
    return f'<ul class="keys">{items}</ul>'


def standalone(svg: str, names: Sequence[str] = ()) -> str:
    """A plot as a file of its own, with its style, and with names below where lines have several."""
    head, _, rest = svg.partition(">")
    box = head.partition('viewBox="0 0 ')[2].partition('"')[0]
    width, height = (int(word) for word in box.split())
    columns = max(1, (width - _LEGEND_LEFT) // _LEGEND_WIDTH)
    places = [(_LEGEND_WIDTH * (i % columns), _LEGEND_ROW * (i // columns)) for i in range(len(names))]
    legend = "".join(
        f'<g class="s s{index % STYLES}"><path d="M{x} {y + 8}h22"/></g>'
        f'<text x="{x + 28}" y="{y + 12}">{escape(name)}</text>'
        for index, (name, (x, y)) in enumerate(zip(names, places, strict=True))
    )
    below = 8 + _LEGEND_ROW * -(-len(names) // columns) if names else 0
    head = head.replace(f"0 0 {box}", f"0 0 {width} {height + below}", 1)
    inner = rest.removesuffix("</svg>")
    return (
        f'{head} width="{width}" height="{height + below}"><style>{plot_style()}</style>'
        f'<rect class="paper" width="100%" height="100%"/>{inner}'
        f'<g transform="translate({_LEGEND_LEFT} {height})">{legend}</g></svg>\n'
    )
