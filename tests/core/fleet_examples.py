"""Examples that the tests of the core share: pools with workers, requests, policies with a fixed choice."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from router.core.binding import Mode
from router.core.budget import Budget
from router.core.health import Sign
from router.core.partners import Partners
from router.core.policy import Choice
from router.core.pool import Pool, PoolBudgets, PoolRules
from router.core.prefill_budget import PrefillBudget
from router.core.request import Api, Request
from router.core.roster import Roster
from router.core.worker import Role, Worker, WorkerView

MODEL = "m"
_numbers = itertools.count(1)


class FirstWorker:
    """Picks the first worker offered: no policy for production, but the simplest one to reason about."""

    def __init__(self) -> None:
        self.committed_requests: list[tuple[str, bool]] = []

    def pick(self, request: Request, workers: Sequence[WorkerView], now: float) -> Choice | None:
        return Choice(request.id, workers[0].name, cost=1.0, reason="first")

    def committed(self, request: Request, choice: Choice, now: float, *, retry: bool) -> None:
        self.committed_requests.append((request.id, retry))


class Nobody:
    """Leaves every request queued."""

    def pick(self, request: Request, workers: Sequence[WorkerView], now: float) -> Choice | None:
        return None


class FirstPair:
    def pick_pair(
        self, request: Request, prefills: Sequence[WorkerView], decodes: Sequence[WorkerView], now: float
    ) -> Choice | None:
        return Choice(request.id, decodes[0].name, prefill_worker=prefills[0].name, reason="pair")


class NewestFirst:
    """A batch policy that places only the youngest waiting request."""

    def admit(
        self, waiting: Sequence[Request], workers: Sequence[WorkerView], now: float
    ) -> Sequence[Choice]:
        return [Choice(waiting[-1].id, workers[0].name, reason="newest")]


def request(request_id: str = "", **fields: Any) -> Request:
    number = next(_numbers)
    defaults: dict[str, Any] = {
        "id": request_id or f"r{number}",
        "sequence": number,
        "model": MODEL,
        "arrived": 0.0,
        "api": Api.CHAT,
        "prompt_tokens": 100,
    }
    return Request(**(defaults | fields))


def pool(
    *names: str,
    policy: object | None = None,
    in_flight: int = 100,
    queued_bytes: int = 10_000,
    slots: int | None = None,
    ready: bool = True,
    roster: Roster | None = None,
    **rules: object,
) -> Pool:
    if rules.pop("late_binding", False):
        rules["mode"] = Mode.LATE
    made = Pool(
        PoolRules(**{"name": "p", **rules}),  # type: ignore[arg-type]
        policy or FirstWorker(),  # type: ignore[arg-type]
        PoolBudgets(Budget("in flight", in_flight), Budget("queued bytes", queued_bytes)),
        lambda _request: 50,
        roster,
    )
    for name in names or ("a",):
        add_worker(made, name, slots=slots, ready=ready)
    return made


def add_worker(
    made: Pool, name: str, *, slots: int | None = None, ready: bool = True, role: Role = Role.BOTH
) -> None:
    made.roster.add(Worker(name=name, slots=slots, models=frozenset({MODEL}), role=role), 0.0)
    if ready:
        made.roster.sign(name, Sign.GOOD, 0.0)


def joined(decode: Pool, prefill: Pool) -> tuple[Pool, Pool]:
    """Both, after they were told to work together; they share one budget of requests in flight."""
    prefill._budgets = decode._budgets
    decode.join(prefill, Partners(prefill.roster, decode.roster, PrefillBudget()))
    return decode, prefill


def assert_idle(made: Pool) -> None:
    """The first law."""
    assert made.queued == 0
    assert made.in_flight == 0
    for worker in made.roster:
        assert worker.in_flight == 0, worker
        assert worker.sequences == 0, worker
        assert worker.kv_tokens == 0, worker
        assert worker.queued_tokens == 0, worker
        assert worker.remaining_tokens == 0, worker
