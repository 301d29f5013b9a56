"""An OpenAI endpoint as a load client uses it: models, cache reset, calibration, one streamed request.

Everything goes through `router.upstream`, so that the client is not what is measured. Separate from the
run, which knows schedules and nothing of HTTP.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from router.core.errors import DeadlineExceeded, Overloaded, RouterError, UpstreamError
from router.core.sse import EventDecoder
from router.studies.replay.prompts import Tokenizer, words
from router.studies.replay.requests import prompt_field
from router.studies.replay.run import Reply
from router.studies.replay.settings import PATHS, Api
from router.studies.replay.stream import Failure, StreamMeter, Usage, error_message
from router.upstream.client import Upstream, WireRequest
from router.upstream.exchange import Exchange
from router.upstream.origin import Origin

_ASIDE_S = 60.0
"""Deadline of each small request before a run; a busy engine may queue it."""

_ASIDE_BYTES = 4 << 20

_AFTER_DONE_S = 5.0
"""How long the end of the body may take once `[DONE]` was seen."""

_SHORT_WORDS, _MIDDLE_WORDS, _LONG_WORDS = 1, 129, 1_025
"""Lengths for calibration: two give a line. The middle one fits into the smallest context anybody serves;
the long one, where there is room, leaves an error of one token in a thousand."""


class EndpointError(Exception):
    """The endpoint does not do what a replay needs; the message says what it answered and what to do."""


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Seconds a request may take: to its first event, between events, and over all."""

    first_event_s: float = 600.0
    idle_s: float = 600.0
    total_s: float = 3600.0


class ModelCard(msgspec.Struct, frozen=True):
    """One entry of /v1/models; `max_model_len` is None where the engine does not say."""

    id: str
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[ModelCard]


class _Answer(msgspec.Struct):
    usage: Usage | None = None


def parse_url(url: str) -> Origin:
    """Reads the URL of an endpoint, with or without the `/v1` that OpenAI clients want. Raises ValueError."""
    return Origin.parse(url.rstrip("/").removesuffix("/v1"))


class Endpoint:
    """One endpoint. Holds no state of its own; connections are the upstream's.

    Args:
        headers: sent with every request, the key among them.
    """

    def __init__(
        self,
        upstream: Upstream,
        origin: Origin,
        headers: Sequence[tuple[bytes, bytes]],
        now: Callable[[], float],
    ) -> None:
        self._upstream = upstream
        self._origin = origin
        self._headers = (
            (b"content-type", b"application/json"),
            (b"user-agent", b"pointsman-replay"),
            *headers,
        )
        self._now = now

    async def model(self, wanted: str | None) -> ModelCard:
        """The card of the model asked for, or the first one served.

        A model that is not listed gets a card without a length: some engines list less than they serve, or
        have no list. Raises EndpointError.
        """
        status, body = await self._fetch(b"GET", b"/v1/models", b"")
        if status == 404 and wanted is not None:
            return ModelCard(wanted)
        self._check(b"/v1/models", status, body)
        try:
            cards = msgspec.json.decode(body, type=_Models).data
        except msgspec.DecodeError as error:
            raise EndpointError(
                f"{self._origin} answers /v1/models with no list of models: {error}"
            ) from None
        if wanted is not None:
            return next((card for card in cards if card.id == wanted), ModelCard(wanted))
        if not cards:
            raise EndpointError(
                f"{self._origin} serves no model yet: wait until it is ready, or give --model"
            )
        return cards[0]

    async def reset_prefix_cache(self) -> None:
        """Empties the engine's prefix cache, as vLLM or as SGLang calls it. Raises EndpointError."""
        refusals = []
        for path in (b"/reset_prefix_cache", b"/flush_cache"):
            status, body = await self._fetch(b"POST", path, b"")
            if status == 200 and b'"success":false' not in body.replace(b" ", b""):
                return
            refusals.append(f"{path.decode()}: {status} {error_message(body)}".rstrip())
        raise EndpointError(
            f"{self._origin} did not reset its prefix cache ({'; '.join(refusals)}). vLLM allows it only "
            "with VLLM_SERVER_DEV_MODE=1 and while idle. A router does not pass it on: name the engines with "
            "--engine-url"
        )

    async def calibrate(self, api: Api, card: ModelCard, seed: int) -> Tokenizer:
        """Learns how this endpoint counts, from the usage of two small prompts.

        Raises EndpointError when a request fails or tells no usage.
        """
        roomy = card.max_model_len is not None and card.max_model_len >= 4 * _LONG_WORDS
        short, long = _SHORT_WORDS, _LONG_WORDS if roomy else _MIDDLE_WORDS
        counts = []
        for length in (short, long):
            text = words(f"{seed}/calibration/{length}", length)
            counts.append(await self._count(api, card.id, text))
        tokens_per_word = (counts[1] - counts[0]) / (long - short)
        if tokens_per_word <= 0:
            raise EndpointError(
                f"{self._origin} counts {counts[0]} tokens for {short} word and {counts[1]} for {long}: "
                "its usage cannot be trusted. Give --bytes-per-token to go without"
            )
        return Tokenizer(overhead_tokens=counts[0] - short * tokens_per_word, tokens_per_word=tokens_per_word)

    async def _count(self, api: Api, model: str, text: str) -> int:
        fields: dict[str, Any] = {
            "model": model,
            **prompt_field(api, text),
            "max_tokens": 1,
            "temperature": 0,
        }
        status, body = await self._fetch(b"POST", PATHS[api], msgspec.json.encode(fields))
        self._check(PATHS[api], status, body)
        try:
            usage = msgspec.json.decode(body, type=_Answer).usage
        except msgspec.DecodeError as error:
            raise EndpointError(f"{self._origin} answers {PATHS[api].decode()} unreadably: {error}") from None
        if usage is None or not usage.prompt_tokens:
            raise EndpointError(
                f"{self._origin} tells no usage, so prompts cannot be calibrated: give --bytes-per-token"
            )
        return usage.prompt_tokens

    def _check(self, path: bytes, status: int, body: bytes) -> None:
        if status != 200:
            raise EndpointError(
                f"{self._origin} answers {path.decode()} with {status}: {error_message(body)}"
            )

    async def _fetch(self, method: bytes, path: bytes, body: bytes) -> tuple[int, bytes]:
        request = WireRequest(method, path, self._headers, body)
        try:
            answer = await self._upstream.fetch(
                self._origin, request, total_s=_ASIDE_S, max_bytes=_ASIDE_BYTES
            )
        except (UpstreamError, Overloaded) as error:
            raise EndpointError(f"{self._origin} does not answer {path.decode()}: {error.message}") from None
        return answer.status, answer.body

    async def stream(
        self, api: Api, deadlines: Deadlines, body: bytes, meter: StreamMeter, reply: Reply
    ) -> None:
        """Sends one request and reads its stream into the meter; what went wrong is in the reply."""
        try:
            await self._stream(WireRequest(b"POST", PATHS[api], self._headers, body), deadlines, meter, reply)
        except (UpstreamError, Overloaded) as error:
            reply.failure = _failure(error)
        finally:
            if reply.ended is None:
                reply.ended = self._now()

    async def _stream(
        self, request: WireRequest, deadlines: Deadlines, meter: StreamMeter, reply: Reply
    ) -> None:
        start = self._now()
        first_by = start + min(deadlines.first_event_s, deadlines.total_s)
        exchange = await self._upstream.open(self._origin, request, headers_by=first_by, phase="first_event")
        try:
            _read_head(exchange, reply)
            if reply.status != 200:
                answer = await exchange.read_all(max_bytes=_ASIDE_BYTES, until=first_by)
                reply.failure = Failure(f"http_{reply.status}", error_message(answer))
                return
            await self._events(exchange, deadlines, start, meter, reply)
            reply.failure = meter.end()
        finally:
            exchange.close()

    async def _events(
        self, exchange: Exchange, deadlines: Deadlines, start: float, meter: StreamMeter, reply: Reply
    ) -> None:
        """Reads to the end of the body. Comments move no deadline: they are no progress."""
        decoder = EventDecoder()
        last = start + deadlines.total_s
        until, phase = min((start + deadlines.first_event_s, "first_event"), (last, "total"))
        while data := await exchange.read(until, phase):
            now = self._now()
            events = decoder.feed(data)
            for event in events:
                meter.event(event.data, now)
            if events:
                until, phase = min((now + deadlines.idle_s, "idle"), (last, "total"))
            if meter.done and reply.ended is None:
                reply.ended = now
                last = until = min(last, now + _AFTER_DONE_S)


def _read_head(exchange: Exchange, reply: Reply) -> None:
    reply.status = exchange.status
    for name, value in exchange.headers:
        if name == b"x-pointsman-worker":
            reply.worker = value.decode("latin-1")
        elif name == b"x-request-id":
            reply.request_id = value.decode("latin-1")


def _failure(error: RouterError) -> Failure:
    """The kind is the error's own code; a deadline also says which. Overloaded is this client's own lack of
    sockets."""
    if isinstance(error, DeadlineExceeded):
        return Failure(f"deadline_{error.phase}", error.message)
    return Failure(error.code or "upstream_error", error.message)
