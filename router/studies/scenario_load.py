"""The calls of a scenario, from the `workload` section of its file.

Separate from the scenario because a load is the same in front of any fleet.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from router.settings import WorkloadSettings
from router.settings.refusals import closest
from router.studies.scenario_engines import ScenarioError
from router.studies.simulation.call import Call
from router.studies.traces import TraceError, read_trace
from router.studies.workloads import WORKLOADS, Workload
from router.studies.workloads.arrivals import (
    Arrivals,
    all_at_once,
    bursts,
    check_length,
    gamma,
    poisson,
    recorded,
)
from router.studies.workloads.trace_file import PREFIX, trace_workload

_CALLS = 2_000
_CV = 2.0
_WITH_TOKENS = [name for name, workload in WORKLOADS.items() if workload.setup != "classic_16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Which calls come, and how.

    Attributes:
        workload: its name, or `trace:FILE`.
        model: whose pools they come to; of a trace only the requests that name it. None: all.
        rate: calls per second; None: all at once.
        process: name of the arrival process, as `workload.arrivals` has it.
        cv: coefficient of variation of the gaps, for gamma.
        times_of: trace whose times are taken.
    """

    workload: str
    model: str | None = None
    requests: int
    rate: float | None
    seeds: int = 1
    process: str = "own"
    cv: float = _CV
    times_of: Path | None = None

    @classmethod
    def of(cls, settings: WorkloadSettings) -> Load:
        """What a file asks for.

        Raises:
            ScenarioError: there is no such workload, or its rate is missing.
            TraceError: a trace cannot be used.
        """
        workload = _named(settings.name, settings.model)
        trace = workload.natural_rate is not None
        rate = settings.rate or workload.natural_rate
        if settings.arrivals == "saturated":
            rate = None
        elif rate is None:
            raise ScenarioError(
                f"workload.rate is required: how many calls of {workload.name} come per second; "
                "pointsman saturate finds how many a fleet carries"
            )
        made = cls(
            workload=workload.name,
            model=settings.model,
            requests=settings.requests or (workload.published_size if trace else _CALLS),
            rate=rate,
            seeds=settings.seeds,
            process=settings.arrivals,
            cv=_CV if settings.arrivals_cv is None else settings.arrivals_cv,
            times_of=settings.arrivals_file,
        )
        made.check(made.rate)
        return made

    def calls(self, count: int, rate: float | None, seed: int) -> list[Call]:
        """So many calls at a rate; None: all at once."""
        arrivals = all_at_once if rate is None else self._arrivals()
        return _named(self.workload, self.model).calls(count, rate or 1.0, seed, arrivals)

    def check(self, rate: float | None) -> None:
        """Raises ScenarioError for times that are none, and for a rate at which calls hardly ever come."""
        try:
            check_length(self.requests, rate)
        except ValueError as error:
            raise ScenarioError(str(error)) from None
        try:
            self._arrivals()
        except TraceError:
            raise
        except ValueError as error:
            raise ScenarioError(f"workload.arrivals_file cannot be used: {error}") from None

    def _arrivals(self) -> Arrivals | None:
        """None: as the workload has it."""
        if self.process == "trace" and self.times_of is not None:
            return recorded([entry.arrival_s for entry in read_trace(self.times_of).entries])
        made = {"poisson": poisson, "gamma": gamma(self.cv), "bursts": bursts()}
        return made.get(self.process)


def _named(name: str | None, model: str | None) -> Workload:
    if name is None:
        raise ScenarioError(
            "it has no workload, and so is a configuration but no scenario; add workload.name, "
            f"one of {', '.join(_WITH_TOKENS)} or trace:FILE"
        )
    if name.startswith(PREFIX):
        return trace_workload(name, model)
    if name not in WORKLOADS:
        near = closest(name, _WITH_TOKENS)
        meant = f"did you mean {near}?" if near else f"known: {', '.join(_WITH_TOKENS)}, or trace:FILE"
        raise ScenarioError(f"workload.name is {name!r}, which is unknown; {meant}")
    if name not in _WITH_TOKENS:
        raise ScenarioError(
            f"workload.name is {name}, whose calls have no tokens; it is for pointsman compare alone"
        )
    return WORKLOADS[name]
