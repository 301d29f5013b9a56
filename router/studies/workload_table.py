"""What came to the fleet, in figures: a row for each workload.

Separate from the workloads, which make calls, and from the tables of results: these figures are to be held
against the published ones before any result is believed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from router.studies.compare import Task, calls_of
from router.studies.compare_table import short
from router.studies.grid import Field, Grid
from router.studies.traces.trace import Distribution
from router.studies.workloads import WorkloadStatistics, describe

_COLUMNS = (
    "calls", "starts/s", "gap cv", "prompt", "sd", "p99", "output", "sd", "p99", "shared %", "sharing",
)  # fmt: skip


def statistics(tasks: Sequence[Task]) -> dict[str, WorkloadStatistics]:
    """Of each workload, the calls of its first run, by its name."""
    found: dict[str, WorkloadStatistics] = {}
    for task in tasks:
        if task.workload not in found:
            found[task.workload] = describe(calls_of(task))
    return found


def workload_grid(found: Mapping[str, WorkloadStatistics]) -> Grid:
    """How often calls come that wait for no other one (of conversations, the first); tokens of prompts and
    outputs; the share of prompt tokens that an earlier prompt had, and how many calls share a beginning on
    the mean."""
    rows = [(short(name), _fields(each)) for name, each in found.items()]
    return Grid(title="", corner="workload", columns=_COLUMNS, rows=rows)


def _fields(found: WorkloadStatistics) -> list[Field]:
    rate, cv = found.rate_per_s, found.gap_cv
    return [
        Field(f"{found.calls:,}"),
        Field("at once" if rate is None else f"{rate:.3g}"),
        Field("" if cv is None else f"{cv:.2f}"),
        *_lengths(found.prompt_tokens, found.prompt_sd),
        *_lengths(found.output_tokens, found.output_sd),
        Field(f"{100 * found.shared_share:.1f}"),
        Field(f"{found.sharing_calls:.1f}" if found.sharing_calls else ""),
    ]


def _lengths(found: Distribution | None, sd: float) -> tuple[Field, Field, Field]:
    if found is None:
        return Field(""), Field(""), Field("")
    return Field(f"{found.mean:,.0f}"), Field(f"{sd:,.0f}"), Field(f"{found.p99:,.0f}")
