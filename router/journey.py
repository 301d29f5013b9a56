"""What became of one request: its phases, its times, and the one place where they turn into metrics and a
line of the request log.

Separate from the life of the request (`proxy`) so that the story there reads without its book-keeping.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from router.call import Call
from router.core.answer import Usage
from router.core.errors import DeadlineExceeded, RouterError
from router.core.lease import Lease, Outcome
from router.core.phase import FINAL, Phase, Step, advance
from router.core.pool import Pool
from router.core.request import Request
from router.core.retry import Failure
from router.core.slo import Served, Slos
from router.core.split_rule import Unsplit
from router.core.stream_events import StreamFacts
from router.dispatch import Held
from router.telemetry.metrics import Finish, HandoverSeries, Metrics
from router.telemetry.record import Candidate, Phases, Placement, RequestRecord
from router.telemetry.request_log import RequestLog

_CLIENT_LEFT = 499
_LEGS = {Phase.PREFILLING: "prefill", Phase.TRANSFERRING: "decode", Phase.DECODING: "decode"}


@dataclass(frozen=True, slots=True)
class Telemetry:
    """Where journeys report to.

    Attributes:
        now: the router's clock; wall: Unix time, for records that outlive the process.
        log: the opt-in request log.
        slos: what each class of service is promised.
    """

    metrics: Metrics
    now: Callable[[], float]
    wall: Callable[[], float]
    log: RequestLog | None = None
    slos: Slos = field(default_factory=Slos)


class Journey:
    """One request from its head to its last byte. `close` reports it, once."""

    __slots__ = (
        "_closed",
        "_handovers",
        "_last_event",
        "_overhead_s",
        "_placed_at",
        "_placements",
        "_prefilled_at",
        "_queued_s",
        "_telemetry",
        "call",
        "error_code",
        "finish_reason",
        "first_event_at",
        "legs_at_once",
        "model",
        "outcome",
        "output_tokens",
        "phase",
        "request",
        "status",
        "usage",
        "worker",
    )

    def __init__(self, call: Call, telemetry: Telemetry) -> None:
        self.call = call
        self.phase = Phase.RECEIVED
        self.model = ""
        self.request: Request | None = None
        self.worker = ""
        self.status: int | None = None
        self.error_code: str | None = None
        self.outcome: Outcome | None = None
        self.usage: Usage | None = None
        self.output_tokens: int | None = None
        self.finish_reason: str | None = None
        self.first_event_at: float | None = None
        self.legs_at_once = False
        """Two legs run side by side; whoever runs them counts how they end."""
        self._telemetry = telemetry
        self._placements: list[Placement] = []
        self._handovers: HandoverSeries | None = None
        self._queued_s: float | None = None
        self._overhead_s: float | None = None
        self._placed_at: float | None = None
        self._prefilled_at: float | None = None
        self._last_event: float | None = None
        self._closed = False

    def step(self, step: Step) -> None:
        self.phase = advance(self.phase, step)

    # --- what happens on the way --------------------------------------------------------------------------

    def submitted(self, request: Request) -> None:
        self.request = request
        self.model = request.model
        self.step(Step.SUBMIT)

    def placed(self, held: Held, pool: Pool) -> None:
        """A worker was chosen."""
        self.step(Step.ASSIGN)
        lease = held.lease
        now = self._telemetry.now()
        self._placed_at = now
        if self.phase is Phase.TRANSFERRING and self._prefilled_at is not None:
            self._handover.pool_wait.observe(now - self._prefilled_at)
        if self._queued_s is None:
            own_s = now - self.call.received
            self._queued_s = own_s if held.waited else 0.0
            self._overhead_s = None if held.waited else own_s
        self.worker = lease.worker
        self._chosen(lease, pool)
        if lease.prefill is not None and lease.request.handover is None and pool.partner is not None:
            self._chosen(lease.prefill, pool.partner)

    def _chosen(self, lease: Lease, pool: Pool) -> None:
        if self._telemetry.log is not None:
            self._placements.append(_placement(lease, pool))
        self._telemetry.metrics.worker(lease.worker).chosen(lease.policy, lease.reason)

    @property
    def _handover(self) -> HandoverSeries:
        series = self._handovers
        if series is None:
            series = self._handovers = self._telemetry.metrics.handover(self.model)
        return series

    def split(self) -> None:
        """It gets two workers."""
        self._handover.split.add()

    def unsplit(self, reason: Unsplit) -> None:
        """One worker serves it whole although its model has prefill and decode workers."""
        self._handover.unsplit(reason.value)

    def split_refused(self, reason: Unsplit) -> None:
        self._handover.refused(reason.value)

    def prefilled(self) -> None:
        """The prefill leg has answered; its KV waits for a decode worker."""
        self.step(Step.PREFILLED)
        now = self._telemetry.now()
        if self._placed_at is not None:
            self._handover.prefill.observe(now - self._placed_at)
        self._prefilled_at = now

    def returned(self) -> None:
        """A decode worker took no connection; the handle waits for another one."""
        self.step(Step.RETURNED)
        self._handover.offered_again()

    def leg_failed(self, leg: str, failure: Failure) -> None:
        """A leg of a split request failed before commit."""
        self._handover.failed(leg, failure.value)

    def tried_again(self, failure: Failure, *, prefilled: bool) -> None:
        """A leg failed, and the request begins again; `prefilled`: its prompt was sent to be computed."""
        self.retried(failure)
        if prefilled:
            self._handover.prefilled_again(failure.value)

    def pool_expired(self) -> None:
        """No decode worker had room in time."""
        self._handover.pool_expired()

    def responded(self, worker: str, status: int | None) -> None:
        """A worker answered with a status, or (None) did not answer."""
        self._telemetry.metrics.worker(worker).responded(status)

    def retried(self, failure: Failure) -> None:
        self.step(Step.RETRY)
        self._telemetry.metrics.request(self.call.route.label, self.model).retried(failure.value)

    def committed(self, status: int) -> None:
        """The client's status line is certain."""
        self.status = status
        self.first_event_at = self._last_event = self._telemetry.now()
        if self.phase is Phase.TRANSFERRING and self._placed_at is not None:
            self._handover.transfer.observe(self.first_event_at - self._placed_at)
        self.step(Step.FIRST_EVENT)
        if self._placed_at is not None:
            self._telemetry.metrics.worker(self.worker).ttft.observe(self.first_event_at - self._placed_at)

    def heard(self, facts: StreamFacts) -> None:
        """A stream is over, in whatever way: what it said counts."""
        self.usage = facts.usage
        if self.output_tokens is None and facts.content_events:
            self.output_tokens = facts.content_events
        self.finish_reason = facts.finish_reasons.get(0)

    def event(self, now: float) -> float:
        """Output came; the gap since the last one, in seconds."""
        gap_s = now - self._last_event if self._last_event is not None else 0.0
        self._last_event = now
        return gap_s

    # --- how it ends --------------------------------------------------------------------------------------

    def finished(self, status: int) -> None:
        """The engine's answer went out whole, be it good or a refusal of the engine's own."""
        self.status = status
        if self.phase not in FINAL:
            self.step(Step.FINISH if self.phase is Phase.DECODING else Step.FAIL)

    def failed(self, error: RouterError, *, committed: bool) -> None:
        """It ended in an error of ours; `committed` when the client had its status line already."""
        self.error_code = error.code or "error"
        phase = self.phase.value
        if not committed:
            self.status = error.status
        if self.phase not in FINAL:
            self.step(Step.FAIL)
        metrics = self._telemetry.metrics
        if isinstance(error, DeadlineExceeded):
            phase = error.phase
            metrics.deadline_exceeded(phase)
        metrics.request(self.call.route.label, self.model).failed(self.error_code, phase)

    def cancelled(self) -> None:
        """The client left."""
        if self.phase in FINAL:
            return
        self._telemetry.metrics.client_left(self.phase.value)
        leg = _LEGS.get(self.phase)
        split = self.request is not None and self.request.split
        if leg is not None and split and not self.legs_at_once:
            self._telemetry.metrics.leg_cancelled(leg, "client_left")
        self.step(Step.CANCEL)
        self.status = _CLIENT_LEFT

    def close(self) -> None:
        """Counts it and writes its line. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        now = self._telemetry.now()
        request = self.request
        usage = self.usage
        output = (
            usage.completion_tokens if usage and usage.completion_tokens is not None else self.output_tokens
        )
        series = self._telemetry.metrics.request(self.call.route.label, self.model)
        finish = Finish(
            status=self.status if self.status is not None else 500,
            duration_s=now - self.call.arrived,
            queue_s=self._queued_s,
            overhead_s=self._overhead_s,
            ttft_s=None if self.first_event_at is None else self.first_event_at - self.call.arrived,
            tpot_s=self._tpot_s(output),
            prompt_tokens=usage.prompt_tokens if usage else None,
            output_tokens=output,
            cached_tokens=usage.cached_tokens if usage else None,
        )
        series.finished(finish)
        if request is not None and self._telemetry.slos:
            self._judge(request, finish)
        if self._telemetry.log is not None and request is not None:
            self._telemetry.log.write(self._record(request, self._telemetry.log, output, now))

    def _judge(self, request: Request, finish: Finish) -> None:
        """Counts whether it got what its class is promised."""
        served = Served(finish.status, finish.ttft_s, finish.tpot_s, finish.output_tokens)
        verdict = self._telemetry.slos.judge(request, served)
        if verdict is not None:
            series = self._telemetry.metrics.request(self.call.route.label, self.model)
            series.judged(verdict[0], met=verdict[1])

    def _tpot_s(self, output: int | None) -> float | None:
        if output is None or output < 2 or self.first_event_at is None or self._last_event is None:
            return None
        if self.request is None or not self.request.stream:
            return None
        return (self._last_event - self.first_event_at) / (output - 1)

    def _record(self, request: Request, log: RequestLog, output: int | None, now: float) -> RequestRecord:
        usage = self.usage
        told = usage is not None and usage.prompt_tokens is not None
        ttft = None if self.first_event_at is None else self.first_event_at - self.call.arrived
        return RequestRecord(
            arrival=self._telemetry.wall() - (now - self.call.arrived),
            id=self.call.id,
            tenant=request.tenant,
            model=request.model,
            api=self.call.route.label,
            stream=request.stream,
            prompt_tokens=usage.prompt_tokens
            if usage is not None and told
            else request.prompt_tokens or None,
            prompt_tokens_from="engine" if told else "ids" if request.prompt_tokens_exact else "estimate",
            max_tokens=request.max_tokens,
            n=request.sequences,
            priority=request.priority,
            output_tokens=output,
            cached_tokens=usage.cached_tokens if usage else None,
            blocks=request.key.blocks(log.salt) if request.key is not None else (),
            affinity=log.digest(request.affinity) if request.affinity else None,
            placements=tuple(self._placements),
            phases=Phases(queued_s=self._queued_s, ttft_s=ttft, total_s=now - self.call.arrived),
            outcome=self.outcome.value if self.outcome else "refused",
            status=self.status if self.status is not None else 500,
            error=self.error_code,
            finish_reason=self.finish_reason,
        )

    def __repr__(self) -> str:
        return f"<Journey {self.call.id} {self.phase.value} on {self.worker or 'no worker'}>"


def _placement(lease: Lease, pool: Pool) -> Placement:
    """One choice, as the request log tells it."""
    return Placement(
        worker=lease.worker,
        role=pool.rules.role.value,
        policy=lease.policy,
        reason=lease.reason,
        cost=lease.cost,
        others=tuple(Candidate(worker=worker, cost=cost) for worker, cost in lease.others),
    )
