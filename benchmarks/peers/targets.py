"""The routers that are compared, as command lines: over the same engines, quiet logs, round robin unless
another policy is measured.

Pointsman runs as it ships: counting, mirrors, metrics, scrapes and its default log level.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.client import Load
from benchmarks.engine_bytes import Leg
from benchmarks.peers.installation import command_of, install, versions
from benchmarks.processes import Child, answers, drive, free_port, python

POINTSMAN = "pointsman"
PLAIN = "fastapi+httpx"
VLLM = "vllm-router"
SGLANG = "sglang-router"
SMG = "smg"
DIRECT = "direct"
ROUND_ROBIN = "round_robin"
CACHE_AWARE = "cache_aware"
"""Both are called so by all of them."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where the client sends its requests, and whose CPU counts.

    Attributes:
        router: None for the engine itself.
        leg: what the engine itself is asked for.
    """

    name: str
    port: int
    router: Child | None
    leg: Leg = Leg.WHOLE


def _serve(port: int, *flags: str) -> list[str]:
    return [sys.executable, "-m", "router", "serve", "--port", str(port), "--admin-port", "0", *flags]


def _pointsman(port: int, urls: Sequence[str], policy: str) -> list[str]:
    return _serve(port, "--policy", policy, "--worker-urls", *urls)


def _split_pointsman(port: int, prefill: Sequence[str], decode: Sequence[str]) -> list[str]:
    policies = ["--prefill-policy", "round_robin", "--decode-policy", "round_robin"]
    pair = ["--pd-disaggregation", "--kv-connector", "nixl", "--pd-split-min-tokens", "0"]
    workers = [part for url in prefill for part in ("--prefill", url)]
    return _serve(port, *policies, *pair, *workers, "--decode", *decode)


def _plain(port: int, urls: Sequence[str], _policy: str) -> list[str]:
    return python("benchmarks.plain_proxy", "--port", port, "--worker-urls", *urls)


def _vllm(port: int, urls: Sequence[str], policy: str) -> list[str]:
    shared = _shared(port, policy)
    return [str(command_of(VLLM)), *shared, "--log-level", "warning", "--worker-urls", *urls]


def _split_vllm(port: int, prefill: Sequence[str], decode: Sequence[str]) -> list[str]:
    pair = ["--vllm-pd-disaggregation", "--kv-connector", "nixl", "--log-level", "warning"]
    workers = [part for url in prefill for part in ("--prefill", url)]
    workers += [part for url in decode for part in ("--decode", url)]
    return [str(command_of(VLLM)), *_shared(port), *pair, *workers]


def _sglang(port: int, urls: Sequence[str], policy: str) -> list[str]:
    return [str(command_of(SGLANG)), *_launch(port, urls, policy)]


def _smg(port: int, urls: Sequence[str], policy: str) -> list[str]:
    return [str(command_of(SMG)), *_launch(port, urls, policy)]


def _launch(port: int, urls: Sequence[str], policy: str) -> list[str]:
    return ["launch", *_shared(port, policy), "--log-level", "warn", "--worker-urls", *urls]


def _shared(port: int, policy: str = ROUND_ROBIN) -> list[str]:
    """Flags that the gateways of this family have in common."""
    metrics = ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port())]
    return ["--host", "127.0.0.1", "--port", str(port), "--policy", policy, *metrics]


_COMMANDS: dict[str, Callable[[int, Sequence[str], str], list[str]]] = {
    POINTSMAN: _pointsman,
    VLLM: _vllm,
    SGLANG: _sglang,
    SMG: _smg,
    PLAIN: _plain,
}
ROUTERS = tuple(_COMMANDS)

_SPLIT_COMMANDS: dict[str, Callable[[int, Sequence[str], Sequence[str]], list[str]]] = {
    POINTSMAN: _split_pointsman,
    VLLM: _split_vllm,
}
SPLIT_ROUTERS = tuple(_SPLIT_COMMANDS)
"""Those that split requests as vLLM's NIXL connector wants it."""


def prepare(names: Sequence[str]) -> None:
    """Installs what has to be installed."""
    for name in versions():
        if name in names:
            install(name)


def start(name: str, urls: Sequence[str], policy: str = ROUND_ROBIN) -> Target:
    """Starts a router and waits until it serves its engines.

    Raises RuntimeError when it does not.
    """
    port = free_port()
    return _started(name, port, _COMMANDS[name](port, urls, policy))


def start_split(name: str, prefill: Sequence[str], decode: Sequence[str]) -> Target:
    """The same with prefill and decode engines."""
    port = free_port()
    return _started(name, port, _SPLIT_COMMANDS[name](port, prefill, decode))


def _started(name: str, port: int, argv: Sequence[str]) -> Target:
    child = Child(name, argv)
    try:
        child.wait_for(lambda: answers(f"http://127.0.0.1:{port}/health"))
        child.wait_for(lambda: _serves(port))
    except BaseException:
        child.stop()
        raise
    return Target(name, port, child)


def _serves(port: int) -> bool:
    """Whether a router knows its workers by now: some learn of them after they have bound their port."""
    try:
        drive(Load(port, 1, 8))
    except RuntimeError:
        return False
    return True
