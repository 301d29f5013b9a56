"""What one round of a decode pool costs: prefilled requests wait, and the workers have room for all, or none.

Unlike `benchmarks.rounds`, which times a policy alone, this is all that `Pool.assign` does: who may be
offered, the choices, and the charges. Other programs only ever add time, so the median is taken in passes and
the quietest pass is shown. Run with `python -m benchmarks.decode_round`.
"""

from __future__ import annotations

import statistics
import time
from typing import NamedTuple, cast

from msgspec import structs

from benchmarks.verdict import Verdict, print_verdicts
from router.core.binding import Mode
from router.core.budget import Budget
from router.core.handover import Handover
from router.core.health import Sign
from router.core.lease import Outcome
from router.core.partners import Partners
from router.core.policy import Policy
from router.core.pool import Pool, PoolBudgets, PoolRules
from router.core.prefill_budget import PrefillBudget
from router.core.request import Request
from router.core.worker import Role, Worker
from router.policies import build

_MODEL = "model"
_NOW = 1000.0
_ROUNDS = 15
_PASSES = 20
_PREFILLS = 4
_OVERDUE_S = 10.0
_LEASE_S = 25.0


class Scene(NamedTuple):
    """So many workers and waiting requests; `room` for all of them or for nobody."""

    name: str
    workers: int
    waiting: int
    room: bool
    p50_ms: float | None


SCENES = (
    Scene("8 workers, 64 placed", 8, 64, room=True, p50_ms=1.0),
    Scene("8 workers without room, 64 waiting", 8, 64, room=False, p50_ms=0.2),
    Scene("64 workers without room, 256 waiting", 64, 256, room=False, p50_ms=0.5),
)


class Pair(NamedTuple):
    """Two pools that hand KV to each other."""

    prefill: Pool
    decode: Pool


def pair(policy: str, scene: Scene) -> Pair:
    """Late binding, with slots for all of the requests or for none."""
    slots = scene.waiting if scene.room else 1
    budgets = PoolBudgets(Budget("in flight", 10_000), Budget("queued bytes", 1 << 30))
    prefill = _pool(Role.PREFILL, budgets, policy, [f"p{n}" for n in range(_PREFILLS)], slots)
    decode = _pool(Role.DECODE, budgets, policy, [f"10.0.{n}.1:8000" for n in range(scene.workers)], slots)
    decode.join(prefill, Partners(prefill.roster, decode.roster, PrefillBudget()))
    if not scene.room:
        for number in range(scene.workers):
            _prefilled(Pair(prefill, decode), -1 - number)
        if len(decode.assign(_NOW)) != scene.workers:
            raise RuntimeError("not every worker has got a request")
    return Pair(prefill, decode)


def _pool(role: Role, budgets: PoolBudgets, policy: str, names: list[str], slots: int) -> Pool:
    rules = PoolRules(name=role.value, policy=policy, role=role, mode=Mode.LATE, max_transfers=slots)
    made = Pool(rules, cast(Policy, build(policy, {}, seed=3)), budgets, lambda _request: 200)
    for name in names:
        worker = Worker(
            name=name,
            role=role,
            slots=slots,
            models=frozenset({_MODEL}),
            configured_kv_tokens=10**8,
            revision="revision",
        )
        made.roster.add(worker, _NOW)
        made.roster.sign(name, Sign.GOOD, _NOW)
    return made


def _prefilled(pools: Pair, number: int) -> None:
    """A request whose KV waits for a decode worker."""
    request = Request(
        id=f"r{number}",
        sequence=number,
        model=_MODEL,
        arrived=_NOW,
        prompt_tokens=500 + number * 37 % 1_500,
        max_tokens=512,
        split=True,
    )
    lease = pools.prefill.place_now(request, _NOW)
    if lease is None:
        raise RuntimeError("no prefill worker has room")
    pools.prefill.progress(lease, _NOW, generated_tokens=1)
    handover = Handover(lease, "revision", _NOW, _NOW + _OVERDUE_S, _NOW + _LEASE_S)
    pools.decode.submit(structs.replace(request, handover=handover), _NOW)


def median_ms(policy: str, scene: Scene) -> float:
    """Of a round, in milliseconds: of the quietest of several passes."""
    pools = pair(policy, scene)
    if not scene.room:
        fill(pools, scene)
    return min(pass_ms(pools, scene, rounds=_ROUNDS) for _ in range(_PASSES))


def fill(pools: Pair, scene: Scene) -> None:
    """Everybody's prefill is done."""
    for number in range(scene.waiting):
        _prefilled(pools, number)


def pass_ms(pools: Pair, scene: Scene, *, rounds: int) -> float:
    """Median of so many rounds in a row, in milliseconds."""
    samples = []
    for _ in range(rounds):
        if scene.room:
            fill(pools, scene)
        began = time.perf_counter_ns()
        leases = pools.decode.assign(_NOW + 1.0)
        samples.append((time.perf_counter_ns() - began) / 1e6)
        if len(leases) != (scene.waiting if scene.room else 0):
            raise RuntimeError(f"{len(leases)} requests were placed")
        for lease in leases:
            pools.decode.release(lease, Outcome.OK, _NOW + 1.0)
    return statistics.median(samples)


def measure(*, quick: bool) -> list[Verdict]:
    scenes = SCENES[:1] if quick else SCENES
    return [
        Verdict(f"decode round, {policy}, {scene.name}, p50", median_ms(policy, scene), "ms", scene.p50_ms)
        for policy in ("least_tokens",)
        for scene in scenes
    ]


if __name__ == "__main__":
    print_verdicts(measure(quick=False))
