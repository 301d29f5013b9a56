"""The first thing a request meets: keys, faults, the record of what was seen, and the fast routes.

Separate from the FastAPI application behind it because generation and the scraped routes must cost little:
they are plain functions of a request. Everything else goes on to FastAPI.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256

from engines.mock.errors import Refusal, body_for, event_for
from engines.mock.fault_send import SENDING, FaultySend, pause
from engines.mock.faults import Fault
from engines.mock.http_account import UNCOUNTED, HttpAccount
from engines.mock.peers import SIDE_CHANNEL
from engines.mock.per_incarnation import PerIncarnation
from engines.mock.process import EngineProcess
from engines.mock.wire import Message, Receive, Request, Scope, Send, Severed, read_body

Endpoint = Callable[[Request, EngineProcess], Awaitable[None]]
Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]

VLLM_GUARDED = ("/v1", "/v2", "/inference", "/cohere")
"""Path prefixes for which vLLM asks for the API key."""
SGLANG_OPEN = ("/health", "/metrics")
"""Path prefixes for which SGLang does not ask for it."""

GARBAGE = b"\x15\x03\x03\x00\x02\x02\x28 this is not HTTP \xff\xfe\r\n\r\n"

SEEN_REQUESTS = 256
"""Requests that are kept, scrapes and probes not among them."""
SEEN_PATHS = 256
"""Paths that are counted by name."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What was received, for tests that ask what a router really sent."""

    method: str
    path: str
    query: str
    headers: tuple[tuple[str, str], ...]
    body_bytes: int
    body_sha256: str
    at: float

    def state(self) -> dict[str, object]:
        """Return the record as `/mock/state` shows it."""
        return {
            "method": self.method,
            "path": self.path,
            "query": self.query,
            "headers": [list(header) for header in self.headers],
            "body_bytes": self.body_bytes,
            "body_sha256": self.body_sha256,
            "at": self.at,
        }


class Front:
    """The ASGI application of one mock engine.

    Args:
        process: the engine process behind it.
        routes: fast routes, path to method to endpoint. `rest` is set to the application for other paths.
    """

    def __init__(self, process: EngineProcess, routes: Mapping[str, Mapping[str, Endpoint]]) -> None:
        self.process = process
        self.faults = process.faults
        self._http_account = PerIncarnation(process, lambda _: HttpAccount())
        self.seen: deque[Seen] = deque(maxlen=SEEN_REQUESTS)
        self.seen_by_path: Counter[str] = Counter()
        self.in_progress = 0
        self._routes = routes
        self._dialect = process.settings.dialect
        self.rest: Asgi = _nowhere

    def __repr__(self) -> str:
        return f"<Front {self.process!r} {self.in_progress} in progress, {self.faults!r}>"

    @property
    def http(self) -> HttpAccount:
        """The HTTP counters of this incarnation."""
        return self._http_account.get()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI connection."""
        if scope["type"] != "http":
            await self.rest(scope, receive, send)
            return
        self.in_progress += 1
        try:
            await self._http(scope, receive, send)
        except Severed:
            return
        finally:
            self.in_progress -= 1

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request.of(scope, receive, send)
        request.extra_headers.append((b"vary", b"Origin"))
        try:
            body = await read_body(receive)
        except Refusal as refusal:
            await request.answer(refusal.status, body_for(self._dialect, request.path, refusal))
            return
        if body is None:
            return
        request.body = body
        request.arrived = self.process.now()
        self._record(request)
        side_channel = request.path == SIDE_CHANNEL
        if request.path.startswith("/mock/") and not side_channel:
            await self._forward(request)
            return
        if not self.process.up:
            await request.sever(hard=True)
        if side_channel:
            await self._answer_peer(request)
            return
        if self.faults:
            request.faults = self.faults.take(request.path)
            if await self._struck(request):
                return
        await self._route(request)
        self.http.observe(request, self.process.now() - request.arrived, self.process.unix_now())

    async def _answer_peer(self, request: Request) -> None:
        """Answer another engine: no fault strikes here but those of the process and of hand-overs."""
        try:
            answer = self.process.answer_peer(request.body, request.arrived)
        except Refusal as refusal:
            await request.answer(refusal.status, body_for(self._dialect, request.path, refusal))
            return
        if answer is None:
            await request.answer(404, b"")
        else:
            await request.answer(200, answer)

    async def _route(self, request: Request) -> None:
        settings = self.process.settings
        if settings.enable_request_id_headers:
            request_id = request.header("x-request-id") or self.process.draw_id(32)
            request.extra_headers.append((b"x-request-id", request_id.encode("latin-1")))
        if settings.api_key is not None and not self._knows_key(request, settings.api_key):
            request.extra_headers.clear()
            await request.answer(401, b'{"error":"Unauthorized"}')
            return
        methods = self._routes.get(request.path)
        if methods is None:
            await self._forward(request)
            return
        endpoint = methods.get(request.scope["method"])
        if endpoint is None:
            request.extra_headers.append((b"allow", ", ".join(sorted(methods)).encode()))
            await request.answer(405, b'{"detail":"Method Not Allowed"}')
            return
        await endpoint(request, self.process)

    def _knows_key(self, request: Request, key: str) -> bool:
        if self._dialect == "vllm":
            guarded = request.path.startswith(VLLM_GUARDED)
        else:
            guarded = not request.path.startswith(SGLANG_OPEN)
        if not guarded or request.scope["method"] == "OPTIONS":
            return True
        return request.header("authorization") == f"Bearer {key}" or request.header("x-api-key") == key

    async def _forward(self, request: Request) -> None:
        """Hand a request with its body on to FastAPI."""
        body: bytes | None = request.body

        async def receive() -> Message:
            nonlocal body
            if body is None:
                return await request.receive()
            message = {"type": "http.request", "body": body, "more_body": False}
            body = None
            return message

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                request.status = message["status"]
                message["headers"] = [*message["headers"], *request.extra_headers]
            else:
                request.sent_bytes += len(message.get("body", b""))
            await request.send(message)

        await self.rest(request.scope, receive, send)

    # --- faults ---------------------------------------------------------------------------------------

    async def _struck(self, request: Request) -> bool:
        """Carry out the faults that come before an answer; True when one was the answer."""
        sending = tuple(fault for fault in request.faults if fault.kind in SENDING)
        if sending:
            request.send = FaultySend(request.send, request.receive, sending, self.process.crash)
        for fault in request.faults:
            strike = _STRIKES.get(fault.kind)
            if strike is not None and await strike(request, fault, self._dialect):
                return True
        return False

    def _record(self, request: Request) -> None:
        scope = request.scope
        path = request.path
        if path in self.seen_by_path or len(self.seen_by_path) < SEEN_PATHS:
            self.seen_by_path[path] += 1
        if path in UNCOUNTED or path.startswith("/mock/"):
            return
        self.seen.append(
            Seen(
                method=scope["method"],
                path=scope["path"],
                query=scope["query_string"].decode("latin-1"),
                headers=tuple(
                    (name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]
                ),
                body_bytes=len(request.body),
                body_sha256=sha256(request.body).hexdigest(),
                at=request.arrived,
            )
        )


async def _nowhere(scope: Scope, receive: Receive, send: Send) -> None:
    """Stands in until the other routes are there."""
    raise RuntimeError(f"no application behind the fast routes for {scope.get('path')}")


async def _strike_reset(request: Request, _: Fault, _dialect: str) -> bool:
    await request.sever(hard=True)


async def _strike_hang(request: Request, fault: Fault, _dialect: str) -> bool:
    await pause(request.receive, fault.delay_s)
    return False


async def _strike_garbage(request: Request, _: Fault, _dialect: str) -> bool:
    if request.transport is not None:
        request.transport.write(GARBAGE)
    await request.sever(hard=False)


def _refusal(status: int) -> Refusal:
    return Refusal(status, "InternalServerError" if status >= 500 else "BadRequestError", "A mock fault.")


async def _strike_status(request: Request, fault: Fault, dialect: str) -> bool:
    if fault.status in {429, 503}:
        request.extra_headers.append((b"retry-after", b"1"))
    await request.answer(fault.status, body_for(dialect, request.path, _refusal(fault.status)))
    return True


async def _strike_error_first(request: Request, fault: Fault, dialect: str) -> bool:
    await request.begin_stream()
    await request.event(event_for(dialect, request.path, _refusal(fault.status)))
    if not request.path.startswith(("/v1/messages", "/v1/responses")):
        await request.event(b"data: [DONE]\n\n")
    await request.end_stream()
    return True


async def _strike_flap(request: Request, fault: Fault, _dialect: str) -> bool:
    if fault.hits % 2:
        await request.answer(503, b"")
        return True
    return False


_STRIKES: Mapping[str, Callable[[Request, Fault, str], Awaitable[bool]]] = {
    "reset": _strike_reset,
    "hang_headers": _strike_hang,
    "garbage": _strike_garbage,
    "status": _strike_status,
    "error_first": _strike_error_first,
    "flap": _strike_flap,
}
