"""`python -m benchmarks.routing`: how evenly routers place requests on four engines, and how well they follow
prefixes, in one run.

Every router begins anew for every scenario: what it has learned of one must not help it in the next.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import httpx
import msgspec

from benchmarks.engine_bytes import MODEL
from benchmarks.peers.installation import versions
from benchmarks.peers.targets import CACHE_AWARE, POINTSMAN, SGLANG, SMG, VLLM, prepare, start
from benchmarks.routing.engines import Cached, Engine, mock_engines
from benchmarks.routing.scenarios import (
    AT_ONCE,
    SCENARIOS,
    Answered,
    Messages,
    Scenario,
    Turn,
    body,
    busiest,
    play,
    stays,
)
from benchmarks.verdict import Verdict, print_verdicts, write_json
from router.policies import POLICIES

_WANTED: Final = (CACHE_AWARE, "preble", "joint")
OWN: Final = tuple(name for name in _WANTED if name in POLICIES)
RIVALS: Final = (VLLM, SGLANG, SMG)
_ANSWER_S = 120.0


class Result(msgspec.Struct, frozen=True):
    """One router under one scenario.

    Attributes:
        hits: share of prompt tokens that the engines found in their caches.
        stays: share of turns at the worker of the turn before; None without conversations.
    """

    scenario: str
    requests: int
    router: str
    busiest: float
    hits: float
    stays: float | None


def measure(name: str, requests: int, router: str, engines: Sequence[Engine], seed: int) -> Result:
    """Starts a router, plays a scenario, and ends it. Raises RuntimeError for an answer that is none."""
    own = router in OWN
    urls = [engine.url for engine in engines]
    target = start(POINTSMAN, urls, router) if own else start(router, urls, CACHE_AWARE)
    if target.router is None:
        raise RuntimeError(f"{router} has no process")
    with target.router:
        before = Cached(engines)
        turns = asyncio.run(_play(SCENARIOS[name], requests, target.port, engines, seed))
        hits = Cached(engines).rate_since(before)
    return Result(
        scenario=name,
        requests=len(turns),
        router=f"{POINTSMAN} {router}" if own else router,
        busiest=busiest(turns, len(engines)),
        hits=hits,
        stays=stays(turns),
    )


async def _play(
    scenario: Scenario, requests: int, port: int, engines: Sequence[Engine], seed: int
) -> list[Turn]:
    names = {engine.fingerprint: engine.name for engine in engines}
    limits = httpx.Limits(max_connections=AT_ONCE, max_keepalive_connections=AT_ONCE)
    async with httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{port}", limits=limits, timeout=_ANSWER_S
    ) as client:

        async def ask(messages: Messages, tokens: int) -> Answered:
            reply = await client.post("/v1/chat/completions", json=body(MODEL, messages, tokens))
            if reply.status_code != httpx.codes.OK:
                raise RuntimeError(f"an answer has status {reply.status_code}: {reply.text[:300]}")
            answer = reply.json()
            text = answer["choices"][0]["message"]["content"]
            return Answered(names[answer["system_fingerprint"]], text)

        return await play(scenario, requests, ask, seed)


def verdicts(results: Sequence[Result]) -> list[Verdict]:
    """Pointsman's figures beside their bounds; what must not be too low is shown as its distance from 1."""
    found = []
    for result in results:
        if not result.router.startswith(POINTSMAN):
            continue
        bounds, same = SCENARIOS[result.scenario], (result.scenario, result.requests)
        best = max(one.hits for one in results if (one.scenario, one.requests) == same)
        what = f"{result.router}, {result.scenario}, {result.requests} requests"
        found.append(Verdict(f"{what}: busiest", result.busiest, "x mean", bounds.busiest))
        if bounds.hits is not None and best:
            missed = 1 - result.hits / best
            found.append(Verdict(f"{what}: hits missed", missed, "of the best", 1 - bounds.hits))
        if bounds.stays is not None and result.stays is not None:
            found.append(Verdict(f"{what}: turns moved", 1 - result.stays, "of all", 1 - bounds.stays))
    return found


def print_table(results: Sequence[Result]) -> None:
    """Every router in every scenario."""
    print(f"\n{'':<24}{'scenario':>9}{'requests':>10}{'busiest/mean':>14}{'hits':>8}{'stays':>8}")
    for result in results:
        stayed = "" if result.stays is None else f"{result.stays:.3f}"
        line = f"{result.router:<24}{result.scenario:>9}{result.requests:>10}{result.busiest:>14.2f}"
        print(f"{line}{result.hits:>8.3f}{stayed:>8}")


def main() -> int:
    args = _arguments()
    prepare(args.routers)
    load_before = os.getloadavg()
    results: list[Result] = []
    with mock_engines() as engines:
        for name in args.scenarios:
            for requests in args.requests:
                for router in args.routers:
                    result = measure(name, requests, router, engines, seed=len(results))
                    results.append(result)
                    print(f"{name} {requests} {result.router}: {result.busiest:.2f}", flush=True)
    print_table(results)
    found = verdicts(results)
    if found:
        print_verdicts(found)
    loads = (load_before, os.getloadavg())
    content = {"versions": versions(), "load_average": loads, "results": results, "verdicts": found}
    write_json(args.json, content)
    return 0 if all(verdict.holds for verdict in found) else 1


def _arguments() -> argparse.Namespace:
    command = argparse.ArgumentParser(description=__doc__)
    routers = (*OWN, *RIVALS)
    command.add_argument("--routers", nargs="+", choices=routers, default=list(routers))
    command.add_argument("--scenarios", nargs="+", choices=SCENARIOS, default=list(SCENARIOS))
    command.add_argument("--requests", nargs="+", type=int, default=[200, 400])
    command.add_argument("--json", type=Path, default=Path("build/benchmarks/routing.json"))
    return command.parse_args()


if __name__ == "__main__":
    sys.exit(main())
