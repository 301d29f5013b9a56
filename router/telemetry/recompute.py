"""Makes a recorded decision again, from its record alone.

Separate from reading the records because only this needs the policies.
"""

from __future__ import annotations

from router.core.explain import Row, decide
from router.core.policy import BatchPolicy
from router.core.request import Request
from router.core.rounds import Remembers
from router.core.worker import WorkerView
from router.core.worker_copy import WorkerCopy
from router.policies import PolicyError, build
from router.telemetry.decision import DecisionRecord, MadeRecord, MemberRecord, RoundRecord, WaitingRecord


def picked_again(record: DecisionRecord) -> Row | None:
    """What the rule of a recorded table picks; None for a record without a table, or when nobody can be."""
    return None if record.table is None else decide(record.table)


def made_again(record: RoundRecord) -> list[MadeRecord]:
    """The choices of a recorded round, made by a policy that is built anew.

    Raises:
        PolicyError: there is no such policy in this version, it has other parameters, or it makes no rounds.
    """
    policy = build(record.policy, record.params, record.seed)
    if not (isinstance(policy, BatchPolicy) and isinstance(policy, Remembers)):
        raise PolicyError(f"policy {record.policy!r} makes no rounds that can be made again")
    policy.recall(record.memory)
    waiting = [_request(one) for one in record.waiting]
    choices = policy.admit(waiting, _offered(record), record.now)
    return [MadeRecord(id=c.request_id, worker=c.worker, cost=c.cost, reason=c.reason) for c in choices]


def _request(record: WaitingRecord) -> Request:
    return Request(
        id=record.id,
        sequence=record.sequence,
        model="",
        arrived=record.came,
        prompt_tokens=record.prompt_tokens,
        sequences=record.sequences,
        max_tokens=record.max_tokens,
        attempt=record.attempt,
    )


def _offered(record: RoundRecord) -> list[WorkerView]:
    """The workers that were offered, in name order, each with all members of its group as its peers."""
    groups: dict[int, list[WorkerCopy]] = {}
    for member in record.members:
        groups.setdefault(member.group, []).append(_member(member))
    for members in groups.values():
        for one in members:
            one.barrier_peers = members
    names = {member.name for member in record.members if member.offered}
    found = [one for members in groups.values() for one in members if one.name in names]
    return sorted(found, key=lambda one: one.name)


def _member(record: MemberRecord) -> WorkerCopy:
    return WorkerCopy(
        name=record.name,
        barrier_group=record.barrier_group,
        in_flight=record.in_flight,
        sequences=record.sequences,
        queued_tokens=record.queued_tokens,
        kv_tokens=record.kv_tokens,
        remaining_tokens=record.remaining_tokens,
        kv_capacity_tokens=record.kv_capacity_tokens,
        free_slots=record.free_slots,
        capacity=record.capacity,
        warmup=record.warmup,
        step=record.step,
    )
