"""The three shapes of a policy, and what one returns.

A policy reads; only the Pool charges. `pick`, `pick_pair` and `admit` change nothing: called twice in a row
they return the same, so a dry run, a shadow and a retry are free of side effects. State moves in `committed`
and `settled`, which the Pool calls and nobody else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Protocol, runtime_checkable

from router.core.lease import Lease, Outcome
from router.core.request import Request
from router.core.worker import WorkerView


@dataclass(frozen=True, slots=True)
class Choice:
    """Where one request should go.

    Attributes:
        worker: name of the worker (of the decode worker, for a pair).
        prefill_worker: name of the prefill worker, for a pair.
        cost: what was compared, lower is better, in the policy's stated unit.
        reason: one short fixed word: "least_load", "affinity", "random" …
    """

    request_id: str
    worker: str
    prefill_worker: str | None = None
    cost: float = 0.0
    reason: str = ""


@runtime_checkable
class Policy(Protocol):
    """One request at a time.

    `workers` is never empty, already filtered to the eligible ones, in name order. None leaves the request
    queued. Must not mutate its arguments or read a clock.
    """

    def pick(self, request: Request, workers: Sequence[WorkerView], now: float) -> Choice | None: ...


@runtime_checkable
class PairPolicy(Protocol):
    """Prefill and decode worker together, for connectors whose legs run at the same time."""

    def pick_pair(
        self, request: Request, prefills: Sequence[WorkerView], decodes: Sequence[WorkerView], now: float
    ) -> Choice | None: ...


@runtime_checkable
class BatchPolicy(Protocol):
    """Sees all waiting requests, oldest first; leaves some queued if that is better."""

    def admit(
        self, waiting: Sequence[Request], workers: Sequence[WorkerView], now: float
    ) -> Sequence[Choice]: ...


AnyPolicy = Policy | PairPolicy | BatchPolicy


@runtime_checkable
class Commits(Protocol):
    """Optional: told of every charge. A retry of the same request is told with `retry=True` and must not
    advance counters a second time."""

    def committed(self, request: Request, choice: Choice, now: float, *, retry: bool) -> None: ...


@runtime_checkable
class Settles(Protocol):
    """Optional: told of every settled lease; predictors and windows learn here."""

    def settled(self, lease: Lease, outcome: Outcome, now: float) -> None: ...


def tie_break(seed: int, sequence: int, name: str) -> int:
    """An unbiased, repeatable number for (seed, request, worker); the smallest wins a tie.

    A keyed hash rather than a generator: nothing advances, so a pick stays free of side effects, and two
    requests in a row do not favour the same index.
    """
    data = b"%d/%d/%s" % (seed, sequence, name.encode())
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "big")
