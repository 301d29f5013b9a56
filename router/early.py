"""Signs of life before the first event, for clients behind proxies that cut silent streams.

While a request waits in the queue, or for its first token, there is no engine stream whose comments could be
passed on. Writing one of our own commits status 200: a failure after it can only be told by an error event.
So it is off unless it is asked for. Other workers may still be tried: comments are no part of an answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType

from router.api.headers import for_client
from router.api.responder import Responder
from router.core.request import Api
from router.core.stream_error import keep_alive
from router.upstream.alarm import Alarm

_HEADERS = ((b"content-type", b"text/event-stream; charset=utf-8"),)


class EarlyKeepAlive:
    """A context manager around everything before commit; `stop` it when the engine's own stream begins."""

    def __init__(
        self, responder: Responder, api: Api, request_id: bytes, period_s: float, now: Callable[[], float]
    ) -> None:
        self._responder = responder
        self._api = api
        self._request_id = request_id
        self._period_s = period_s
        self._now = now
        self._alarm = Alarm(asyncio.get_running_loop(), now, self._speak)
        self._starting: asyncio.Task[None] | None = None

    def __enter__(self) -> EarlyKeepAlive:
        self._alarm.set(self._now() + self._period_s)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._alarm.cancel()
        if self._starting is not None:
            self._starting.cancel()

    async def stop(self) -> None:
        """Says no more, and lets a status line that is on its way arrive first."""
        self._alarm.cancel()
        if self._starting is not None:
            await self._starting

    def _speak(self) -> None:
        if self._starting is None:
            self._starting = asyncio.get_running_loop().create_task(self._start(), name="early keep-alive")
        else:
            self._responder.offer(keep_alive(self._api))
        self._alarm.set(self._now() + self._period_s)

    async def _start(self) -> None:
        headers = [*for_client(_HEADERS, streamed=True), (b"x-request-id", self._request_id)]
        await self._responder.start(200, headers)
        await self._responder.write(keep_alive(self._api))
