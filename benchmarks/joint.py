"""What one decision of joint costs: colocated, and in pairs of a prefill and a decode worker.

Measured together: match, key portion, pick and commit, on a warm tree and a busy pool; colocated also the
belief that the prompt will be held. The median is taken in rounds and the quietest is shown, as other
programs on the machine only ever add time. Run with `python -m benchmarks.joint`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

from msgspec import structs

from benchmarks.policies import busy
from benchmarks.prefix_policies import WORKLOADS, Bench, Workload, requests
from benchmarks.verdict import Verdict, print_verdicts
from router.core.policy import Choice
from router.core.prefixes import PoolPrefixes
from router.core.request import Api, Request
from router.core.worker import Role, TransferModel, Worker
from router.policies.joint import Joint, Parameters

COLOCATED_MS = {8: 0.33, 64: 0.5}
PAIRS_MS = {8: 1.0, 64: 1.0}
"""Milliseconds by number of workers, in pairs of each side."""

_ROUNDS = 5


def colocated_ms(workload: Workload, workers: int, samples: int) -> float:
    """Median of a decision for a chat that one worker serves whole."""
    bench = Bench("joint", workers)
    chats = [structs.replace(one, api=Api.CHAT, stream=True) for one in requests(workload, 2 * samples)]
    return _quietest_ms([bench.decide(one) for one in chats][samples:])


def pairs_ms(workload: Workload, workers: int, samples: int) -> float:
    """Median of a decision for both ends of a split request."""
    policy = Joint(Parameters(), 3)
    prefills, decodes = _side(Role.PREFILL, "p", workers), _side(Role.DECODE, "d", workers)
    for decode in decodes:
        decode.transfers = {one.name: TransferModel(0.003, 1e-6) for one in prefills}
    known = [PoolPrefixes(), PoolPrefixes()]
    for prefixes, side in zip(known, (prefills, decodes), strict=True):
        prefixes.sweep(side, 1_000.0)
    policy.bind_producers(known[0])
    policy.bind(known[1])
    took = []
    for number, one in enumerate(requests(workload, 2 * samples)):
        split = structs.replace(one, api=Api.CHAT, stream=True, split=True)
        began = time.perf_counter_ns()
        choice = policy.pick_pair(split, prefills, decodes, 1_000.0 + number / 100)
        policy.committed(split, choice, 1_000.0 + number / 100, retry=False)
        took.append(time.perf_counter_ns() - began)
        _hold(known, split, choice, 1_000.0 + number / 100)
    return _quietest_ms(took[samples:])


def _side(role: Role, letter: str, count: int) -> list[Worker]:
    workers = busy(count)
    for number, worker in enumerate(workers):
        worker.name, worker.role = f"{letter}{number}", role
    return workers


def _hold(known: Sequence[PoolPrefixes], request: Request, choice: Choice, now: float) -> None:
    """Both ends hold the prompt from now on."""
    key = request.key
    assert key is not None
    for prefixes, name in zip(known, (choice.prefill_worker, choice.worker), strict=True):
        assert name is not None
        claim = prefixes.index.insert(
            key.partition, key.canonical, name, now, prompt_tokens=request.prompt_tokens
        )
        if claim is not None:
            prefixes.index.confirm(claim, now)
        prefixes.changed()


def _quietest_ms(took: Sequence[int]) -> float:
    size = max(len(took) // _ROUNDS, 1)
    rounds = [took[start : start + size] for start in range(0, len(took), size)]
    return min(statistics.median(one) for one in rounds if len(one) == size) / 1e6


def measure(*, quick: bool = False) -> list[Verdict]:
    """Every workload by the size of the pool."""
    samples = 10 if quick else 150
    found = [
        Verdict(f"joint, {kind}, {size} workers", colocated_ms(workload, size, samples), "ms", bound)
        for kind, workload in WORKLOADS.items()
        for size, bound in COLOCATED_MS.items()
    ]
    return found + [
        Verdict(f"joint, {kind}, pairs of {size}", pairs_ms(WORKLOADS[kind], size, samples), "ms", bound)
        for kind in ("tools", "documents")
        for size, bound in PAIRS_MS.items()
    ]


if __name__ == "__main__":
    print_verdicts(measure())
