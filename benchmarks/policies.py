"""What one decision costs: pick() and committed() of each policy at 8, 64 and 256 workers.

Other programs on the machine only ever add time, so the median is taken in rounds and the quietest round is
shown. Two pools: a busy one with unequal loads and recent scrapes, and an idle one where every worker
ties. Run with `python -m benchmarks.policies`.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence
from typing import cast

from router.core.engine_stats import EngineStats
from router.core.policy import Commits, Policy
from router.core.request import Api, Request
from router.core.worker import StepModel, Worker
from router.policies import POLICIES, Shape, build

BOUNDS_US = {8: 20.0, 64: 60.0, 256: 250.0}
"""Microseconds that the median of pick() and committed() may take, by number of workers."""

PRICED_US = {8: 200.0, 64: 1_000.0, 256: 4_000.0}
"""The same for those that price every worker with all of its terms."""

PRICED = frozenset({"calibrated"})

ONE_AT_A_TIME = [spec.name for spec in POLICIES.values() if spec.shape is Shape.ONE]
"""The others decide in rounds: `benchmarks.rounds`."""

_NOW = 1000.0
_DECISIONS = 100
_ROUNDS = 15
_STEP = StepModel(4e-3, 60e-6, 15.5e-3, 0.12e-3, 0.12e-6)


def _worker(name: str, in_flight: int, capacity: float) -> Worker:
    """The pool's own worker, with the accounts of so many requests."""
    worker = Worker(
        name=name,
        capacity=capacity,
        models=frozenset({"model"}),
        step=_STEP,
        stats=EngineStats(taken=_NOW - 0.5, waiting=in_flight // 2, kv_capacity_tokens=400_000),
    )
    mirror = worker.mirror
    mirror.in_flight = mirror.sequences = in_flight
    mirror.queued_tokens = 300 * in_flight
    mirror.kv_tokens = 1_500 * in_flight
    mirror.remaining_tokens = 150 * in_flight
    return worker


def busy(count: int) -> list[Worker]:
    """Workers with 0 to 40 requests each; every fourth is of another speed."""
    source = random.Random(7)
    return [
        _worker(f"10.0.{i}.1:8000", source.randrange(41), 1.5 if i % 4 == 0 else 1.0) for i in range(count)
    ]


def idle(count: int) -> list[Worker]:
    """Workers that all tie."""
    return [_worker(f"10.0.{i}.1:8000", 0, 1.0) for i in range(count)]


def requests() -> list[Request]:
    source = random.Random(11)
    return [
        Request(
            id=f"request-{n}",
            sequence=n,
            model="model",
            arrived=_NOW,
            api=Api.CHAT,
            prompt_tokens=source.randrange(16, 8_000),
            max_tokens=512,
            affinity=f"conversation-{source.randrange(100)}",
        )
        for n in range(_DECISIONS)
    ]


def median_us(name: str, workers: Sequence[Worker]) -> float:
    """Median of pick() and committed() together, in microseconds: of the quietest of several rounds."""
    policy = cast(Policy, build(name, {}, seed=3))
    work = requests()
    return min(_round_us(policy, workers, work) for _ in range(_ROUNDS))


def _round_us(policy: Policy, workers: Sequence[Worker], work: Sequence[Request]) -> float:
    committed = policy.committed if isinstance(policy, Commits) else None
    samples = []
    for request in work:
        began = time.perf_counter_ns()
        choice = policy.pick(request, workers, _NOW)
        if committed is not None and choice is not None:
            committed(request, choice, _NOW, retry=False)
        samples.append(time.perf_counter_ns() - began)
    return statistics.median(samples) / 1_000


def bounds_of(name: str) -> dict[int, float]:
    """Microseconds that a policy may take, by number of workers."""
    return PRICED_US if name in PRICED else BOUNDS_US


def main() -> None:
    print("pick + committed, median in microseconds")
    print(f"{'policy':<18}" + "".join(f"{f'{n} busy':>10}{f'{n} idle':>10}" for n in BOUNDS_US))
    for name in ONE_AT_A_TIME:
        cells = [median_us(name, pool(n)) for n in BOUNDS_US for pool in (busy, idle)]
        print(f"{name:<18}" + "".join(f"{cell:>10.1f}" for cell in cells))
    print(f"{'bound':<18}" + "".join(f"{bound:>10.0f}" * 2 for bound in BOUNDS_US.values()))


if __name__ == "__main__":
    main()
