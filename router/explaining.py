"""`POST /route/explain`: where a request would go if it came now, and why, without sending or keeping it.

Separate from the admin routes, which only read the question, and from the dry run of one pool in the core:
a split request has two sides, and what decides whether it is split is part of the answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import structs

from router.admission import Admission, Job
from router.api.headers import Header
from router.api.intake import HeldBody
from router.api.keys import Client
from router.api.routes import find_route
from router.call import Call
from router.choosing import Choosing
from router.core.budget import Budget
from router.core.dry_run import DryRun, dry_run
from router.core.errors import BadRequest, shown
from router.core.explain import Row
from router.core.pool import Pool
from router.core.request import Request
from router.core.split_rule import Refusal, Where, Whole
from router.topology import Topology

_PATHS = {"messages": "/v1/chat/completions", "prompt": "/v1/completions"}
"""What a body without a path is for, by a field that only such bodies have."""
_NO_PATH = 'Say which path the request is for: {"path": "/v1/…", "body": {…}}.'


@dataclass(frozen=True, slots=True)
class Question:
    """A request to be explained.

    Attributes:
        body: as a client would send it.
        path: that it would go to; None where the body shows it.
        headers: that it would come with.
        policy: to decide in place of the pool's own.
    """

    body: Mapping[str, Any]
    path: str | None = None
    headers: Mapping[str, str] | None = None
    policy: str | None = None


@dataclass(frozen=True, slots=True)
class Deciding:
    """The policies of all pools, and what tells why they decide as they do."""

    choosing: Choosing
    explaining: Explaining


class Explaining:
    """Answers questions. No state of its own, and none of a question is kept."""

    def __init__(self, admission: Admission, now: Callable[[], float]) -> None:
        self._admission = admission
        self._now = now

    async def explain(self, question: Question) -> dict[str, Any]:
        """Where it would go, every term of every candidate, and who was filtered out and why.

        Raises:
            BadRequest: the body is none that the router would take, or a policy that is not for its pools.
            ModelNotFound, NotFound, NoWorker: as the request itself would be answered.
        """
        call = self._call(question)
        data = msgspec.json.encode(question.body)
        with HeldBody(Budget("bytes of a question", len(data))) as held:
            held.hold(len(data))
            held.keep(data)
            job = await self._admission.rehearse(call, held)
            answer = (
                self._whole(job.dispatcher.pool, job.request)
                if job.topology is None
                else self._of_pair(job, job.topology)
            )
        return {"request": _facts(job.request), **answer}

    def _call(self, question: Question) -> Call:
        path = question.path or next((p for field, p in _PATHS.items() if field in question.body), None)
        if path is None:
            raise BadRequest(_NO_PATH, param="path")
        route = find_route(path.partition("?")[0])
        if route is None:
            raise BadRequest(f"{shown(path)} is no path of this router.", param="path")
        named = {name.lower(): value for name, value in (question.headers or {}).items()}
        if question.policy is not None:
            named["x-pointsman-policy"] = question.policy
        headers: list[Header] = [
            (name.encode("latin-1", "replace"), value.encode("latin-1", "replace"))
            for name, value in named.items()
        ]
        return Call(
            id="explain",
            route=route,
            method=b"POST",
            target=path.encode("ascii", "replace"),
            headers=headers,
            by_name=dict(headers),
            client=Client(trusted=True),
            receive=_nothing,
            arrived=self._now(),
        )

    # --- the answer ------------------------------------------------------------------------------------

    def _whole(self, pool: Pool, request: Request) -> dict[str, Any]:
        return _side(pool, dry_run(pool, request, self._now()))

    def _of_pair(self, job: Job, topology: Topology) -> dict[str, Any]:
        decision = topology.decide(job.request, traits=job.traits)
        if isinstance(decision, Refusal):
            split = {"split": False, "reason": decision.why.value, "served": None}
            return {"split": split, **_nobody(str(decision.error()))}
        if isinstance(decision, Whole):
            split = {"split": False, "reason": decision.why.value, "served": decision.where.value}
            both = decision.where is Where.BOTH_CAPABLE and job.request.pinned is None
            request = structs.replace(job.request, split=False, both=both)
            return {"split": split, **self._whole(topology.pool_for(decision.where).pool, request)}
        return {"split": {"split": True, "reason": None}, **self._both(topology, job.request)}

    def _both(self, topology: Topology, asked: Request) -> dict[str, Any]:
        """Both sides, as things stand now: the decode worker of legs that run one after the other is chosen
        when the prefill is done."""
        request = structs.replace(asked, split=True)
        decode = dry_run(topology.decode.pool, request, self._now())
        prefill = dry_run(topology.prefill.pool, request, self._now())
        chosen = decode.chosen
        pair = None if chosen is None else chosen.prefill_worker
        sides = {
            "prefill": _side(topology.prefill.pool, prefill),
            "decode": _side(topology.decode.pool, decode),
        }
        return {
            "chosen": None if chosen is None else chosen.worker,
            "prefill_worker": pair or (None if prefill.chosen is None else prefill.chosen.worker),
            "decode_now": topology.connector.concurrent,
            **sides,
        }


async def _nothing() -> dict[str, Any]:
    """The body is there already."""
    return {"type": "http.disconnect"}


def _facts(request: Request) -> dict[str, Any]:
    """What the policies may know of it, without a word of its text."""
    return {
        "model": request.model,
        "prompt_tokens": request.prompt_tokens,
        "prompt_tokens_exact": request.prompt_tokens_exact,
        "max_tokens": request.max_tokens,
        "sequences": request.sequences,
        "has_affinity": request.affinity is not None,
        "policy": request.policy,
    }


def _nobody(why: str) -> dict[str, Any]:
    return {"chosen": None, "reason": why, "candidates": [], "filtered": []}


def _side(pool: Pool, run: DryRun) -> dict[str, Any]:
    table, chosen = run.table, run.chosen
    return {
        "pool": pool.rules.name,
        "role": pool.rules.role.value,
        "policy": run.policy,
        "by_batch": run.by_batch,
        "unit": None if table is None else table.unit,
        "chosen": None if chosen is None else chosen.worker,
        "reason": None if chosen is None else chosen.reason,
        "waiting": pool.queued,
        "candidates": [] if table is None else [_candidate(row) for row in table.rows],
        "filtered": [{"worker": worker, "reason": reason} for worker, reason in run.filtered],
    }


def _candidate(row: Row) -> dict[str, Any]:
    pair = {} if row.prefill_worker is None else {"prefill_worker": row.prefill_worker}
    return {
        "worker": row.worker,
        **pair,
        "terms": {name: _plain(value) for name, value in row.terms.items()},
        "total": _plain(row.total),
        "tier": row.tier,
        "reason": row.reason,
    }


def _plain(value: float) -> float | None:
    """None where JSON has no number for it."""
    return value if math.isfinite(value) else None
