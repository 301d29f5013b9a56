"""How the program counts, and what /metrics answers.

Separate from the names (`families`, `gauges`) so that callers see verbs and no labels. What happens is
counted into series that are looked up once and kept (`bound`); what is true now is read from a snapshot when
a scrape asks.

Labels are bounded. `model` is a name that some worker serves, or `other`, never what a client made up. A
worker's series are dropped by the first scrape after it has left.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

from router.telemetry.bound import Finish, HandoverSeries, RequestSeries, WorkerSeries
from router.telemetry.exposition import CONTENT_TYPE, SampleFamily
from router.telemetry.families import Families
from router.telemetry.gauges import gauges
from router.telemetry.round_meter import RoundMeter
from router.telemetry.samples import QueueSample, Snapshot, WorkerSample
from router.telemetry.series import OVERFLOW

__all__ = [
    "CONTENT_TYPE",
    "Finish",
    "HandoverSeries",
    "Metrics",
    "QueueSample",
    "RequestSeries",
    "Snapshot",
    "WorkerSample",
    "WorkerSeries",
]

DEFAULT_MAX_REQUEST_SERIES = 256
"""(api, model) pairs with series of their own, 64 models under 4 apis; about 120 samples each."""


class Metrics:
    """All series of one router.

    Mutable state: the families, and the caches of bound series.

    Args:
        snapshot: reads the router's state; called once a scrape, must not block.
        is_model: whether some worker serves a model of this name.
        version: of the router.
        max_request_series: (api, model) pairs that get series of their own; later ones count as `other`.
    """

    def __init__(
        self,
        snapshot: Callable[[], Snapshot],
        is_model: Callable[[str], bool],
        *,
        version: str,
        max_request_series: int = DEFAULT_MAX_REQUEST_SERIES,
    ) -> None:
        self._snapshot = snapshot
        self._is_model = is_model
        self._version = version
        self._max_request_series = max_request_series
        self._families = Families()
        self._requests: dict[tuple[str, str], RequestSeries] = {}
        self._handovers: dict[str, HandoverSeries] = {}
        self._workers: dict[str, WorkerSeries] = {}
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self.request_log_dropped = self._families.request_log_dropped.series()
        self.decision_log_dropped = self._families.decision_log_dropped.series()

    def request(self, api: str, model: str) -> RequestSeries:
        """The series that count a request; `model` as the client named it, `api` a route of ours."""
        found = self._requests.get((api, model))
        return self._new_request(api, model) if found is None else found

    def worker(self, name: str) -> WorkerSeries:
        """The series of a worker. Look it up for each use, or a worker that left and came back under the
        same name would count into series that are no longer shown."""
        found = self._workers.get(name)
        if found is None:
            found = self._workers[name] = WorkerSeries(self._families, name)
        return found

    def rounds(self, pool: str, clock: Callable[[], float]) -> RoundMeter:
        """What measures the rounds of a pool by a clock (s)."""
        return RoundMeter(self._families, pool, clock)

    def decided(self, policy: str, seconds: float) -> None:
        """Record how long one call of a policy took."""
        self._families.decision.series(policy).observe(seconds)

    def waited_turn(self, worker: str, seconds: float) -> None:
        """Record how long a request that had its worker waited in the router for its turn there."""
        self.worker(worker).turn.observe(seconds)

    def tokenized(self, pool: str, outcome: str, seconds: float) -> None:
        """Count a prompt that a local tokenizer was asked for: "tokenized", or one word for why not."""
        self._families.tokenized.series(pool, outcome).add()
        self._families.tokenizing.series(pool).observe(seconds)

    def client_left(self, phase: str) -> None:
        self._families.disconnects.series(phase).add()

    def handover(self, model: str) -> HandoverSeries:
        """The series that count the hand-overs of a model."""
        found = self._handovers.get(model)
        return self._new_handover(model) if found is None else found

    def leg_cancelled(self, leg: str, reason: str) -> None:
        self._families.legs_cancelled.series(leg, reason).add()

    def released(self, outcome: str) -> None:
        """Count KV that nobody wants any more: "released", "dropped" or "stranded"."""
        self._families.releases.series(outcome).add()

    def deadline_exceeded(self, phase: str) -> None:
        self._families.deadlines.series(phase).add()

    def task_restarted(self, task: str) -> None:
        self._families.task_restarts.series(task).add()

    def exposition(self) -> bytes:
        """The answer to GET /metrics; its content type is `CONTENT_TYPE`."""
        snapshot = self._snapshot()
        self._retain_workers(frozenset(worker.name for worker in snapshot.workers))
        return "".join(self._render(snapshot)).encode() + generate_latest(self._registry)

    def _render(self, snapshot: Snapshot) -> Iterator[str]:
        build = SampleFamily("pointsman_build_info", "Always 1.", ("version", "python"))
        build.set(1, self._version, platform.python_version())
        yield from build.render()
        for gauge in gauges(snapshot):
            yield from gauge.render()
        for family in self._families:
            yield from family.render()

    def _retain_workers(self, names: frozenset[str]) -> None:
        # At scrape time rather than on removal: a late answer of a worker that has just left would give
        # birth to its series again, with nobody to drop them.
        for name in self._workers.keys() - names:
            del self._workers[name]
        self._families.retain_workers(names)

    def _new_handover(self, model: str) -> HandoverSeries:
        if len(self._handovers) >= self._max_request_series or not self._is_model(model):
            model = OVERFLOW
        found = self._handovers.get(model)
        if found is None:
            found = self._handovers[model] = HandoverSeries(self._families, model)
        return found

    def _new_request(self, api: str, model: str) -> RequestSeries:
        if len(self._requests) >= self._max_request_series or not self._is_model(model):
            model = OVERFLOW
        found = self._requests.get((api, model))
        if found is None:
            found = self._requests[api, model] = RequestSeries(self._families, api, model)
        return found

    def __repr__(self) -> str:
        return f"<Metrics [{len(self._requests)} apis and models | {len(self._workers)} workers]>"
