"""Clients that look at the bytes: what they got, and whether it came to its proper end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httpx

from tests.integration.programs import MODEL, Router, until_on_loop

DONE = b"data: [DONE]\n\n"


def chat(tokens: int, *, stream: bool = True) -> dict[str, object]:
    """A request that generates exactly so many tokens."""
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": stream,
    }


@dataclass
class Seen:
    """What one client of a stream saw.

    Attributes:
        clean: the body came to the end that its framing promises.
    """

    status: int = 0
    headers: httpx.Headers = field(default_factory=httpx.Headers)
    body: bytes = b""
    clean: bool = False

    @property
    def worker(self) -> str:
        return self.headers["x-pointsman-worker"]

    @property
    def complete(self) -> bool:
        """Whole and good: 200, a finish reason, `[DONE]`, a clean end."""
        finished = b'"finish_reason":"length"' in self.body.replace(b'": "', b'":"')
        return self.status == 200 and finished and self.body.endswith(DONE) and self.clean

    @property
    def broken_in_words(self) -> bool:
        """Ended by an error event, without `[DONE]`, and uncleanly."""
        last = self.body.rstrip().rpartition(b"\n")[2].removeprefix(b"data: ")
        return "error" in json.loads(last) and b"[DONE]" not in self.body and not self.clean


class Streams:
    """Streams that run at the same time."""

    def __init__(self, client: httpx.AsyncClient, router: Router) -> None:
        self._client = client
        self._url = f"{router.base_url}/chat/completions"
        self.seen: list[Seen] = []
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, count: int, tokens: int) -> None:
        for _ in range(count):
            seen = Seen()
            self.seen.append(seen)
            self._tasks.append(asyncio.create_task(self._read(seen, tokens)))

    async def _read(self, seen: Seen, tokens: int) -> None:
        async with self._client.stream("POST", self._url, json=chat(tokens)) as answer:
            seen.status, seen.headers = answer.status_code, answer.headers
            try:
                async for piece in answer.aiter_raw():
                    seen.body += piece
            except httpx.RemoteProtocolError:
                return
            seen.clean = True

    async def until(self, condition: Callable[[Seen], object], what: str) -> None:
        """Waits until it holds for every stream."""
        await until_on_loop(lambda: all(map(condition, self.seen)), what)

    async def all_begun(self) -> None:
        await self.until(lambda seen: seen.body.count(b"\n\n") > 1, "every stream has begun")

    async def over(self) -> list[Seen]:
        """Waits for their ends."""
        await asyncio.gather(*self._tasks)
        return self.seen


@asynccontextmanager
async def streams_of(router: Router) -> AsyncIterator[Streams]:
    """Clients with a connection each."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(limits=limits, timeout=60, verify=False, trust_env=False) as client:
        yield Streams(client, router)
