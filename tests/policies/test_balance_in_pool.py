"""Laws of BalanceRoute in a pool, whatever comes, ends, drains and restarts."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.health import Sign, State
from router.core.lease import Lease, Outcome
from router.core.pool import Pool
from router.core.request import Request
from router.core.roster import Roster
from router.core.worker import Worker
from router.policies import build
from tests.core.fleet_examples import MODEL, assert_idle, pool, request

RESERVE = 0.05
AGE_S = 2.0
MOST = 2
"""Younger requests that may pass one."""

Step = tuple[str, int, int]
"""What happens, to whom or how long, and how much."""

steps = st.lists(
    st.one_of(
        st.tuples(st.just("come"), st.integers(1, 8_500), st.just(1)),
        st.tuples(st.just("come"), st.integers(1, 3_000), st.integers(1, 2)),
        st.tuples(st.just("end"), st.integers(0, 7), st.integers(0, 400)),
        st.tuples(st.just("write"), st.integers(0, 7), st.integers(1, 400)),
        st.tuples(st.just("wait"), st.integers(1, 1_500), st.just(0)),
        st.tuples(st.sampled_from(["drain", "resume", "restart"]), st.integers(0, 1), st.just(0)),
    ),
    min_size=20,
    max_size=80,
)
policies = pytest.mark.parametrize("name", ["balance_route_0", "balance_route_h"])


@dataclass
class Play:
    """A pool of three ranks, and everything that was placed in it, in order."""

    made: Pool
    now: float = 100.0
    sequence: int = 0
    came: dict[str, int] = field(default_factory=dict)
    waiting: dict[str, Request] = field(default_factory=dict)
    held: list[Lease] = field(default_factory=list)
    placed: list[tuple[str, str, str]] = field(default_factory=list)
    passed: list[float] = field(default_factory=list)
    """When somebody younger was placed, since the oldest that waits is the oldest."""

    def do(self, step: Step) -> None:
        what, which, much = step
        if what == "come":
            self.come(which, much)
        elif what == "wait":
            self.now += which / 1_000
        elif what in ("end", "write") and self.held:
            lease = self.held[which % len(self.held)]
            if what == "write":
                self.made.progress(lease, self.now, generated_tokens=lease.generated_tokens + much)
            else:
                self.end(lease, lease.generated_tokens + much)
        elif what not in ("end", "write"):
            self.change(what, f"w{which}")
        self.round()

    def come(self, prompt_tokens: int, sequences: int) -> None:
        self.sequence += 1
        self.now += 0.001  # nobody comes at the very same time
        one = request(
            f"r{self.sequence}",
            sequence=self.sequence,
            prompt_tokens=prompt_tokens,
            sequences=sequences,
            arrived=self.now,
            tenant="t",
        )
        self.made.submit(one, self.now)
        self.waiting[one.id] = one
        self.came[one.id] = self.sequence

    def end(self, lease: Lease, tokens: int) -> None:
        self.held.remove(lease)
        self.made.progress(lease, self.now, generated_tokens=tokens)
        self.made.release(lease, Outcome.OK, self.now)

    def change(self, what: str, name: str) -> None:
        roster = self.made.roster
        if what == "restart":
            roster._reincarnate(roster.workers[name], self.now, "restarted")
        elif what == "drain":
            roster.sign(name, Sign.DRAIN, self.now)
        else:
            roster.sign(name, Sign.RESUME, self.now)
            roster.sign(name, Sign.GOOD, self.now)

    def round(self) -> None:
        due = self.due()
        before = {worker.name: (worker.kv_tokens, worker.in_flight) for worker in self.made.roster}
        leases = self.made.assign(self.now)
        assert due is None or due in [lease.request.id for lease in leases]
        for lease in leases:
            self.check_room(lease, before[lease.worker])
            self.note(lease.request)
            worker = self.made.roster.workers[lease.worker]
            kv_tokens, in_flight = before[lease.worker]
            before[lease.worker] = (kv_tokens + lease.kv_tokens, in_flight + 1)
            assert lease.incarnation == worker.incarnation
            self.placed.append((lease.request.id, lease.worker, lease.reason))
            self.held.append(lease)
        for worker in self.made.roster:
            assert worker.slots is not None
            assert worker.sequences <= worker.slots or worker.in_flight == 1  # a wide one, alone

    def due(self) -> str | None:
        """The oldest that waits, when it was passed by too many or too long ago, and somebody has room."""
        oldest = next(iter(self.waiting.values()), None)
        if oldest is None or not self.passed:
            return None
        aged = len(self.passed) >= MOST or self.now - self.passed[0] >= AGE_S
        return oldest.id if aged and any(has_room(worker, oldest) for worker in self.made.roster) else None

    def check_room(self, lease: Lease, before: tuple[int, int]) -> None:
        """Nobody is given more KV than it has, its reserve included, unless it is given nothing else."""
        kv_tokens, in_flight = before
        capacity = self.made.roster.workers[lease.worker].kv_capacity_tokens
        assert capacity is not None
        if lease.reason != "oversized":
            bound = (1.0 - RESERVE) * capacity if in_flight or kv_tokens else capacity
            assert kv_tokens + lease.prompt_tokens <= bound

    def note(self, one: Request) -> None:
        """It was placed: the oldest that waits was passed, or is another one now."""
        del self.waiting[one.id]
        oldest = next(iter(self.waiting.values()), None)
        if oldest is None or self.came[one.id] < self.came[oldest.id]:
            self.passed = []
        else:
            self.passed.append(self.now)


def has_room(worker: Worker, one: Request) -> bool:
    capacity, free = worker.kv_capacity_tokens, worker.free_slots
    assert capacity is not None
    assert free is not None
    if worker.state is not State.READY:
        return False
    beside = worker.kv_tokens + one.prompt_tokens <= (1.0 - RESERVE) * capacity and one.sequences <= free
    return beside or (worker.mirror.idle and one.prompt_tokens <= capacity)


def ranks(name: str) -> Pool:
    roster = Roster(min_share=0.0)
    params = {"age_s": AGE_S, "max_overtaken": MOST, "kv_reserve": RESERVE}
    made = pool(
        "gone",
        policy=build(name, params, 3),
        in_flight=1_000,
        queued_bytes=10**6,
        roster=roster,
        late_binding=True,
        max_queued=1_000,
        max_wait_s=1e9,
    )
    roster.remove("gone", 0.0)
    roster.forget_gone()
    for index, (slots, capacity) in enumerate(((1, 4_000), (2, 8_000), (1, 6_000))):
        worker = Worker(
            name=f"w{index}",
            slots=slots,
            configured_kv_tokens=capacity,
            barrier_group="g",
            models=frozenset({MODEL}),
        )
        roster.add(worker, 0.0)
        roster.sign(worker.name, Sign.GOOD, 0.0)
    return made


def play(name: str, script: list[Step]) -> Play:
    act = Play(ranks(name))
    for step in script:
        act.do(step)
    return act


@policies
@given(script=steps)
@settings(max_examples=60)
def test_no_rank_is_above_its_slots_or_its_kv_and_who_was_passed_too_often_is_next(
    name: str, script: list[Step]
) -> None:
    play(name, script)


@policies
@given(script=steps)
@settings(max_examples=40)
def test_everybody_is_served_in_the_end_and_idle_means_zero(name: str, script: list[Step]) -> None:
    act = play(name, script)
    for index in range(3):
        act.do(("resume", index, 0))
    for _ in range(len(script) * 2):
        if not act.held and not act.waiting:
            break
        act.now += 0.1
        act.do(("end", 0, 10))
    assert act.waiting == {}
    assert len(act.placed) == act.sequence
    assert_idle(act.made)
    assert len(act.made.ledger.forecasts) == 0


@policies
@given(script=steps)
@settings(max_examples=20)
def test_decisions_repeat_under_a_seed(name: str, script: list[Step]) -> None:
    assert play(name, script).placed == play(name, script).placed


@policies
def test_room_is_made_for_a_long_prompt_only_where_it_can_ever_fit(name: str) -> None:
    """Only the second rank is large enough, and most of it is taken. The third is roomier, but too small;
    short prompts come faster than they go."""
    act = Play(ranks(name))
    for _ in range(4):
        act.come(3_000, 1)
    act.round()
    act.now += 0.01
    act.come(7_000, 1)
    long = f"r{act.sequence}"
    for _ in range(60):
        act.now += 0.1
        act.do(("come", 1_200, 1))
        for rank, left in (("w2", 0), ("w1", 1)):
            for lease in [lease for lease in act.held if lease.worker == rank][left:]:
                act.end(lease, 1)
        if long not in act.waiting:
            break
        (first,) = [lease for lease in act.held if lease.worker == "w1"]
        if act.now > 104.0:
            act.end(first, 1)
    assert (long, "w1") in [(one, rank) for one, rank, _ in act.placed]
