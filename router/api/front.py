"""The door for clients: engine paths go straight to the proxy, everything else to the FastAPI application.

Plain ASGI on any server, because a FastAPI path function costs more than the whole routing of a small
request; and on connections of ours not even that, because of what scopes and messages cost.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import httptools

from router.api.errors import error_body, error_headers
from router.api.headers import Header, refuse_contradictions, request_id
from router.api.intake import Receive
from router.api.keys import ANYBODY, Keys
from router.api.responder import AsgiResponder, Responder, Send
from router.api.routes import ROUTES, Route, find_route
from router.api.turn import Turn
from router.call import Call
from router.core.errors import MethodNotAllowed, RouterError
from router.proxy import Proxy

Scope = MutableMapping[str, Any]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]

_ROUTES_BY_URL = {path.encode(): route for path, route in ROUTES.items()}
"""Most requests name a path and nothing else."""


@dataclass(frozen=True, slots=True)
class Identity:
    """How calls are named and which paths there are.

    Attributes:
        prefix: of the ids made here, different in every process.
        headers: that may carry the client's own id, first wins.
        passthrough: paths that the operator allows besides the list.
    """

    prefix: str
    headers: tuple[str, ...] = ("x-request-id",)
    passthrough: tuple[str, ...] = ()


class Front:
    """ASGI application of the data port."""

    def __init__(
        self,
        proxy: Proxy,
        keys: Keys,
        rest: AsgiApp,
        now: Callable[[], float],
        identity: Identity,
    ) -> None:
        self._proxy = proxy
        self._keys = keys
        self._rest = rest
        self._now = now
        self._id_prefix = identity.prefix
        self._id_headers = tuple(name.encode() for name in identity.headers)
        self._passthrough = frozenset(identity.passthrough)
        self._ids = itertools.count(1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = find_route(scope["path"], self._passthrough) if scope["type"] == "http" else None
        if route is None:
            await self._rest(scope, receive, send)
            return
        departure = Departure(receive)
        target = _target(scope["raw_path"], scope["query_string"])
        call = self._call(route, scope["method"].encode(), target, scope["headers"], departure.receive)
        try:
            await self._serve(call, AsgiResponder(send))
        except asyncio.CancelledError:
            if not departure.happened:
                raise
        finally:
            departure.over()

    def find(self, url: bytes) -> tuple[Route, bytes] | None:
        """The engine route of a URL, and the target that the engine gets. Raises HttpParserError or
        UnicodeError when it is no URL."""
        route = _ROUTES_BY_URL.get(url)
        if route is not None:
            return route, url
        parsed = httptools.parse_url(url)
        if not parsed.path:
            return None
        route = find_route(unquote(parsed.path.decode("ascii")), self._passthrough)
        return None if route is None else (route, _target(parsed.path, parsed.query))

    async def serve(self, turn: Turn) -> None:
        """A request for an engine on a connection of ours."""
        call = self._call(turn.route, turn.method, turn.target, turn.headers, turn.receive)
        try:
            await self._serve(call, turn)
        except asyncio.CancelledError:
            if not turn.left:
                raise

    def _serve(self, call: Call, responder: Responder) -> Awaitable[None]:
        """What answers it: the proxy, or a refusal."""
        try:
            if len(call.by_name) < len(call.headers):
                refuse_contradictions(call.headers)
            call.client = self._keys.client(call.by_name)
            method = call.method.decode()
            if method not in call.route.methods:
                raise MethodNotAllowed(f"{method} is not a method of this path.")
        except RouterError as error:
            headers = [*error_headers(error), (b"x-request-id", call.id.encode())]
            return responder.answer(error.status, headers, error_body(error, call.route.error_api))
        return self._proxy.serve(call, responder)

    def _call(
        self, route: Route, method: bytes, target: bytes, headers: list[Header], receive: Receive
    ) -> Call:
        by_name = dict(headers)
        return Call(
            id=request_id(by_name, self._id_headers, f"{self._id_prefix}{next(self._ids):08x}"),
            route=route,
            method=method,
            target=target,
            headers=headers,
            by_name=by_name,
            client=ANYBODY,
            receive=receive,
            arrived=self._now(),
        )


def _target(path: bytes, query: bytes | None) -> bytes:
    return path + b"?" + query if query else path


class Departure:
    """Turns the client's leaving, on a server that is not ours, into the cancellation of the task that serves
    it: another task waits for the disconnect message, once the body has been read.
    """

    __slots__ = ("_receive", "_task", "_watch", "happened")

    def __init__(self, receive: Receive) -> None:
        self.happened = False
        self._receive = receive
        self._task = asyncio.current_task()
        self._watch: asyncio.Task[None] | None = None

    async def receive(self) -> MutableMapping[str, Any]:
        message = await self._receive()
        whole = message["type"] == "http.request" and not message.get("more_body", False)
        if whole and self._watch is None:
            self._watch = asyncio.get_running_loop().create_task(self._wait(), name="client departure")
        return message

    async def _wait(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.happened = True
        if self._task is not None:
            self._task.cancel()

    def over(self) -> None:
        """The call ended; the client may stay or go."""
        if self._watch is not None:
            self._watch.cancel()
