"""The routers that are compared, as command lines: round robin over the same engines, quiet logs.

Pointsman runs as it ships: counting, mirrors, metrics, scrapes and its default log level.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.client import Load
from benchmarks.peers.installation import command_of, install, versions
from benchmarks.processes import Child, answers, drive, free_port, python

POINTSMAN = "pointsman"
PLAIN = "fastapi+httpx"
VLLM = "vllm-router"
SGLANG = "sglang-router"
SMG = "smg"
DIRECT = "direct"


@dataclass(frozen=True, slots=True)
class Target:
    """Where the client sends its requests, and whose CPU counts.

    Attributes:
        router: None for the engine itself.
    """

    name: str
    port: int
    router: Child | None


def _pointsman(port: int, urls: Sequence[str]) -> list[str]:
    flags = ["--port", str(port), "--admin-port", "0", "--policy", "round_robin"]
    return [sys.executable, "-m", "router", "serve", *flags, "--worker-urls", *urls]


def _plain(port: int, urls: Sequence[str]) -> list[str]:
    return python("benchmarks.plain_proxy", "--port", port, "--worker-urls", *urls)


def _vllm(port: int, urls: Sequence[str]) -> list[str]:
    return [str(command_of(VLLM)), *_shared(port), "--log-level", "warning", "--worker-urls", *urls]


def _sglang(port: int, urls: Sequence[str]) -> list[str]:
    return [str(command_of(SGLANG)), "launch", *_shared(port), "--log-level", "warn", "--worker-urls", *urls]


def _smg(port: int, urls: Sequence[str]) -> list[str]:
    return [str(command_of(SMG)), "launch", *_shared(port), "--log-level", "warn", "--worker-urls", *urls]


def _shared(port: int) -> list[str]:
    """Flags that the gateways of this family have in common."""
    metrics = ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port())]
    return ["--host", "127.0.0.1", "--port", str(port), "--policy", "round_robin", *metrics]


_COMMANDS: dict[str, Callable[[int, Sequence[str]], list[str]]] = {
    POINTSMAN: _pointsman,
    VLLM: _vllm,
    SGLANG: _sglang,
    SMG: _smg,
    PLAIN: _plain,
}
ROUTERS = tuple(_COMMANDS)


def prepare(names: Sequence[str]) -> None:
    """Installs what has to be installed."""
    for name in versions():
        if name in names:
            install(name)


def start(name: str, urls: Sequence[str]) -> Target:
    """Starts a router and waits until it serves both engines.

    Raises RuntimeError when it does not.
    """
    port = free_port()
    child = Child(name, _COMMANDS[name](port, urls))
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
