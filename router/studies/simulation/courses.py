"""What happens to calls on their way: the twin of `router.proxy` and `router.split` on the timeline.

Separate from the run, which builds the world and keeps its time. Everything here is an answer to one thing
that happened: a call came, a lease was granted, an engine put something out, a worker was lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from msgspec import structs

from engines.model.engine import EngineBusy, EngineRejects, Fetch, Job, Output
from router.core.answer import Usage
from router.core.deadlines import SplitDeadlines
from router.core.errors import RouterError
from router.core.handover import Handover
from router.core.lease import Lease, Outcome
from router.core.request import Request
from router.core.split_rule import Refusal
from router.core.splitting import Splitting
from router.studies.simulation.fleet import Delays, SplitPlan
from router.studies.simulation.hall import Hall
from router.studies.simulation.life import Leg, Life
from router.studies.simulation.rounds import Rounds
from router.studies.simulation.stepper import Rank
from router.studies.simulation.timeline import Timeline

_TRIES = 1
"""Further tries of a call that was sent and brought nothing back, as the live router allows."""


class Pair:
    """The two pools between which calls are split, and how."""

    def __init__(self, prefill: Rounds, decode: Rounds, splitting: Splitting, plan: SplitPlan) -> None:
        self.prefill = prefill
        self.decode = decode
        self.splitting = splitting
        self.plan = plan
        self.deadlines = SplitDeadlines(lease_s=plan.lease_s)


class Courses:
    """Every life that is under way, by call and by what runs for it.

    Args:
        learn: told of the tokens that each whole answer had.
        ended: told of every life that is over.

    State: `lives` by request id, `_legs` by job id per worker, `_running` those that have begun, the
    transfers that wait for the end of a prefill.
    """

    def __init__(
        self,
        timeline: Timeline,
        delays: Delays,
        learn: Callable[[Request, Usage], None],
        ended: Callable[[Life], None],
    ) -> None:
        self._timeline = timeline
        self._delays = delays
        self._learn = learn
        self._ended = ended
        self.lives: dict[str, Life] = {}
        self._legs: dict[str, dict[str, Leg]] = {}
        self._running: dict[str, dict[Leg, None]] = {}
        self._awaited: dict[str, tuple[Rank, Fetch]] = {}
        self._prefilled: dict[str, tuple[str, str]] = {}
        self._by_worker: dict[str, Rounds] = {}
        self.rounds: list[Rounds] = []
        self.pair: Pair | None = None
        self.hall: Hall

    def open(self, hall: Hall, rounds: Iterable[Rounds], pair: Pair | None) -> None:
        """Gives them a world; once, before the first call."""
        self.hall = hall
        self.rounds = list(rounds)
        self.pair = pair
        for each in self.rounds:
            for worker in each.pool.roster:
                self._by_worker[worker.name] = each
                self._legs[worker.name] = {}
                self._running[worker.name] = {}

    # --- placing ---------------------------------------------------------------------------------------

    def begin(self, life: Life) -> None:
        """A call has come."""
        self.lives[life.request.id] = life
        self._place(life)

    def _place(self, life: Life) -> None:
        pair = self.pair
        rounds = self.rounds[0]
        if pair is not None:
            decision = pair.splitting.decide(life.request, self._timeline.now)
            if isinstance(decision, Refusal):
                self._over(life, decision.error().__class__.__name__)
                return
            life.request = structs.replace(life.request, split=decision is None)
            rounds = pair.decode if pair.plan.concurrent or decision is not None else pair.prefill
        self._acquire(life, rounds)

    def _acquire(self, life: Life, rounds: Rounds) -> None:
        life.waits_since = self._timeline.now
        try:
            rounds.acquire(life.request)
        except RouterError as error:
            self._over(life, type(error).__name__)

    def placed(self, lease: Lease) -> None:
        """A worker was chosen: the request is on its way to it."""
        life = self.lives[lease.request.id]
        record, now = life.record, self._timeline.now
        record.placed, record.reason = now, lease.reason
        record.pool_wait += now - life.waits_since
        if lease.prefill_only:
            record.prefill_worker = lease.worker
        else:
            record.worker = lease.worker
        legs = [self._leg(life, lease)]
        if lease.prefill is not None and lease.prefill.outcome is None and life.handover is None:
            record.prefill_worker = lease.prefill.worker
            legs.append(self._leg(life, lease.prefill))
        life.leg = legs[0]
        self._timeline.after(self._delays.router_s, partial(self._send, life, legs))

    def _leg(self, life: Life, lease: Lease) -> Leg:
        return Leg(life, lease, self.hall.rank(lease.worker), prefill=lease.prefill_only)

    def refused(self, request_id: str, error: RouterError) -> None:
        """It waited in vain."""
        self._over(self.lives[request_id], type(error).__name__)

    # --- sending ---------------------------------------------------------------------------------------

    def _send(self, life: Life, legs: Sequence[Leg]) -> None:
        for leg in legs:
            name = leg.lease.worker
            if not self.hall.is_up(name) or leg.rank is not self.hall.rank(name):
                self._fail(life, Outcome.UNREACHABLE, "refused the connection")
                return
            jobs = _jobs(leg)
            for job in jobs:
                leg.open.add(job.id)
                self._legs[name][job.id] = leg
            try:
                self.hall.stepper(name).submit(leg.rank, jobs)
            except EngineRejects:  # a prompt goes where it fits if it fits anywhere
                self._drop(leg)
                self._over(life, "too_long")
                return
            except EngineBusy as error:
                self._drop(leg)
                self._fail(life, Outcome.BUSY, str(error))
                return

    # --- what engines do -------------------------------------------------------------------------------

    def put_out(self, rank: Rank, outputs: Sequence[Output]) -> None:
        """Jobs wrote their first token, or ended; others may be among them."""
        legs = self._legs[rank.name]
        for output in outputs:
            first = output.since_last_s is None
            if not first and output.finish_reason is None:
                continue
            leg = legs[output.job_id]
            leg.timings[output.job_id] = output.timing
            if first:
                self._running[rank.name].setdefault(leg)
                leg.told = self._timeline.now
            if output.finish_reason is not None:
                leg.open.discard(output.job_id)
                del legs[output.job_id]
                if not leg.open:
                    del self._running[rank.name][leg]
                if output.kept is not None:
                    self._kept(leg, output.job_id)
            self._later(partial(self._hear, leg, leg.written(), ended=not leg.open))
        self.moved_on(rank)

    def moved_on(self, rank: Rank) -> None:
        """Time passed in which jobs wrote tokens."""
        told = self._counts(rank.name, self._timeline.now - self._delays.progress_s)
        if told:
            self._later(partial(self._progress, rank.name, told))

    def tell(self, name: str) -> None:
        """How far the jobs of a worker are, without delay: before its KV is compared with the account."""
        self._progress(name, self._counts(name, self._timeline.now))

    def _counts(self, name: str, last: float) -> list[tuple[Lease, int]]:
        """Tokens of the legs of which nothing was heard since then."""
        now, counts = self._timeline.now, []
        for leg in self._running[name]:
            if leg.told <= last:
                leg.told = now
                counts.append((leg.lease, leg.written()))
        return counts

    def _later(self, call: Callable[[], None]) -> None:
        """The router hears of it as late as events take to come."""
        if self._delays.event_s > 0:
            self._timeline.after(self._delays.event_s, call)
        else:
            call()

    def _progress(self, name: str, told: Sequence[tuple[Lease, int]]) -> None:
        self._by_worker[name].pool.ledger.progress_all(name, told, self._timeline.now)

    def _hear(self, leg: Leg, tokens: int, *, ended: bool) -> None:
        """The router sees the first token of a leg, or its end."""
        if leg.lease.outcome is not None and not leg.prefill:
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
        self._by_worker[leg.lease.worker].pool.progress(
            leg.lease,
            now,
            generated_tokens=tokens,
            prompt_tokens=leg.life.call.prompt_tokens,
            cached_tokens=hit,
        )
        self._wake()

    def _done(self, leg: Leg, tokens: int) -> None:
        life, lease, rounds = leg.life, leg.lease, self._by_worker[leg.lease.worker]
        usage = Usage(life.call.prompt_tokens, tokens, next(iter(leg.timings.values())).cached_tokens)
        rounds.pool.progress(lease, self._timeline.now, generated_tokens=tokens)
        rounds.release(lease, Outcome.OK)
        rounds.pool.chooser.reported(lease, usage)
        rounds.pool.ledger.reported(lease, usage, self._timeline.now)
        self._learn(life.request, usage)
        life.record.tokens = tokens
        life.record.done = self._timeline.now
        self._over(life, "ok")

    # --- hand-overs ------------------------------------------------------------------------------------

    def _prefill_done(self, leg: Leg) -> None:
        """A prefill has answered; where the decode worker is not chosen yet, it is now."""
        life, pair = leg.life, self.pair
        if pair is None or pair.plan.concurrent:
            return
        times = pair.deadlines.handover(self._timeline.now)
        worker = pair.prefill.pool.roster.workers[leg.lease.worker]
        life.handover = Handover(
            leg.lease, worker.revision, self._timeline.now, times.overdue, times.dispatch_by
        )
        life.request = structs.replace(life.request, handover=life.handover)
        life.leg = None
        self._acquire(life, pair.decode)

    def _kept(self, leg: Leg, job_id: str) -> None:
        """A prefill engine holds KV to be fetched; who waits for it may have it now."""
        name = leg.life.request.id
        self._prefilled[name] = (leg.lease.worker, job_id)
        waiting = self._awaited.pop(name, None)
        if waiting is not None:
            self._transfer(*waiting)

    def fetches(self, rank: Rank, wanted: Sequence[Fetch]) -> None:
        """Jobs want their KV from another engine, or need it no more."""
        for fetch in wanted:
            name = _request_of(fetch.job_id)
            if name in self._prefilled:
                self._transfer(rank, fetch)
            elif not fetch.tells_only:
                self._awaited[name] = (rank, fetch)

    def _transfer(self, rank: Rank, fetch: Fetch) -> None:
        pair = self.pair
        seconds = 0.0 if fetch.tells_only or pair is None else pair.plan.link.seconds(fetch.blocks)
        self._timeline.after(seconds, partial(self._transferred, rank, fetch))

    def _transferred(self, rank: Rank, fetch: Fetch) -> None:
        name = _request_of(fetch.job_id)
        producer, job_id = self._prefilled.pop(name, ("", ""))
        if producer and self.hall.is_up(producer):
            holder = self.hall.rank(producer)
            holder.engine.kept.release(job_id, self._timeline.now)
            self.hall.stepper(producer).look(holder)
        if fetch.tells_only or rank is not self.hall.rank(rank.name) or not self.hall.is_up(rank.name):
            return
        if producer:
            rank.engine.fetched(fetch.job_id)
        else:
            rank.engine.fetch_failed(fetch.job_id)
        self.hall.stepper(rank.name).look(rank)

    # --- ends ------------------------------------------------------------------------------------------

    def lost(self, name: str) -> None:
        """A worker is gone, and all that ran there."""
        legs = list(dict.fromkeys(self._legs[name].values()))
        self._legs[name].clear()
        self._running[name].clear()
        for leg in legs:
            self._later(partial(self._fail, leg.life, Outcome.FAILED, "lost"))

    def _fail(self, life: Life, outcome: Outcome, reason: str) -> None:
        """A leg failed: the call is tried elsewhere, unless its client has seen something of it."""
        if life.record.outcome:
            return
        failed = life.leg.lease.worker if life.leg is not None else ""
        self._give_back(life, outcome, reason)
        record = life.record
        if record.first is not None or record.tries >= _TRIES:
            self._over(life, "broken" if record.first is not None else "failed")
            return
        record.tries += 1
        life.handover, life.leg = None, None
        life.request = structs.replace(
            life.request,
            handover=None,
            split=False,
            avoid=life.request.avoid | {failed},
            attempt=life.request.attempt + 1,
        )
        self._place(life)

    def _give_back(self, life: Life, outcome: Outcome, reason: str) -> None:
        leg = life.leg
        if leg is not None and not leg.lease.settled:
            self._drop(leg)
            self._by_worker[leg.lease.worker].release(leg.lease, outcome, reason)
        handover = life.handover
        if handover is not None and not handover.prefill.settled:
            self._by_worker[handover.producer].release(handover.prefill, Outcome.OK)
        self._prefilled.pop(life.request.id, None)
        self._awaited.pop(life.request.id, None)
        self._wake()

    def _drop(self, leg: Leg) -> None:
        """Nobody waits for the jobs of a leg any more."""
        name = leg.lease.worker
        for job_id in leg.open:
            if self._legs[name].pop(job_id, None) is not None and self.hall.is_up(name):
                self.hall.stepper(name).abort(leg.rank, job_id)
        leg.open.clear()
        self._running[name].pop(leg, None)

    def _over(self, life: Life, outcome: str) -> None:
        life.record.outcome = outcome
        if outcome != "ok":
            self._give_back(life, Outcome.CANCELLED, outcome)
        del self.lives[life.request.id]
        self._ended(life)
        self._wake()

    def _wake(self) -> None:
        for rounds in self.rounds:
            rounds.wake()

    def __repr__(self) -> str:
        return f"<Courses {len(self.lives)} lives>"


def _jobs(leg: Leg) -> list[Job]:
    """What is sent to the engine of a leg: a job per sequence."""
    call, prefill = leg.life.call, leg.prefill
    fetch = not prefill and (leg.life.handover is not None or leg.lease.prefill is not None)
    attempt = leg.life.request.attempt
    return [
        Job(
            id=f"{call.number}/{'p' if prefill else 'd'}{attempt}/{sequence}",
            prompt_token_ids=call.prompt(),
            max_tokens=1 if prefill else call.output_tokens,
            ignore_eos=True,
            sequence=sequence,
            retain=prefill,
            fetch=fetch,
            arrival=leg.life.record.arrived,
        )
        for sequence in range(1 if prefill else call.sequences)
    ]


def _request_of(job_id: str) -> str:
    return job_id.partition("/")[0]
