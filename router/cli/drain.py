"""`pointsman drain`: takes workers of a running router out of service, and waits until they are idle.

Separate because it is a client of the admin API: it knows a router by its URL alone.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import httpx

from router.cli.parser import COMMANDS
from router.settings import Given, load

if TYPE_CHECKING:
    from router.cli.parser import Subparsers

DEFAULT_URL: Final = "http://127.0.0.1:29001"
DEFAULT_TIMEOUT_S: Final = 600.0
_POLL_S: Final = 1.0
_ANSWER_S: Final = 10.0
"""The admin API answers within; it never waits for a request of a client."""


class DrainFailed(Exception):
    """The router refused, does not answer, or workers are not idle in time. The message says which."""


@dataclass(frozen=True, slots=True)
class Worker:
    """What the admin API says of one worker.

    Attributes:
        busy: requests in flight there; a prefill worker's hand-overs that nobody has fetched are among them.
        held: those hand-overs alone.
    """

    name: str
    state: str
    busy: int
    held: int

    @classmethod
    def of(cls, said: dict[str, Any]) -> Worker:
        return cls(said["name"], said["state"], said["in_flight"], said.get("held_handovers", 0))

    def __str__(self) -> str:
        held = f", {self.held} of them hand-overs" if self.held else ""
        return f"{self.name} {self.busy}{held}"


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "drain",
        help=COMMANDS["drain"],
        description="Give workers of a running router no new requests. Those in flight finish.",
    )
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--worker", metavar="NAME", help="one worker, by its name")
    which.add_argument(
        "--revision",
        metavar="R",
        help="all workers of this revision, in all pools: a label, an engine version, or both, as "
        "GET /workers shows them",
    )
    parser.add_argument(
        "--url", type=_url, default=DEFAULT_URL, metavar="URL", help=f"the router's admin API [{DEFAULT_URL}]"
    )
    parser.add_argument(
        "--admin-api-key", metavar="KEY", help="as in pointsman serve; POINTSMAN_AUTH__ADMIN_API_KEY, too"
    )
    parser.add_argument("--wait", action="store_true", help="until nothing is in flight there")
    parser.add_argument(
        "--timeout",
        type=_seconds,
        default=DEFAULT_TIMEOUT_S,
        metavar="S",
        help=f"longest wait; the workers stay out of service after it [{DEFAULT_TIMEOUT_S:g}]",
    )
    parser.add_argument(
        "--force", action="store_true", help="even if a model is then served by nobody, or by half a pair"
    )


def run(args: argparse.Namespace) -> int:
    """Drains, and with `--wait` stays until all is idle.

    Returns:
        0 when the workers are out of service, and with `--wait` idle; 1 when the router refused, does not
        answer, or time is up.

    Raises:
        SettingsError: the key fits no header.
    """
    typed = args.admin_api_key
    flags = [] if typed is None else [Given("--admin-api-key", "auth.admin_api_key", typed)]
    secret = load(None, flags).auth.admin_api_key
    headers = {"authorization": f"Bearer {secret.get_secret_value()}"} if secret is not None else {}
    return asyncio.run(_on_a_client(args, headers))


async def _on_a_client(args: argparse.Namespace, headers: dict[str, str]) -> int:
    async with httpx.AsyncClient(
        base_url=args.url, headers=headers, timeout=_ANSWER_S, trust_env=False
    ) as client:
        return await drain(client, args)


async def drain(client: httpx.AsyncClient, args: argparse.Namespace) -> int:
    """The command, on a client of the admin API; the exit code."""
    asked = {"worker": args.worker} if args.worker is not None else {"revision": args.revision}
    whose = f"worker {args.worker}" if args.worker is not None else f"revision {args.revision}"
    try:
        workers = await _post(client, {**asked, "force": args.force})
        names = ", ".join(worker.name for worker in workers)
        _say(f"draining {whose}" if names == args.worker else f"draining {whose}: {names}")
        if args.wait:
            await _wait(client, workers, args.timeout)
        _say(_left(workers) if not args.wait else f"idle: {whose}")
    except DrainFailed as error:
        print(f"pointsman: {error}", file=sys.stderr)
        return 1
    return 0


async def _post(client: httpx.AsyncClient, body: dict[str, Any]) -> list[Worker]:
    try:
        answer = await client.post("/workers/drain", json=body)
    except httpx.TransportError as error:
        raise DrainFailed(f"no router answers at {client.base_url}: {error}") from error
    if not answer.is_success:
        raise DrainFailed(f"the router refuses: {_message(answer)}")
    return _workers(answer)


async def _wait(client: httpx.AsyncClient, drained: Sequence[Worker], timeout_s: float) -> None:
    """Looks again and again, and says what has changed, until all of them are idle."""
    names = {worker.name for worker in drained}
    now = asyncio.get_running_loop().time
    until, left, said = now() + timeout_s, list(drained), ""
    while any(worker.busy for worker in left):
        line = _left(left)
        if line != said:
            _say(line)
        said = line
        if now() >= until:
            raise DrainFailed(f"not idle after {timeout_s:g} s: {line}; they stay out of service")
        await asyncio.sleep(min(_POLL_S, until - now()))
        left = [worker for worker in await _look(client, left) if worker.name in names]
        for worker in _in_service(left):
            raise DrainFailed(f"worker {worker.name} is {worker.state} again: somebody else has resumed it")


async def _look(client: httpx.AsyncClient, before: list[Worker]) -> list[Worker]:
    """All workers as they are now. A router that does not answer for a moment changes nothing."""
    try:
        answer = await client.get("/workers")
    except httpx.TransportError:
        return before
    if not answer.is_success:
        raise DrainFailed(f"the router refuses: {_message(answer)}")
    return _workers(answer)


def _in_service(workers: Sequence[Worker]) -> Iterator[Worker]:
    return (worker for worker in workers if worker.state != "draining")


def _workers(answer: httpx.Response) -> list[Worker]:
    try:
        return [Worker.of(said) for said in answer.json()["workers"]]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DrainFailed(f"what answers at {answer.url} is not this router's admin API") from error


def _message(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"status {answer.status_code}"


def _left(workers: Sequence[Worker]) -> str:
    busy = [worker for worker in workers if worker.busy]
    count = sum(worker.busy for worker in busy)
    return f"{count} in flight" + (f" ({'; '.join(map(str, busy))})" if busy else "")


def _say(line: str) -> None:
    print(line, flush=True)


def _url(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise argparse.ArgumentTypeError(f"{text} is no URL such as {DEFAULT_URL}")
    return text


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 86_400:
        raise argparse.ArgumentTypeError("must be between 0 and 86400 seconds")
    return value
