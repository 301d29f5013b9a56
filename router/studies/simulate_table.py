"""One scenario in figures, for a terminal: all calls, then by class, by family, by worker, by barrier group.

Separate from the table of a comparison, which has a line per policy: here a policy has many lines.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from rich.box import SIMPLE
from rich.console import Group, RenderableType
from rich.table import Table

from router.studies.breakdown import Part, WorkerShare, mean_part
from router.studies.compare import Cell, lines
from router.studies.compare_table import heading, short
from router.studies.confidence import estimate
from router.studies.traces.trace import Distribution

_LATENCIES = (("TTFT ms", "ttft_s", 1e3, 0), ("TPOT ms", "tpot_s", 1e3, 1), ("e2e s", "e2e_s", 1.0, 2))


def render_runs(made: Sequence[Cell], notes: Sequence[str] = ()) -> Group:
    """The runs of one policy over the seeds: sums of counts, means of everything else."""
    return Group(*_tables(made), *(f"note: {note}" for note in notes))


def _tables(made: Sequence[Cell]) -> Iterator[RenderableType]:
    [line] = lines(made)
    yield f"{line.policy}: {heading(line)}, {_seeds(len(made))}"
    yield _all_calls(made)
    parts = [each.breakdown for each in made if each.breakdown is not None]
    for title, named in (
        ("class", [each.classes for each in parts]),
        ("family", [each.families for each in parts]),
    ):
        if any(name for each in named for name in each):
            yield _of_parts(title, named)
    if parts:
        yield _of_workers([each.workers for each in parts])
    if any(each.figures.barriers for each in made):
        yield _of_barriers(made)


def _seeds(count: int) -> str:
    return "1 run" if count == 1 else f"{count} runs, ± half of a 95 % confidence interval"


def _plain(title: str, columns: Sequence[str]) -> Table:
    table = Table(box=SIMPLE, pad_edge=False)
    table.add_column(title, no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _all_calls(made: Sequence[Cell]) -> Table:
    table = _plain("all calls", ["mean", "p50", "p90", "p99", "max"])
    for name, field, scale, digits in _LATENCIES:
        found = [getattr(each.figures.latencies, field) for each in made]
        known = [each for each in found if each is not None]
        if known:
            words = ("mean", "p50", "p90", "p99", "max")
            table.add_row(name, *(_mean([getattr(d, word) for d in known], scale, digits) for word in words))
    for name, values, scale, digits in _single(made):
        if values:
            table.add_row(name, _mean(values, scale, digits))
    for outcome, count in _outcomes(made).items():
        table.add_row(f"calls {outcome}", f"{count:,}")
    return table


def _single(made: Sequence[Cell]) -> Iterator[tuple[str, list[float], float, int]]:
    runs = [each.figures for each in made]
    yield "goodput %", [run.goodput for run in runs if run.goodput is not None], 100.0, 1
    yield "cache hits %", [run.hit_rate for run in runs], 100.0, 1
    yield "busiest worker ×", [run.busiest for run in runs], 1.0, 2
    yield "same worker %", [run.stickiness for run in runs if run.stickiness is not None], 100.0, 1
    yield "output tokens/s", [run.output_tokens_per_s for run in runs], 1.0, 0
    yield "calls/s", [run.calls_per_s for run in runs], 1.0, 2
    yield "preemptions", [float(run.preemptions) for run in runs], 1.0, 0


def _outcomes(made: Sequence[Cell]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for each in made:
        for outcome, count in each.figures.outcomes.items():
            counts[outcome] = counts.get(outcome, 0) + count
    return counts


def _mean(values: Sequence[float], scale: float, digits: int) -> str:
    found = estimate(values)
    text = f"{found.mean * scale:,.{digits}f}"
    return text if found.half is None else f"{text} ±{found.half * scale:,.{digits}f}"


def _of_parts(title: str, runs: Sequence[Mapping[str, Part]]) -> Table:
    promised = any(part.goodput is not None for each in runs for part in each.values())
    columns = ["calls", *(["goodput %"] if promised else [])]
    for name, *_ in _LATENCIES:
        columns += [name, "p99"]
    table = _plain(title, [*columns, "hits %"])
    for name in dict.fromkeys(name for each in runs for name in each):
        part = mean_part([each[name] for each in runs if name in each])
        cells = [f"{part.calls:,}"]
        if promised:
            cells.append("" if part.goodput is None else f"{100 * part.goodput:.1f}")
        for _, field, scale, digits in _LATENCIES:
            cells += _both(getattr(part, field), scale, digits)
        table.add_row(short(name) or "(none)", *cells, f"{100 * part.hit_rate:.1f}")
    return table


def _both(found: Distribution | None, scale: float, digits: int) -> tuple[str, str]:
    if found is None:
        return "", ""
    return f"{found.mean * scale:,.{digits}f}", f"{found.p99 * scale:,.{digits}f}"


def _of_workers(runs: Sequence[Mapping[str, WorkerShare]]) -> Table:
    table = _plain("worker", ["calls", "prompt tokens", "hits %", "output tokens", "steps", "preemptions"])
    for name in dict.fromkeys(name for each in runs for name in each):
        shares = [each[name] for each in runs if name in each]
        hits = [share.hit_rate for share in shares if share.hit_rate is not None]
        table.add_row(
            name,
            f"{sum(share.calls for share in shares):,}",
            f"{sum(share.prompt_tokens for share in shares):,}",
            f"{100 * math.fsum(hits) / len(hits):.1f}" if hits else "",
            f"{sum(share.output_tokens for share in shares):,}",
            f"{sum(share.steps for share in shares):,}",
            f"{sum(share.preemptions for share in shares):,}",
        )
    return table


def _of_barriers(made: Sequence[Cell]) -> Table:
    table = _plain("barrier group of", ["max − min KV", "imbalance", "idle %", "tokens/s"])
    for name in dict.fromkeys(name for each in made for name in each.figures.barriers):
        found = [each.figures.barriers[name] for each in made if name in each.figures.barriers]
        table.add_row(
            name,
            _mean([each.gap_tokens for each in found], 1.0, 0),
            _mean([each.imbalance_tokens for each in found], 1.0, 0),
            _mean([each.idle_share for each in found], 100.0, 1),
            _mean([each.tokens_per_s for each in found], 1.0, 0),
        )
    return table
