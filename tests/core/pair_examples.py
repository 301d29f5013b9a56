"""Two pools that hand KV to each other, and the steps of a request between them, for the laws of both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from msgspec import structs

from router.core.binding import Mode
from router.core.budget import Budget
from router.core.handover import Handover
from router.core.health import Sign
from router.core.lease import Lease, Outcome
from router.core.partners import Partners
from router.core.pool import Pool, PoolBudgets, PoolRules
from router.core.prefill_budget import PrefillBudget
from router.core.request import Request
from router.core.worker import Role, Worker
from tests.core.fleet_examples import MODEL, FirstWorker, assert_idle, request

OVERDUE_S = 10.0
DISPATCH_S = 25.0


@dataclass(slots=True)
class Couple:
    """A prefill pool and a decode pool of one model."""

    prefill: Pool
    decode: Pool
    partners: Partners
    in_flight: Budget
    queued_bytes: Budget

    def producer(self, name: str) -> Worker:
        return self.prefill.roster.workers[name]

    def consumer(self, name: str) -> Worker:
        return self.decode.roster.workers[name]

    def prefilled(self, now: float = 1.0, **fields: Any) -> Request:
        """A request whose KV waits at its producer; the decode pool has not heard of it."""
        made = request(**({"split": True} | fields))
        lease = self.prefill.place_now(made, now)
        assert lease is not None, "no prefill worker has room"
        return self.finish_prefill(lease, now)

    def finish_prefill(self, lease: Lease, now: float) -> Request:
        self.prefill.progress(lease, now, generated_tokens=1)
        revision = self.producer(lease.worker).revision
        handover = Handover(lease, revision, now, now + OVERDUE_S, now + DISPATCH_S)
        return structs.replace(lease.request, handover=handover, body_bytes=0)

    def pooled(self, now: float = 1.0, **fields: Any) -> Request:
        """The same, waiting for its decode worker."""
        made = self.prefilled(now, **fields)
        self.decode.submit(made, now)
        return made

    def decoding(self, now: float = 1.0, **fields: Any) -> Lease:
        """The same, placed at a decode worker."""
        self.pooled(now, **fields)
        (lease,) = self.decode.assign(now)
        return lease

    def fail(self, lease: Lease, now: float) -> None:
        self.decode.release(lease, Outcome.HANDOVER, now)

    def assert_idle(self) -> None:
        """The first law, on both sides."""
        assert_idle(self.prefill)
        assert_idle(self.decode)
        assert self.in_flight.used == 0
        assert self.queued_bytes.used == 0


def couple(
    prefills: str = "pq",
    decodes: str = "de",
    *,
    policy: object | None = None,
    prefill_policy: object | None = None,
    mode: Mode = Mode.EARLY,
    slots: int | None = None,
    in_flight: int = 100,
    max_transfers: int = 4,
    kv_tokens: int | None = None,
    may_prefill: bool = False,
) -> Couple:
    """Workers are named by single letters; each is ready and of revision "1"."""
    budget, queued = Budget("in flight", in_flight), Budget("queued bytes", 10_000)
    budgets = PoolBudgets(budget, queued)

    def made(role: Role, names: str, asked: object | None) -> Pool:
        rules = PoolRules(role.value, role=role, mode=mode, max_transfers=max_transfers)
        pool = Pool(rules, asked or FirstWorker(), budgets, lambda _request: 50)  # type: ignore[arg-type]  # any shape
        for name in names:
            join(pool, name, slots=slots, kv_tokens=kv_tokens, may_prefill=may_prefill)
        return pool

    prefill, decode = made(Role.PREFILL, prefills, prefill_policy), made(Role.DECODE, decodes, policy)
    partners = Partners(prefill.roster, decode.roster, PrefillBudget())
    decode.join(prefill, partners)
    return Couple(prefill, decode, partners, budget, queued)


def join(
    pool: Pool,
    name: str,
    now: float = 0.0,
    *,
    revision: str = "1",
    slots: int | None = None,
    kv_tokens: int | None = None,
    may_prefill: bool = False,
) -> None:
    """Takes in a worker that is ready at once."""
    worker = Worker(
        name=name,
        role=pool.rules.role,
        slots=slots,
        models=frozenset({MODEL}),
        configured_kv_tokens=kv_tokens,
        revision=revision,
        may_prefill=may_prefill,
    )
    pool.roster.add(worker, now)
    pool.roster.sign(name, Sign.GOOD, now)
