"""What happens to calls on their way: the twin of `router.proxy` and `router.split` on the timeline.

Separate from the run, which builds the world and keeps its time. Everything here is an answer to one thing
that happened: a call came, a lease was granted, the router heard of a leg.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from msgspec import structs

from engines.model.engine import EngineBusy, EngineRejects
from router.core.answer import Usage
from router.core.errors import InternalError, RouterError
from router.core.handover import Handover
from router.core.lease import Lease, Outcome
from router.core.request import Request
from router.core.retry import Failure
from router.core.split_rule import Refusal, Where
from router.core.splitting import Splitting
from router.studies.simulation.fleet import FleetPlan, SplitPlan
from router.studies.simulation.hall import Hall
from router.studies.simulation.life import Leg, Life
from router.studies.simulation.overdue import Overdue
from router.studies.simulation.reports import Reports
from router.studies.simulation.rounds import Rounds
from router.studies.simulation.setbacks import Setbacks
from router.studies.simulation.timeline import Timeline
from router.studies.simulation.trying import Trying


class Pair:
    """The two pools between which calls are split, and how."""

    def __init__(self, prefill: Rounds, decode: Rounds, splitting: Splitting, plan: SplitPlan) -> None:
        self.prefill = prefill
        self.decode = decode
        self.splitting = splitting
        self.plan = plan
        self.deadlines = plan.deadlines


class Courses:
    """Every life that is under way, by the id of its request.

    Args:
        learn: told of the tokens that each whole answer had.
        ended: told of every life that is over.
    """

    def __init__(
        self,
        timeline: Timeline,
        plan: FleetPlan,
        trying: Trying,
        learn: Callable[[Request, Usage], None],
        ended: Callable[[Life], None],
    ) -> None:
        self._timeline = timeline
        self._plan = plan
        self._delays = plan.delays
        self._trying = trying
        self._learn = learn
        self._ended = ended
        self.reports = Reports(timeline, plan.delays, self._hear)
        self.lives: dict[str, Life] = {}
        self.by_worker: dict[str, Rounds] = {}
        self.rounds: list[Rounds] = []
        self.pair: Pair | None = None
        self.hall: Hall
        self.setbacks: Setbacks

    def open(self, hall: Hall, rounds: Iterable[Rounds], pair: Pair | None) -> None:
        """Gives them a world; once, before the first call."""
        self.hall = hall
        self.rounds = list(rounds)
        self.pair = pair
        self.reports.follow(self.rounds)
        self.by_worker = {worker.name: each for each in self.rounds for worker in each.pool.roster}
        self.setbacks = Setbacks(self, self._timeline, self._trying)
        timeline, late = self._timeline, self.setbacks.late
        times = self._plan.split.deadlines if self._plan.split is not None else None
        self._first_events = Overdue(
            timeline, self._plan.patience.first_event_s, _has_begun, self.setbacks.waited_in_vain
        )
        if times is not None:
            self._prefills = Overdue(timeline, times.prefill_s, _is_through, late)
            self._decodes = Overdue(timeline, times.decode_first_event_s, _is_through, late)

    # --- placing ---------------------------------------------------------------------------------------

    def begin(self, life: Life) -> None:
        """A call has come."""
        self.lives[life.request.id] = life
        life.answer_by = self._timeline.now + self._plan.patience.first_event_s
        self._first_events.add(life)
        self.place(life)

    def place(self, life: Life) -> None:
        """From the start: split between two workers, or whole at one."""
        pair = self.pair
        if pair is None:
            self.acquire(life, self.rounds[0], life.request)
            return
        decision = pair.splitting.decide(life.request, self._timeline.now)
        if isinstance(decision, Refusal):
            self.over(life, life.ending_with(decision.error()))
        elif decision is None:
            life.request = structs.replace(life.request, split=True)
            self.acquire(life, pair.decode if pair.plan.concurrent else pair.prefill, life.request)
        else:
            self._whole(life, pair, decision.where)

    def _whole(self, life: Life, pair: Pair, where: Where) -> None:
        both = where is Where.BOTH_CAPABLE
        life.request = structs.replace(life.request, split=False, both=both)
        rounds = pair.prefill if where is Where.PREFILL else pair.decode
        if life.failed is not None and not rounds.pool.candidates(life.request):
            self.over(life, life.ending)
            return
        self._trying.goes_whole(life)
        self.acquire(life, rounds, life.request)

    def acquire(self, life: Life, rounds: Rounds, request: Request) -> None:
        """Has a pool choose a worker."""
        life.waits_since = self._timeline.now
        try:
            rounds.acquire(request)
        except RouterError as error:
            self.refused(request.id, error)

    def placed(self, lease: Lease) -> None:
        """A worker was chosen, and it is its turn there: the request is on its way to it."""
        life = self.lives[lease.request.id]
        record, now = life.record, self._timeline.now
        record.pool_wait += now - life.waits_since
        if life.handover is not None and self.setbacks.is_stale(life.handover):
            self.setbacks.expired(life, lease)
            return
        record.placed, record.reason = now, lease.reason
        if lease.prefill_only:
            record.prefill_worker = lease.worker
        else:
            record.worker = lease.worker
        life.legs = [self._leg(life, lease)]  # of two the prefill is sent first
        if lease.prefill is not None and lease.prefill.outcome is None and life.handover is None:
            record.prefill_worker = lease.prefill.worker
            life.legs.append(self._leg(life, lease.prefill))
        self._timeline.after(self._delays.router_s, partial(self._send, life.legs[::-1]))

    def _leg(self, life: Life, lease: Lease) -> Leg:
        return Leg(life, lease, self.hall.rank(lease.worker), prefill=lease.prefill_only)

    def refused(self, request_id: str, error: RouterError) -> None:
        """It waited in vain: whoever failed before learns of that, and not that there was no room.

        Raises `error` when it is the router's own: a bug is no outcome of a call.
        """
        if isinstance(error, InternalError):
            raise error
        life = self.lives[request_id]
        if life.handover is not None:
            self.setbacks.undelivered(life, life.handover, error)
        else:
            self.over(life, life.ending_with(error))

    # --- sending ---------------------------------------------------------------------------------------

    def _send(self, legs: Sequence[Leg]) -> None:
        for leg in legs:
            name = leg.lease.worker
            if leg.gone:
                return
            if not self.hall.is_up(name):
                self.setbacks.failed(leg, Failure.NEVER_SENT, "refused the connection")
                return
            if self._timeline.now >= leg.life.answer_by:
                self.setbacks.failed(leg, Failure.TIMEOUT, "too late")
                return
            self._send_jobs(leg)

    def _send_jobs(self, leg: Leg) -> None:
        name = leg.lease.worker
        leg.rank = self.hall.rank(name)
        jobs = leg.jobs()
        self.reports.sent(leg, [job.id for job in jobs])
        if leg.life.handover is not None:
            leg.life.shown = True
        if leg.prefill:
            self._prefills.add(leg)
        elif leg.lease.prefill is not None:
            self._decodes.add(leg)
        try:
            self.hall.stepper(name).submit(leg.rank, jobs)
        except EngineRejects as error:
            self.setbacks.failed(leg, Failure.TOO_LONG, str(error))
        except EngineBusy as error:
            self.setbacks.failed(leg, Failure.BUSY, str(error))

    # --- what is heard ---------------------------------------------------------------------------------

    def _hear(self, leg: Leg, tokens: int, ended: bool) -> None:
        """The router sees the first token of a leg, or its end."""
        if leg.gone:
            return
        if not leg.started:
            self._started(leg, tokens)
        if ended and not leg.lease.settled:
            if leg.prefill:
                self._prefill_done(leg)
            else:
                self._done(leg, tokens)

    def _started(self, leg: Leg, tokens: int) -> None:
        leg.started = True
        record, now = leg.life.record, self._timeline.now
        timing = next(iter(leg.timings.values()))
        hit = timing.cached_tokens
        record.engine_wait += (timing.scheduled or timing.queued) - timing.queued
        if leg.prefill or (leg.life.handover is None and leg.lease.prefill is None):
            record.hit_tokens = hit
        if not leg.prefill and record.first is None:
            record.first = now
        self.by_worker[leg.lease.worker].pool.progress(
            leg.lease,
            now,
            generated_tokens=tokens,
            prompt_tokens=leg.life.call.prompt_tokens,
            cached_tokens=hit,
        )
        self.wake()

    def _prefill_done(self, leg: Leg) -> None:
        """A prefill has answered; where the decode worker is not chosen yet, it is now."""
        life, pair = leg.life, self.pair
        if pair is None or pair.plan.concurrent:
            return
        times = life.times = pair.deadlines.handover(self._timeline.now)
        worker = pair.prefill.pool.roster.workers[leg.lease.worker]
        due = pair.deadlines.transfer_by(times, life.answer_by)
        handover = Handover(leg.lease, worker.revision, self._timeline.now, times.overdue, due.at)
        life.handover, life.shown, life.undelivered, life.legs = handover, False, None, []
        self.acquire(life, pair.decode, structs.replace(life.request, handover=handover, body_bytes=0))

    def _done(self, leg: Leg, tokens: int) -> None:
        life, lease, rounds = leg.life, leg.lease, self.by_worker[leg.lease.worker]
        usage = Usage(life.call.prompt_tokens, tokens, next(iter(leg.timings.values())).cached_tokens)
        rounds.pool.progress(lease, self._timeline.now, generated_tokens=tokens)
        rounds.release(lease, Outcome.OK)
        rounds.pool.chooser.reported(lease, usage)
        rounds.pool.ledger.reported(lease, usage, self._timeline.now)
        self._learn(life.request, usage)
        life.record.tokens = tokens
        life.record.done = self._timeline.now
        self.over(life, "ok")

    # --- ends ------------------------------------------------------------------------------------------

    def over(self, life: Life, outcome: str) -> None:
        """Nothing more happens to it."""
        life.record.outcome = outcome
        if outcome != "ok":
            self.setbacks.give_back(life, Outcome.CANCELLED, outcome)
        self._trying.give_back(life)
        del self.lives[life.request.id]
        self._ended(life)
        self.wake()

    def wake(self) -> None:
        """Lets every pool look again: room was made somewhere, or a worker came back."""
        for rounds in self.rounds:
            rounds.wake()

    def __repr__(self) -> str:
        return f"<Courses {len(self.lives)} lives>"


def _has_begun(life: Life) -> bool:
    return bool(life.record.outcome) or life.record.first is not None


def _is_through(leg: Leg) -> bool:
    return leg.gone or leg.started
