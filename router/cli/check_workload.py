"""What `pointsman check` says of the calls that a scenario lets come.

Separate from the rest of the report: the live router has nothing to do with it.
"""

from __future__ import annotations

from collections.abc import Iterator

from router.settings import Settings
from router.studies.compare_table import short
from router.studies.scenario import ScenarioError, scenario_of
from router.studies.scenario_load import Load
from router.studies.traces import TraceError


def workload_report(settings: Settings) -> Iterator[tuple[str, str]]:
    """What `pointsman simulate` would run; nothing for a configuration that is no scenario."""
    load = _load(settings)
    if isinstance(load, Load):
        rate = "all at once" if load.rate is None else f"{load.rate:.4g} a second"
        runs = "1 run" if load.seeds == 1 else f"{load.seeds} runs"
        yield "simulated", f"{load.requests:,} calls of {short(load.workload)}, {rate}, {runs}"


def workload_warnings(settings: Settings) -> Iterator[str]:
    """Why `pointsman simulate` would refuse it, and what it leaves out."""
    load = _load(settings)
    if load is None:
        return
    if not isinstance(load, Load):
        yield f"pointsman simulate refuses this file: {load}"
        return
    try:
        scenario = scenario_of(settings, "", load)
    except ScenarioError as error:
        yield f"pointsman simulate refuses this file: {error}"
    else:
        yield from scenario.notes


def _load(settings: Settings) -> Load | Exception | None:
    if settings.workload.name is None:
        return None
    try:
        return Load.of(settings.workload)
    except (ScenarioError, TraceError) as error:
        return error
