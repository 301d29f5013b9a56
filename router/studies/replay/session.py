"""One replay from its options to its report: read, ask the endpoint, calibrate, run, draw up.

Separate from the command line so that a test, or a study, replays on a virtual network.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from rich.console import Console

from router import __version__
from router.studies.progress import watch
from router.studies.replay.endpoint import Deadlines, Endpoint, ModelCard, parse_url
from router.studies.replay.prompts import BYTES_PER_WORD, Tokenizer
from router.studies.replay.records import Workload, open_ledger
from router.studies.replay.report import Report, RunFacts, TraceSource, build
from router.studies.replay.run import Replay
from router.studies.replay.schedule import Pace, Planned, plan, remaining
from router.studies.replay.settings import Api, ReplaySettings, Slo
from router.studies.traces import Trace, read_trace, statistics
from router.upstream.client import Upstream

_BATCHED_GAP_S = 1.0
"""Several requests at one moment and none for this long after: timestamps that were rounded together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the user asked for; see `ReplaySettings` for the fields of the same names.

    Attributes:
        trace: the file; its format is recognised when `trace_format` is None.
        model: None takes the first one that the endpoint serves.
        engine_urls: whose prefix caches are emptied; the endpoint itself when there are none.
        bytes_per_token: skips calibration, as does `overhead_tokens`.
        records: JSONL of every request; `resume` continues it.
    """

    trace: Path
    url: str
    trace_format: str | None = None
    headers: Sequence[tuple[bytes, bytes]] = ()
    model: str | None = None
    api: Api = "chat"
    seed: int = 0
    limit: int | None = None
    pace: Pace = field(default_factory=Pace)
    concurrency_cap: int = 10_000
    ignore_eos: bool = True
    trace_models: bool = False
    send_session: bool = False
    deadlines: Deadlines = field(default_factory=Deadlines)
    bytes_per_token: float | None = None
    overhead_tokens: int | None = None
    slo: Slo = field(default_factory=Slo)
    records: Path | None = None
    resume: bool = False
    reset_prefix_cache: bool = False
    engine_urls: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a replay needs of the world.

    Attributes:
        now: the clock (s, monotonic) of every measurement.
        started: UTC in ISO 8601, for the records.
        console: where progress and remarks go.
        stop: set by the user who wants to end early and see what was done.
        cpu_s: processor seconds of this process so far; None when nobody measures them.
    """

    upstream: Upstream
    now: Callable[[], float]
    started: str
    console: Console
    stop: asyncio.Event
    cpu_s: Callable[[], float] | None = None


async def replay(options: Options, world: Surroundings) -> Report:
    """Runs it. Raises TraceError, EndpointError or RecordsError."""
    trace = read_trace(options.trace, options.trace_format, options.limit)
    endpoint = _endpoint(options, options.url, world)
    card = await endpoint.model(options.model)
    tokenizer = await _tokenizer(options, endpoint, card)
    if options.reset_prefix_cache:
        for url in options.engine_urls or (options.url,):
            await _endpoint(options, url, world).reset_prefix_cache()
    settings = _settings(options, card, tokenizer)
    planned = plan(trace, options.pace, options.seed)
    _remark(trace, planned, options, world.console)
    with open_ledger(
        options.records, _workload(trace, settings), world.started, resume=options.resume
    ) as ledger:
        if ledger.done:
            world.console.print(f"resuming: {len(ledger.done)} have succeeded before", highlight=False)
        send = partial(endpoint.stream, settings.api, options.deadlines)
        run = Replay(settings, trace.block_tokens, send, ledger, world.now)
        facts = await _measured(run, remaining(planned, ledger.done), ledger.run, world)
    return build(
        ledger.records,
        planned=[one.entry.line for one in planned],
        settings=settings,
        trace=_source(trace),
        run=facts,
    )


async def _measured(run: Replay, rest: list[Planned], number: int, world: Surroundings) -> RunFacts:
    before_s, before_cpu_s = world.now(), world.cpu_s() if world.cpu_s is not None else 0.0
    interrupted = await _drive(run, rest, world)
    took_s = world.now() - before_s
    cpu_s = world.cpu_s() - before_cpu_s if world.cpu_s is not None else None
    return RunFacts(
        version=__version__,
        started=world.started,
        runs=number,
        interrupted=interrupted,
        cpu_share=cpu_s / took_s if cpu_s is not None and took_s > 0 else None,
    )


async def _drive(run: Replay, planned: list[Planned], world: Surroundings) -> bool:
    """Runs until all is done or the user stops it; True when stopped."""
    running = asyncio.create_task(run.run(planned))
    watching = asyncio.create_task(watch(run.tally, world.console))
    stopping = asyncio.create_task(world.stop.wait())
    tasks = (running, watching, stopping)
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError):
            raise _cause(result)
    return running.cancelled()


def _cause(error: BaseException) -> BaseException:
    """What broke a run first. The others of its group were cut by it, or broke by the same."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _endpoint(options: Options, url: str, world: Surroundings) -> Endpoint:
    return Endpoint(world.upstream, parse_url(url), options.headers, world.now)


async def _tokenizer(options: Options, endpoint: Endpoint, card: ModelCard) -> Tokenizer:
    if options.bytes_per_token is None and options.overhead_tokens is None:
        return await endpoint.calibrate(options.api, card, options.seed)
    return Tokenizer(
        overhead_tokens=options.overhead_tokens or 0,
        tokens_per_word=BYTES_PER_WORD / (options.bytes_per_token or BYTES_PER_WORD),
    )


def _settings(options: Options, card: ModelCard, tokenizer: Tokenizer) -> ReplaySettings:
    return ReplaySettings(
        url=parse_url(options.url).url,
        model=card.id,
        api=options.api,
        seed=options.seed,
        limit=options.limit,
        speed=options.pace.speed,
        jitter_s=options.pace.jitter_s,
        duration_s=options.pace.duration_s,
        concurrency_cap=options.concurrency_cap,
        ignore_eos=options.ignore_eos,
        trace_models=options.trace_models,
        send_session=options.send_session,
        first_event_s=options.deadlines.first_event_s,
        idle_s=options.deadlines.idle_s,
        total_s=options.deadlines.total_s,
        overhead_tokens=tokenizer.overhead_tokens,
        tokens_per_word=tokenizer.tokens_per_word,
        max_model_len=card.max_model_len,
        slo=options.slo,
    )


def _workload(trace: Trace, settings: ReplaySettings) -> Workload:
    return Workload(
        trace_digest=trace.digest,
        trace_format=trace.format,
        seed=settings.seed,
        model=settings.model,
        api=settings.api,
        ignore_eos=settings.ignore_eos,
    )


def _source(trace: Trace) -> TraceSource:
    return TraceSource(
        name=trace.name,
        format=trace.format,
        digest=trace.digest,
        block_tokens=trace.block_tokens,
        statistics=statistics(trace),
    )


def _remark(trace: Trace, planned: list[Planned], options: Options, console: Console) -> None:
    """Says what the reader of the figures should know before they come."""
    skipped = ", ".join(f"{count} × {reason}" for reason, count in trace.skipped.items())
    last_s = planned[-1].due_s if planned else 0.0
    console.print(
        f"{trace.name} ({trace.format}): {len(planned)} requests over {last_s:.1f} s"
        + (f"; left out: {skipped}" if skipped else ""),
        highlight=False,
    )
    if options.pace.jitter_s == 0 and batched(trace):
        console.print(
            "note: this trace has its arrivals in batches, which is then what is measured; "
            "--jitter-s spreads them",
            highlight=False,
        )


def batched(trace: Trace) -> bool:
    """Whether most arrivals share their moment with another, with gaps of seconds between the moments."""
    moments = sorted({entry.arrival_s for entry in trace.entries})
    if len(trace.entries) < 2 * len(moments) or len(moments) < 2:
        return False
    return (moments[-1] - moments[0]) / (len(moments) - 1) >= _BATCHED_GAP_S
