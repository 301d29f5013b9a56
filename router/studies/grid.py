"""A table of figures, before it is drawn in a terminal or on a page.

Separate from both, so that the two show the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rich.box import SIMPLE
from rich.table import Table
from rich.text import Text

_COLOURS = {1: "red", -1: "green", 0: ""}


class Field(NamedTuple):
    """One figure.

    Attributes:
        half: half width of its confidence interval, "" where it is not shown.
        sign: 1 when it is certainly worse than what it is held against, -1 when it is certainly better.
    """

    text: str
    half: str = ""
    sign: int = 0

    def __str__(self) -> str:
        return f"{self.text} ±{self.half}" if self.half else self.text


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Rows with a name each.

    Attributes:
        title: above the table, "" for none.
        corner: what the names are.
    """

    title: str
    corner: str
    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[Field]]]


def as_table(grid: Grid) -> Table:
    """For a terminal."""
    table = Table(
        title=Text(grid.title) if grid.title else None, title_justify="left", box=SIMPLE, pad_edge=False
    )
    table.add_column(grid.corner, no_wrap=True)
    for column in grid.columns:
        table.add_column(column, justify="right")
    for name, fields in grid.rows:
        table.add_row(Text(name), *(Text(str(field), _COLOURS[field.sign]) for field in fields))
    return table
