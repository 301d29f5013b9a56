"""The router as users run it, in front of real engines, and the accounts that must be zero afterwards."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from router.core.engine_stats import EngineStats
from router.core.exposition import read_samples, read_stats
from tests.real.install import ROOT
from tests.real.processes import Process, environment, listening_port, until
from tests.real.wire import ask

SETTLED_S = 2.0
"""An account is zero, and an engine has dropped an abandoned request, within this time. The router needs
100 ms, which the tests in virtual time hold; this bound also carries a busy machine and an engine's step."""
ADMIN_KEY = "probe"
_AUTHORIZED = {"authorization": f"Bearer {ADMIN_KEY}"}
_IDLE_GAUGES = frozenset(
    {
        "pointsman_requests_in_flight",
        "pointsman_worker_requests_in_flight",
        "pointsman_worker_kv_tokens",
        "pointsman_worker_held_tokens",
        "pointsman_worker_transfers",
        "pointsman_prompt_pool_entries",
        "pointsman_queue_depth",
    }
)
_VARYING = (
    (re.compile(rb'"created(?:_at)?": ?[0-9.]+'), b'"created":0'),
    (re.compile(rb'"id": ?"[^"]*"'), b'"id":"-"'),
)


def alike(body: bytes) -> bytes:
    """A body without what differs between two runs of one request: ids and times."""
    for pattern, constant in _VARYING:
        body = pattern.sub(constant, body)
    return body


class Listening(Protocol):
    """What a router can have as a worker."""

    @property
    def url(self) -> str: ...


class Engine(Process):
    """A real engine. `metrics` are the text of its own endpoint, `stats` what the router reads in it."""

    def metrics(self) -> bytes:
        return ask(self.port, "GET", "/metrics").body

    def stats(self) -> EngineStats:
        return read_stats(self.metrics(), 0.0)


class Router(Process):
    """`pointsman serve` as a process of its own."""

    def state(self) -> Any:
        return ask(self.port, "GET", "/debug/state", headers=_AUTHORIZED).json()

    def worker(self, engine: Listening) -> Any:
        """What the router says of one engine."""
        return next(one for one in self.state()["workers"] if one["url"].rstrip("/") == engine.url)

    def until_ready(self, engines: Sequence[Listening], within_s: float = 30.0) -> None:
        """Waits until all of these may be chosen."""

        def ready() -> bool:
            return all(self.worker(engine)["state"] == "ready" for engine in engines)

        until(ready, within_s, f"ready workers: {self.tail()}")

    def busy(self) -> dict[str, Any]:
        """Every account that is not zero; empty when the router is idle."""
        state = self.state()
        found = {"requests_in_flight": state["requests_in_flight"]}
        for name, pool in state["pools"].items():
            found |= {f"{name} {account}": pool[account] for account in ("queued", "in_flight")}
        for worker in state["workers"]:
            accounts = ("in_flight", "sequences", "queued_tokens", "kv_tokens")
            found |= {f"{worker['name']} {account}": worker[account] for account in accounts}
        for name, value in self.gauges():
            found[name] = value
        return {name: value for name, value in found.items() if value}

    def gauges(self) -> list[tuple[str, float]]:
        """The gauges that are zero when the router is idle, from its own metrics."""
        lines = ask(self.port, "GET", "/metrics").body.decode().splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if re.split("[ {]", line)[0] in _IDLE_GAUGES)
        return [(name, float(value)) for name, value in pairs]

    def assert_idle(self, within_s: float = SETTLED_S) -> None:
        """The first law: after whatever happened, every account is zero."""
        assert self.gauges(), "the router exports none of its gauges"
        until(lambda: not self.busy(), within_s, f"zero accounts: {self.busy()}")


@contextmanager
def router_before(
    engines: Sequence[Listening], directory: Path, *flags: str, ready: bool = True
) -> Iterator[Router]:
    """A router with these workers, round robin, so that the probes reach all of them."""
    workers = ("--policy", "round_robin", "--worker-urls", *(one.url for one in engines))
    with router_with(engines, directory, *flags, *workers, ready=ready) as router:
        yield router


@contextmanager
def router_with(
    engines: Sequence[Listening], directory: Path, *flags: str, ready: bool = True
) -> Iterator[Router]:
    """A router whose flags say who its workers are."""
    log = directory / f"router-{len(list(directory.glob('router-*')))}.log"
    argv: list[str | Path] = [ROOT / ".venv/bin/pointsman", "serve", "--port", "0", "--admin-port", "0"]
    argv += ["--admin-api-key", ADMIN_KEY, "--expose-routing-headers"]
    argv += ["--health-check-interval-secs", "1", *flags]
    router = Router(argv, 0, log, environment())
    try:
        router.port = until(lambda: listening_port(log), 30.0, f"a router that listens: {router.tail()}")
        if ready:
            router.until_ready(engines)
        yield router
    finally:
        router.stop()


def sample(exposition: bytes, name: str) -> float:
    """The sum of one metric of an engine that the router reads, too."""
    return sum(one.value for one in read_samples(exposition)[name.encode()])
