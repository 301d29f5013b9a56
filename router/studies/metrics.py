"""What a run was worth: latencies, goodput, throughput, cache, balance, fairness.

Separate from the simulation so that the records of any run, simulated or replayed, are judged alike.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from router.studies.simulation.record import BarrierRecord, CallRecord, EngineRecord, RegretRecord
from router.studies.simulation.run import RunResult
from router.studies.traces.trace import Distribution, distribution

_SHORT_SHARE, _LONG_SHARE = 0.5, 0.9
TOO_LONG = "too_long"


class Slo(msgspec.Struct, frozen=True):
    """The targets of one class of service (s)."""

    ttft_s: float
    tpot_s: float

    def met(self, record: CallRecord) -> bool:
        """Whether a call was answered whole within both. An answer of one token has no time per token."""
        if record.outcome != "ok" or record.ttft_s is None:
            return False
        tpot_s = record.tpot_s
        return record.ttft_s <= self.ttft_s and (tpot_s is None or tpot_s <= self.tpot_s)


class Latencies(msgspec.Struct, frozen=True, kw_only=True):
    """Of the calls that were answered whole (s); None where there were none.

    Attributes:
        itl_s: time between tokens, of all that engines wrote.
        pool_wait_s: in the queues of the router's pools.
        engine_wait_s: in the queues of engines, before a first step; with transfers of KV.
    """

    ttft_s: Distribution | None
    tpot_s: Distribution | None
    itl_s: Distribution | None
    e2e_s: Distribution | None
    pool_wait_s: Distribution | None
    engine_wait_s: Distribution | None


class RunFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One run in figures.

    Attributes:
        too_long: calls whose prompts no engine takes, whatever the policy: they are no part of goodput.
        goodput: share of all others that met the targets of their class; None without targets.
        goodput_by_class: the same for each.
        hit_rate: share of the prompt tokens of answered calls that engines found cached.
        copies: replication factor: workers that hold a cached block, on average over the blocks, and over
            the times at which another quarter of the calls was over. Of a pair, of the workers that prefill.
        busiest: calls of the busiest worker over the mean of all.
        stickiness: share of later calls of sessions that went to the worker of the one before.
        length_fairness: mean slowdown of the longest tenth of the calls over that of the shorter half, where
            slowdown is end-to-end time per token.
        tenant_fairness: worst tenant's mean end-to-end time over the mean of all; None with fewer than two.
        output_tokens_per_s, calls_per_s: over the time from the first arrival to the end.
        regrets: by pool, what a judge says of its decisions, where one was asked.
    """

    calls: int
    answered: int
    too_long: int
    outcomes: dict[str, int]
    duration_s: float
    latencies: Latencies
    goodput: float | None
    goodput_by_class: dict[str, float]
    hit_rate: float
    copies: float | None
    busiest: float
    stickiness: float | None
    length_fairness: float | None
    tenant_fairness: float | None
    output_tokens_per_s: float
    calls_per_s: float
    preemptions: int
    barriers: dict[str, BarrierRecord]
    regrets: dict[str, RegretRecord] = {}

    @property
    def mean_e2e_s(self) -> float:
        """Mean end-to-end time of answered calls; infinite where there are none."""
        e2e_s = self.latencies.e2e_s
        return math.inf if e2e_s is None else e2e_s.mean


def figures(result: RunResult, targets: Mapping[str, Slo] | None = None) -> RunFigures:
    """Judges a run.

    Args:
        targets: by class of service; calls of a class that is not named count by the one of class "".
    """
    calls = result.calls
    answered = [record for record in calls if record.outcome == "ok"]
    begun = min((record.arrived for record in calls), default=0.0)
    duration_s = max(result.ended_s - begun, 1e-9)
    prompts = sum(record.prompt_tokens for record in answered)
    return RunFigures(
        calls=len(calls),
        answered=len(answered),
        too_long=sum(record.outcome == TOO_LONG for record in calls),
        outcomes=_count(record.outcome or "unfinished" for record in calls),
        duration_s=duration_s,
        latencies=_latencies(answered, result),
        goodput=goodput_of(calls, targets) if targets else None,
        goodput_by_class=_by_class(calls, targets) if targets else {},
        hit_rate=sum(record.hit_tokens for record in answered) / prompts if prompts else 0.0,
        copies=result.copies,
        busiest=_busiest(answered, result.engines),
        stickiness=_stickiness(calls),
        length_fairness=_length_fairness(answered),
        tenant_fairness=_tenant_fairness(answered),
        output_tokens_per_s=sum(record.tokens for record in answered) / duration_s,
        calls_per_s=len(answered) / duration_s,
        preemptions=sum(engine.preemptions for engine in result.engines.values()),
        barriers=result.barriers,
        regrets=result.regrets,
    )


def _count(words: Iterable[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for each in words:
        counts[each] = counts.get(each, 0) + 1
    return dict(sorted(counts.items()))


def _latencies(answered: Sequence[CallRecord], result: RunResult) -> Latencies:
    return Latencies(
        ttft_s=distribution([record.ttft_s for record in answered if record.ttft_s is not None]),
        tpot_s=distribution([record.tpot_s for record in answered if record.tpot_s is not None]),
        e2e_s=distribution([record.e2e_s for record in answered if record.e2e_s is not None]),
        itl_s=None if result.gaps is None else result.gaps.distribution(),
        pool_wait_s=distribution([record.pool_wait for record in answered]),
        engine_wait_s=distribution([record.engine_wait for record in answered]),
    )


def goodput_of(calls: Sequence[CallRecord], targets: Mapping[str, Slo]) -> float:
    """Share of those that an engine takes which met the targets of their class; 0 where there are none."""
    served = [record for record in calls if record.outcome != TOO_LONG]
    return sum(target_of(record, targets).met(record) for record in served) / len(served) if served else 0.0


def target_of(record: CallRecord, targets: Mapping[str, Slo]) -> Slo:
    """The targets of the class of a call."""
    known = targets.get(record.slo)
    return targets[""] if known is None else known


def _by_class(calls: Sequence[CallRecord], targets: Mapping[str, Slo]) -> dict[str, float]:
    names = sorted({record.slo for record in calls})
    return {name: goodput_of([record for record in calls if record.slo == name], targets) for name in names}


def _busiest(answered: Sequence[CallRecord], engines: Mapping[str, EngineRecord]) -> float:
    """Over the workers that answer; prefill workers of a pair are not among them."""
    counts = _count(record.worker for record in answered)
    if not counts:
        return 0.0
    prefills = {record.prefill_worker for record in answered} - counts.keys()
    workers = len(engines.keys() - prefills)
    return max(counts.values()) * workers / len(answered)


def _stickiness(calls: Sequence[CallRecord]) -> float | None:
    last: dict[str, str] = {}
    same = later = 0
    for record in calls:
        if record.session is None or not record.worker:
            continue
        before = last.get(record.session)
        where = record.prefill_worker or record.worker
        if before is not None:
            later += 1
            same += before == where
        last[record.session] = where
    return same / later if later else None


def _length_fairness(answered: Sequence[CallRecord]) -> float | None:
    by_length = sorted(answered, key=lambda record: record.prompt_tokens + record.tokens)
    short = by_length[: int(len(by_length) * _SHORT_SHARE)]
    long = by_length[int(len(by_length) * _LONG_SHARE) :]
    if not short or not long:
        return None
    return _slowdown(long) / _slowdown(short)


def _slowdown(records: Sequence[CallRecord]) -> float:
    each = [(record.e2e_s or 0.0) / (record.prompt_tokens + record.tokens) for record in records]
    return math.fsum(each) / len(each)


def _tenant_fairness(answered: Sequence[CallRecord]) -> float | None:
    times: dict[str, list[float]] = {}
    for record in answered:
        if record.tenant and record.e2e_s is not None:
            times.setdefault(record.tenant, []).append(record.e2e_s)
    if len(times) < 2:
        return None
    means = [math.fsum(each) / len(each) for each in times.values()]
    all_of_them = [each for many in times.values() for each in many]
    return max(means) / (math.fsum(all_of_them) / len(all_of_them))
