"""The three shapes of a policy, and what one returns.

A policy reads; only the Pool charges. `pick`, `pick_pair` and `admit` change nothing: called twice in a row
they return the same, so a dry run, a shadow and a retry are free of side effects. State moves in `committed`
and `settled`, which the Pool calls and nobody else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Protocol, runtime_checkable

import msgspec

from router.core.lease import Lease, Outcome
from router.core.request import Request
from router.core.worker import WorkerView


class Choice(msgspec.Struct, frozen=True, gc=False):
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


@runtime_checkable
class Starts(Protocol):
    """Optional: told of the first output of every lease, from which waits are learned."""

    def started(self, lease: Lease, now: float) -> None: ...


# The stream and the finaliser of splitmix64: Steele, Lea and Flood, "Fast splittable pseudorandom number
# generators", OOPSLA 2014; the multipliers are variant 13 of Stafford's mixers.
_GAMMA = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
_64_BITS = (1 << 64) - 1
_MAX_NAMES = 8_192


def text_key(seed: int, text: str) -> int:
    """64 bits that stand for a text under a seed. A lone surrogate, which JSON can carry, is text too."""
    data = b"%d/%s" % (seed, text.encode(errors="surrogatepass"))
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "big")


class _NameKeys(dict[str, int]):
    """`text_key` of workers' names under one seed, remembered: the same few are asked for at every pick."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def __missing__(self, name: str) -> int:
        if len(self) >= _MAX_NAMES:
            self.clear()
        key = self[name] = text_key(self._seed, name)
        return key


_name_keys = lru_cache(maxsize=64)(_NameKeys)
"""By seed."""


def name_key(seed: int, name: str) -> int:
    """`text_key` of a worker's name, remembered."""
    return _name_keys(seed)[name]


def tie_break(seed: int, sequence: int, name: str) -> int:
    """An unbiased, repeatable number of 64 bits for (seed, request, worker), to draw by or to order by.

    A hash rather than a generator: nothing advances, so a pick stays free of side effects, and two requests
    in a row do not favour the same index. Name and sequence number are each hashed, joined, and mixed again.
    """
    return tie_breaks(seed, sequence, (name,))[0]


def draw(seed: int, sequence: int, first: str, count: int) -> int:
    """One of `count` equals, each as likely, by one hash for all of them; `first`: the name of the first."""
    return tie_break(seed, sequence, first) * count >> 64


def tie_breaks(seed: int, sequence: int, names: Iterable[str]) -> list[int]:
    """`tie_break` of many names, one stage at a time: 256 calls would cost more than the hashes."""
    z = sequence * _GAMMA & _64_BITS
    z = (z ^ (z >> 30)) * _MIX_1 & _64_BITS
    z = (z ^ (z >> 27)) * _MIX_2 & _64_BITS
    mixed = z ^ (z >> 31)
    keys = _name_keys(seed)
    stage = [(keys[name] ^ mixed) * _MIX_1 & _64_BITS for name in names]
    return [(z ^ (z >> 32)) * _MIX_2 & _64_BITS for z in stage]
