"""The laws of two pools that hand KV to each other, held through any story."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec import structs

from router.core.binding import Mode
from router.core.engine_stats import EngineStats
from router.core.errors import NoWorker, QueueFull
from router.core.health import Sign, State
from router.core.lease import Lease, Outcome
from router.core.policy import Choice
from router.core.pool import Pool
from router.core.request import Request
from router.core.worker import Worker, WorkerView
from tests.core.fleet_examples import MODEL, FirstWorker, NewestFirst, Nobody, request
from tests.core.pair_examples import Couple, couple, join

LIMIT, SLOTS, TRANSFERS, CAPACITY = 9, 3, 2, 1000


class LastWorker(FirstWorker):
    def pick(self, request: Request, workers: Sequence[WorkerView], now: float) -> Choice | None:
        return Choice(request.id, workers[-1].name, reason="last")


class Crowd:
    """A batch policy that wants everybody at one worker."""

    def admit(
        self, waiting: Sequence[Request], workers: Sequence[WorkerView], now: float
    ) -> Sequence[Choice]:
        return [Choice(one.id, workers[-1].name) for one in waiting]


class CrossedPair:
    """Wants ends that are far apart in the alphabet, whatever they can read of each other."""

    def pick_pair(
        self, request: Request, prefills: Sequence[WorkerView], decodes: Sequence[WorkerView], now: float
    ) -> Choice | None:
        return Choice(request.id, decodes[0].name, prefill_worker=prefills[-1].name)


POLICIES = (FirstWorker, LastWorker, Nobody, NewestFirst, Crowd, CrossedPair)


class CoupleStory(RuleBasedStateMachine):
    """Requests on their way through both pools, and everything that can happen to them."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.queued: dict[str, Request] = {}
        """Waiting in the pool where they start."""
        self.prefilling: list[Lease] = []
        self.pooled: dict[str, Request] = {}
        self.decoding: list[Lease] = []
        self.early: set[int] = set()
        """Leases at decode workers that were overdue when they were placed."""
        self.starts: dict[str, float] = {}
        self.count = 0

    @initialize(
        revisions=st.sampled_from(["111111", "111111", "112112", "122112"]),
        busy=st.integers(0, 5),
        mode=st.sampled_from(Mode),
        concurrent=st.booleans(),
        policy=st.sampled_from(POLICIES),
        prefill_policy=st.sampled_from([FirstWorker, LastWorker]),
    )
    def begin(
        self, revisions: str, busy: int, mode: Mode, concurrent: bool, policy: Any, prefill_policy: Any
    ) -> None:
        self.concurrent = concurrent
        self.couple: Couple = couple(
            "pqr", "def", policy=policy(), prefill_policy=prefill_policy(), mode=mode, slots=SLOTS,
            in_flight=LIMIT, max_transfers=TRANSFERS, kv_tokens=CAPACITY,
        )  # fmt: skip
        for name, revision in zip("pqrdef", revisions, strict=True):
            self.pool_of(name).roster.learn_revision(name, None, revision)
        for _ in range(busy if policy is not Nobody else 0):
            self.come(100, split=True, sequences=1, stream=True, avoid=set(), at_once=False)
            self.pool_some(1)
        self.prefill_round()
        self.decode_round()

    def tick(self, seconds: float = 0.1) -> float:
        self.now += seconds
        return self.now

    def request(self, **fields: Any) -> Request:
        """Numbered from one in every story, so that a story can be told again."""
        self.count += 1
        return request(f"r{self.count:03}", sequence=self.count, **fields)

    def pool_of(self, name: str) -> Pool:
        return self.couple.prefill if name in "pqr" else self.couple.decode

    def start_pool(self, asked: Request) -> Pool:
        return self.couple.prefill if asked.split and not self.concurrent else self.couple.decode

    # --- on the way ------------------------------------------------------------------------------------

    @rule(
        tokens=st.integers(0, 600), split=st.sampled_from([True, True, False]), sequences=st.integers(1, 4),
        stream=st.booleans(), avoid=st.sets(st.sampled_from("pqrdef"), max_size=2), at_once=st.booleans(),
    )  # fmt: skip
    def come(
        self, tokens: int, split: bool, sequences: int, stream: bool, avoid: set[str], at_once: bool
    ) -> None:
        asked = self.request(
            prompt_tokens=tokens, split=split, sequences=1 if split else sequences, stream=stream,
            avoid=frozenset(avoid), attempt=int(bool(avoid)), body_bytes=10,
        )  # fmt: skip
        pool = self.start_pool(asked)
        self.tick()
        lease = pool.place_now(asked, self.now) if at_once else None
        if lease is not None:
            self.took(pool, [lease])
            return
        try:
            pool.submit(asked, self.now)
        except (NoWorker, QueueFull):
            return
        self.queued[asked.id] = asked

    @precondition(lambda self: self.pooled)
    @rule()
    def let_them_wait(self) -> None:
        """Until a third of their leases is over."""
        self.tick(11.0)
        self.decode_round()

    @rule(count=st.integers(1, 3))
    def pool_some(self, count: int) -> None:
        """Several at once get as far as their hand-over, as they do in most stories."""
        for _ in range(count if not self.concurrent else 0):
            lease = self.couple.prefill.place_now(self.request(split=True), self.tick())
            if lease is not None:
                self.check_budgets([lease])
                self.wait_for_decode(self.couple.finish_prefill(lease, self.now), at_once=False)

    @precondition(lambda self: any(one.prefill is not None for one in self.decoding))
    @rule(data=st.data())
    def fail_transfer(self, data: st.DataObject) -> None:
        lease = data.draw(st.sampled_from([one for one in self.decoding if one.prefill is not None]))
        self.decoding.remove(lease)
        self.couple.decode.release(lease, Outcome.HANDOVER, self.tick())

    @rule()
    def prefill_round(self) -> None:
        self.took(self.couple.prefill, self.couple.prefill.assign(self.tick()))

    @rule()
    def decode_round(self) -> None:
        pool = self.couple.decode
        waiting = list(self.pooled.values())
        self.took(pool, pool.assign(self.tick()))
        for asked in waiting:
            handover = asked.handover
            assert handover is not None
            if self.now >= handover.overdue and pool.candidates(asked):
                assert asked.id not in self.pooled, "what was overdue was left waiting"

    def took(self, pool: Pool, leases: Sequence[Lease]) -> None:
        if pool is self.couple.prefill:
            self.check_budgets(leases)
        else:
            self.check_decode(leases)
            self.check_budgets([lease.prefill for lease in leases if self.runs_beside(lease)])
        for lease in leases:
            self.queued.pop(lease.request.id, None)
            self.pooled.pop(lease.request.id, None)
            if pool is self.couple.prefill:
                self.prefilling.append(lease)
            else:
                self.decoding.append(lease)

    @staticmethod
    def runs_beside(lease: Lease) -> bool:
        return lease.prefill is not None and lease.request.handover is None

    @precondition(lambda self: self.prefilling)
    @rule(data=st.data(), at_once=st.booleans())
    def finish_prefill(self, data: st.DataObject, at_once: bool) -> None:
        lease = data.draw(st.sampled_from(self.prefilling))
        self.prefilling.remove(lease)
        self.tick()
        if not lease.request.split or lease.worker not in self.couple.prefill.roster.workers:
            self.couple.prefill.release(lease, Outcome.OK, self.now)
            return
        self.wait_for_decode(self.couple.finish_prefill(lease, self.now), at_once)

    def wait_for_decode(self, asked: Request, at_once: bool) -> None:
        decode, handover = self.couple.decode, asked.handover
        assert handover is not None
        lease = decode.place_now(asked, self.now) if at_once else None
        if lease is not None:
            self.took(decode, [lease])
            return
        try:
            decode.submit(asked, self.now)
        except NoWorker:
            self.couple.prefill.release(handover.prefill, Outcome.OK, self.now)
            return
        self.pooled[asked.id] = asked

    @precondition(lambda self: self.decoding)
    @rule(data=st.data(), tokens=st.integers(0, 300), prompt=st.none() | st.integers(0, 600))
    def event(self, data: st.DataObject, tokens: int, prompt: int | None) -> None:
        lease = data.draw(st.sampled_from(self.decoding))
        total = lease.generated_tokens + tokens
        self.couple.decode.progress(lease, self.tick(), generated_tokens=total, prompt_tokens=prompt)
        worker = self.couple.decode.roster.workers.get(lease.worker)
        if worker is not None and worker.incarnation == lease.incarnation:
            assert lease.prefill is None or lease.prefill.settled, "a first event proves the hand-over"

    # --- the ends --------------------------------------------------------------------------------------

    @precondition(lambda self: self.decoding)
    @rule(data=st.data(), outcome=st.sampled_from(Outcome), twice=st.booleans())
    def end_decode(self, data: st.DataObject, outcome: Outcome, twice: bool) -> None:
        lease = data.draw(st.sampled_from(self.decoding))
        self.decoding.remove(lease)
        for _ in range(2 if twice else 1):
            self.couple.decode.release(lease, outcome, self.tick())
        assert lease.prefill is None or lease.prefill.settled

    @precondition(lambda self: self.prefilling)
    @rule(data=st.data(), outcome=st.sampled_from(Outcome))
    def end_prefill(self, data: st.DataObject, outcome: Outcome) -> None:
        lease = data.draw(st.sampled_from(self.prefilling))
        self.prefilling.remove(lease)
        self.couple.prefill.release(lease, outcome, self.tick())

    @precondition(lambda self: any(self.runs_beside(lease) for lease in self.decoding))
    @rule(data=st.data(), outcome=st.sampled_from(Outcome))
    def end_the_leg_beside(self, data: st.DataObject, outcome: Outcome) -> None:
        lease = data.draw(st.sampled_from([one for one in self.decoding if self.runs_beside(one)]))
        assert lease.prefill is not None
        self.couple.prefill.release(lease.prefill, outcome, self.tick())

    @precondition(lambda self: any(one.request.handover is not None for one in self.decoding))
    @rule(data=st.data(), at_once=st.booleans())
    def hand_back(self, data: st.DataObject, at_once: bool) -> None:
        lease = data.draw(st.sampled_from([one for one in self.decoding if one.request.handover is not None]))
        prefill = lease.prefill
        self.decoding.remove(lease)
        self.couple.decode.hand_back(lease, Outcome.UNREACHABLE, self.tick())
        if lease.request.handover is not None and prefill is not None and not prefill.settled:
            avoid = lease.request.avoid | {lease.worker}
            again = structs.replace(lease.request, avoid=avoid, attempt=lease.request.attempt + 1)
            self.wait_for_decode(again, at_once)

    @precondition(lambda self: self.queued or self.pooled)
    @rule(data=st.data())
    def leave_while_waiting(self, data: st.DataObject) -> None:
        chosen = data.draw(st.sampled_from(sorted(self.queued | self.pooled)))
        if chosen in self.queued:
            assert self.start_pool(self.queued.pop(chosen)).withdraw(chosen)
        else:
            assert self.couple.decode.withdraw(chosen)
            self.give_up(self.pooled.pop(chosen), Outcome.CANCELLED)

    def give_up(self, asked: Request, outcome: Outcome) -> None:
        assert asked.handover is not None
        self.couple.prefill.release(asked.handover.prefill, outcome, self.now)

    # --- the world -------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.1, 1.0, 5.0, 11.0, 31.0]))
    def time_passes(self, seconds: float) -> None:
        self.tick(seconds)
        for pool in (self.couple.prefill, self.couple.decode):
            for request_id, _ in pool.expire(self.now):
                if request_id in self.pooled:
                    self.give_up(self.pooled.pop(request_id), Outcome.OK)
                else:
                    del self.queued[request_id]
            pool.roster.forget_gone()

    @rule(name=st.sampled_from("pqrdef"), data=st.data())
    def trouble(self, name: str, data: st.DataObject) -> None:
        """One rule, so that most of a story is about requests."""
        happens = data.draw(
            st.sampled_from([self.sign, self.sign, self.scrape, self.upgrade, self.replace, self.strand])
        )
        happens(name, data)
        recovers = data.draw(st.sampled_from("pqrdef"))
        self.pool_of(recovers).roster.sign(recovers, Sign.RESUME, self.now)
        self.pool_of(recovers).roster.sign(recovers, Sign.GOOD, self.now)

    def sign(self, name: str, data: st.DataObject) -> None:
        sign = data.draw(st.sampled_from([s for s in Sign if s is not Sign.REMOVE]))
        self.pool_of(name).roster.sign(name, sign, self.tick())

    def scrape(self, name: str, data: st.DataObject) -> None:
        self.starts[name] = self.starts.get(name, 0.0) + data.draw(st.booleans())
        usage = data.draw(st.floats(0.0, 1.0))
        stats = EngineStats(taken=self.tick(), kv_usage=usage, process_start=self.starts[name])
        self.pool_of(name).observe(name, stats, self.now)

    def upgrade(self, name: str, data: st.DataObject) -> None:
        version = data.draw(st.sampled_from("12"))
        self.pool_of(name).roster.learn_revision(name, None, version)

    def replace(self, name: str, data: st.DataObject) -> None:
        pool, revision = self.pool_of(name), data.draw(st.sampled_from("12"))
        pool.roster.remove(name, self.tick())
        pool.roster.forget_gone()
        join(pool, name, self.now, revision=revision, slots=SLOTS, kv_tokens=CAPACITY)
        self.couple.partners.forget(name)

    def strand(self, name: str, data: st.DataObject) -> None:
        worker = self.couple.prefill.roster.workers.get(name)
        if worker is not None:
            tokens, until = data.draw(st.integers(1, 900)), self.now + data.draw(st.floats(0.0, 40.0))
            self.couple.partners.budget.strand(name, worker.incarnation, tokens, until)

    # --- the laws --------------------------------------------------------------------------------------

    def check_budgets(self, leases: Sequence[Lease | None]) -> None:
        """Nothing went to a prefill worker above its budget that held something of ours."""
        budget = self.couple.partners.budget
        later: dict[str, int] = {}
        for lease in reversed(leases):
            assert lease is not None
            worker = self.couple.producer(lease.worker)
            later[worker.name] = later.get(worker.name, 0) + lease.prompt_tokens
            held = worker.kv_tokens - later[worker.name]
            stranded = budget.stranded_tokens(worker.name, worker.incarnation, self.now)
            stats = worker.stats
            fresh = stats is not None and self.now - stats.taken <= budget.settings.stale_s
            polled = stats.kv_usage if fresh and stats is not None else None
            usage = max((held + stranded) / CAPACITY, polled or 0.0)
            count = sum(one is not None and one.worker == worker.name for one in leases)
            alone = worker.in_flight == count and not stranded
            assert usage <= budget.settings.high or alone, worker

    def check_decode(self, leases: Sequence[Lease]) -> None:
        late = self.couple.decode.eligible.late_binding
        overdue = {id(one) for one in leases if self.is_overdue(one.request)}
        self.early |= overdue
        for lease in leases:
            worker = self.couple.consumer(lease.worker)
            assert worker.state in (State.READY, State.DRAINING)
            assert worker.name not in lease.request.avoid
            self.check_pair(lease, worker)
            if late and id(lease) not in overdue:
                forced = sum(
                    one.request.sequences
                    for one in leases
                    if id(one) in overdue and one.worker == worker.name
                )
                assert worker.sequences - forced <= max(SLOTS, lease.request.sequences)

    def is_overdue(self, asked: Request) -> bool:
        return asked.handover is not None and self.now >= asked.handover.overdue

    def check_pair(self, lease: Lease, worker: Worker) -> None:
        """KV stays inside one revision, and off the pairs that rest, while another is possible."""
        partners = self.couple.partners
        assert (lease.prefill is not None) is (lease.request.split is True)
        if lease.prefill is None:
            return
        handover = lease.request.handover
        producer = self.couple.prefill.roster.workers.get(lease.prefill.worker)
        if handover is not None:
            assert worker.revision == handover.revision
            ends = (lease.prefill.worker, lease.prefill.incarnation)
            others = self.couple.decode.roster.of_revision(MODEL, handover.revision)
            free = [w for w in others if partners.pairs.allowed(ends, (w.name, w.incarnation), self.now)]
            assert worker in free or not free
        else:
            assert producer is not None
            assert producer.revision == worker.revision
            assert producer.name not in lease.request.avoid
            assert partners.allowed(producer, worker) or partners.all_aside(MODEL)

    def held(self) -> list[tuple[Pool, Lease]]:
        prefill, decode = self.couple.prefill, self.couple.decode
        legs = [(prefill, one) for one in self.prefilling]
        legs += [(prefill, one.handover.prefill) for one in self.pooled.values() if one.handover is not None]
        legs += [(decode, one) for one in self.decoding]
        legs += [(prefill, one.prefill) for one in self.decoding if one.prefill is not None]
        return [(pool, lease) for pool, lease in legs if not lease.settled]

    @invariant()
    def a_request_is_inside_once(self) -> None:
        if not hasattr(self, "couple"):
            return
        inside = len(self.prefilling) + len(self.pooled) + len(self.decoding)
        assert self.couple.in_flight.used == inside <= LIMIT
        queued = self.couple.prefill.queued + self.couple.decode.queued
        assert queued == len(self.queued) + len(self.pooled)

    @invariant()
    def mirrors_are_the_sums_of_their_leases(self) -> None:
        if not hasattr(self, "couple"):
            return
        held = self.held()
        for pool in (self.couple.prefill, self.couple.decode):
            assert pool.in_flight == sum(at is pool for at, _ in held)
            for worker in pool.roster:
                mine = [
                    one
                    for at, one in held
                    if at is pool and (one.worker, one.incarnation) == (worker.name, worker.incarnation)
                ]
                mirror = worker.mirror
                assert mirror.in_flight == len(mine)
                assert mirror.sequences == sum(one.request.sequences for one in mine)
                assert mirror.kv_tokens == sum(one.kv_tokens for one in mine)
                assert mirror.queued_tokens == sum(one.prompt_tokens for one in mine if not one.prefilled)
                assert mirror.remaining_tokens == sum(one.remaining_tokens for one in mine)
                assert mirror.transfers == sum(one.transferring for one in mine)
                assert mirror.keeping == sum(one.keeps for one in mine)
                assert mirror.streams == sum(one.streamed for one in mine)
                forced = sum(one.transferring and id(one) in self.early for one in mine)
                assert mirror.transfers - forced <= TRANSFERS

    def teardown(self) -> None:
        if not hasattr(self, "couple"):
            return
        for lease in self.decoding:
            self.couple.decode.release(lease, Outcome.CANCELLED, self.now)
        for lease in self.prefilling:
            self.couple.prefill.release(lease, Outcome.CANCELLED, self.now)
        for asked in self.pooled.values():
            self.couple.decode.withdraw(asked.id)
            self.give_up(asked, Outcome.CANCELLED)
        for asked in self.queued.values():
            self.start_pool(asked).withdraw(asked.id)
        for pool in (self.couple.prefill, self.couple.decode):
            for worker in pool.roster:
                worker.drift.lapse(self.now + 60.0)
        self.couple.assert_idle()


TestCoupleStory = CoupleStory.TestCase
TestCoupleStory.settings = hypothesis_settings(max_examples=120, stateful_step_count=50, deadline=None)
