"""Faults that strike while an answer is being sent: an ASGI `send` that misbehaves.

Separate so that no route and no encoder knows of faults; without one, this layer is not there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from engines.mock.faults import Fault
from engines.mock.wire import Message, Receive, Send, Severed, client_left, sever, transport_of

KEEP_ALIVE = b": keep-alive\n\n"

SENDING = frozenset({"hang_stream", "close_early", "crash", "comments", "crlf"})
"""Kinds that this layer carries out."""


class FaultySend:
    """Wraps `send`: counts the events of a stream and strikes where each fault says.

    Args:
        send, receive: of the connection.
        faults: those of this request.
        crash: kills the engine process.
    """

    def __init__(
        self, send: Send, receive: Receive, faults: tuple[Fault, ...], crash: Callable[[Fault], None]
    ) -> None:
        self._send = send
        self._transport = transport_of(send)
        self._receive = receive
        self._faults = {fault.kind: fault for fault in faults}
        self._crash = crash
        self._stream = False
        self._events = 0

    async def __call__(self, message: Message) -> None:
        """Send a message, or what the faults make of it.

        Raises:
            Severed: the connection is gone.
        """
        if message["type"] == "http.response.start":
            self._stream = any(
                name == b"content-type" and value.startswith(b"text/event-stream")
                for name, value in message["headers"]
            )
            await self._send(message)
            return
        if self._stream:
            await self._event(message)
        else:
            await self._body(message)

    async def _event(self, message: Message) -> None:
        body = message["body"]
        comments = "comments" in self._faults
        if body and self._events == 0 and comments:
            await self._write(KEEP_ALIVE)
        await self._strike()
        await self._write(body, more=message.get("more_body", False))
        if body and body[:1] != b":":
            self._events += 1
            if comments:
                await self._write(KEEP_ALIVE)

    async def _strike(self) -> None:
        """Carry out what is due after the events that passed."""
        for kind in ("hang_stream", "close_early", "crash"):
            fault = self._faults.get(kind)
            if fault is not None and self._events >= (fault.after_events or 0):
                del self._faults[kind]
                await self._carry_out(fault)

    async def _body(self, message: Message) -> None:
        """Cut a body of known length in its middle."""
        fault = next((self._faults[kind] for kind in ("hang_stream", "close_early", "crash")
                      if kind in self._faults), None)  # fmt: skip
        body = message["body"]
        if fault is None or len(body) < 2:
            await self._send(message)
            return
        del self._faults[fault.kind]
        half = len(body) // 2
        await self._send({"type": "http.response.body", "body": body[:half], "more_body": True})
        await self._carry_out(fault)
        await self._send({**message, "body": body[half:]})

    async def _carry_out(self, fault: Fault) -> None:
        if fault.kind == "hang_stream":
            await pause(self._receive, fault.delay_s)
        elif fault.kind == "close_early":
            await sever(self._transport, self._receive, hard=False)
        else:
            self._crash(fault)
            await sever(self._transport, self._receive, hard=True)

    async def _write(self, body: bytes, *, more: bool = True) -> None:
        if "crlf" in self._faults:
            body = body.replace(b"\n", b"\r\n")
        await self._send({"type": "http.response.body", "body": body, "more_body": more})


async def pause(receive: Receive, delay_s: float | None) -> None:
    """Do nothing until the delay has passed; for ever when it is None.

    Raises:
        Severed: the client left first.
    """
    try:
        async with asyncio.timeout(delay_s):
            await client_left(receive)
    except TimeoutError:
        return
    raise Severed
