"""The administration of workers, for operators: on the admin port, or on the data port to holders of the key.

Separate from the harmless routes, so that what guards it is in one place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from router.api.coefficients import calibration_state
from router.api.explain import add_explain
from router.api.operations import Control
from router.api.policies import add_policies
from router.core.engine_stats import EngineStats
from router.core.errors import BadRequest, Forbidden, Unauthorized
from router.core.worker import Role
from router.fleet import Fleet, Member
from router.settings.refusals import Loc, sentences
from router.settings.workers import WorkerSettings

_MAX_WORKERS_SHOWN = 1000


class NewWorker(BaseModel):
    """Body of POST /workers."""

    model_config = ConfigDict(extra="forbid")

    url: str
    name: str | None = None
    pool: str | None = None
    model: str | None = None
    role: Role | None = None
    revision: str | None = None
    capacity: float = Field(default=1.0, gt=0)
    slots: int | None = Field(default=None, ge=1)
    dp_size: int | None = None
    dp_rank_offset: int | None = None
    barrier_group: str | None = None
    may_prefill: bool | None = None
    bootstrap_port: int | None = None
    kv_events_endpoint: str | None = None
    kv_events_replay_endpoint: str | None = None
    kv_events_topic: str | None = None


class Drain(BaseModel):
    """Body of POST /workers/drain: which workers, by name or by revision."""

    model_config = ConfigDict(extra="forbid")

    worker: str | None = None
    revision: str | None = None
    force: bool = False


def admin_routes(control: Control, now: Callable[[], float], *, guarded: bool) -> APIRouter:
    """All admin routes; `guarded` asks for the administrator's key."""

    async def guard(request: Request) -> None:
        # Browsers name the page that sends a request. No page has business here, and one that an operator
        # happens to visit must not drain workers on the port that asks for no key.
        if "origin" in request.headers:
            raise Forbidden("Administration is not for web pages.")
        if guarded and not control.keys.admin(dict(request.headers.raw)):
            raise Unauthorized("This path asks for the administrator's key.")

    routes = APIRouter(dependencies=[Depends(guard)])
    _add_workers(routes, control, now)
    add_policies(routes, control.deciding.choosing)
    add_explain(routes, control.deciding.explaining)

    @routes.get("/debug/state")
    async def state() -> dict[str, Any]:
        return debug_state(control.fleet, now())

    return routes


def _add_workers(routes: APIRouter, control: Control, now: Callable[[], float]) -> None:
    fleet = control.fleet

    @routes.get("/workers")
    async def workers() -> dict[str, Any]:
        held = held_handovers(fleet)
        return {"workers": [worker_state(member, now(), held[member.name]) for member in fleet]}

    @routes.post("/workers", status_code=202)
    async def add(new: NewWorker) -> dict[str, Any]:
        fields = new.model_dump(exclude_none=True, exclude={"pool"})
        try:
            settings = WorkerSettings.model_validate(fields)
        except ValidationError as error:
            raise BadRequest("; ".join(sentences(error, WorkerSettings, _no_file))) from None
        pool = _pool_of(new, fleet) if new.pool is None else new.pool
        members = control.register(pool, settings, "admin")
        states = [worker_state(member, now()) for member in members]
        return states[0] if len(states) == 1 else {"workers": states}

    @routes.post("/workers/drain")
    async def drain_some(which: Drain) -> dict[str, Any]:
        return drain_workers(fleet, which, now())

    @routes.delete("/workers/{name:path}")
    async def remove(name: str) -> dict[str, str]:
        fleet.leave_all(name, now())
        return {"name": name, "state": "gone"}

    @routes.post("/workers/{name:path}/drain")
    async def drain(name: str) -> dict[str, Any]:
        return worker_state(fleet.drain(name, now()), now())

    @routes.post("/workers/{name:path}/resume")
    async def resume(name: str) -> dict[str, Any]:
        return worker_state(fleet.drain(name, now(), resume=True), now())


def _no_file(_: Loc) -> str:
    """Where a value was given: in the request itself."""
    return ""


def _pool_of(new: NewWorker, fleet: Fleet) -> str:
    """The pool of a worker that names none: the first one, or the first one of its role.

    Raises:
        BadRequest: it may be either of two that serve one model together.
    """
    roles = {name: dispatcher.pool.rules.role for name, dispatcher in fleet.dispatchers.items()}
    if new.role is None and set(roles.values()) - {Role.BOTH}:
        raise BadRequest(f"Say which pool it joins ({', '.join(roles)}), or its role.")
    return next((name for name, role in roles.items() if role is new.role), next(iter(roles)))


def drain_workers(fleet: Fleet, which: Drain, now: float) -> dict[str, Any]:
    """Takes workers out of service, and says what they still have to do.

    Raises:
        BadRequest: not exactly one of worker and revision, or nobody has that revision.
        NotFound: nobody has that name.
        Conflict: without `force`, when a model would then be served by nobody, or by half a pair.
    """
    if which.worker is not None and which.revision is None:
        members = [fleet.drain(member.name, now) for member in fleet.named(which.worker)]
    elif which.revision is not None and which.worker is None:
        members = fleet.drain_revision(which.revision, now, force=which.force)
    else:
        raise BadRequest("Say worker or revision, and not both.")
    held = held_handovers(fleet)
    return {
        "revision": which.revision,
        "workers": [
            {
                "name": member.name,
                "state": member.worker.state.value,
                "in_flight": member.worker.in_flight,
                "held_handovers": held[member.name],
            }
            for member in members
        ],
        "left": sum(member.worker.in_flight for member in members),
    }


def held_handovers(fleet: Fleet) -> Counter[str]:
    """Requests by the name of the worker that has prefilled them, and holds their KV until it is fetched."""
    return Counter(
        lease.worker
        for dispatcher in fleet.dispatchers.values()
        if dispatcher.pool.rules.role is Role.PREFILL
        for lease in dispatcher.pool.ledger.leases
        if lease.prefilled
    )


def worker_state(member: Member, now: float, held: int = 0) -> dict[str, Any]:
    """One worker for operators: the router's account, and what the engine last said.

    Args:
        held: hand-overs that wait there.
    """
    worker = member.worker
    return {
        "name": worker.name,
        "url": member.url,
        "role": worker.role.value,
        "pool": member.dispatcher.pool.rules.name,
        "revision": worker.revision,
        "models": sorted(worker.models),
        "state": worker.state.value,
        "reason": worker.health.reason,
        "since_s": round(now - worker.health.since, 3),
        "incarnation": worker.incarnation,
        "in_flight": worker.in_flight,
        "held_handovers": held,
        "sequences": worker.sequences,
        "queued_tokens": worker.queued_tokens,
        "kv_tokens": worker.mirror.kv_tokens,
        "kv_capacity_tokens": worker.kv_capacity_tokens,
        "slots": worker.slots,
        "dp_rank": member.dp_rank,
        "barrier_group": worker.barrier_group,
        "capacity": worker.capacity,
        "calibration": calibration_state(worker.calibration, now),
        "source": member.source,
        "engine_version": member.engine_version,
        "engine": None if worker.stats is None else _engine_state(worker.stats, now),
    }


def _engine_state(stats: EngineStats, now: float) -> dict[str, Any]:
    return {
        "age_s": round(now - stats.taken, 3),
        "running": stats.running,
        "waiting": stats.waiting,
        "kv_usage": stats.kv_usage,
        "preemptions": stats.preemptions,
    }


def debug_state(fleet: Fleet, now: float) -> dict[str, Any]:
    """The whole account: pools with their queues, then workers. All zero when the router is idle."""
    held = held_handovers(fleet)
    return {
        "requests_in_flight": fleet.in_flight.used,
        "pools": {
            name: {
                "policy": dispatcher.pool.policy_name,
                "role": dispatcher.pool.rules.role.value,
                "binding": "late" if dispatcher.pool.binding.late else "early",
                "queued": dispatcher.pool.queued,
                "in_flight": dispatcher.pool.in_flight,
                "state": repr(dispatcher.pool),
            }
            for name, dispatcher in fleet.dispatchers.items()
        },
        "workers": [
            worker_state(member, now, held[member.name]) for member in list(fleet)[:_MAX_WORKERS_SHOWN]
        ],
    }
