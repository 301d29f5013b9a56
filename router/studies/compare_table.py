"""A comparison as tables: one for each workload, fleet and rate, with a row for each policy.

Separate from the comparison, whose results are also written as JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from rich.console import Group

from router.studies.compare import Line
from router.studies.confidence import Estimate
from router.studies.grid import Field, Grid, as_table
from router.studies.workloads.trace_file import PREFIX


class Column(NamedTuple):
    """One figure of a line.

    Attributes:
        sure: whether its confidence interval is shown: there is no room for all of them.
    """

    name: str
    read: Callable[[Line], Estimate | None]
    scale: float = 1.0
    digits: int = 0
    sure: bool = False


COLUMNS = (
    Column("goodput %", lambda line: line.goodput, 100.0, 1, sure=True),
    Column("e2e s", lambda line: line.e2e_s, 1.0, 2),
    Column("− first", lambda line: line.against_first, 1.0, 2, sure=True),
    Column("p99", lambda line: line.e2e_p99_s, 1.0, 1),
    Column("TTFT ms", lambda line: line.ttft_s, 1e3),
    Column("p99", lambda line: line.ttft_p99_s, 1e3),
    Column("TPOT ms", lambda line: line.tpot_s, 1e3, 1),
    Column("hits %", lambda line: line.hit_rate, 100.0),
    Column("busiest ×", lambda line: line.busiest, 1.0, 2),
    Column("tokens/s", lambda line: line.output_tokens_per_s),
    Column("max−min KV", lambda line: line.gap_tokens),
)
"""`− first` is the mean end-to-end time less that of the first policy, on the same calls."""


def render(made: Sequence[Line]) -> Group:
    """For a terminal. ± is half of the 95 % confidence interval over the seeds; a difference whose interval
    leaves 0 out is in colour."""
    return Group(*map(as_table, grids(made)))


def grids(made: Sequence[Line]) -> list[Grid]:
    """Its tables, in the order of the lines."""
    return [grid_of(title, list(group)) for title, group in groupby(made, heading)]


def heading(line: Line) -> str:
    """Which calls came to which fleet."""
    rate = "all at once" if line.rate is None else f"at {line.rate:.4g} calls/s"
    workers = "" if line.workers is None else f", {line.workers} workers"
    return f"{short(line.workload)} {rate} on {line.setup}{workers}"


def short(workload: str) -> str:
    """Its name; of a trace, that of its file without the folders."""
    return f"{PREFIX}{Path(workload).name}" if workload.startswith(PREFIX) else workload


def grid_of(title: str, made: Sequence[Line]) -> Grid:
    """One table, without the figures that no line has."""
    shown = [column for column in COLUMNS if any(column.read(line) is not None for line in made)]
    return Grid(
        title=title,
        corner="policy",
        columns=[column.name for column in shown],
        rows=[(_name(line), [_field(column, line) for column in shown]) for line in made],
    )


def _name(line: Line) -> str:
    return line.policy + (f" ({line.unanswered} unanswered)" if line.unanswered else "")


def _field(column: Column, line: Line) -> Field:
    value = column.read(line)
    if value is None:
        return Field("")
    sure = column.sure and value.half is not None
    return Field(
        f"{value.mean * column.scale:,.{column.digits}f}",
        f"{(value.half or 0.0) * column.scale:,.{column.digits}f}" if sure else "",
        value.certain_sign if value is line.against_first else 0,
    )
