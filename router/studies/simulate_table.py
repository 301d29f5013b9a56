"""One scenario in figures: all calls, then by class, by family, by worker, by barrier group.

Separate from the tables of a comparison, which have a line per policy: here a policy has many lines.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from rich.console import Group
from rich.text import Text

from router.studies.breakdown import Part, WorkerShare, mean_part
from router.studies.compare import Cell
from router.studies.compare_table import heading, short
from router.studies.confidence import estimate
from router.studies.grid import Field, Grid, as_table
from router.studies.lines import lines, regret
from router.studies.traces.trace import Distribution

_LATENCIES = (("TTFT ms", "ttft_s", 1e3, 0), ("TPOT ms", "tpot_s", 1e3, 1), ("e2e s", "e2e_s", 1.0, 2))
_BESIDE = (
    ("time between tokens ms", "itl_s", 1e3, 1),
    ("wait in pools ms", "pool_wait_s", 1e3, 1),
    ("wait in engines ms", "engine_wait_s", 1e3, 1),
)
_WORDS = ("mean", "p50", "p90", "p95", "p99", "max")


def render_runs(made: Sequence[Cell], notes: Sequence[str] = ()) -> Group:
    """For a terminal."""
    return Group(
        Text(f"{summary(made)}, {seeds_of(made)}"),
        *map(as_table, run_grids(made)),
        *(Text(f"note: {note}") for note in notes),
    )


def summary(made: Sequence[Cell]) -> str:
    """What was run, in a line."""
    [line] = lines(made)
    return f"{line.policy}: {heading(line)}"


def seeds_of(made: Sequence[Cell]) -> str:
    """How often it was run, and what ± means."""
    return "1 run" if len(made) == 1 else f"{len(made)} runs, ± half of a 95 % confidence interval"


def run_grids(made: Sequence[Cell]) -> list[Grid]:
    """The runs of one policy over the seeds: sums of counts, means of everything else."""
    return list(_grids(made))


def _grids(made: Sequence[Cell]) -> Iterator[Grid]:
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


def _all_calls(made: Sequence[Cell]) -> Grid:
    rows: list[tuple[str, list[Field]]] = []
    for name, field, scale, digits in (*_LATENCIES, *_BESIDE):
        found = [getattr(each.figures.latencies, field) for each in made]
        known = [each for each in found if each is not None]
        if known:
            rows.append((name, [_mean([getattr(d, word) for d in known], scale, digits) for word in _WORDS]))
    for name, values, scale, digits in _single(made):
        if values:
            rows.append((name, [_mean(values, scale, digits)]))
    rows += [(f"calls {outcome}", [Field(f"{count:,}")]) for outcome, count in _outcomes(made).items()]
    return Grid(title="", corner="all calls", columns=_WORDS, rows=rows)


def _single(made: Sequence[Cell]) -> Iterator[tuple[str, list[float], float, int]]:
    runs = [each.figures for each in made]
    yield "goodput %", [run.goodput for run in runs if run.goodput is not None], 100.0, 1
    yield "cache hits %", [run.hit_rate for run in runs], 100.0, 1
    yield "copies of a block ×", [run.copies for run in runs if run.copies is not None], 1.0, 2
    yield "busiest worker ×", [run.busiest for run in runs], 1.0, 2
    yield "same worker %", [run.stickiness for run in runs if run.stickiness is not None], 100.0, 1
    yield (
        "long over short ×",
        [run.length_fairness for run in runs if run.length_fairness is not None],
        1.0,
        2,
    )
    yield "worst tenant ×", [run.tenant_fairness for run in runs if run.tenant_fairness is not None], 1.0, 2
    yield "output tokens/s", [run.output_tokens_per_s for run in runs], 1.0, 0
    yield "calls/s", [run.calls_per_s for run in runs], 1.0, 2
    yield "preemptions", [float(run.preemptions) for run in runs], 1.0, 0
    regrets = [value for run in runs if (value := regret(run)) is not None]
    units = {each.unit.partition(" (")[0] for run in runs for each in run.regrets.values()}
    yield f"regret, {', '.join(sorted(units))}", regrets, 1.0, 4


def _outcomes(made: Sequence[Cell]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for each in made:
        for outcome, count in each.figures.outcomes.items():
            counts[outcome] = counts.get(outcome, 0) + count
    return counts


def _mean(values: Sequence[float], scale: float, digits: int) -> Field:
    found = estimate(values)
    half = "" if found.half is None else f"{found.half * scale:,.{digits}f}"
    return Field(f"{found.mean * scale:,.{digits}f}", half)


def _of_parts(title: str, runs: Sequence[Mapping[str, Part]]) -> Grid:
    promised = any(part.goodput is not None for each in runs for part in each.values())
    columns = ["calls", *(["goodput %"] if promised else [])]
    for name, *_ in _LATENCIES:
        columns += [name, "p99"]
    rows = []
    for name in dict.fromkeys(name for each in runs for name in each):
        part = mean_part([each[name] for each in runs if name in each])
        rows.append((short(name) or "(none)", _fields(part, promised=promised)))
    return Grid(title="", corner=title, columns=[*columns, "hits %"], rows=rows)


def _fields(part: Part, *, promised: bool) -> list[Field]:
    fields = [Field(f"{part.calls:,}")]
    if promised:
        fields.append(Field("" if part.goodput is None else f"{100 * part.goodput:.1f}"))
    for _, name, scale, digits in _LATENCIES:
        found: Distribution | None = getattr(part, name)
        fields += [
            Field("" if found is None else f"{getattr(found, word) * scale:,.{digits}f}")
            for word in ("mean", "p99")
        ]
    return [*fields, Field(f"{100 * part.hit_rate:.1f}")]


def _of_workers(runs: Sequence[Mapping[str, WorkerShare]]) -> Grid:
    rows = []
    for name in dict.fromkeys(name for each in runs for name in each):
        shares = [each[name] for each in runs if name in each]
        hits = [share.hit_rate for share in shares if share.hit_rate is not None]
        counts = (
            f"{sum(share.calls for share in shares):,}",
            f"{sum(share.prompt_tokens for share in shares):,}",
            f"{100 * math.fsum(hits) / len(hits):.1f}" if hits else "",
            f"{sum(share.output_tokens for share in shares):,}",
            f"{sum(share.steps for share in shares):,}",
            f"{sum(share.preemptions for share in shares):,}",
        )
        rows.append((name, [Field(count) for count in counts]))
    columns = ["calls", "prompt tokens", "hits %", "output tokens", "steps", "preemptions"]
    return Grid(title="", corner="worker", columns=columns, rows=rows)


def _of_barriers(made: Sequence[Cell]) -> Grid:
    rows = []
    for name in dict.fromkeys(name for each in made for name in each.figures.barriers):
        found = [each.figures.barriers[name] for each in made if name in each.figures.barriers]
        rows.append(
            (
                name,
                [
                    _mean([each.gap_tokens for each in found], 1.0, 0),
                    _mean([each.imbalance_tokens for each in found], 1.0, 0),
                    _mean([each.idle_share for each in found], 100.0, 1),
                    _mean([each.tokens_per_s for each in found], 1.0, 0),
                ],
            )
        )
    columns = ["max − min KV", "imbalance", "idle %", "tokens/s"]
    return Grid(title="", corner="barrier group of", columns=columns, rows=rows)
