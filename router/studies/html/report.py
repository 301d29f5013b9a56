"""The pages that commands write: a comparison, one scenario, a search for collapse.

Separate from the page and the plots, of which each of these is a choice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from router.studies.compare import Cell
from router.studies.compare_table import MEANINGS, causes_of, grid_of, heading, short
from router.studies.grid import Field, Grid
from router.studies.html.axis import by_factors, shares
from router.studies.html.page import keys, meanings, note, page, plots, section, table
from router.studies.html.plots import (
    Plot,
    Styles,
    against_first,
    distributions,
    kv_loads,
    over_rates,
    over_workers,
    styles_of,
)
from router.studies.html.svg import Series
from router.studies.html.svg import lines as drawn
from router.studies.lines import Line, lines
from router.studies.saturate import Saturation
from router.studies.simulate_table import run_grids, seeds_of, summary
from router.studies.workload_table import workload_grid
from router.studies.workloads import WorkloadStatistics

_HOW_TO_READ = (
    "All policies met the same calls. “− first” is the mean end-to-end time less that of the first policy, "
    "seed by seed; it is in colour where its 95 % confidence interval leaves 0 out."
)


def comparison(
    title: str,
    made: Sequence[Cell],
    calls: Mapping[str, WorkloadStatistics],
    notes: Sequence[str] = (),
) -> str:  # fmt: skip
    """Policies side by side: by workload and fleet, then by rate and size.

    Args:
        calls: what came, by name of the workload.
    """
    found = lines(made)
    styles = styles_of([line.policy for line in found])
    body = [note(_HOW_TO_READ), meanings("What the figures are", MEANINGS), *map(note, notes)]
    body += [table(workload_grid(calls)), keys(styles)]
    for _, group in groupby(found, lambda line: (line.workload, line.setup)):
        body += _workload(list(group), made, styles)
    return page(title, _facts(made), body)


def _facts(made: Sequence[Cell]) -> Iterator[tuple[str, str]]:
    tasks = [each.task for each in made]
    yield "policies", ", ".join(dict.fromkeys(each.policy for each in made))
    yield "workloads", ", ".join(dict.fromkeys(short(task.workload) for task in tasks))
    yield "fleets", ", ".join(dict.fromkeys(task.setup for task in tasks))
    rates = dict.fromkeys("all at once" if task.rate is None else f"{task.rate:.4g}" for task in tasks)
    yield "calls per second", ", ".join(rates)
    yield "calls of each run", ", ".join(dict.fromkeys(f"{task.calls:,}" for task in tasks))
    yield "seeds", ", ".join(dict.fromkeys(str(task.seed) for task in tasks))


def _workload(made: Sequence[Line], runs: Sequence[Cell], styles: Styles) -> Iterator[str]:
    yield section(f"{short(made[0].workload)} on {made[0].setup}")
    if len({line.rate for line in made}) > 1 and len({line.workers for line in made}) == 1:
        yield plots(over_rates(made, styles))
    if len({line.workers for line in made}) > 1:
        yield plots(over_workers(made, styles))
    for _, group in groupby(made, heading):
        yield from _one(list(group), runs, styles)


def _level(line: Line) -> str:
    rate = "All calls at once" if line.rate is None else f"At {line.rate:.4g} calls per second"
    return rate if line.workers is None else f"{rate}, {line.workers} workers"


def _one(made: Sequence[Line], runs: Sequence[Cell], styles: Styles) -> Iterator[str]:
    first = made[0]
    where = (first.workload, first.setup, first.rate, first.workers)
    cells = [
        each
        for each in runs
        if (each.task.workload, each.task.setup, each.task.rate, each.task.workers) == where
    ]
    yield section(_level(first), 3)
    yield table(grid_of("", made))
    yield table(causes_of(made))
    if len(made) > 1:
        yield plots(against_first(made, styles))
    yield plots(distributions(cells, styles))
    yield from _loads(cells, styles)


def _loads(made: Sequence[Cell], styles: Styles) -> Iterator[str]:
    pictures = list(kv_loads(made, styles))
    if pictures:
        yield section("KV tokens in use at each worker over time (seed 1)", 3)
        yield plots(pictures, small=True)


def one_scenario(
    made: Sequence[Cell], calls: Mapping[str, WorkloadStatistics], notes: Sequence[str] = ()
) -> str:
    """One policy on one scenario, in all its figures."""
    styles = styles_of([made[0].policy])
    body = [note(f"Means of {seeds_of(made)}."), *map(note, notes), table(workload_grid(calls))]
    body += map(table, run_grids(made))
    body += [plots(distributions(made, styles)), *_loads(made, styles)]
    return page(summary(made), _facts(made), body)


def saturation(found: Saturation, facts: Sequence[tuple[str, str]]) -> str:
    """What was tried, and where the policy collapses."""
    return page(held(found), facts, [plots(_tried(found)), table(saturation_grid(found))])


def held(found: Saturation) -> str:
    """The answer, in a line."""
    return (
        f"{found.policy} on {short(found.workload)} holds {100 * found.least:.0f} % "
        f"up to {found.rate:.3g} calls/s"
    )


def saturation_grid(found: Saturation) -> Grid:
    """Every rate that was tried."""
    rows = [
        (
            f"{point.rate:.3g}",
            [
                Field(f"{100 * point.worth:.1f}"),
                Field(f"{point.e2e_s:.2f}"),
                Field(f"{point.ttft_p99_s:.2f}"),
            ],
        )
        for point in found.points
    ]
    return Grid(title="", corner="calls/s", columns=["goodput %", "e2e s", "TTFT p99 s"], rows=rows)


def _tried(found: Saturation) -> Iterator[Plot]:
    rates = by_factors("calls per second", [point.rate for point in found.points])
    goodput = [(point.rate, 100.0 * point.worth) for point in found.points]
    series = Series(name=found.policy, points=goodput, style=0, dots=True)
    least = Series(
        name="least", points=[(rates.low, 100 * found.least), (rates.high, 100 * found.least)], style=8
    )
    label = "% of all calls"
    yield Plot(
        "Goodput", "dashed: what counts as holding", drawn([series, least], rates, shares(label), "Goodput")
    )
    late = [(point.rate, point.ttft_p99_s) for point in found.points]
    y = by_factors("s", [value for _, value in late])
    series = Series(name=found.policy, points=late, style=0, dots=True)
    yield Plot("Time to first token, p99", "", drawn([series], rates, y, "Time to first token"))
