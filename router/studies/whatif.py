"""Recorded traffic before the user's own fleet, under every policy that fits it.

Separate from the scenario, whose file says which calls come: here a log of the live router does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from router.settings import Settings
from router.studies.scenario import Scenario, ScenarioError, scenario_of
from router.studies.scenario_load import Load
from router.studies.setups import Choosing
from router.studies.traces import Trace, read_trace
from router.studies.workloads import workload_named
from router.studies.workloads.trace_file import PREFIX


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """What is asked.

    Attributes:
        policies: the first is the one that others are held against.
        rates: calls per second, one for each speed.
        notes: what whoever reads the answer should know, one sentence each.
    """

    scenario: Scenario
    policies: list[Choosing]
    rates: list[float]
    notes: list[str]


def what_if(
    settings: Settings,
    config: str,
    log: Path,
    policies: Sequence[Choosing] = (),
    speeds: Sequence[float] = (1.0,),
) -> WhatIf:
    """The question.

    Args:
        config: name of the file with the fleet.
        log: a request log, or any trace.
        policies: none: all that fit, the configured one first.
        speeds: how much faster than recorded the calls come.

    Raises:
        TraceError: the log cannot be used.
        ScenarioError: the fleet cannot be simulated, or a policy does not fit it.
    """
    name = f"{PREFIX}{log}"
    workload, trace = workload_named(name), read_trace(log)
    natural = workload.natural_rate
    if natural is None:
        raise ScenarioError(f"{log.name} is no recording, so nobody knows when its calls came")
    load = Load(workload=name, requests=workload.published_size, rate=natural)
    scenario = scenario_of(settings, config, load)
    chosen, left_out = list(policies), list[str]()
    if chosen:
        for choosing in chosen:
            scenario.under(choosing)
    else:
        chosen, left_out = scenario.fitting()
    return WhatIf(
        scenario=scenario,
        policies=chosen,
        rates=[natural * speed for speed in speeds],
        notes=[*_notes(trace), *scenario.notes, *left_out],
    )


def _notes(trace: Trace) -> Iterator[str]:
    calls = len(trace.entries)
    yield f"{trace.name} has {calls:,} requests, which came within {_words(trace.entries[-1].arrival_s)}"
    if trace.skipped:
        words = "; ".join(f"{count:,} × {reason}" for reason, count in trace.skipped.items())
        yield f"requests that are left out: {words}"
    models = Counter(entry.model for entry in trace.entries if entry.model)
    if len(models) > 1:
        words = ", ".join(f"{name} ({count:,})" for name, count in models.most_common(4))
        yield f"it names several models, and all requests go to the one pool: {words}"
    if not any(entry.blocks for entry in trace.entries):
        yield "it knows no shared prefixes, so no cache can save anything"


def _words(seconds: float) -> str:
    for size_s, unit in ((86_400, "days"), (3_600, "hours"), (60, "minutes")):
        if seconds >= 2 * size_s:
            return f"{seconds / size_s:.1f} {unit}"
    return f"{seconds:.1f} seconds"
