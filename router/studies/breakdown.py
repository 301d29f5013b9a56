"""One run by class of service, by family of calls, and by worker.

Separate from the figures of the whole run, which policies are compared by: these say where they come from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import msgspec

from router.studies.metrics import Slo, goodput_of
from router.studies.simulation.record import CallRecord, EngineRecord
from router.studies.simulation.run import RunResult
from router.studies.traces.trace import Distribution, distribution


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """The calls of one class, or of one family. Times in s.

    Attributes:
        goodput: share that met the targets, of those that an engine takes; None without targets.
        hit_rate: share of the prompt tokens of answered calls that engines found cached.
    """

    calls: int
    answered: int
    goodput: float | None
    ttft_s: Distribution | None
    tpot_s: Distribution | None
    e2e_s: Distribution | None
    hit_rate: float


class WorkerShare(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker did.

    Attributes:
        calls: that were answered, in which it had a part.
        prompt_tokens: of those that it prefilled.
        hit_rate: share of them that it found cached; None where it prefilled nothing.
    """

    calls: int
    prompt_tokens: int
    output_tokens: int
    hit_rate: float | None
    steps: int
    preemptions: int


class Breakdown(msgspec.Struct, frozen=True, kw_only=True):
    """One run in parts."""

    classes: dict[str, Part]
    families: dict[str, Part]
    workers: dict[str, WorkerShare]


def breakdown(result: RunResult, targets: Mapping[str, Slo]) -> Breakdown:
    """Takes a run apart."""
    return Breakdown(
        classes=_parts(result.calls, lambda record: record.slo, targets),
        families=_parts(result.calls, lambda record: record.family, targets),
        workers=_workers(result),
    )


def _parts(
    calls: Sequence[CallRecord], key: Callable[[CallRecord], str], targets: Mapping[str, Slo]
) -> dict[str, Part]:
    groups: dict[str, list[CallRecord]] = {}
    for record in calls:
        groups.setdefault(key(record), []).append(record)
    return {name: _part(groups[name], targets) for name in sorted(groups)}


def _part(calls: Sequence[CallRecord], targets: Mapping[str, Slo]) -> Part:
    answered = [record for record in calls if record.outcome == "ok"]
    prompts = sum(record.prompt_tokens for record in answered)
    return Part(
        calls=len(calls),
        answered=len(answered),
        goodput=goodput_of(calls, targets) if targets else None,
        ttft_s=distribution([record.ttft_s for record in answered if record.ttft_s is not None]),
        tpot_s=distribution([record.tpot_s for record in answered if record.tpot_s is not None]),
        e2e_s=distribution([record.e2e_s for record in answered if record.e2e_s is not None]),
        hit_rate=sum(record.hit_tokens for record in answered) / prompts if prompts else 0.0,
    )


def _workers(result: RunResult) -> dict[str, WorkerShare]:
    served: dict[str, int] = {}
    prompts: dict[str, list[int]] = {}
    for record in result.calls:
        if record.outcome != "ok":
            continue
        for name in filter(None, (record.worker, record.prefill_worker)):
            served[name] = served.get(name, 0) + 1
        sums = prompts.setdefault(record.prefill_worker or record.worker, [0, 0])
        sums[0] += record.prompt_tokens
        sums[1] += record.hit_tokens
    return {
        name: _share(served.get(name, 0), prompts.get(name, [0, 0]), engine)
        for name, engine in result.engines.items()
    }


def _share(calls: int, prompts: Sequence[int], engine: EngineRecord) -> WorkerShare:
    prompt_tokens, hit_tokens = prompts
    return WorkerShare(
        calls=calls,
        prompt_tokens=prompt_tokens,
        output_tokens=engine.generation_tokens,
        hit_rate=hit_tokens / prompt_tokens if prompt_tokens else None,
        steps=engine.steps,
        preemptions=engine.preemptions,
    )


def mean_part(parts: Sequence[Part]) -> Part:
    """One part over several runs: sums of counts, means of everything else."""
    goodputs = [part.goodput for part in parts if part.goodput is not None]
    return Part(
        calls=sum(part.calls for part in parts),
        answered=sum(part.answered for part in parts),
        goodput=_mean(goodputs) if goodputs else None,
        ttft_s=_mean_of([part.ttft_s for part in parts]),
        tpot_s=_mean_of([part.tpot_s for part in parts]),
        e2e_s=_mean_of([part.e2e_s for part in parts]),
        hit_rate=_mean([part.hit_rate for part in parts]),
    )


def _mean_of(many: Sequence[Distribution | None]) -> Distribution | None:
    known = [each for each in many if each is not None]
    if not known:
        return None
    return Distribution(
        count=sum(each.count for each in known),
        mean=_mean([each.mean for each in known]),
        p50=_mean([each.p50 for each in known]),
        p90=_mean([each.p90 for each in known]),
        p95=_mean([each.p95 for each in known]),
        p99=_mean([each.p99 for each in known]),
        max=max(each.max for each in known),
    )


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
