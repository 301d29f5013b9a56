"""A comparison as tables: two for each workload, fleet and rate, with a row for each policy.

Separate from the comparison, whose results are also written as JSON.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from rich.console import Group

from router.studies.confidence import Estimate
from router.studies.grid import Field, Grid, as_table
from router.studies.lines import (
    Line,
    Read,
    e2e_s,
    goodput,
    hit_rate,
    of_groups,
    of_latency,
    regret,
    ttft_p99_s,
)
from router.studies.workloads.trace_file import PREFIX


class Column(NamedTuple):
    """One figure of a line.

    Attributes:
        sure: whether its confidence interval is shown: there is no room for all of them.
        against: it is the difference to the first policy, on the same calls.
    """

    name: str
    read: Read
    scale: float = 1.0
    digits: int = 0
    sure: bool = False
    against: bool = False

    def of(self, line: Line) -> Estimate | None:
        """Its value in a line."""
        return line.against_first(self.read) if self.against else line.mean(self.read)


COLUMNS = (
    Column("goodput %", goodput, 100.0, 1, sure=True),
    Column("e2e s", e2e_s, 1.0, 2),
    Column("− first", e2e_s, 1.0, 2, sure=True, against=True),
    Column("p99", of_latency("e2e_s", "p99", none=math.inf), 1.0, 1),
    Column("TTFT ms", of_latency("ttft_s", none=math.inf), 1e3),
    Column("p95", of_latency("ttft_s", "p95", none=math.inf), 1e3),
    Column("p99", ttft_p99_s, 1e3),
    Column("TPOT ms", of_latency("tpot_s"), 1e3, 1),
    Column("ITL p99", of_latency("itl_s", "p99"), 1e3),
    Column("hits %", hit_rate, 100.0),
    Column("tokens/s", lambda run: run.output_tokens_per_s),
)
"""What a policy is worth. `− first` is the mean end-to-end time less that of the first policy."""

CAUSES = (
    Column("pool wait ms", of_latency("pool_wait_s"), 1e3),
    Column("engine wait ms", of_latency("engine_wait_s"), 1e3),
    Column("copies ×", lambda run: run.copies, 1.0, 2, sure=True),
    Column("busiest ×", lambda run: run.busiest, 1.0, 2),
    Column("same worker %", lambda run: run.stickiness, 100.0),
    Column("long ÷ short", lambda run: run.length_fairness, 1.0, 2),
    Column("worst tenant ×", lambda run: run.tenant_fairness, 1.0, 2),
    Column("preemptions", lambda run: float(run.preemptions) or None),
    Column("max−min KV", of_groups("gap_tokens")),
    Column("I(k)", of_groups("imbalance_tokens")),
    Column("idle %", of_groups("idle_share"), 100.0, 1, sure=True),
    Column("regret", regret, 1.0, 4, sure=True),
)
"""What makes it so: waits, caches, balance, fairness, and what a judge thinks."""

MEANINGS = (
    ("goodput", "share of the calls that were answered whole within the targets of their class"),
    ("e2e, TTFT, TPOT", "arrival to the last token, to the first, and mean time per token after it"),
    ("ITL", "time between two tokens of one answer, over all tokens (ms)"),
    ("hits", "share of the prompt tokens that engines found cached"),
    ("pool wait, engine wait", "in the router's queues; in engines, before the first step (mean)"),
    ("copies", "workers that hold a cached block, on average: 1 is no block twice"),
    ("busiest", "calls of the busiest worker over the mean of all"),
    ("same worker", "later calls of a session that went where the one before went"),
    ("long ÷ short", "time per token of the longest tenth of the calls over that of the shorter half"),
    ("worst tenant", "mean end-to-end time of the worst tenant over that of all"),
    ("max−min KV, I(k)", "in a barrier group: fullest less emptiest rank; G · max − sum (tokens, over time)"),
    ("idle", "share of their time that ranks of a barrier group wait for the slowest"),
    ("regret", "cost of a decision less the cheapest one at that moment, as a judge reckons"),
    ("±", "half of a 95 % confidence interval over the seeds"),
)
"""What the columns are, for those who read a table by itself."""


def render(made: Sequence[Line]) -> Group:
    """For a terminal. ± is half of the 95 % confidence interval over the seeds; a difference whose interval
    leaves 0 out is in colour."""
    return Group(*map(as_table, grids(made)))


def grids(made: Sequence[Line]) -> list[Grid]:
    """Its tables, in the order of the lines: two for each workload, fleet and rate."""
    found: list[Grid] = []
    for title, group in groupby(made, heading):
        same = list(group)
        found += [grid_of(title, same), causes_of(same)]
    return [grid for grid in found if grid.columns]


def heading(line: Line) -> str:
    """Which calls came to which fleet."""
    rate = "all at once" if line.rate is None else f"at {line.rate:.4g} calls/s"
    workers = "" if line.workers is None else f", {line.workers} workers"
    return f"{short(line.workload)} {rate} on {line.setup}{workers}"


def short(workload: str) -> str:
    """Its name; of a trace, that of its file without the folders."""
    if not workload.startswith(PREFIX):
        return workload
    return f"{PREFIX}{Path(workload.removeprefix(PREFIX)).name}"


def grid_of(title: str, made: Sequence[Line]) -> Grid:
    """What each policy is worth, without the figures that no line has."""
    return _grid(title, COLUMNS, made)


def causes_of(made: Sequence[Line]) -> Grid:
    """What makes it so; the unit of regrets is that of the judge's costs."""
    found = _grid("", CAUSES, made)
    judged = next((each for line in made for run in line.runs for each in run.regrets.values()), None)
    if judged is None:
        return found
    unit = judged.unit.partition(" (")[0]
    names = [f"regret, {unit} of {judged.judge}" if name == "regret" else name for name in found.columns]
    return replace(found, columns=names)


def _grid(title: str, columns: Sequence[Column], made: Sequence[Line]) -> Grid:
    shown = [column for column in columns if any(column.of(line) is not None for line in made)]
    return Grid(
        title=title,
        corner="policy",
        columns=[column.name for column in shown],
        rows=[(_name(line), [_field(column, line) for column in shown]) for line in made],
    )


def _name(line: Line) -> str:
    words = [
        *([f"{line.unanswered:,} unanswered"] if line.unanswered else []),
        *([f"{line.too_long:,} too long"] if line.too_long else []),
    ]
    return line.policy + (f" ({', '.join(words)})" if words else "")


def _field(column: Column, line: Line) -> Field:
    value = column.of(line)
    if value is None or math.isnan(value.mean):
        return Field("")
    if math.isinf(value.mean):
        return Field("∞")
    sure = column.sure and value.half is not None
    return Field(
        f"{value.mean * column.scale:,.{column.digits}f}",
        f"{(value.half or 0.0) * column.scale:,.{column.digits}f}" if sure else "",
        value.certain_sign if column.against else 0,
    )
