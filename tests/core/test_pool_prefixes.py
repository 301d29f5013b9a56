"""Laws of a pool whose policy asks for prefixes: it is told of every lease, and others pay nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from router.core.engine_stats import EngineStats
from router.core.errors import InternalError
from router.core.lease import Lease, Outcome
from router.core.policy import Choice
from router.core.pool import Pool
from router.core.prefixes import PoolPrefixes, Prefixes
from router.core.prompt_key import PromptKey
from router.core.request import Request
from router.core.worker import Role, WorkerView
from tests.core.fleet_examples import FirstWorker, add_worker, assert_idle, joined, pool, request

TEXT = "What is asked again and again, at some length. " * 10


class Following(FirstWorker):
    """Goes where the prefix is, and remembers what it was told."""

    def __init__(self) -> None:
        super().__init__()
        self.prefixes: Prefixes | None = None
        self.first_outputs: list[tuple[str, float]] = []
        self.missed: list[int] = []

    def bind(self, prefixes: Prefixes) -> None:
        self.prefixes = prefixes

    def pick(self, request: Request, workers: Sequence[WorkerView], now: float) -> Choice | None:
        assert self.prefixes is not None
        match = self.prefixes.matched(request)
        best = max(workers, key=lambda worker: match.on(worker.name))
        return Choice(request.id, best.name, reason="follow")

    def committed(self, request: Request, choice: Choice, now: float, *, retry: bool) -> None:
        assert self.prefixes is not None
        match = self.prefixes.matched(request)
        self.missed.append(match.prompt_tokens - match.on(choice.worker))

    def started(self, lease: Lease, now: float) -> None:
        self.first_outputs.append((lease.request.id, now))


def asking(text: str = TEXT, **fields: Any) -> Request:
    return request(key=PromptKey.of_text("m", text), **fields)


def placed(made: Pool, one: Request, now: float = 1.0) -> Lease:
    lease = made.place_now(one, now)
    assert lease is not None
    return lease


def prefixes(made: Pool) -> PoolPrefixes:
    assert made.chooser.prefixes is not None
    return made.chooser.prefixes


def holders(made: Pool, text: str = TEXT) -> set[str]:
    return {name for name, held in prefixes(made).matched(asking(text)).tokens.items() if held > 50}


def test_only_a_policy_that_asks_has_prefixes() -> None:
    assert pool().chooser.prefixes is None
    assert pool(policy=Following()).chooser.prefixes is not None


def test_what_was_dispatched_is_found_at_once_and_stays_after_the_answer() -> None:
    policy = Following()
    made = pool("a", "b", policy=policy)
    first = placed(made, asking())
    assert first.worker == "a"
    assert holders(made) == {"a"}
    made.progress(first, 2.0, generated_tokens=1)
    made.progress(first, 3.0, generated_tokens=2)
    made.release(first, Outcome.OK, 4.0)
    assert holders(made) == {"a"}
    assert placed(made, asking()).worker == "a"
    assert policy.first_outputs == [(first.request.id, 2.0)]
    assert policy.missed == [100, 1]


@pytest.mark.parametrize("outcome", [o for o in Outcome if o is not Outcome.OK])
def test_what_was_never_answered_is_not_held(outcome: Outcome) -> None:
    made = pool("a", "b", policy=Following())
    made.release(placed(made, asking()), outcome, 2.0)
    assert holders(made) == set()
    assert_idle(made)


def test_cached_tokens_are_learned_from_what_the_engine_said_last() -> None:
    made = pool("a", policy=Following())
    made.release(placed(made, asking()), Outcome.OK, 1.5)
    lease = placed(made, asking())
    made.progress(lease, 2.0, generated_tokens=1)
    made.progress(lease, 3.0, generated_tokens=2, prompt_tokens=120, cached_tokens=0)
    made.release(lease, Outcome.OK, 4.0)
    holder = prefixes(made).index.holder("a")
    assert holder is not None
    assert holder.beliefs.samples == 1
    assert (lease.prompt_tokens, lease.cached_tokens) == (120, 0)


def test_a_restarted_worker_holds_nothing_from_the_scrape_on_that_shows_it() -> None:
    made = pool("a", policy=Following())
    made.release(placed(made, asking()), Outcome.OK, 2.0)
    made.observe("a", EngineStats(taken=3.0, process_start=100.0), 3.0)
    assert holders(made) == {"a"}
    made.observe("a", EngineStats(taken=4.0, process_start=200.0), 4.0)
    assert holders(made) == set()


def test_a_worker_that_was_removed_is_forgotten_with_the_next_tick() -> None:
    made = pool("a", "b", policy=Following())
    made.release(placed(made, asking()), Outcome.OK, 2.0)
    made.roster.remove("a", 3.0)
    made.expire(3.0)
    assert holders(made) == set()
    assert prefixes(made).index.workers == {"b"}


def test_another_policy_that_asks_finds_what_is_held_and_one_that_does_not_ends_it() -> None:
    made = pool("a", "b", policy=Following())
    running = placed(made, asking())
    made.use(Following(), "another")
    assert placed(made, asking()).worker == "a"
    made.use(FirstWorker(), "first")
    assert made.chooser.prefixes is None
    made.release(running, Outcome.OK, 2.0)
    made.use(Following(), "again")
    assert holders(made) == set()


def test_a_failure_to_believe_leaves_nothing_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    made = pool("a", policy=Following())

    def broken(*_: object) -> None:
        raise InternalError("no room for a belief")

    monkeypatch.setattr(PoolPrefixes, "charged", broken)
    with pytest.raises(InternalError, match="no room"):
        made.place_now(asking(), 1.0)
    assert_idle(made)


def test_when_both_legs_run_at_once_each_side_believes_its_own() -> None:
    decode, prefill = joined(
        pool(policy=Following(), role=Role.DECODE, ready=False),
        pool(policy=Following(), role=Role.PREFILL, ready=False),
    )
    for made, name, role in ((decode, "d", Role.DECODE), (prefill, "p", Role.PREFILL)):
        made.roster.remove("a", 0.0)
        made.roster.forget_gone()
        add_worker(made, name, role=role)
    lease = placed(decode, asking(split=True))
    assert (lease.worker, lease.prefill and lease.prefill.worker) == ("d", "p")
    assert (holders(decode), holders(prefill)) == ({"d"}, {"p"})
    decode.release(lease, Outcome.HANDOVER, 2.0)
    assert holders(decode) == set()
