"""Which workers wait for each other at every step, and the unit in which their loads are compared.

Separate from the scores because a round needs both before it looks at any request: a group has members that
were not offered (a full worker, one that drains), and they count in its size and in its highest load.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from router.core.lease import Lease
from router.core.worker import StepModel, WorkerView


def peers_of(worker: WorkerView) -> Sequence[WorkerView]:
    """The members of its group that the pool knows, nobody where the view does not say."""
    peers: Sequence[WorkerView] = getattr(worker, "barrier_peers", ())
    return peers


def residents_of(worker: WorkerView) -> Iterable[Lease] | None:
    """The leases that a worker holds, None where the view does not say."""
    residents: Iterable[Lease] | None = getattr(worker, "residents", None)
    return residents


@dataclass(frozen=True, slots=True)
class Unit:
    """What one worker's load is measured in.

    Attributes:
        per_token: load of one KV token; above 0.
        tokens_per_sequence: what a sequence costs beside its KV, in KV tokens.
        base: load of a step over nothing.
    """

    per_token: float
    tokens_per_sequence: int = 0
    base: float = 0.0

    def load(self, kv_tokens: float, sequences: float) -> float:
        """Load of a step over so much context in so many sequences."""
        return self.base + self.per_token * (kv_tokens + self.tokens_per_sequence * sequences)


@dataclass(frozen=True, slots=True)
class Group:
    """Workers whose step lasts as long as the slowest of them.

    Attributes:
        members: in name order of those offered, then the others.
        units: one for each member.
        scale: what a load of 1 is in seconds, or in KV tokens at capacity 1. Members that are alike are
            compared in their own tokens, which are whole numbers.
    """

    members: tuple[WorkerView, ...]
    units: tuple[Unit, ...]
    scale: float = 1.0

    @property
    def size(self) -> int:
        return len(self.members)


def groups_of(workers: Sequence[WorkerView]) -> list[Group]:
    """The barrier groups of the workers offered. Those of no declared group are one group."""
    members: dict[str | None, dict[str, WorkerView]] = {}
    for worker in workers:
        members.setdefault(worker.barrier_group, {})[worker.name] = worker
    for known in members.values():
        for peer in peers_of(next(iter(known.values()))):
            known.setdefault(peer.name, peer)
    return [_group(tuple(known.values())) for known in members.values()]


def _group(members: tuple[WorkerView, ...]) -> Group:
    """Seconds where every member is calibrated and reads of KV take time, else KV tokens at capacity 1:
    loads of two scales cannot be compared."""
    steps = [member.step for member in members]
    calibrated = [step for step in steps if step is not None and step.step_per_kv_token_s > 0]
    if len(calibrated) < len(members):
        return _in_tokens(members)
    first = calibrated[0]
    if calibrated.count(first) == len(members):
        # What all have in common moves no margin: the base of a step is left out.
        alike = Unit(1.0, _seconds(first).tokens_per_sequence)
        return Group(members, (alike,) * len(members), first.step_per_kv_token_s)
    return Group(members, tuple([_seconds(step) for step in calibrated]))


def _in_tokens(members: tuple[WorkerView, ...]) -> Group:
    capacities = [member.capacity for member in members]
    if capacities.count(capacities[0]) == len(capacities):
        return Group(members, (Unit(1.0),) * len(members), 1.0 / capacities[0])
    return Group(members, tuple([Unit(1.0 / capacity) for capacity in capacities]))


def _seconds(step: StepModel) -> Unit:
    per_token = step.step_per_kv_token_s
    return Unit(per_token, round(step.step_per_sequence_s / per_token), step.step_base_s)
