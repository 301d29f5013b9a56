"""What one decision costs with the policies that follow prefixes, on the five workloads of Preble's paper.

Measured together: match, pick, the belief that the prompt will be held, and the commit, on a warm tree and a
busy pool. Outcomes are told between, outside the measured time. The median is taken in rounds and the
quietest is shown, as other programs on the machine only ever add time. Run with
`python -m benchmarks.prefix_policies`.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import cast

from benchmarks.policies import busy
from benchmarks.verdict import Verdict, print_verdicts
from router.core.lease import Lease, Outcome
from router.core.policy import Commits, Policy, Settles
from router.core.prefixes import Binds, PoolPrefixes
from router.core.prompt_key import PromptKey
from router.core.request import Request
from router.core.worker import Worker
from router.policies import build

POLICIES = ("cache_aware", "joint", "preble")
BOUNDS_MS = {8: 0.33, 64: 0.5, 256: 1.5}
"""Milliseconds by number of workers. The paper's scheduler takes 0.34 to 4 ms a request."""

_LETTERS = "abcdefghijklmnopqrstuvwxyz "
_ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Workload:
    """Prompts of a shared head and an own end, by their mean tokens, popular by a power law."""

    shared_tokens: int
    own_tokens: int
    heads: int


WORKLOADS: Mapping[str, Workload] = MappingProxyType(
    {
        "tools": Workload(1_560, 275, 40),
        "agents": Workload(2_215, 70, 40),
        "programs": Workload(3_755, 116, 40),
        "videos": Workload(8_680, 1_185, 12),
        "documents": Workload(21_360, 2_114, 12),
    }
)
"""Mean prompts and shared shares of the paper's table 1."""


def requests(workload: Workload, count: int) -> Iterator[Request]:
    """Requests of one workload, their canonical form built."""
    source = random.Random(5)

    def text(tokens: int) -> str:
        return "".join(source.choices(_LETTERS, k=4 * tokens))

    heads = [text(workload.shared_tokens) for _ in range(workload.heads)]
    tokens = workload.shared_tokens + workload.own_tokens
    for number in range(count):
        head = heads[min(int(source.paretovariate(1.1)), len(heads)) - 1]
        key = PromptKey.of_text("model", head + text(workload.own_tokens))
        assert key.canonical
        yield Request(
            id=f"r{number}",
            sequence=number,
            model="model",
            arrived=0.0,
            prompt_tokens=tokens,
            max_tokens=64,
            key=key,
        )


class Bench:
    """One policy over one pool, warm after the first requests."""

    def __init__(self, name: str, workers: int) -> None:
        self.policy = cast(Policy, build(name, {}, seed=3))
        self.workers = {worker.name: worker for worker in busy(workers)}
        self.offered: list[Worker] = list(self.workers.values())
        self.prefixes = PoolPrefixes()
        if isinstance(self.policy, Binds):
            self.policy.bind(self.prefixes)
        self.commits = self.policy if isinstance(self.policy, Commits) else None
        self.now = 1_000.0
        self.prefixes.sweep(self.offered, self.now)

    def decide(self, request: Request) -> int:
        """Nanoseconds of one decision."""
        self.now = now = self.now + 0.01
        began = time.perf_counter_ns()
        choice = self.policy.pick(request, self.offered, now)
        assert choice is not None
        lease = Lease(
            request=request,
            worker=choice.worker,
            incarnation=0,
            granted=now,
            prompt_tokens=request.prompt_tokens,
            expected_tokens=1,
        )
        self.prefixes.charged(lease, self.workers[choice.worker], now)
        if self.commits is not None:
            self.commits.committed(request, choice, now, retry=False)
        took = time.perf_counter_ns() - began
        self._answer(lease, now)
        return took

    def _answer(self, lease: Lease, now: float) -> None:
        lease.prefilled, lease.generated_tokens, lease.outcome = True, 32, Outcome.OK
        self.prefixes.settled(lease, now)
        if isinstance(self.policy, Settles):
            self.policy.settled(lease, Outcome.OK, now)


def median_ms(name: str, workload: Workload, workers: int, samples: int) -> float:
    """Median of a decision in milliseconds: of the quietest of several rounds."""
    bench = Bench(name, workers)
    took = [bench.decide(request) for request in requests(workload, 2 * samples)][samples:]
    size = max(samples // _ROUNDS, 1)
    rounds = [took[start : start + size] for start in range(0, samples, size)]
    return min(statistics.median(one) for one in rounds if len(one) == size) / 1e6


def measure(*, quick: bool = False) -> list[Verdict]:
    """Every policy by workload and size of the pool."""
    samples, sizes = (10, {8: BOUNDS_MS[8]}) if quick else (200, BOUNDS_MS)
    return [
        Verdict(f"{name}, {kind}, {size} workers", median_ms(name, workload, size, samples), "ms", bound)
        for name in POLICIES
        for kind, workload in WORKLOADS.items()
        for size, bound in sizes.items()
    ]


if __name__ == "__main__":
    print_verdicts(measure())
