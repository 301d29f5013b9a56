"""The result of a replay as one value: a function of its records, settings and trace, and nothing else.

Separate from the table, which shows a part of it. docs/replay.md describes every field.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

import msgspec

from router.studies.replay.records import Record
from router.studies.replay.settings import ReplaySettings, Slo
from router.studies.traces.trace import Distribution, TraceStatistics, distribution

REPORT_VERSION = 1


class TraceSource(msgspec.Struct, frozen=True, kw_only=True):
    """Which trace, and its figures as read."""

    name: str
    format: str
    digest: str
    block_tokens: int
    statistics: TraceStatistics


class RunFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the shell knows about the run.

    Attributes:
        runs: 1, or more when earlier runs were resumed.
        cpu_share: processor time of this client per second of the run; near 1.0 it was the bottleneck.
    """

    version: str
    started: str
    runs: int
    interrupted: bool
    cpu_share: float | None = None


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """Requests of the plan by what became of them. `clipped` ones were asked for less than the trace says."""

    planned: int
    ok: int
    failed: int
    skipped: int
    interrupted: int
    not_sent: int
    clipped: int


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds, over the successes. `from_due` counts from the due time, the others from sending."""

    ttft_s: Distribution | None
    ttft_from_due_s: Distribution | None
    tpot_s: Distribution | None
    itl_s: Distribution | None
    e2e_s: Distribution | None
    e2e_from_due_s: Distribution | None


class Throughput(msgspec.Struct, frozen=True, kw_only=True):
    """Successes per second of active time: each run from its first sending to its last end."""

    active_s: float
    requests_per_s: float
    output_tokens_per_s: float
    total_tokens_per_s: float


class Goodput(msgspec.Struct, frozen=True, kw_only=True):
    """Answers that met every bound of the SLO; `share` is of all that were sent, failures included."""

    slo: Slo
    met: int
    share: float
    requests_per_s: float


class PromptFit(msgspec.Struct, frozen=True, kw_only=True):
    """How near the prompts came to the lengths of the trace, by the engine's own count."""

    told: int
    exact: int
    mean_error_tokens: float
    mean_error_share: float
    max_error_tokens: int


class OutputFit(msgspec.Struct, frozen=True, kw_only=True):
    """Whether answers had the lengths asked for: an engine that ignores `ignore_eos` makes them shorter."""

    told: int
    exact: int
    shorter: int
    longer: int


class Cache(msgspec.Struct, frozen=True, kw_only=True):
    """Prompt tokens that the engines say they had cached, over the successes that say so."""

    told: int
    cached_tokens: int
    share: float


class ClientFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the client kept the schedule: `late_s` in all, `lag_s` the part that is its own fault."""

    late_s: Distribution | None
    lag_s: Distribution | None


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about one replay. `workers` is None when the endpoint names none."""

    report_version: int
    run: RunFacts
    settings: ReplaySettings
    trace: TraceSource
    requests: Counts
    latency: Latency
    throughput: Throughput | None
    goodput: Goodput | None
    errors: dict[str, int]
    error_examples: dict[str, str]
    skipped: dict[str, int]
    finish_reasons: dict[str, int]
    workers: dict[str, int] | None
    cache: Cache | None
    prompt_fit: PromptFit | None
    output_fit: OutputFit | None
    client: ClientFacts

    @property
    def all_succeeded(self) -> bool:
        """Whether every planned request was sent and answered well; a skipped one was not."""
        return self.requests.ok == self.requests.planned


def build(
    records: Iterable[Record],
    *,
    planned: Collection[int],
    settings: ReplaySettings,
    trace: TraceSource,
    run: RunFacts,
) -> Report:
    """Draws up the report over the latest record of each planned line."""
    wanted = set(planned)
    known = [record for record in records if record.line in wanted]
    good = [record for record in known if record.outcome == "ok"]
    failed = [record for record in known if record.outcome == "failed"]
    sent = good + failed
    throughput = _throughput(sent, good)
    return Report(
        report_version=REPORT_VERSION,
        run=run,
        settings=settings,
        trace=trace,
        requests=_counts(known, len(wanted)),
        latency=_latency(good),
        throughput=throughput,
        goodput=_goodput(settings.slo, sent, throughput),
        errors=_tally(record.error for record in failed),
        error_examples=_examples(failed),
        skipped=_tally(record.error for record in known if record.outcome == "skipped"),
        finish_reasons=_tally(record.finish_reason for record in good),
        workers=_tally(record.worker for record in sent) or None,
        cache=_cache(good),
        prompt_fit=_prompt_fit(good),
        output_fit=_output_fit(good),
        client=ClientFacts(
            late_s=distribution([record.late_s for record in sent]),
            lag_s=distribution([record.lag_s for record in sent if record.lag_s is not None]),
        ),
    )


def _counts(known: Sequence[Record], planned: int) -> Counts:
    by_outcome = Counter(record.outcome for record in known)
    return Counts(
        planned=planned,
        ok=by_outcome["ok"],
        failed=by_outcome["failed"],
        skipped=by_outcome["skipped"],
        interrupted=by_outcome["interrupted"],
        not_sent=planned - len(known),
        clipped=sum(record.clipped for record in known),
    )


def _latency(good: Sequence[Record]) -> Latency:
    first = [(record.ttft_s, record.late_s) for record in good if record.ttft_s is not None]
    whole = [(record.e2e_s, record.late_s) for record in good if record.e2e_s is not None]
    return Latency(
        ttft_s=distribution([ttft_s for ttft_s, _ in first]),
        ttft_from_due_s=distribution([ttft_s + late_s for ttft_s, late_s in first]),
        tpot_s=distribution([record.tpot_s for record in good if record.tpot_s is not None]),
        itl_s=distribution([gap / 1e6 for record in good for gap in record.itl_us]),
        e2e_s=distribution([e2e_s for e2e_s, _ in whole]),
        e2e_from_due_s=distribution([e2e_s + late_s for e2e_s, late_s in whole]),
    )


def _throughput(sent: Sequence[Record], good: Sequence[Record]) -> Throughput | None:
    spans: dict[int, tuple[float, float]] = {}
    for record in sent:
        if record.sent_s is None:
            continue
        end_s = record.sent_s + (record.e2e_s or 0.0)
        first_s, last_s = spans.get(record.run, (record.sent_s, end_s))
        spans[record.run] = (min(first_s, record.sent_s), max(last_s, end_s))
    active_s = sum(last_s - first_s for first_s, last_s in spans.values())
    if active_s <= 0:
        return None
    output_tokens = sum(record.told_output_tokens or 0 for record in good)
    prompt_tokens = sum(record.told_prompt_tokens or 0 for record in good)
    return Throughput(
        active_s=active_s,
        requests_per_s=len(good) / active_s,
        output_tokens_per_s=output_tokens / active_s,
        total_tokens_per_s=(prompt_tokens + output_tokens) / active_s,
    )


def meets(slo: Slo, record: Record) -> bool:
    """Whether the answer came within every bound.

    A single token has no TPOT and meets that bound; an answer without usage cannot be judged and does not.
    """
    if record.outcome != "ok" or record.ttft_s is None or record.e2e_s is None:
        return False
    if slo.ttft_ms is not None and (record.ttft_s + record.late_s) * 1000 > slo.ttft_ms:
        return False
    if slo.tpot_ms is not None and not _meets_tpot(slo.tpot_ms, record):
        return False
    return slo.e2e_s is None or record.e2e_s + record.late_s <= slo.e2e_s


def _meets_tpot(bound_ms: float, record: Record) -> bool:
    if record.told_output_tokens is None:
        return False
    return record.tpot_s is None or record.tpot_s * 1000 <= bound_ms


def _goodput(slo: Slo, sent: Sequence[Record], throughput: Throughput | None) -> Goodput | None:
    if not slo.asked or not sent:
        return None
    met = sum(meets(slo, record) for record in sent)
    active_s = throughput.active_s if throughput is not None else 0.0
    return Goodput(
        slo=slo, met=met, share=met / len(sent), requests_per_s=met / active_s if active_s > 0 else 0.0
    )


def _tally(words: Iterable[str | None]) -> dict[str, int]:
    counted = Counter(word for word in words if word is not None)
    return dict(sorted(counted.items(), key=lambda item: (-item[1], item[0])))


def _examples(failed: Sequence[Record]) -> dict[str, str]:
    examples: dict[str, str] = {}
    for record in failed:
        if record.error is not None:
            examples.setdefault(record.error, record.message or "")
    return examples


def _cache(good: Sequence[Record]) -> Cache | None:
    told = [
        (record.cached_tokens, record.told_prompt_tokens)
        for record in good
        if record.cached_tokens is not None and record.told_prompt_tokens
    ]
    if not told:
        return None
    cached_tokens = sum(cached for cached, _ in told)
    return Cache(
        told=len(told), cached_tokens=cached_tokens, share=cached_tokens / sum(prompt for _, prompt in told)
    )


def _prompt_fit(good: Sequence[Record]) -> PromptFit | None:
    pairs = [
        (record.prompt_tokens, record.told_prompt_tokens)
        for record in good
        if record.told_prompt_tokens is not None
    ]
    if not pairs:
        return None
    errors = [told - asked for asked, told in pairs]
    return PromptFit(
        told=len(errors),
        exact=errors.count(0),
        mean_error_tokens=sum(errors) / len(errors),
        mean_error_share=sum(errors) / sum(asked for asked, _ in pairs),
        max_error_tokens=max(map(abs, errors)),
    )


def _output_fit(good: Sequence[Record]) -> OutputFit | None:
    surplus = [
        record.told_output_tokens - record.output_tokens
        for record in good
        if record.told_output_tokens is not None
    ]
    if not surplus:
        return None
    return OutputFit(
        told=len(surplus),
        exact=surplus.count(0),
        shorter=sum(tokens < 0 for tokens in surplus),
        longer=sum(tokens > 0 for tokens in surplus),
    )
