"""Bodies of operations, read before anybody judges them, and no more of them than an operation has.

Separate because the framework reads a whole body into memory before it asks for a key, so the bound must
stand in front of it. It also takes half of a surrogate pair for a character, which no answer can repeat; so
what is no JSON for clients is none here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

import msgspec

from router.api.errors import error_body, error_headers
from router.api.intake import Receive, pieces_of
from router.api.responder import AsgiResponder, Send
from router.core.errors import BadRequest, BodyTooLarge, ClientGone
from router.core.request import Api

MAX_BYTES = 64 * 1024
_LARGER = {"/route/explain": 1024 * 1024}
"""Paths whose bodies are whole requests of clients."""
_WITHOUT_BODY = frozenset({"GET", "HEAD", "OPTIONS"})

_decode = msgspec.json.Decoder().decode

Message = MutableMapping[str, Any]


class SmallBodies:
    """ASGI middleware."""

    def __init__(self, app: Callable[[Message, Receive, Send], Awaitable[None]]) -> None:
        self._app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in _WITHOUT_BODY:
            await self._app(scope, receive, send)
            return
        try:
            body = await _read(receive, _LARGER.get(scope["path"], MAX_BYTES))
            if body and _says_json(scope["headers"]):
                _judge(body)
        except ClientGone:
            return
        except (BodyTooLarge, BadRequest) as error:
            body = error_body(error, Api.OTHER)
            await AsgiResponder(send).answer(error.status, error_headers(error), body)
            return
        await self._app(scope, _replay(body, receive), send)


async def _read(receive: Receive, most: int) -> bytes:
    body = b""
    async for piece in pieces_of(receive):
        body += piece
        if len(body) > most:
            raise BodyTooLarge(f"The body of an operation has at most {most} bytes.")
    return body


def _says_json(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    return any(name == b"content-type" and b"json" in value.lower() for name, value in headers)


def _judge(body: bytes) -> None:
    """Raises BadRequest for what a client may not send either."""
    try:
        _decode(body)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        raise BadRequest(
            "The body is not valid JSON: cut short, nested too deeply, with half of a surrogate pair, or "
            "with a number that there is not."
        ) from None


def _replay(body: bytes, receive: Receive) -> Receive:
    """The body as one message; after it, what the server says."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return messages.pop() if messages else await receive()

    return again
