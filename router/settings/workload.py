"""The calls of a scenario: what `pointsman simulate` lets come to the pools of a configuration.

Separate from the pools, which are the same for `pointsman serve`. Names of workloads are checked by the
studies, which the live router does not know.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from router.settings.section import FilePath, Section

Process = Literal["own", "poisson", "gamma", "bursts", "trace", "saturated"]


class TroubleSettings(Section):
    """Something that happens to a worker while calls come."""

    at_s: Annotated[float, Field(ge=0, le=10_000_000)]
    """When, from the first second of the run."""
    worker: str
    """Name of the worker; of a data-parallel rank, all of its group are meant."""
    what: Literal["crash", "restart", "freeze", "thaw", "slow"]
    """`crash`: its work is lost and its port refuses; `restart`: it is back with an empty cache; `freeze`: it
    takes requests and does nothing, until `thaw`; `slow`: its steps take `factor` times as long."""
    factor: Annotated[float, Field(gt=0, le=1000)] = 1.0
    """With `slow`: how many times longer a step lasts; 1 is normal again."""


class WorkloadSettings(Section):
    """Calls that `pointsman simulate` runs through the pools; `pointsman serve` does not look at it. A file
    with this section is a scenario."""

    name: str | None = None
    """Name of a workload, as `pointsman compare --help` lists them, or `trace:FILE` for a recorded one: the
    router's own request log, or a trace of Azure, Mooncake or BurstGPT. null: this file is no scenario."""
    model: str | None = None
    """Model of the pools that are run, and of a trace only the requests that name it; null: there is one pool
    or one pair, and all requests go there."""
    requests: Annotated[int, Field(ge=1, le=10_000_000)] | None = None
    """Calls of each run; null: 2,000, or all that a trace has."""
    rate: Annotated[float, Field(gt=0, le=1_000_000)] | None = None
    """Calls per second. null: of a trace, as it was recorded; other workloads need one."""
    seeds: Annotated[int, Field(ge=1, le=1000)] = 1
    """Runs, with the seeds 1, 2, …"""
    arrivals: Process = "own"
    """How calls come. `own`: as the workload has it; `poisson`: independently; `gamma`: with gaps of the
    variation `arrivals_cv`; `bursts`: at a rate that changes between two states; `trace`: at the times of
    `arrivals_file`, stretched to the rate; `saturated`: all at once."""
    arrivals_cv: Annotated[float, Field(gt=0, le=100)] | None = None
    """With `gamma`: coefficient of variation of the gaps. 1 is Poisson, more comes in clumps; null: 2."""
    arrivals_file: FilePath | None = None
    """With `trace`: the trace whose times are taken."""
    troubles: tuple[TroubleSettings, ...] = ()
    """What happens to workers meanwhile."""

    def problems(self) -> Iterator[str]:
        """What cannot hold together, one sentence each."""
        if self.name is None and self.model_fields_set - {"name"}:
            yield "workload.name is required where workload says anything"
        if self.arrivals_cv is not None and self.arrivals != "gamma":
            yield f"workload.arrivals_cv is for arrivals gamma, and workload.arrivals is {self.arrivals}"
        if (self.arrivals_file is not None) != (self.arrivals == "trace"):
            yield "workload.arrivals_file belongs to arrivals trace; set both or neither"
        if self.rate is not None and self.arrivals == "saturated":
            yield "workload.rate means nothing where workload.arrivals is saturated: all calls come at once"
