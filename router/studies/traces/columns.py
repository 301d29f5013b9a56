"""CSV by column name: one header line, then rows of the same width.

Separate because the two CSV formats differ in their names and agree in everything else.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from router.studies.traces.trace import LineError

_MOST_DIGITS = 18
_SHOWN = 40


class Row:
    """One row; cells are asked for by column name, in any case."""

    __slots__ = ("_cells", "_positions", "line")

    def __init__(self, line: int, cells: Sequence[str], positions: Mapping[str, int]) -> None:
        self.line = line
        self._cells = cells
        self._positions = positions

    def text(self, column: str) -> str:
        """The cell without surrounding space."""
        return self._cells[self._positions[column.lower()]].strip()

    def optional(self, column: str) -> str | None:
        """The cell, None when the column is not there or the cell is empty."""
        position = self._positions.get(column.lower())
        return (self._cells[position].strip() or None) if position is not None else None

    def seconds(self, column: str) -> float:
        """The cell as a finite number. Raises LineError."""
        text = self.text(column)
        try:
            number = float(text)
        except ValueError:
            raise LineError(self.line, f"{column} is {_short(text)}, not a number of seconds") from None
        if not math.isfinite(number):
            raise LineError(self.line, f"{column} is {_short(text)}, not a finite number of seconds")
        return number

    def count(self, column: str) -> int:
        """The cell as a whole number, 0 or more. Raises LineError."""
        text = self.text(column)
        if not (text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS):
            raise LineError(self.line, f"{column} is {_short(text)}, not a whole number of tokens")
        return int(text)


def column_names(line: str) -> list[str]:
    """The names in a header line, in lower case, without a byte-order mark."""
    cells = next(csv.reader([line.removeprefix("\ufeff")]), [])
    return [cell.strip().lower() for cell in cells]


def rows(lines: Iterable[str], required: Iterable[str]) -> Iterator[Row]:
    """Yields the rows below the header; blank lines are passed over.

    Raises LineError when a required column is missing, a row has another width than the header, or is none.
    """
    reader = csv.reader(lines)
    try:
        names = [cell.removeprefix("\ufeff").strip().lower() for cell in next(reader, [])]
        positions = _positions(names, required)
        for cells in reader:
            if cells and len(cells) != len(names):
                raise LineError(reader.line_num, f"{len(cells)} cells where the header names {len(names)}")
            if cells:
                yield Row(reader.line_num, cells, positions)
    except csv.Error as error:
        raise LineError(reader.line_num, f"no row of a CSV file: {error}") from None


def _positions(names: Sequence[str], required: Iterable[str]) -> dict[str, int]:
    positions = {name: position for position, name in enumerate(names)}
    missing = [column for column in required if column.lower() not in positions]
    if missing:
        raise LineError(
            1, f"no column named {', '.join(missing)}; the header names {', '.join(names) or 'none'}"
        )
    return positions


def _short(text: str) -> str:
    """In quotes, as much of it as a sentence takes."""
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…")
