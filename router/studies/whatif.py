"""Recorded traffic before the user's own fleet, under every policy that fits it.

Separate from the scenario, whose file says which calls come: here a log of the live router does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from router.settings import Settings, WorkloadSettings
from router.studies.scenario import Scenario, scenario_of
from router.studies.scenario_load import Load
from router.studies.setups import Choosing
from router.studies.traces import Trace, read_trace
from router.studies.workloads.trace_file import PREFIX

_ONE_RECORDING = (
    "all seeds run the one recording, so ± is what policies leave to chance, and not how sure a difference is"
)
_LONGEST_NAME = 60


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What was recorded.

    Attributes:
        log: a request log, or any trace.
        model: only requests that name it, before its pools; None: all.
        speeds: how much faster than recorded they come.
        seeds: runs of each.
    """

    log: Path
    model: str | None = None
    speeds: Sequence[float] = (1.0,)
    seeds: int = 1


def what_if(settings: Settings, config: str, traffic: Traffic, policies: Sequence[Choosing] = ()) -> WhatIf:
    """The question.

    Args:
        config: name of the file with the fleet.
        policies: none: all that fit, the configured one first.

    Raises:
        TraceError: the log cannot be used.
        ScenarioError: the fleet cannot be simulated, a policy does not fit it, or a speed is too low.
    """
    load = Load.of(WorkloadSettings(name=f"{PREFIX}{traffic.log}", model=traffic.model))
    natural = load.rate or 1.0
    rates = [natural * speed for speed in traffic.speeds]
    for rate in rates:
        load.check(rate)
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
        rates=rates,
        notes=[
            *_notes(read_trace(traffic.log), traffic.model),
            *([_ONE_RECORDING] if traffic.seeds > 1 else []),
            *scenario.notes,
            *scenario.doubts(),
            *left_out,
        ],
    )


def _notes(trace: Trace, model: str | None) -> Iterator[str]:
    entries = [entry for entry in trace.entries if model in (None, entry.model)]
    of = "" if model is None else f" of {model}"
    length_s = entries[-1].arrival_s - entries[0].arrival_s
    yield f"{trace.name} has {len(entries):,} requests{of}, which came within {_words(length_s)}"
    if trace.skipped:
        words = "; ".join(f"{count:,} × {reason}" for reason, count in trace.skipped.items())
        yield f"requests that are left out: {words}"
    models = Counter(entry.model for entry in entries if entry.model)
    if len(models) > 1:
        words = ", ".join(f"{_visible(name)} ({count:,})" for name, count in models.most_common(4))
        yield f"it names several models, and all requests go to the same workers: {words}; --model takes one"
    if not any(entry.blocks for entry in entries):
        yield "it knows no shared prefixes, so no cache can save anything"


def _visible(name: str) -> str:
    """As much of what a client called its model as a line takes, without what a terminal would obey."""
    shown = name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}…"
    return "".join(letter if letter.isprintable() else "?" for letter in shown)


def _words(seconds: float) -> str:
    for size_s, unit in ((86_400, "days"), (3_600, "hours"), (60, "minutes")):
        if seconds >= 2 * size_s:
            return f"{seconds / size_s:.1f} {unit}"
    return f"{seconds:.1f} seconds"
