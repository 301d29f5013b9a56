"""A request body that leaves in pieces, as fast as the worker takes them.

Separate because it is the one part of the data path that needs a task: while the body goes out, the answer
may already come in. Bodies that fit one write never come here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from router.core.errors import InternalError
from router.upstream.wire import Wire


class Upload:
    """Sends one body on one wire.

    The wire holds it, and stops it when the connection ends. What the body itself raises ends the exchange
    and reaches the reader of the answer.

    Attributes:
        done: the whole body was written; only then may the connection carry another request.
    """

    __slots__ = ("_body", "_length", "_task", "_wire", "done")

    def __init__(self, wire: Wire, body: AsyncIterator[bytes], length: int | None) -> None:
        self._wire = wire
        self._body = body
        self._length = length
        self.done = False
        self._task: asyncio.Task[None] | None = asyncio.get_running_loop().create_task(self._run())

    def stop(self) -> None:
        """Send nothing more. Idempotent; the body's iterator stays the caller's to close."""
        task, self._task = self._task, None
        if task is not None and task is not asyncio.current_task():
            task.cancel()

    async def _run(self) -> None:
        try:
            self.done = await (self._send_chunks() if self._length is None else self._send(self._length))
        except Exception as error:  # noqa: BLE001 - not swallowed: the reader of the answer gets it
            self._wire.fail(error)
        self._task = None

    async def _send(self, length: int) -> bool:
        wire, left = self._wire, length
        async for piece in self._body:
            left -= len(piece)
            if left < 0:
                raise InternalError("The request body is longer than its declared length.")
            wire.write(piece)
            self.done = left == 0
            if not await wire.writable():
                return False
        if left:
            raise InternalError("The request body is shorter than its declared length.")
        return True

    async def _send_chunks(self) -> bool:
        wire = self._wire
        async for piece in self._body:
            if not piece:
                continue  # an empty chunk would end the body
            wire.write(b"%x\r\n" % len(piece), piece, b"\r\n")
            if not await wire.writable():
                return False
        wire.write(b"0\r\n\r\n")
        return True


async def slices(body: bytes, size_bytes: int) -> AsyncIterator[bytes]:
    """A large body in pieces, without a copy of the whole."""
    view = memoryview(body)
    for start in range(0, len(body), size_bytes):
        yield bytes(view[start : start + size_bytes])
