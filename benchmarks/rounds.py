"""What one round of a batch policy costs, admit() over a barrier group with everything that waits; and what
one request costs the forecasts that it rests on.

As in `benchmarks.policies`, other programs only ever add time, so the median and the 99th percentile are
taken in passes and the quietest pass is shown. Run with `python -m benchmarks.rounds`.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, cast

from benchmarks.verdict import Verdict, print_verdicts
from router.core.engine_stats import EngineStats
from router.core.forecasts import Forecasts
from router.core.lease import Lease, Outcome
from router.core.policy import BatchPolicy, Choice, Commits, Settles
from router.core.request import Api, Request
from router.core.worker import Worker, WorkerView
from router.policies import POLICIES, Shape, build
from router.policies.balance_route_h import BalanceRouteH

_NOW = 1000.0
_ROUNDS = 60
_PASSES = 5
_SLOTS = 64


class Scene(NamedTuple):
    """A group of so many workers with `busy` residents each and so many requests waiting.

    Attributes:
        p50_ms, p99_ms: bounds by policy; no entry: shown, not judged.
    """

    name: str
    workers: int
    busy: int
    waiting: int
    p50_ms: dict[str, float]
    p99_ms: dict[str, float]


SCENES = (
    Scene(
        "8 workers, 8 free slots, 64 waiting",
        8, 63, 64,
        {"balance_route_0": 0.6, "balance_route_h": 0.6},
        {"balance_route_0": 1.4, "balance_route_h": 1.4},
    ),
    Scene("8 workers, 32 free slots, 64 waiting", 8, 60, 64, {"balance_route_0": 1.0}, {}),
    Scene("8 idle workers, 64 waiting", 8, 0, 64, {"balance_route_0": 1.0}, {}),
    Scene(
        "64 workers, 64 free slots, 256 waiting",
        64, 63, 256,
        {"balance_route_0": 4.0, "balance_route_h": 4.0},
        {},
    ),
)  # fmt: skip
"""The first is the deployment of arXiv 2605.06113, which needs 1.20 ms and 2.77 ms there."""


@dataclass(slots=True, eq=False, kw_only=True)
class Rank(Worker):
    """A worker that knows its group and what it holds."""

    barrier_peers: Sequence[WorkerView] = field(default=(), repr=False)
    residents: list[Lease] = field(default_factory=list, repr=False)


def _request(number: int, source: random.Random, came: float = _NOW) -> Request:
    return Request(
        id=f"r{number}",
        sequence=number,
        model="model",
        arrived=came + number / 1e9,
        prompt_tokens=min(32_000, max(16, round(source.lognormvariate(7.57, 1.0)))),
        api=Api.CHAT,
        tenant=f"t{number % 7}",
    )


def _output_tokens(source: random.Random) -> int:
    return min(16_000, max(2, round(source.lognormvariate(6.58, 1.0))))


def group(policy: BatchPolicy, scene: Scene, source: random.Random) -> list[Rank]:
    """Workers with leases in the middle of their answers, which the policy has placed."""
    ranks: list[Rank] = []
    for index in range(scene.workers):
        rank = Rank(
            name=f"10.0.{index}.1:8000",
            slots=_SLOTS,
            barrier_group="engine",
            models=frozenset({"model"}),
            stats=EngineStats(taken=_NOW, kv_capacity_tokens=1_000_000),
            barrier_peers=ranks,
        )
        for n in range(scene.busy):
            request = _request(10**6 + index * _SLOTS + n, source, _NOW - 60.0)
            lease = _lease(request, rank.name, source.randrange(_output_tokens(source)))
            _tell(policy, request, rank.name)
            if isinstance(policy, BalanceRouteH):
                policy.forecasts.granted(lease)  # as a ledger does
            rank.residents.append(lease)
            rank.mirror.charge(lease)
        ranks.append(rank)
    return ranks


def _lease(request: Request, worker: str, written: int) -> Lease:
    return Lease(
        request, worker, 0, _NOW, request.prompt_tokens, 200, generated_tokens=written, prefilled=True
    )


def _tell(policy: BatchPolicy, request: Request, worker: str) -> None:
    if isinstance(policy, Commits):
        policy.committed(request, Choice(request.id, worker), _NOW, retry=False)


def taught(name: str) -> BatchPolicy:
    """A policy that has seen a thousand answers end."""
    policy, source = cast(BatchPolicy, build(name, {}, seed=3)), random.Random(5)
    if isinstance(policy, Settles):
        for number in range(1_000):
            request = _request(2 * 10**6 + number, source, _NOW - 90.0)
            _tell(policy, request, "w")
            policy.settled(_lease(request, "w", _output_tokens(source)), Outcome.OK, _NOW)
    return policy


def times_ms(name: str, scene: Scene) -> tuple[float, float]:
    """Median and 99th percentile of a round, of the quietest of several passes."""
    source = random.Random(7)
    policy = taught(name)
    workers = group(policy, scene, source)
    queues = [[_request(n, source) for n in range(scene.waiting)] for _ in range(_ROUNDS)]
    passes = [_pass_ms(policy, workers, queues) for _ in range(_PASSES)]
    return min(p50 for p50, _ in passes), min(p99 for _, p99 in passes)


def _pass_ms(
    policy: BatchPolicy, workers: Sequence[WorkerView], queues: Sequence[Sequence[Request]]
) -> tuple[float, float]:
    samples = []
    for waiting in queues:
        began = time.perf_counter_ns()
        policy.admit(waiting, workers, _NOW + 1.0)
        samples.append((time.perf_counter_ns() - began) / 1e6)
    return statistics.median(samples), statistics.quantiles(samples, n=100)[98]


def forecast_us() -> float:
    """Median of what one request costs the forecasts of its pool, from its placement to its end; of the
    quietest of several passes. Curves are made anew within."""
    forecasts, source = Forecasts(lambda _: 200), random.Random(11)
    passes = []
    for number in range(_PASSES * 1_000):
        request = _request(number, source)
        began = time.perf_counter_ns()
        expected = forecasts.placed(request, _NOW)
        spent = time.perf_counter_ns() - began
        lease = Lease(request, "w", 0, _NOW, 100, expected, generated_tokens=_output_tokens(source))
        began = time.perf_counter_ns()
        forecasts.settled(lease, Outcome.OK, _NOW)
        passes.append((spent + time.perf_counter_ns() - began) / 1e3)
    return min(statistics.median(passes[n : n + 1_000]) for n in range(0, len(passes), 1_000))


def measure(*, quick: bool) -> list[Verdict]:
    verdicts = [Verdict("forecasts of one request, placed and settled, p50", forecast_us(), "us", 20.0)]
    for spec in POLICIES.values():
        if spec.shape is not Shape.BATCH:
            continue
        for scene in SCENES[:1] if quick else SCENES:
            p50, p99 = times_ms(spec.name, scene)
            title = f"{spec.name}, {scene.name}"
            verdicts.append(Verdict(f"{title}, p50", p50, "ms", scene.p50_ms.get(spec.name)))
            verdicts.append(Verdict(f"{title}, p99", p99, "ms", scene.p99_ms.get(spec.name)))
    return verdicts


if __name__ == "__main__":
    print_verdicts(measure(quick=False))
