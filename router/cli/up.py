"""`pointsman up`: the router and the mock fleet of a configuration, as child processes.

Separate from `serve`: here are several programs that must start in order and end together.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import errno
import json
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import httpx

from router.cli import mock
from router.cli.children import ChildFailed, Program, Stopped, together
from router.cli.flags import add_settings_flags, given, typed
from router.cli.parser import COMMANDS
from router.settings import MockGroup, Settings, SettingsError, load

if TYPE_CHECKING:
    from router.cli.parser import Subparsers

_DEFAULT_CONFIG: Final = Path("config.yaml")
_ROUTER: Final = (sys.executable, "-P", "-m", "router", "serve")
_SERVED_NAME: Final = "served-model-name"
_STOP_MARGIN_S: Final = 10.0
"""Beyond what the router grants its streams: the time to end them with an error."""


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """What is started, in this order.

    Attributes:
        ready_s: how long engines, and then the router, may take to answer.
        greeting: printed once all answer.
    """

    engines: tuple[Program, ...]
    router: Program
    ready_s: float
    greeting: str


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "up",
        help=COMMANDS["up"],
        description="Run the router and the mock engines of a configuration, ./config.yaml unless --config "
        "names another. Takes the flags of `pointsman serve`.",
    )
    add_settings_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Runs until Ctrl-C, SIGTERM, or the end of any of the programs.

    Returns:
        0 when it was told to stop, 1 when something ended by itself or did not start.

    Raises:
        SettingsError: the configuration is refused, or a port is taken; nothing was started.
    """
    config: Path = args.config or _DEFAULT_CONFIG
    if args.config is None and not config.exists():
        raise SettingsError(
            ["there is no config.yaml in this folder; name a file with --config, or use pointsman serve"]
        )
    settings = load(config, given(args))
    problems = [*unfit(settings), *taken_ports(settings)]
    if problems:
        raise SettingsError(problems)
    return asyncio.run(run_plan(plan(settings, config, typed(args))))


def plan(settings: Settings, config: Path, flags: list[str]) -> Plan:
    """The programs that a configuration asks for.

    Args:
        config: the file, for the router to read again.
        flags: settings flags of this command, which are the router's too.
    """
    host = settings.mock.host
    engines = tuple(
        Program(
            name=_name(group),
            command=(
                *mock.COMMAND,
                *("--host", host, "--port", str(group.port), "--count", str(group.count)),
                *group.arguments,
            ),
            ready_urls=tuple(f"{_url(host, port)}/health" for port in group.ports),
        )
        for group in settings.mock.fleet
    )
    router = Program(
        name="the router",
        command=(*_ROUTER, "--config", str(config), *flags),
        ready_urls=(f"{_url(settings.server.host, settings.server.port)}/readiness",),
        stop_signal=signal.SIGINT,  # no load balancer needs time to notice, which SIGTERM would grant
        stop_s=settings.timeouts.shutdown_drain_s + _STOP_MARGIN_S,
    )
    return Plan(engines, router, settings.mock.ready_timeout_s, greeting(settings))


async def run_plan(plan: Plan) -> int:
    """Starts everything, says so, and waits for the end; the exit code."""
    async with httpx.AsyncClient(trust_env=False, timeout=5.0) as client:

        async def answers(url: str) -> bool:
            try:
                return (await client.get(url)).status_code == httpx.codes.OK
            except httpx.TransportError:
                return False

        try:
            async with together(answers) as children:
                for program in plan.engines:
                    await children.start(program)
                await children.ready(plan.engines, plan.ready_s)
                await children.start(plan.router)
                await children.ready([plan.router], plan.ready_s)
                print(plan.greeting, flush=True)
                await children.until_over()
        except Stopped:
            return 0
        except ChildFailed as error:
            print(f"pointsman: {error}", file=sys.stderr)
    return 1


def unfit(settings: Settings) -> Iterator[str]:
    """Why this configuration is not one for `pointsman up`."""
    if not settings.mock.fleet:
        yield "mock.fleet is empty, so there is no engine to start; pointsman serve runs the router alone"
    if settings.server.port == 0:
        yield "server.port is 0, and pointsman up must know the port to say where the router listens"


def taken_ports(settings: Settings) -> Iterator[str]:
    """Ports that somebody else listens on: their answers would pass for those of our own children."""
    wanted = [
        (f"mock.fleet[{index}]", settings.mock.host, port)
        for index, group in enumerate(settings.mock.fleet)
        for port in group.ports
    ]
    wanted += [
        ("server.port", settings.server.host, settings.server.port),
        ("server.admin_port", settings.server.admin_host, settings.server.admin_port),
    ]
    for key, host, port in wanted:
        reason = _why_taken(host, port)
        if reason is not None:
            yield f"{key}: port {port} on {host} cannot be used, {reason}"


def greeting(settings: Settings) -> str:
    """Where the router listens, and how to talk to it."""
    base = f"{_url(settings.server.host, settings.server.port)}/v1"
    key = "YOUR_KEY" if settings.auth.asks_clients else ""
    model = _model(settings)
    body = {"model": model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 32}
    authorization = f" -H 'Authorization: Bearer {key}'" if key else ""
    engines = ", ".join(_name(group) for group in settings.mock.fleet)
    return f"""
Pointsman listens on {base}, in front of {engines}.

  curl {base}/chat/completions -H 'Content-Type: application/json'{authorization} \\
    -d '{json.dumps(body)}'

  from openai import OpenAI

  client = OpenAI(base_url="{base}", api_key="{key or "none"}")
  stream = client.chat.completions.create(
      model="{model}", messages=[{{"role": "user", "content": "Hello"}}], max_tokens=32, stream=True
  )
  for event in stream:
      print(event.choices[0].delta.content or "", end="", flush=True)

Ctrl-C stops all of it."""


def _name(group: MockGroup) -> str:
    kind = "mock" if group.role == "both" else f"mock {group.role}"
    if group.count == 1:
        return f"the {kind} engine on port {group.port}"
    return f"the {group.count} {kind} engines on ports {group.ports[0]}-{group.ports[-1]}"


def _model(settings: Settings) -> str:
    group = settings.mock.fleet[0]
    return str(group.flags.get(_SERVED_NAME, group.model))


def _url(host: str, port: int) -> str:
    """The URL that reaches a listener from this machine."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _why_taken(host: str, port: int) -> str | None:
    """Why nobody can listen there, None when somebody can; port 0 is no port."""
    if port == 0:
        return None
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(
            socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
        )  # as the servers do: ignore old connections
        try:
            probe.bind((host, port))
        except OSError as error:
            taken = error.errno == errno.EADDRINUSE
            return "another program listens there" if taken else (error.strerror or str(error))
    return None
