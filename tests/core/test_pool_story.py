"""Whatever happens to a pool in whatever order: accounts hold, and return to zero."""

from __future__ import annotations

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from router.core.engine_stats import EngineStats
from router.core.errors import NoWorker, QueueFull
from router.core.health import Sign
from router.core.lease import Lease, Outcome
from router.core.worker import Worker
from tests.core.fleet_examples import (
    MODEL,
    add_worker,
    assert_idle,
    pool,
    request,
)


class PoolStory(RuleBasedStateMachine):
    """Any interleaving of what can happen to a pool keeps its accounts."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.held: list[Lease] = []
        self.waiting: set[str] = set()
        self.starts = dict.fromkeys("abc", 1.0)

    @initialize(late=st.booleans())
    def begin(self, late: bool) -> None:
        self.pool = pool("a", "b", "c", slots=3, late_binding=late, in_flight=7, max_queued=10)

    def tick(self) -> float:
        self.now += 1.0
        return self.now

    @rule(
        tokens=st.integers(0, 5000),
        sequences=st.integers(1, 5),
        stream=st.booleans(),
        avoid=st.sets(st.sampled_from("abc"), max_size=2),
    )
    def submit(self, tokens: int, sequences: int, stream: bool, avoid: set[str]) -> None:
        made = request(prompt_tokens=tokens, sequences=sequences, stream=stream, avoid=frozenset(avoid))
        try:
            self.pool.submit(made, self.tick())
        except (QueueFull, NoWorker):
            return
        self.waiting.add(made.id)

    @rule(tokens=st.integers(0, 5000), sequences=st.integers(1, 5), stream=st.booleans())
    def place_now(self, tokens: int, sequences: int, stream: bool) -> None:
        made = request(prompt_tokens=tokens, sequences=sequences, stream=stream)
        lease = self.pool.place_now(made, self.tick())
        if lease is not None:
            assert not self.waiting, "somebody was overtaken"
            self.held.append(lease)

    @rule()
    def assign(self) -> None:
        leases = self.pool.assign(self.tick())
        placed = {lease.request.id for lease in leases}
        assert len(placed) == len(leases), "a request was placed twice"
        assert placed <= self.waiting, "a request was placed that did not wait"
        self.waiting -= placed
        self.held += leases

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        chosen = data.draw(st.sampled_from(sorted(self.waiting)))
        assert self.pool.withdraw(chosen)
        self.waiting.discard(chosen)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), tokens=st.integers(0, 3000), prompt=st.none() | st.integers(0, 6000))
    def progress(self, data: st.DataObject, tokens: int, prompt: int | None) -> None:
        lease = data.draw(st.sampled_from(self.held))
        total = lease.generated_tokens + tokens
        self.pool.progress(lease, self.tick(), generated_tokens=total, prompt_tokens=prompt)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), outcome=st.sampled_from(Outcome), twice=st.booleans())
    def release(self, data: st.DataObject, outcome: Outcome, twice: bool) -> None:
        lease = data.draw(st.sampled_from(self.held))
        for _ in range(2 if twice else 1):
            self.pool.release(lease, outcome, self.tick())
        self.held.remove(lease)

    @rule(name=st.sampled_from("abc"), sign=st.sampled_from([s for s in Sign if s is not Sign.REMOVE]))
    def sign(self, name: str, sign: Sign) -> None:
        self.pool.roster.sign(name, sign, self.tick())

    @rule(name=st.sampled_from("abc"), restarted=st.booleans())
    def scrape(self, name: str, restarted: bool) -> None:
        self.starts[name] += restarted
        self.pool.roster.observe(
            name, EngineStats(taken=self.now, process_start=self.starts[name]), self.tick()
        )

    @rule(name=st.sampled_from("abc"))
    def replace_worker(self, name: str) -> None:
        self.pool.roster.remove(name, self.tick())
        self.pool.roster.forget_gone()
        self.pool.roster.add(Worker(name=name, slots=3, models=frozenset({MODEL})), self.now)

    @rule(seconds=st.floats(0, 60))
    def expire(self, seconds: float) -> None:
        self.now += seconds
        for request_id, _ in self.pool.expire(self.now):
            self.waiting.discard(request_id)

    @invariant()
    def accounts_agree(self) -> None:
        if not hasattr(self, "pool"):
            return
        assert self.pool.queued == len(self.waiting)
        assert self.pool.in_flight == len(self.held) <= 7
        for worker in self.pool.roster:
            mine = [
                lease
                for lease in self.held
                if lease.worker == worker.name and lease.incarnation == worker.incarnation
            ]
            assert worker.in_flight == len(mine)
            assert worker.sequences == sum(lease.request.sequences for lease in mine)
            assert worker.kv_tokens == sum(lease.kv_tokens for lease in mine)
            assert worker.queued_tokens == sum(lease.prompt_tokens for lease in mine if not lease.prefilled)
            assert worker.remaining_tokens == sum(lease.remaining_tokens for lease in mine)

    def teardown(self) -> None:
        if not hasattr(self, "pool"):
            return
        for lease in self.held:
            self.pool.release(lease, Outcome.CANCELLED, self.now)
        for request_id in self.waiting:
            self.pool.withdraw(request_id)
        assert_idle(self.pool)


TestPoolStory = PoolStory.TestCase


TestPoolStory.settings = hypothesis_settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_slots_are_never_overfilled_by_single_sequences() -> None:
    made = pool("a", "b", slots=4, late_binding=True)
    for _ in range(20):
        made.submit(request(), 1.0)
    held = made.assign(1.0)
    add_worker(made, "c", slots=4)
    held += made.assign(2.0)
    assert all(worker.free_slots == 0 for worker in made.roster)
    assert len(held) == 12
