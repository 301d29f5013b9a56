"""A comparison as a table for a terminal.

Separate from the comparison, whose results are also written as JSON and as a page.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from rich.box import SIMPLE
from rich.console import Group
from rich.table import Table

from router.studies.compare import Line
from router.studies.confidence import Estimate
from router.studies.workloads.trace_file import PREFIX


class _Column(NamedTuple):
    """One figure of a line.

    Attributes:
        sure: whether its confidence interval is shown: there is no room for all of them.
    """

    name: str
    read: Callable[[Line], Estimate | None]
    scale: float = 1.0
    digits: int = 0
    sure: bool = False


_COLUMNS = (
    _Column("goodput %", lambda line: line.goodput, 100.0, 1, sure=True),
    _Column("e2e s", lambda line: line.e2e_s, 1.0, 2),
    _Column("− first", lambda line: line.against_first, 1.0, 2, sure=True),
    _Column("p99", lambda line: line.e2e_p99_s, 1.0, 1),
    _Column("TTFT ms", lambda line: line.ttft_s, 1e3),
    _Column("p99", lambda line: line.ttft_p99_s, 1e3),
    _Column("TPOT ms", lambda line: line.tpot_s, 1e3, 1),
    _Column("hits %", lambda line: line.hit_rate, 100.0),
    _Column("busiest ×", lambda line: line.busiest, 1.0, 2),
    _Column("tokens/s", lambda line: line.output_tokens_per_s),
    _Column("max−min KV", lambda line: line.gap_tokens),
)
"""`− first` is the mean end-to-end time less that of the first policy, on the same calls."""


def render(made: Sequence[Line]) -> Group:
    """A table per workload. ± is half of the 95 % confidence interval over the seeds; a difference whose
    interval leaves 0 out is in colour."""
    return Group(*(_table(name, list(group)) for name, group in groupby(made, heading)))


def heading(line: Line) -> str:
    """Which calls came to which fleet."""
    rate = "all at once" if line.rate is None else f"{line.rate:.4g} calls/s"
    workers = "" if line.workers is None else f", {line.workers} workers"
    return f"{short(line.workload)} at {rate} on {line.setup}{workers}"


def short(workload: str) -> str:
    """Its name; of a trace, that of its file without the folders."""
    return f"{PREFIX}{Path(workload).name}" if workload.startswith(PREFIX) else workload


def _table(title: str, made: Sequence[Line]) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE, pad_edge=False)
    table.add_column("policy", no_wrap=True)
    shown = [column for column in _COLUMNS if any(column.read(line) is not None for line in made)]
    for column in shown:
        table.add_column(column.name, justify="right")
    for line in made:
        lost = f" ({line.unanswered} unanswered)" if line.unanswered else ""
        table.add_row(line.policy + lost, *(_text(column, line) for column in shown))
    return table


def _text(column: _Column, line: Line) -> str:
    value = column.read(line)
    if value is None:
        return ""
    text = f"{value.mean * column.scale:,.{column.digits}f}"
    if column.sure and value.half is not None:
        text += f" ±{value.half * column.scale:,.{column.digits}f}"
    if value is line.against_first and value.certain_sign:
        return f"[{'red' if value.certain_sign > 0 else 'green'}]{text}[/]"
    return text
