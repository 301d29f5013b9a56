"""Laws of the local queue: who is held back, who starts next, and that nothing stays."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.errors import QueueFull
from router.core.health import Sign
from router.core.lease import Lease, Outcome
from router.core.local_queue import LocalQueue, LocalQueueRules, Order
from router.core.pool import Pool
from router.core.prompt_key import PromptKey
from router.core.worker import Role
from router.policies import build
from tests.core.fleet_examples import add_worker, assert_idle, pool, request

TOKENS = 100


def held_back(order: Order = Order.PRIORITY_GROUPS, at_most: int | None = 2, **rules: Any) -> Pool:
    """A pool of one worker that is sent so many at a time."""
    return pool("a", local=LocalQueueRules(order, at_most, **rules))


def ask(made: Pool, text: str = "", now: float = 0.0, **fields: Any) -> tuple[Lease, bool]:
    """A request that is placed, and whether it may be sent at once."""
    key = PromptKey.of_text("m", text) if text else None
    lease = made.place_now(request(prompt_tokens=TOKENS, key=key, **fields), now)
    assert lease is not None
    return lease, made.local.enter(lease, made.roster.workers[lease.worker], now)


def due(made: Pool, now: float = 0.0) -> list[tuple[Lease, bool]]:
    return list(made.local.due(made.roster.workers, now))


def end(made: Pool, *leases: Lease) -> None:
    for lease in leases:
        made.local.leave(lease)
        made.release(lease, Outcome.OK, 0.0)


def prompt(cached: int, end_of_it: str = "") -> str:
    """Of 400 letters, so many per cent like all others."""
    return "s" * 4 * cached + (end_of_it or chr(65 + cached % 26)) * (400 - 4 * cached)


# --- who is held back ----------------------------------------------------------------------------------


def test_what_is_beyond_the_bound_waits_and_starts_when_another_one_is_done() -> None:
    made = held_back(Order.FCFS)
    asked = [ask(made) for _ in range(5)]
    assert [goes for _, goes in asked] == [True, True, False, False, False]
    assert made.local.depth("a") == 3
    assert made.roster.workers["a"].in_flight == 5, "what waits here is charged"
    assert due(made) == []
    end(made, asked[1][0])
    assert due(made) == [(asked[2][0], True)]
    end(made, asked[0][0], asked[2][0])
    assert due(made) == [(asked[3][0], True), (asked[4][0], True)]
    end(made, asked[3][0], asked[4][0])
    assert len(made.local) == 0
    assert_idle(made)


def test_nobody_passes_those_who_wait_even_when_there_is_room_just_now() -> None:
    made = held_back(Order.FCFS)
    first, second, third = (ask(made)[0] for _ in range(3))
    end(made, first)
    late, goes = ask(made)
    assert not goes
    assert due(made) == [(third, True)]
    end(made, second)
    assert due(made) == [(late, True)]


@pytest.mark.parametrize(("slots", "sent"), [(3, 5), (None, 20)])
def test_by_default_a_worker_is_sent_two_more_than_its_slots_and_without_slots_all(
    slots: int | None, sent: int
) -> None:
    made = pool("a", slots=slots, local=LocalQueueRules(Order.FCFS))
    assert sum(ask(made)[1] for _ in range(20)) == sent


@pytest.mark.parametrize(
    ("policy", "holds"), [("preble", True), ("cache_aware", False), ("least_work", False)]
)
def test_without_an_order_preble_has_its_groups_and_others_hold_nothing_back(
    policy: str, holds: bool
) -> None:
    made = pool("a", policy=build(policy, {}, 1), local=LocalQueueRules(max_dispatched=1))
    assert made.local.order is (Order.PRIORITY_GROUPS if holds else Order.OFF)
    assert [ask(made)[1] for _ in range(3)] == [True, not holds, not holds]


def test_a_policy_that_holds_nothing_back_lets_all_go_that_another_one_held() -> None:
    made = pool("a", policy=build("preble", {}, 1), local=LocalQueueRules(max_dispatched=1))
    leases = [ask(made)[0] for _ in range(4)]
    made.use(build("cache_aware", {}, 1), "cache_aware")
    assert due(made) == [(lease, True) for lease in leases[1:]]


def test_kv_that_is_only_kept_takes_no_room() -> None:
    made = pool(role=Role.PREFILL, local=LocalQueueRules(Order.FCFS, 1))
    add_worker(made, "a", role=Role.PREFILL)
    first, second = (ask(made, split=True)[0] for _ in range(2))
    assert due(made) == []
    made.progress(first, 0.0, generated_tokens=1)
    assert first.keeps
    assert due(made) == [(second, True)]


def test_no_more_than_so_many_wait() -> None:
    made = held_back(max_held=2)
    for _ in range(4):
        ask(made)
    with pytest.raises(QueueFull, match="turn"):
        ask(made)


# --- whose worker is lost --------------------------------------------------------------------------------


@pytest.mark.parametrize("sign", [Sign.REFUSED, Sign.BAD, Sign.STALLED, Sign.REMOVE])
def test_who_waits_for_a_worker_that_takes_nobody_is_let_go_of_without_being_sent(sign: Sign) -> None:
    made = held_back(Order.FCFS)
    add_worker(made, "b")
    leases = [ask(made, pinned="a")[0] for _ in range(2)] + [ask(made)[0] for _ in range(2)]
    made.roster.sign("a", sign, 0.0)
    assert due(made) == [(lease, False) for lease in leases[2:]]


def test_a_drained_worker_still_gets_what_was_given_to_it() -> None:
    made = held_back(Order.FCFS)
    leases = [ask(made)[0] for _ in range(3)]
    made.roster.sign("a", Sign.DRAIN, 0.0)
    end(made, leases[0])
    assert due(made) == [(leases[2], True)]


def test_what_only_a_silent_worker_can_serve_waits_for_it() -> None:
    made = held_back(Order.FCFS)
    add_worker(made, "b")
    leases = [ask(made, pinned="a")[0] for _ in range(3)]
    made.roster.sign("a", Sign.STALLED, 0.0)
    assert due(made) == []
    end(made, leases[0])
    assert due(made) == [(leases[2], True)]


def test_another_incarnation_is_another_worker() -> None:
    made = held_back(Order.FCFS)
    leases = [ask(made)[0] for _ in range(3)]
    made.roster.workers["a"].incarnation += 1
    assert due(made) == [(leases[2], False)]


# --- in which order --------------------------------------------------------------------------------------


def test_what_is_cached_more_starts_first_and_equals_as_they_came() -> None:
    made = held_back(at_most=1)
    first, _ = ask(made, prompt(99))
    waiting = {
        name: ask(made, prompt(share, name))[0] for name, share in (("a", 0), ("b", 63), ("c", 90), ("d", 92))
    }
    end(made, first)
    started = []
    while made.local.depth("a"):
        ((lease, goes),) = due(made)
        assert goes
        started.append(next(name for name, one in waiting.items() if one is lease))
        end(made, lease)
    assert started == ["c", "d", "b", "a"]


def test_the_hit_ratio_is_that_of_the_moment_when_a_turn_comes() -> None:
    made = held_back(at_most=1)
    first, _ = ask(made, prompt(10, "x"))
    cold, warm = ask(made, prompt(10, "y"))[0], ask(made, prompt(60, "z"))[0]
    # When they came, neither had more than the first tenth there; now the worker was sent what `warm` begins
    # with.
    end(made, first)
    (chosen, _), *_ = due(made)
    assert chosen is cold
    last, _ = ask(made, prompt(60, "w"))
    end(made, cold)
    ((chosen, _),) = due(made)
    assert chosen is warm
    later = ask(made, prompt(0, "v"))[0]
    end(made, warm)
    ((chosen, _),) = due(made)
    assert chosen is last, "six tenths of it were sent with the one before"
    end(made, last)
    assert due(made) == [(later, True)]


def test_a_prompt_that_waits_is_no_hit_of_its_own() -> None:
    made = held_back(at_most=1)
    first, _ = ask(made, prompt(0, "x"))
    cold, other = ask(made, prompt(0, "y"))[0], ask(made, prompt(0, "y"))[0]
    ask(made, prompt(0, "x"))
    end(made, first)
    ((chosen, _),) = due(made)
    assert chosen not in (cold, other)


def test_whoever_has_waited_long_goes_before_all_others() -> None:
    made = held_back(at_most=1, ageing_s=5.0)
    first, _ = ask(made, prompt(99), now=0.0)
    cold, _ = ask(made, prompt(0, "y"), now=1.0)
    ask(made, prompt(99), now=2.0)
    end(made, first)
    ((chosen, _),) = due(made, now=6.0)
    assert chosen is cold


def test_whoever_is_overdue_is_named() -> None:
    made = held_back(at_most=1)
    ask(made)
    early, late = ask(made, now=1.0)[0], ask(made, now=5.0)[0]
    short = ask(made, now=5.0, deadline=6.0)[0]
    assert made.local.overdue(30.0, 30.9) == [short]
    assert made.local.overdue(30.0, 31.0) == [early, short]
    assert set(made.local.overdue(30.0, 35.0)) == {early, late, short}


def test_a_prompt_that_waits_is_not_expected_in_the_engine() -> None:
    made = held_back(at_most=1)
    leases = [ask(made)[0] for _ in range(3)]
    assert made.local.tokens("a") == 2 * TOKENS
    end(made, *leases)
    assert made.local.tokens("a") == 0


def test_what_was_sent_is_forgotten_with_its_worker() -> None:
    made = held_back()
    end(made, ask(made, prompt(50))[0])
    assert made.local._sent.workers == {"a"}
    made.roster.remove("a", 0.0)
    made.roster.forget_gone()
    made.expire(1.0)
    assert made.local._sent.workers == frozenset()


class Act:
    """A worker, and who runs there and who waits."""

    def __init__(self, order: Order, bound: int) -> None:
        self.pool = held_back(order, bound)
        self.running: list[Lease] = []
        self.waiting: list[Lease] = []

    def ask(self, number: int, now: float) -> None:
        lease, goes = ask(self.pool, prompt(10 * number), now=now)
        (self.running if goes else self.waiting).append(lease)

    def end(self, number: int, now: float) -> None:
        if self.running:
            end(self.pool, self.running.pop(number % len(self.running)))

    def leave(self, number: int, now: float) -> None:
        if self.waiting:
            end(self.pool, self.waiting.pop(number % len(self.waiting)))

    def look(self, number: int, now: float) -> None:
        for lease, goes in due(self.pool, now):
            assert goes
            self.waiting.remove(lease)
            self.running.append(lease)


@given(
    st.lists(st.tuples(st.sampled_from(["ask", "end", "leave", "look"]), st.integers(0, 9)), max_size=60),
    st.sampled_from([Order.FCFS, Order.PRIORITY_GROUPS]),
    st.integers(1, 4),
)
def test_a_worker_never_runs_more_than_its_bound_and_everybody_starts(
    steps: list[tuple[str, int]], order: Order, bound: int
) -> None:
    act = Act(order, bound)
    for now, (step, number) in enumerate(steps):
        getattr(act, step)(number, float(now))
        assert len(act.running) <= bound
        assert act.pool.local.depth("a") == len(act.waiting)
    for _ in range(len(act.waiting) + 1):
        act.look(0, 1e3)
        end(act.pool, *act.running)
        act.running.clear()
    assert not act.waiting
    assert len(act.pool.local) == 0
    assert act.pool.local._rounds == {}
    assert_idle(act.pool)


def test_its_state_can_be_read() -> None:
    made = held_back(at_most=1)
    for _ in range(3):
        ask(made)
    assert repr(made.local) == "<LocalQueue priority_groups [2 held at 1 workers]>"
    assert isinstance(made.local, LocalQueue)
