"""Workloads by the names that the command line knows; `trace:FILE` is any recorded trace."""

from __future__ import annotations

from functools import partial

from router.studies.workloads import agents, balanceroute, calibrated, classic, preble
from router.studies.workloads.arrivals import bursts, gamma
from router.studies.workloads.trace_file import PREFIX, trace_workload
from router.studies.workloads.workload import Workload, WorkloadStatistics, describe

__all__ = ["WORKLOADS", "Workload", "WorkloadStatistics", "describe", "workload_named"]


def _page(module: object) -> str:
    return getattr(module, "__doc__", None) or ""


def _preble(family: preble.Family) -> Workload:
    return Workload(
        name=family.name,
        make=family.make,
        published_size=family.calls,
        setup="preble_a6000",
        page=_page(preble),
    )


def _calibrated(shape: calibrated.Shape) -> Workload:
    return Workload(
        name=shape.family,
        make=partial(calibrated.alike, shape),
        published_size=2_500,
        setup="calibrated_a40",
        page=_page(calibrated),
    )


_ALL = (
    Workload(
        name="classic_exponential",
        make=classic.exponential,
        published_size=120_000,
        setup="classic_16",
        page=_page(classic),
    ),
    Workload(
        name="classic_heavy_tail",
        make=classic.heavy_tail,
        published_size=120_000,
        setup="classic_16",
        page=_page(classic),
    ),
    *(_preble(family) for family in preble.FAMILIES),
    Workload(
        name="preble_mixed",
        make=preble.mixed,
        published_size=4_500,
        setup="preble_a6000",
        page=_page(preble),
        # The arrivals of the Azure traces of 2023, which are not ours to ship: gaps of their coefficients of
        # variation, 13.2 (code) and 1.09 (conversations), in the mean weighed by calls.
        arrivals=gamma(5.0),
    ),
    _calibrated(calibrated.CHAT_SHORT),
    _calibrated(calibrated.LONG_PREFILL),
    _calibrated(calibrated.LONG_DECODE),
    Workload(
        name="mixed_bursty",
        make=calibrated.mixed,
        published_size=2_500,
        setup="calibrated_a40",
        page=_page(calibrated),
        arrivals=bursts(),
    ),
    Workload(
        name="balanceroute_proprietary",
        make=balanceroute.proprietary,
        published_size=8_000,
        setup="balanceroute_8",
        page=_page(balanceroute),
    ),
    Workload(
        name="balanceroute_azure",
        make=balanceroute.azure,
        published_size=10_000,
        setup="balanceroute_8",
        page=_page(balanceroute),
    ),
    Workload(
        name="agents",
        make=agents.make,
        published_size=4_000,
        setup="agents_a100",
        page=_page(agents),
    ),
)

WORKLOADS: dict[str, Workload] = {workload.name: workload for workload in _ALL}


def workload_named(name: str) -> Workload:
    """A workload by its name, or a recorded one by `trace:FILE`.

    Raises:
        KeyError: there is none of this name.
        TraceError: the file cannot be used.
    """
    return trace_workload(name) if name.startswith(PREFIX) else WORKLOADS[name]
