"""`/mock/…`: what tests ask of a mock and tell it to do. No real engine has these routes.

Separate from the imitated routes, so that nobody mistakes one for the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fastapi import APIRouter, Request, Response

from engines.mock.errors import bad_request
from engines.mock.faults import KINDS, Fault
from engines.mock.front import Front
from engines.mock.process import EngineProcess
from engines.mock.rest import body_of, reply


def admin_routes(front: Front) -> APIRouter:
    """Return the mock's own routes."""
    router = APIRouter(prefix="/mock")

    @router.get("/faults")
    async def known() -> Response:
        return reply({"kinds": KINDS, "faults": front.faults.state()})

    @router.post("/faults")
    async def add(request: Request) -> Response:
        fault = Fault.of(await body_of(request))
        switch_on(front, fault)
        return reply({"faults": front.faults.state()})

    @router.delete("/faults")
    async def clear() -> Response:
        front.faults.clear()
        front.process.heal()
        return reply({"faults": []})

    @router.get("/state")
    async def state(requests: bool = True) -> Response:
        return reply(state_of(front, with_requests=requests))

    @router.delete("/state")
    async def forget() -> Response:
        front.seen.clear()
        front.seen_by_path.clear()
        return reply({"requests": []})

    return router


def switch_on(front: Front, fault: Fault) -> None:
    """Carry out an engine fault, or put a request fault on the table.

    Raises:
        Refusal: 400 for a fault that needs a listener where there is none.
    """
    if not fault.of_engine:
        front.faults.add(fault)
        return
    _STRIKES[fault.kind](front.process, fault)


def state_of(front: Front, *, with_requests: bool) -> dict[str, object]:
    """Return the account of one engine: what it holds now, and what it saw."""
    process = front.process
    engines, ticker = [rank.engine for rank in process.ranks], process.ticker
    accounts = {id(rank.account): rank.account for rank in process.ranks}.values()
    state: dict[str, object] = {
        "incarnation": process.incarnation,
        "up": process.up,
        "started_unix_s": process.started_unix_s,
        "running": sum(engine.running for engine in engines),
        "waiting": sum(engine.waiting for engine in engines),
        "kv_usage": sum(engine.kv_usage for engine in engines) / len(engines),
        "in_progress": process.in_progress,
        "connections": None if process.listener is None else process.listener.connections,
        "kv_connector": None if process.connector is None else process.connector.state(),
        "kv_events": None if process.kv_events is None else process.kv_events.state(),
        "barrier_wait_s": process.barrier_wait_s,
        "ranks": [rank.state() for rank in process.ranks],
        "aborted": sum(account.aborted for account in accounts),
        "finished": _sums(account.finished for account in accounts),
        "steps": ticker.steps,
        "worst_lag_s": ticker.worst_lag_s,
        "total_lag_s": ticker.total_lag_s,
        "faults": front.faults.state(),
        "requests_seen": dict(front.seen_by_path),
    }
    if with_requests:
        state["requests"] = [seen.state() for seen in front.seen]
    return state


def _sums(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for each in counts:
        for name, count in each.items():
            sums[name] = sums.get(name, 0) + count
    return sums


def _refuse(process: EngineProcess, fault: Fault) -> None:
    if process.listener is None:
        raise bad_request("refuse needs a listener, and this engine has none: it runs in memory.", "kind")
    process.refuse(fault.delay_s)


def _slow(process: EngineProcess, fault: Fault) -> None:
    process.slow(fault.factor, fault.delay_s)


def _drop_events(process: EngineProcess, fault: Fault) -> None:
    if process.kv_events is None:
        raise bad_request("drop_events needs KV events, and this engine publishes none.", "kind")
    process.kv_events.drop(fault.count or 1)


def _death(process: EngineProcess, fault: Fault) -> None:
    process.engine_death(fault.delay_s)


def _crash(process: EngineProcess, fault: Fault) -> None:
    process.crash(fault)


def _abort(process: EngineProcess, fault: Fault) -> None:
    process.terminate("abort", fault.delay_s)


def _silence(process: EngineProcess, fault: Fault) -> None:
    process.terminate("silence", fault.delay_s)


_STRIKES = {
    "refuse": _refuse,
    "slow": _slow,
    "drop_events": _drop_events,
    "crash": _crash,
    "engine_death": _death,
    "sigterm_abort": _abort,
    "sigterm_silence": _silence,
}
