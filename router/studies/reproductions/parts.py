"""Single runs of reproductions: plain functions of names and numbers, so that any process can do them.

Separate from the studies because many of them ask the same of a run.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from msgspec import structs

from router.studies.metrics import Slo, target_of
from router.studies.queueing import QueuePlan, balls_in_bins, serve
from router.studies.reproductions.study import Measures
from router.studies.setups import CALIBRATED_A40, Choosing, balanceroute, calibrated, preble
from router.studies.simulation.call import Call
from router.studies.simulation.fleet import FleetPlan
from router.studies.simulation.known import scaled
from router.studies.simulation.record import CallRecord
from router.studies.simulation.run import Simulation, simulate
from router.studies.traces.trace import percentile
from router.studies.workloads import WORKLOADS
from router.studies.workloads.preble import FAMILIES, Family
from router.studies.workloads.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Under:
    """A policy with its parameters."""

    policy: str
    params: Mapping[str, object] = field(default_factory=dict)

    @property
    def choosing(self) -> Choosing:
        return Choosing(policy=self.policy, params=dict(self.params))


# --- plain servers ----------------------------------------------------------------------------------------


def queue_run(under: Under, heavy: bool, jobs: int, stale_s: float = 0.0, seed: int = 1) -> Measures:
    """16 servers at 0.9 of what they can do; a tenth of the jobs warms them up."""
    workload = WORKLOADS["classic_heavy_tail" if heavy else "classic_exponential"]
    plan = QueuePlan(policy=under.policy, params=under.params, stale_s=stale_s, warm_up=jobs // 10)
    return _latency(serve(plan, workload.calls(jobs, 14.4, seed), seed).calls)


def bins_run(bins: int, choices: int, trials: int) -> Measures:
    """The fullest of so many bins, on the mean of the trials."""
    fullest = [balls_in_bins(bins, choices, seed) for seed in range(1, trials + 1)]
    return {"fullest": math.fsum(fullest) / trials}


# --- prefixes ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompts:
    """Calls of one of Preble's families.

    Attributes:
        keys: key portions, whatever the number of calls; None: in the paper's proportion.
        exponent: of their popularity.
        system: tokens that all of them begin with; None: as few as in the lecture.
    """

    family: str
    calls: int
    rate: float
    keys: int | None = None
    exponent: float = 1.1
    system: int | None = None

    def made(self, seed: int) -> list[Call]:
        family = next(each for each in FAMILIES if each.name == self.family)
        family = replace(family, exponent=self.exponent)
        if self.system is not None:
            family = replace(family, system=self.system)
        if self.keys is not None:
            family = replace(family, keys=self.keys, calls=self.calls)
        return _workload(family).calls(self.calls, self.rate, seed)


def _workload(family: Family) -> Workload:
    return Workload(
        name=family.name, make=family.make, published_size=family.calls, setup="preble_a6000", page=""
    )


def prompt_run(
    under: Under, prompts: Prompts, workers: int = 4, order: str = "fcfs", seed: int = 1
) -> Measures:
    """Engines of Mistral-7B on A6000 that start what waits in an order."""
    result = simulate(_in_order(preble(workers)(under.choosing), order), prompts.made(seed), seed)
    answered = [record for record in result.calls if record.outcome == "ok"]
    prompt_tokens = sum(record.prompt_tokens for record in answered)
    by_worker: dict[str, int] = {}
    for record in answered:
        by_worker[record.worker] = by_worker.get(record.worker, 0) + 1
    return {
        **_latency(answered),
        "hit": sum(record.hit_tokens for record in answered) / prompt_tokens,
        "busiest": max(by_worker.values()) * workers / len(answered),
        "unanswered": float(len(result.calls) - len(answered)),
    }


def _in_order(plan: FleetPlan, order: str) -> FleetPlan:
    pools = tuple(
        replace(
            pool,
            workers=tuple(
                replace(worker, engine=replace(worker.engine, scheduling=order))  # type: ignore[arg-type]  # EngineConfig refuses what it does not know
                for worker in pool.workers
            ),
        )
        for pool in plan.pools
    )
    return replace(plan, pools=pools)


def _latency(records: Iterable[CallRecord]) -> Measures:
    times = sorted(record.e2e_s for record in records if record.e2e_s is not None)
    return {
        "mean_s": math.fsum(times) / len(times),
        "p99_s": percentile(times, 0.99),
    }


# --- prefill and decode apart -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """Calls of a family of "Calibrate then route".

    Attributes:
        noise: relative error of what the router is told of an output, evenly spread; None: it is told
            nothing, and learns the mean.
    """

    calls: int
    rate: float
    workload: str = "mixed_bursty"
    noise: float | None = None

    def made(self, seed: int) -> list[Call]:
        calls = WORKLOADS[self.workload].calls(self.calls, self.rate, seed)
        if self.noise is None:
            return calls
        chance = random.Random(f"noise/{seed}")
        return [_foretold(call, 1.0 + self.noise * chance.uniform(-1.0, 1.0)) for call in calls]


def _foretold(call: Call, factor: float) -> Call:
    """The router takes the length that a client demands for the one that there will be; the engine writes as
    many tokens as before."""
    return structs.replace(call, max_tokens=max(round(call.output_tokens * factor), 2), ignore_eos=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A pair of pools of Qwen2.5-3B on A40.

    Attributes:
        decode_factor: the router's decode coefficients over the true ones.
        prefills_by: chooses the prefill workers; None: the policy that is studied.
    """

    prefills: int = 2
    decodes: int = 4
    decode_factor: float = 1.0
    prefills_by: Under | None = None

    def plan(self, under: Under) -> FleetPlan:
        made = calibrated(self.prefills, self.decodes)
        plan = _believing(made(under.choosing), self.decode_factor)
        if self.prefills_by is None:
            return plan
        other = made(self.prefills_by.choosing)
        return replace(plan, pools=(other.pools[0], plan.pools[1]))


def mix_run(under: Under, mix: Mix, pair: Pair | None = None, seed: int = 1) -> Measures:
    """Goodput by the paper's targets, and what it comes from."""
    result = simulate((pair or Pair()).plan(under), mix.made(seed), seed)
    ttfts = sorted(record.ttft_s for record in result.calls if record.ttft_s is not None)
    return {
        "goodput": _goodput(result.calls, CALIBRATED_A40.targets),
        "ttft_p99_s": percentile(ttfts, 0.99),
        "mean_s": _latency(result.calls)["mean_s"],
    }


def _goodput(calls: Sequence[CallRecord], targets: Mapping[str, Slo]) -> float:
    return sum(target_of(record, targets).met(record) for record in calls) / len(calls)


def _believing(plan: FleetPlan, factor: float) -> FleetPlan:
    """The same fleet before a router with other decode coefficients."""
    if factor == 1.0:
        return plan
    pools = tuple(
        replace(
            pool,
            workers=tuple(
                replace(worker, calibrated=scaled(worker.calibrated, factor)) if worker.calibrated else worker
                for worker in pool.workers
            ),
        )
        for pool in plan.pools
    )
    return replace(plan, pools=pools)


# --- barrier groups ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A barrier group that has more to do than it can.

    Attributes:
        load: calls that come over those that it can answer.
        since_s, until_s: the window that is measured; before it the group fills up.
        told: the router knows how long each answer will be: an oracle.
    """

    trace: str
    workers: int = 8
    slots: int = 64
    load: float = 1.6
    since_s: float = 200.0
    until_s: float = 600.0
    told: bool = False

    def made(self, seed: int) -> list[Call]:
        workload = WORKLOADS[f"balanceroute_{self.trace}"]
        rate = self.load * self._capacity(workload.calls(2_000, 1.0, seed))
        calls = workload.calls(round(rate * self.until_s), rate, seed)
        return [_foretold(call, 1.0) for call in calls] if self.told else calls

    def _capacity(self, calls: Sequence[Call]) -> float:
        """Calls per second of a group whose workers are all alike and full: a step lasts as long as reading
        the KV of all slots takes, in the mean over the life of a call."""
        outputs = [call.output_tokens for call in calls]
        written = sum(output * output for output in outputs) / (2 * sum(outputs))
        kv_tokens = math.fsum(call.prompt_tokens for call in calls) / len(calls) + written
        step_s = 5e-3 + 0.20e-6 * self.slots * kv_tokens
        return self.workers * self.slots / (sum(outputs) / len(calls) * step_s)


def group_run(under: Under, group: Group, seed: int = 1) -> Measures:
    """DeepSeek-V3's decode ranks on Atlas 910C: `gap` is the time mean of max − min KV tokens."""
    plan = balanceroute(group.workers, group.slots, early=True)(under.choosing)
    simulation = Simulation(plan, group.made(seed), seed)
    for stepper in simulation.hall.steppers:
        if stepper.watch is not None:
            stepper.watch.since = group.since_s
    result = simulation.run(group.until_s)
    (barrier,) = result.barriers.values()
    tpots = sorted(each for record in result.calls if (each := _tpot_within(record, group)) is not None)
    return {
        "tokens_per_s": barrier.tokens_per_s / group.workers,
        "gap": barrier.gap_tokens,
        "tpot_p95_ms": 1e3 * percentile(tpots, 0.95),
    }


def _tpot_within(record: CallRecord, group: Group) -> float | None:
    """Of a call that ended within the window."""
    return record.tpot_s if record.done is not None and record.done >= group.since_s else None
