"""Policies before plain servers, first come, first served: queueing theory, not engines.

Separate from the simulation of engines because theory has no tokens: a job has a service time, and a server
does one at a time. The pools and policies are the real ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from random import Random

from router.core.budget import Budget
from router.core.lease import Lease, Outcome
from router.core.policy import AnyPolicy, Policy
from router.core.pool import Pool, PoolBudgets, PoolRules
from router.core.request import Api, Request
from router.core.step_model import StepModel
from router.core.worker import Worker
from router.policies import build
from router.studies.simulation.call import Call
from router.studies.simulation.record import CallRecord, EngineRecord
from router.studies.simulation.run import RunResult
from router.studies.simulation.timeline import Timeline
from router.studies.stale import Stale

_MODEL = "model"
_NOTHING = EngineRecord(steps=0, prompt_tokens=0, cached_tokens=0, generation_tokens=0, preemptions=0)
_STEP = StepModel(0.0, 1e-3, 0.0, 0.0, 0.0)
"""A token of a job's prompt is a millisecond of work, and the router knows that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePlan:
    """So many servers alike behind one policy.

    Attributes:
        stale_s: period of the looks at the servers; 0 sees them as they are.
        warm_up: calls at the beginning that are left out of the result.
    """

    policy: str
    params: Mapping[str, object]
    servers: int = 16
    stale_s: float = 0.0
    warm_up: int = 0


class _Queues:
    """Servers on the timeline, and the pool before them."""

    def __init__(self, plan: QueuePlan, seed: int) -> None:
        self.timeline = Timeline()
        self.records: list[CallRecord] = []
        self._warm_up = plan.warm_up
        made: AnyPolicy = build(plan.policy, plan.params, seed)
        if plan.stale_s > 0 and isinstance(made, Policy):
            made = Stale(made, plan.stale_s)
        budgets = PoolBudgets(Budget("in flight", 1 << 40), Budget("queued bytes", 1 << 40))
        self.pool = Pool(PoolRules("servers", policy=plan.policy), made, budgets, lambda _request: 1)
        for index in range(plan.servers):
            name = f"server-{index:03}"
            self.pool.roster.add(Worker(name=name, step=_STEP), 0.0)
            self.pool.roster.learn_models(name, {_MODEL: None})
            self.pool.roster.probed(name, 0.0)
        self._free_at = dict.fromkeys(self.pool.roster.workers, 0.0)

    def arrive(self, call: Call) -> None:
        now = self.timeline.now
        request = Request(
            id=str(call.number),
            sequence=call.number,
            model=_MODEL,
            arrived=now,
            api=Api.OTHER,
            prompt_tokens=call.prompt_tokens,
        )
        lease = self.pool.place_now(request, now)
        if lease is None:
            raise RuntimeError(f"{self.pool!r} did not place a job at once")
        ends = max(self._free_at[lease.worker], now) + call.work_s
        self._free_at[lease.worker] = ends
        self.timeline.at(ends, partial(self._end, call, lease, now))

    def _end(self, call: Call, lease: Lease, arrived: float) -> None:
        now = self.timeline.now
        self.pool.release(lease, Outcome.OK, now)
        if call.number >= self._warm_up:
            self.records.append(
                CallRecord(
                    number=call.number,
                    arrived=arrived,
                    prompt_tokens=call.prompt_tokens,
                    family=call.family,
                    placed=arrived,
                    first=now,
                    done=now,
                    worker=lease.worker,
                    reason=lease.reason,
                    tokens=1,
                    outcome="ok",
                )
            )


def serve(plan: QueuePlan, calls: Iterable[Call], seed: int = 0) -> RunResult:
    """One run from its begin to its end."""
    queues = _Queues(plan, seed)
    timeline = queues.timeline
    for call in calls:
        # Everything that is due before a job comes, then the job: a heap of all of them would be no faster.
        while (due := timeline.next_at) is not None and due <= call.at:
            timeline.step()
        timeline.now = call.at
        queues.arrive(call)
    while timeline.step():
        pass
    return RunResult(
        calls=sorted(queues.records, key=lambda record: record.number),
        engines=dict.fromkeys(queues.pool.roster.workers, _NOTHING),
        barriers={},
        loads={},
        ended_s=timeline.now,
    )


def balls_in_bins(bins: int, choices: int, seed: int) -> int:
    """Balls in the fullest bin, when as many balls as bins are thrown, each into the emptiest of so many
    bins that are drawn at random. About ln n / ln ln n for one choice, ln ln n / ln 2 for two (Azar et al.,
    STOC 1994)."""
    chance = Random(seed)
    filled = [0] * bins
    for _ in range(bins):
        drawn = [chance.randrange(bins) for _ in range(choices)]
        filled[min(drawn, key=filled.__getitem__)] += 1
    return max(filled)
