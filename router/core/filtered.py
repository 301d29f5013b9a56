"""Why a worker was not offered for a request, in words.

Separate from eligibility, which is asked at every placement and only says who is left. Membership of each
stage is asked of eligibility itself, so that the words never disagree with what happens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from router.core.eligibility import Eligibility
from router.core.health import State
from router.core.partners import Partners
from router.core.pool import Pool
from router.core.request import Request
from router.core.split_eligibility import PrefillEligibility
from router.core.worker import Role, Worker

Reason = Callable[[Pool, Request, Worker], str | None]


def filtered_out(pool: Pool, request: Request) -> list[tuple[str, str]]:
    """The workers of a pool that a policy would not be offered, each with the reason, in name order.

    Changes nothing. The time of the pool's partners must be told before.
    """
    eligible = pool.eligible
    candidates, suited, able = _stages(eligible, request)
    found = []
    for worker in pool.roster:
        if worker.name in able:
            continue
        if worker.name not in candidates:
            reason = _first(_NO_CANDIDATE, pool, request, worker, "not for requests like this")
        elif worker.name not in suited:
            reason = "context too small"
        else:
            reason = _first(_NO_ROOM, pool, request, worker, "full")
        found.append((worker.name, reason))
    return found


def _stages(eligible: Eligibility, request: Request) -> tuple[set[str], set[str], set[str]]:
    suited = eligible.suited_to(request)
    stages: tuple[Sequence[Worker], ...] = (
        eligible.candidates(request),
        suited,
        eligible.with_room(suited, request),
    )
    candidates, names, able = ({worker.name for worker in stage} for stage in stages)
    return candidates, names, able


def _first(reasons: Sequence[Reason], pool: Pool, request: Request, worker: Worker, otherwise: str) -> str:
    said = (reason(pool, request, worker) for reason in reasons)
    return next((words for words in said if words is not None), otherwise)


# --- why it is no candidate: in the order in which an operator would look --------------------------------


def _elsewhere(pool: Pool, request: Request, worker: Worker) -> str | None:
    if request.pinned is None or worker.name == request.pinned:
        return None
    return "the response that it continues is stored at another worker"


def _failed_before(pool: Pool, request: Request, worker: Worker) -> str | None:
    return "failed on this request before" if worker.name in request.avoid else None


def _not_ready(pool: Pool, request: Request, worker: Worker) -> str | None:
    return None if worker.state is State.READY else worker.state.value


def _other_model(pool: Pool, request: Request, worker: Worker) -> str | None:
    if request.model in worker.models:
        return None
    return "model not served" if worker.models else "its models are not known yet"


def _half(pool: Pool, request: Request, worker: Worker) -> str | None:
    return "cannot serve a whole request" if request.both and not worker.does_both else None


def _alone(pool: Pool, request: Request, worker: Worker) -> str | None:
    """What keeps the halves of a pair apart."""
    partners = pool.partners
    if partners is None or not _concerns_pairs(pool, request):
        return None
    if request.handover is not None:
        return _no_consumer(partners, request, worker)
    if worker.revision not in partners.matched(request.model):
        return "no ready worker of its revision on the other side"
    return "pair set aside"


def _concerns_pairs(pool: Pool, request: Request) -> bool:
    return request.split or request.handover is not None or pool.rules.role is Role.DECODE


def _no_consumer(partners: Partners, request: Request, worker: Worker) -> str | None:
    handover = request.handover
    if handover is not None and worker.revision != handover.revision:
        return "of another revision than the worker that prefilled"
    return "pair set aside"


_NO_CANDIDATE: Sequence[Reason] = (_not_ready, _other_model, _elsewhere, _failed_before, _half, _alone)


# --- why it has no room ----------------------------------------------------------------------------------


def _saturated(pool: Pool, request: Request, worker: Worker) -> str | None:
    if not isinstance(pool.eligible, PrefillEligibility):
        return None
    return "its KV is held for hand-overs beyond the budget"


def _no_slot(pool: Pool, request: Request, worker: Worker) -> str | None:
    free = worker.free_slots
    if not pool.eligible.late_binding or free is None or worker.slots is None:
        return None
    return "no free slot" if free < min(request.sequences, worker.slots) else None


def _transfers(pool: Pool, request: Request, worker: Worker) -> str | None:
    over = worker.mirror.transfers >= pool.rules.max_transfers
    return "too many transfers under way" if over and _concerns_pairs(pool, request) else None


def _no_producer(pool: Pool, request: Request, worker: Worker) -> str | None:
    return "no prefill worker could hand KV to it now" if request.split and request.handover is None else None


_NO_ROOM: Sequence[Reason] = (_saturated, _no_slot, _transfers, _no_producer)
