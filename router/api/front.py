"""The door for clients: engine paths go straight to the proxy, everything else to the FastAPI application.

Plain ASGI, because a FastAPI path function costs more than the whole routing of a small request.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

from router.api.connection import CONNECTION, PointsmanProtocol
from router.api.errors import error_body, error_headers
from router.api.headers import refuse_contradictions, request_id
from router.api.intake import Receive
from router.api.keys import ANYBODY, Keys
from router.api.responder import AsgiResponder, DirectResponder, Responder, Send
from router.api.routes import Route, find_route
from router.call import Call
from router.core.errors import MethodNotAllowed, RouterError
from router.proxy import Proxy

Scope = MutableMapping[str, Any]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]


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
        connection: PointsmanProtocol | None = scope.get(CONNECTION)
        responder = AsgiResponder(send) if connection is None else DirectResponder(connection)
        call = self._call(scope, receive, route)
        try:
            if len(call.by_name) < len(call.headers):
                refuse_contradictions(call.headers)
            call.client = self._keys.client(call.by_name)
            if scope["method"] not in route.methods:
                raise MethodNotAllowed(f"{scope['method']} is not a method of this path.")
        except RouterError as error:
            headers = [*error_headers(error), (b"x-request-id", call.id.encode())]
            await responder.answer(error.status, headers, error_body(error, route.error_api))
            return
        departure = Departure(connection, receive)
        try:
            await self._serve(call, responder, departure)
        finally:
            departure.over()

    async def _serve(self, call: Call, responder: Responder, departure: Departure) -> None:
        call.receive = departure.receive
        try:
            await self._proxy.serve(call, responder)
        except asyncio.CancelledError:
            if not departure.happened:
                raise

    def _call(self, scope: Scope, receive: Receive, route: Route) -> Call:
        headers = scope["headers"]
        by_name = dict(headers)
        query = scope["query_string"]
        target = scope["raw_path"] + b"?" + query if query else scope["raw_path"]
        fallback = f"{self._id_prefix}{next(self._ids):08x}"
        return Call(
            id=request_id(by_name, self._id_headers, fallback),
            route=route,
            method=scope["method"].encode(),
            target=target,
            headers=headers,
            by_name=by_name,
            client=ANYBODY,
            receive=receive,
            arrived=self._now(),
        )


class Departure:
    """Turns the client's leaving into the cancellation of the task that serves it.

    The connection calls back when the server is ours. On any other server a task waits for the disconnect
    message, once the body has been read.
    """

    __slots__ = ("_connection", "_receive", "_task", "_watch", "happened")

    def __init__(self, connection: PointsmanProtocol | None, receive: Receive) -> None:
        self.happened = False
        self._connection = connection
        self._receive = receive
        self._task = asyncio.current_task() if connection is None else connection.task
        self._watch: asyncio.Task[None] | None = None
        if connection is not None:
            connection.when_gone(self._left)

    async def receive(self) -> MutableMapping[str, Any]:
        message = await self._receive()
        whole = message["type"] == "http.request" and not message.get("more_body", False)
        if whole and self._connection is None and self._watch is None:
            self._watch = asyncio.get_running_loop().create_task(self._wait(), name="client departure")
        return message

    async def _wait(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._left()

    def _left(self) -> None:
        self.happened = True
        if self._task is not None:
            self._task.cancel()

    def over(self) -> None:
        """The call ended; the client may stay or go."""
        if self._connection is not None:
            self._connection.when_gone(None)
        if self._watch is not None:
            self._watch.cancel()
