"""The simulation against the wall clock: one scenario through real sockets, and the same in virtual time.

In virtual time the two agree to a microsecond (the tests say so). Here the router, the engines and the client
are processes that share this machine's cores, so what is compared are distributions: means and the 90th
percentile of TTFT and end-to-end time, as ratios, and the share of calls that went to the same worker.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import httpx
import msgspec

from benchmarks.engine_bytes import MODEL
from benchmarks.processes import Child, answers, free_port, python
from benchmarks.verdict import Verdict
from engines.mock.hardware import Hardware
from engines.mock.settings import MockSettings
from router.studies.simulation.call import Call, Texts
from router.studies.simulation.fleet import Delays, FleetPlan, PoolPlan, WorkerPlan
from router.studies.simulation.run import simulate
from router.studies.traces.trace import distribution
from router.studies.workloads import WORKLOADS

_WORKERS = 3
_POLICY = "least_tokens"
_BAND = 0.15
"""Means and percentiles of both ways may differ by this share: sockets, processes and Python take a few
milliseconds of calls that take hundreds."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a client saw of one call (s)."""

    worker: str
    ttft_s: float
    e2e_s: float


def measure(*, quick: bool) -> list[Verdict]:
    """How far the two are apart."""
    calls = [
        msgspec.structs.replace(call, max_tokens=call.output_tokens, ignore_eos=True)
        for call in WORKLOADS["chat_short"].calls(60 if quick else 240, 12.0, 1)
    ]
    real, virtual = _through_sockets(calls), _simulated(calls)
    same = sum(one.worker == other.worker for one, other in zip(real, virtual, strict=True)) / len(calls)
    return [
        *_compared("TTFT", [one.ttft_s for one in real], [one.ttft_s for one in virtual]),
        *_compared("e2e", [one.e2e_s for one in real], [one.e2e_s for one in virtual]),
        Verdict("calls at another worker than simulated", 1.0 - same, "share"),
    ]


def _compared(what: str, real: Sequence[float], virtual: Sequence[float]) -> list[Verdict]:
    one, other = distribution(real), distribution(virtual)
    if one is None or other is None:
        raise RuntimeError("no calls, so nothing to compare")
    pairs = (("mean", one.mean, other.mean), ("p90", one.p90, other.p90))
    return [
        Verdict(
            f"{what} {name}, sockets against simulation ({1e3 * real_s:.1f} and {1e3 * virtual_s:.1f} ms)",
            abs(real_s / virtual_s - 1.0),
            "off by this share",
            _BAND,
        )
        for name, real_s, virtual_s in pairs
    ]


def _simulated(calls: Sequence[Call]) -> list[Seen]:
    hardware = Hardware.of(MockSettings())
    workers = tuple(
        WorkerPlan(name=f"w{number}", engine=hardware.config, clock=hardware.clock)
        for number in range(_WORKERS)
    )
    pool = PoolPlan(name="pool", workers=workers, policy=_POLICY)
    delays = Delays(progress_s=0.05, stretch_s=0.0)
    made = simulate(FleetPlan(pools=(pool,), model=MODEL, delays=delays), calls).calls
    return [Seen(record.worker, record.ttft_s or 0.0, record.e2e_s or 0.0) for record in made]


def _through_sockets(calls: Sequence[Call]) -> list[Seen]:
    with ExitStack() as stack:
        ports = [free_port() for _ in range(_WORKERS)]
        for port in ports:
            argv = python("engines.mock", "--port", port, "--served-model-name", MODEL)
            engine = stack.enter_context(Child(f"engine {port}", argv))
            engine.wait_for(partial(answers, f"http://127.0.0.1:{port}/health"))
        door = free_port()
        urls = [f"http://127.0.0.1:{port}" for port in ports]
        router = stack.enter_context(
            Child(
                "router",
                python("router", "serve", "--port", door, "--admin-port", 0, "--policy", _POLICY,
                       "--expose-routing-headers", "--worker-urls", *urls),
            )
        )  # fmt: skip
        router.wait_for(partial(answers, f"http://127.0.0.1:{door}/readiness"))
        seen = asyncio.run(_play(f"http://127.0.0.1:{door}", calls))
    # Workers are named by their addresses, and simulated ones by their place in the same order.
    names = {f"127.0.0.1:{port}": f"w{place}" for place, port in enumerate(sorted(ports))}
    return [Seen(names[one.worker], one.ttft_s, one.e2e_s) for one in seen]


async def _play(url: str, calls: Sequence[Call]) -> list[Seen]:
    texts = Texts()
    bodies = [
        {
            "model": MODEL,
            "prompt": texts.of(call.parts).decode(),
            "max_tokens": call.output_tokens,
            "ignore_eos": True,
            "stream": True,
        }
        for call in calls
    ]
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=120.0, limits=limits) as client:
        begin = time.monotonic()
        return list(
            await asyncio.gather(
                *(_one(client, begin + call.at, body) for call, body in zip(calls, bodies, strict=True))
            )
        )


async def _one(client: httpx.AsyncClient, due: float, body: dict[str, object]) -> Seen:
    await asyncio.sleep(max(due - time.monotonic(), 0.0))
    began = time.monotonic()
    first = None
    async with client.stream("POST", "/v1/completions", json=body) as answer:
        answer.raise_for_status()
        async for _ in answer.aiter_raw():
            if first is None:
                first = time.monotonic()
    if first is None:
        raise RuntimeError("an answer without a byte")
    return Seen(answer.headers["x-pointsman-worker"], first - began, time.monotonic() - began)
