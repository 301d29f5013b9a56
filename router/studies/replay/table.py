"""The report as a reader sees it in a terminal. Shows a part of it; the JSON has all."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from router.studies.replay.report import Report
from router.studies.traces.trace import Distribution

_DIFFERENT = 0.01
"""Share of the mean TTFT from which on lateness is shown."""

Facts = Iterator[tuple[str, str]]


def render(report: Report) -> RenderableType:
    """Latency percentiles first, then one line per fact."""
    return Group(Text(_title(report)), _latency(report), _facts(report))


def _latency(report: Report) -> RenderableType:
    latency = report.latency
    table = Table(pad_edge=False)
    for heading in ("", "mean", "p50", "p90", "p99", "max"):
        table.add_column(heading, justify="left" if heading == "" else "right")
    late = _differ(latency.ttft_s, latency.ttft_from_due_s)
    measures = [
        ("TTFT (ms)", latency.ttft_s, 1e3, True),
        ("TTFT from due time (ms)", latency.ttft_from_due_s, 1e3, late),
        ("TPOT (ms)", latency.tpot_s, 1e3, True),
        ("ITL (ms)", latency.itl_s, 1e3, True),
        ("e2e (s)", latency.e2e_s, 1.0, True),
        ("e2e from due time (s)", latency.e2e_from_due_s, 1.0, late),
    ]
    for name, found, scale, wanted in measures:
        if wanted:
            table.add_row(name, *_cells(found, scale))
    return table


def _differ(sent: Distribution | None, due: Distribution | None) -> bool:
    return sent is not None and due is not None and due.mean > sent.mean * (1 + _DIFFERENT)


def _title(report: Report) -> str:
    requests = report.requests
    state = "interrupted" if report.run.interrupted else "done"
    return (
        f"{report.trace.name} → {report.settings.url}: {state}, {requests.ok} of {requests.planned} succeeded"
    )


def _cells(found: Distribution | None, scale: float) -> list[str]:
    if found is None:
        return ["–"] * 5
    digits = 1 if scale > 1 else 2
    return [
        f"{value * scale:,.{digits}f}" for value in (found.mean, found.p50, found.p90, found.p99, found.max)
    ]


def _facts(report: Report) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column()
    for source in (_outcomes, _speed, _places, _fits, _client):
        for name, fact in source(report):
            grid.add_row(name, Text(fact))
    return grid


def _outcomes(report: Report) -> Facts:
    requests = report.requests
    parts = [f"{requests.ok} ok", f"{requests.failed} failed", f"{requests.skipped} skipped"]
    if requests.interrupted:
        parts.append(f"{requests.interrupted} interrupted")
    if requests.not_sent:
        parts.append(f"{requests.not_sent} not sent")
    if requests.clipped:
        parts.append(f"{requests.clipped} with the output clipped to the context")
    yield "requests", ", ".join(parts)
    for kind, count in report.errors.items():
        yield "error", f"{count} × {kind}: {report.error_examples.get(kind, '')}"
    for kind, count in report.skipped.items():
        yield "skipped", f"{count} × {kind}"
    if report.finish_reasons:
        yield "finish", _counted(report.finish_reasons)


def _speed(report: Report) -> Facts:
    throughput = report.throughput
    if throughput is not None:
        yield (
            "throughput",
            f"{throughput.requests_per_s:.2f} requests/s, "
            f"{throughput.output_tokens_per_s:,.0f} output tokens/s, "
            f"{throughput.total_tokens_per_s:,.0f} tokens/s in all, over {throughput.active_s:.1f} s",
        )
    goodput = report.goodput
    if goodput is not None:
        bounds = [
            f"{name} ≤ {bound:g} {unit}"
            for name, bound, unit in (
                ("TTFT", goodput.slo.ttft_ms, "ms"),
                ("TPOT", goodput.slo.tpot_ms, "ms"),
                ("e2e", goodput.slo.e2e_s, "s"),
            )
            if bound is not None
        ]
        yield (
            "goodput",
            f"{goodput.share:.1%} ({goodput.met}), {goodput.requests_per_s:.2f} requests/s, "
            f"with {', '.join(bounds)}",
        )


def _places(report: Report) -> Facts:
    if report.workers is None:
        yield "workers", "not exposed by the endpoint (no x-pointsman-worker header)"
    else:
        yield "workers", _counted(report.workers)
    cache = report.cache
    if cache is None:
        yield "cached", "the engines do not say"
    else:
        yield "cached", f"{cache.share:.1%} of the prompt tokens, as {cache.told} answers say"


def _fits(report: Report) -> Facts:
    prompts = report.prompt_fit
    if prompts is None:
        yield "prompts", "lengths not checked: no usage in the answers"
    elif prompts.exact == prompts.told:
        yield "prompts", "all of exactly the length of the trace"
    else:
        yield (
            "prompts",
            f"{prompts.mean_error_tokens:+.1f} tokens from the trace on average "
            f"({prompts.mean_error_share:+.1%}), {prompts.max_error_tokens} at most",
        )
    outputs = report.output_fit
    if outputs is not None and outputs.exact < outputs.told:
        yield (
            "outputs",
            f"{outputs.shorter} shorter and {outputs.longer} longer than asked, of {outputs.told}",
        )


def _client(report: Report) -> Facts:
    lag_s, late_s = report.client.lag_s, report.client.late_s
    if lag_s is not None and late_s is not None:
        share = report.run.cpu_share
        busy = "" if share is None else f"; {share:.0%} of one core"
        yield (
            "client",
            f"lag p99 {lag_s.p99 * 1e3:.1f} ms, max {lag_s.max * 1e3:.1f} ms; "
            f"late in all p99 {late_s.p99 * 1e3:.1f} ms{busy}",
        )


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())
