"""What the parts cost that every request or every event goes through, one at a time.

Beside each part stands the obvious way to do the same, measured in the same minute: the ratio holds on other
machines, the microseconds do not. Of several rounds the quietest counts.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from functools import partial

import httpx
import uvloop

from benchmarks import engine_bytes as says
from benchmarks.client import Load, request_bytes
from benchmarks.processes import EngineProcess
from benchmarks.verdict import Verdict
from router.core.body import parse_body
from router.core.budget import Budget
from router.core.exposition import read_stats
from router.core.health import Sign
from router.core.lease import Outcome
from router.core.pool import Pool, PoolBudgets, PoolRules
from router.core.request import Api, Request
from router.core.stream import StreamScanner
from router.core.token_book import TokenBook
from router.core.worker import Worker
from router.policies import build
from router.upstream.client import Upstream, WireRequest
from router.upstream.connect import TcpConnect
from router.upstream.origin import Origin

_ROUNDS = 7
_WORKERS = 8
_BODY_BYTES = (1_024, 8_192)
_EXCHANGES = 500
_TARGET = b"/v1/chat/completions"


def measure(*, quick: bool = False) -> list[Verdict]:
    """All parts."""
    calls = 400 if quick else 4_000
    return [
        *_scanner(calls),
        *_bodies(calls),
        _exposition(calls // 20),
        _pool(calls),
        *_exchange(quick=quick),
    ]


def quietest_us(work: Callable[[], object], calls: int) -> float:
    """Microseconds of one call of `work`, in the quietest of several rounds."""
    best = float("inf")
    for _ in range(_ROUNDS):
        began = time.perf_counter()
        for _ in range(calls):
            work()
        best = min(best, time.perf_counter() - began)
    return best / calls * 1e6


def _scanner(calls: int) -> list[Verdict]:
    """One event of one token, between two that read the same but for the text."""
    scanner = StreamScanner(Api.CHAT)
    scanner.feed(says.opening_event())
    events = says.token_events()
    for event in events:
        scanner.feed(event)
    position = 0

    def scan() -> None:
        nonlocal position
        position += 1
        scanner.feed(events[position % len(events)])

    scanned_us = quietest_us(scan, calls)
    text = events[0][len(b"data: ") :]
    parsed_us = quietest_us(lambda: json.loads(text), calls)
    return [
        Verdict("scanner, one event", scanned_us, "µs"),
        Verdict("scanner, one event", scanned_us / parsed_us, "x json.loads of it"),
    ]


def _bodies(calls: int) -> list[Verdict]:
    verdicts = []
    for size in _BODY_BYTES:
        wire = request_bytes(Load(0, 1, 1, events=200, prompt_bytes=size))
        body = wire.partition(b"\r\n\r\n")[2]
        read_us = quietest_us(partial(_read_body, body), calls)
        parsed_us = quietest_us(partial(json.loads, body), calls)
        name = f"body of {size // 1024} KB, read and measured"
        verdicts.append(Verdict(name, read_us, "µs"))
        verdicts.append(Verdict(name, read_us / parsed_us, "x json.loads of it"))
    return verdicts


def _read_body(data: bytes) -> object:
    return parse_body(data, Api.CHAT).size


def _exposition(calls: int) -> Verdict:
    text = says.metrics().partition(b"\r\n\r\n")[2]
    figure = quietest_us(lambda: read_stats(text, 0.0), calls)
    return Verdict(f"scrape of {len(text) // 1024} KB, read", figure, "µs")


def _pool(calls: int) -> Verdict:
    """From the queue to the settled lease, with one event in between, by round robin."""
    budgets = PoolBudgets(Budget("requests in flight", 1_000), Budget("queued bytes", 1_000_000))
    tokens = TokenBook()
    pool = Pool(PoolRules("bench"), build("round_robin", {}, seed=0), budgets, tokens.expected)
    for number in range(_WORKERS):
        name = f"10.0.0.{number}:8000"
        pool.roster.add(Worker(name=name, models=frozenset({says.MODEL})), 0.0)
        pool.roster.sign(name, Sign.GOOD, 0.0)
    request = Request(id="one", sequence=1, model=says.MODEL, arrived=0.0, api=Api.CHAT, prompt_tokens=100)

    def cycle() -> None:
        pool.submit(request, 1.0)
        (lease,) = pool.assign(1.0)
        pool.progress(lease, 2.0, generated_tokens=12, prompt_tokens=101)
        pool.release(lease, Outcome.OK, 3.0)

    return Verdict(f"pool of {_WORKERS}, one request through it", quietest_us(cycle, calls), "µs")


def _exchange(*, quick: bool) -> list[Verdict]:
    """One small request to an engine and its answer: our CPU alone, beside httpx on the same loop."""
    count = _EXCHANGES // 5 if quick else _EXCHANGES
    with EngineProcess() as engine, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        ours_us = runner.run(_upstream_us(engine.url, count))
        httpx_us = runner.run(_httpx_us(engine.url, count))
    return [
        Verdict("exchange with a worker, CPU", ours_us, "µs"),
        Verdict("exchange with a worker, CPU", ours_us / httpx_us, "x httpx"),
    ]


def _body() -> bytes:
    return request_bytes(Load(0, 1, 1)).partition(b"\r\n\r\n")[2]


async def _upstream_us(url: str, count: int) -> float:
    upstream = Upstream(TcpConnect(), asyncio.get_running_loop().time)
    origin = Origin.parse(url)
    request = WireRequest(b"POST", _TARGET, [(b"content-type", b"application/json")], _body())

    async def ask() -> None:
        await upstream.fetch(origin, request, total_s=10.0, max_bytes=1_000_000)

    try:
        return await _quietest_cpu_us(ask, count)
    finally:
        await upstream.aclose()


async def _httpx_us(url: str, count: int) -> float:
    body = _body()
    async with httpx.AsyncClient(base_url=url) as client:

        async def ask() -> None:
            (await client.post(_TARGET.decode(), content=body)).raise_for_status()

        return await _quietest_cpu_us(ask, count)


async def _quietest_cpu_us(ask: Callable[[], Awaitable[None]], count: int) -> float:
    best = float("inf")
    for _ in range(_ROUNDS):
        began = time.process_time()
        for _ in range(count):
            await ask()
        best = min(best, time.process_time() - began)
    return best / count * 1e6
