"""Workers and requests for the laws of the policies."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from router.core.engine_stats import EngineStats
from router.core.lease import Lease
from router.core.policy import Commits, Policy
from router.core.request import Request
from router.core.step_model import StepModel, TransferModel
from router.core.worker import Role, WorkerView
from router.policies import build

NOW = 1000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenWorker:
    """A WorkerView that refuses to be written."""

    name: str = "w"
    role: Role = Role.BOTH
    model: str = "model"
    revision: str = ""
    barrier_group: str | None = None
    incarnation: int = 0
    in_flight: int = 0
    sequences: int = 0
    queued_tokens: int = 0
    kv_tokens: int = 0
    remaining_tokens: int = 0
    kv_capacity_tokens: int | None = None
    free_slots: int | None = None
    capacity: float = 1.0
    warmup: float = 1.0
    step: StepModel | None = None
    transfers: Mapping[str, TransferModel] = field(default_factory=dict, repr=False, compare=False)
    residents: Collection[Lease] = ()
    barrier_peers: Sequence[WorkerView] = field(default=(), repr=False, compare=False)
    stats: EngineStats | None = None


@dataclass(slots=True, kw_only=True)
class Server:
    """A WorkerView that a simulation moves."""

    name: str
    role: Role = Role.BOTH
    model: str = "model"
    revision: str = ""
    barrier_group: str | None = None
    incarnation: int = 0
    in_flight: int = 0
    sequences: int = 0
    queued_tokens: int = 0
    kv_tokens: int = 0
    remaining_tokens: int = 0
    kv_capacity_tokens: int | None = None
    free_slots: int | None = None
    capacity: float = 1.0
    warmup: float = 1.0
    step: StepModel | None = None
    transfers: Mapping[str, TransferModel] = field(default_factory=dict, repr=False, compare=False)
    residents: Collection[Lease] = ()
    barrier_peers: Sequence[WorkerView] = field(default=(), repr=False, compare=False)
    stats: EngineStats | None = None


def worker(name: str = "w", **what: object) -> FrozenWorker:
    return FrozenWorker(name=name, **what)  # type: ignore[arg-type]  # an example names only what it is about


def idle(count: int) -> list[FrozenWorker]:
    return [worker(f"10.0.0.{index}:8000") for index in range(count)]


def request(sequence: int = 0, /, **what: object) -> Request:
    settings = {"id": f"r{sequence}", "sequence": sequence, "model": "model", "arrived": NOW} | what
    return Request(**settings)  # type: ignore[arg-type]  # as above


def varied(sequence: int) -> Request:
    """Requests of many conversations, every other one long."""
    length = 5_000 if (sequence * 2654435761 >> 16) & 1 else 200
    return request(sequence, prompt_tokens=length, max_tokens=300, affinity=f"conversation {sequence}")


def alike(sequence: int) -> Request:
    """Requests of one length."""
    return request(sequence, prompt_tokens=1_000, max_tokens=300)


def policy(name: str, seed: int = 1, /, **params: object) -> Policy:
    return cast(Policy, build(name, params, seed))


def place(chooser: Policy, one: Request, workers: Sequence[FrozenWorker] | Sequence[Server]) -> str:
    """Pick and commit, as the pool does; returns the name."""
    choice = chooser.pick(one, workers, NOW)
    assert choice is not None
    if isinstance(chooser, Commits):
        chooser.committed(one, choice, NOW, retry=one.attempt > 0)
    return choice.worker
