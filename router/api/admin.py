"""The administration of workers, for operators: on the admin port, or on the data port to holders of the key.

Separate from the harmless routes, so that what guards it is in one place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from router.api.operations import Control
from router.core.errors import BadRequest, Forbidden, Unauthorized
from router.fleet import Fleet, Member
from router.settings.pools import WorkerSettings
from router.settings.refusals import Loc, sentences

_MAX_WORKERS_SHOWN = 1000


class NewWorker(BaseModel):
    """Body of POST /workers."""

    model_config = ConfigDict(extra="forbid")

    url: str
    name: str | None = None
    pool: str | None = None
    model: str | None = None
    capacity: float = Field(default=1.0, gt=0)
    slots: int | None = Field(default=None, ge=1)


def admin_routes(control: Control, now: Callable[[], float], *, guarded: bool) -> APIRouter:
    """`/workers` and `/debug/state`; `guarded` asks for the administrator's key."""

    async def guard(request: Request) -> None:
        # Browsers name the page that sends a request. No page has business here, and one that an operator
        # happens to visit must not drain workers on the port that asks for no key.
        if "origin" in request.headers:
            raise Forbidden("Administration is not for web pages.")
        if guarded and not control.keys.admin(dict(request.headers.raw)):
            raise Unauthorized("This path asks for the administrator's key.")

    routes = APIRouter(dependencies=[Depends(guard)])
    _add_workers(routes, control, now)

    @routes.get("/debug/state")
    async def state() -> dict[str, Any]:
        return debug_state(control.fleet, now())

    return routes


def _add_workers(routes: APIRouter, control: Control, now: Callable[[], float]) -> None:
    fleet = control.fleet

    @routes.get("/workers")
    async def workers() -> dict[str, Any]:
        return {"workers": [worker_state(member, now()) for member in fleet]}

    @routes.post("/workers", status_code=202)
    async def add(new: NewWorker) -> dict[str, Any]:
        fields = new.model_dump(exclude_none=True, exclude={"pool"})
        try:
            settings = WorkerSettings.model_validate(fields)
        except ValidationError as error:
            raise BadRequest("; ".join(sentences(error, WorkerSettings, _no_file))) from None
        member = control.register(new.pool or next(iter(fleet.dispatchers)), settings, "admin")
        return worker_state(member, now())

    @routes.delete("/workers/{name:path}")
    async def remove(name: str) -> dict[str, str]:
        fleet.leave(name, now())
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


def worker_state(member: Member, now: float) -> dict[str, Any]:
    """One worker for operators: the router's account, and what the engine last said."""
    worker = member.worker
    stats = worker.stats
    return {
        "name": worker.name,
        "url": member.url,
        "role": worker.role.value,
        "pool": member.dispatcher.pool.rules.name,
        "models": sorted(worker.models),
        "state": worker.state.value,
        "reason": worker.health.reason,
        "since_s": round(now - worker.health.since, 3),
        "incarnation": worker.incarnation,
        "in_flight": worker.in_flight,
        "sequences": worker.sequences,
        "queued_tokens": worker.queued_tokens,
        "kv_tokens": worker.kv_tokens,
        "kv_capacity_tokens": worker.kv_capacity_tokens,
        "slots": worker.slots,
        "capacity": worker.capacity,
        "source": member.source,
        "engine_version": member.engine_version,
        "engine": None
        if stats is None
        else {
            "age_s": round(now - stats.taken, 3),
            "running": stats.running,
            "waiting": stats.waiting,
            "kv_usage": stats.kv_usage,
            "preemptions": stats.preemptions,
        },
    }


def debug_state(fleet: Fleet, now: float) -> dict[str, Any]:
    """The whole account: pools with their queues, then workers. All zero when the router is idle."""
    return {
        "requests_in_flight": fleet.in_flight.used,
        "pools": {
            name: {
                "policy": dispatcher.pool.policy_name,
                "role": dispatcher.pool.rules.role.value,
                "binding": "late" if dispatcher.pool.rules.late_binding else "early",
                "queued": dispatcher.pool.queued,
                "in_flight": dispatcher.pool.in_flight,
                "state": repr(dispatcher.pool),
            }
            for name, dispatcher in fleet.dispatchers.items()
        },
        "workers": [worker_state(member, now) for member in list(fleet)[:_MAX_WORKERS_SHOWN]],
    }
