"""Requests to one engine, and what came back: the thin shell of a calibration.

They go the way that the router's own requests go, so that the client takes as little time as the router does
and is not what is measured. Separate from the measuring, which knows laws and nothing of HTTP.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from router.core.engine_stats import EngineStats
from router.core.errors import Overloaded, UpstreamError
from router.core.exposition import read_stats
from router.core.sse import EventDecoder
from router.studies.calibrate.fleet import Engine
from router.studies.replay.endpoint import ModelCard
from router.studies.replay.stream import StreamMeter, Usage, error_message
from router.upstream.client import Answer, Upstream, WireRequest
from router.upstream.exchange import Exchange

COMPLETIONS = b"/v1/completions"

_ASIDE_S = 30.0
"""Deadline of a small question: models, version, metrics, a reset."""
_ASIDE_BYTES = 16 << 20
_FIRST_EVENT_S = 300.0
_IDLE_S = 120.0
_RESETS = (b"/reset_prefix_cache", b"/flush_cache")
"""vLLM's, which is there with VLLM_SERVER_DEV_MODE=1, and SGLang's."""


class ProbeFailed(Exception):
    """An engine did not do what a measurement needs. The message says which one, and what to do."""


class _Models(msgspec.Struct):
    data: list[ModelCard]


class _Version(msgspec.Struct):
    version: str | None = None


class _Choice(msgspec.Struct):
    text: str = ""
    finish_reason: str | None = None


class _Whole(msgspec.Struct):
    choices: list[_Choice] = []
    usage: Usage | None = None


@dataclass(frozen=True, slots=True)
class Ask:
    """One completion, greedy and of a fixed length."""

    model: str
    prompt: str
    max_tokens: int

    def body(self, *, stream: bool) -> bytes:
        """As JSON. `ignore_eos` is known to vLLM and SGLang."""
        fields: dict[str, Any] = {
            "model": self.model,
            "prompt": self.prompt,
            "max_tokens": self.max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": stream,
        }
        if stream:
            fields["stream_options"] = {"include_usage": True}
        return msgspec.json.encode(fields)


@dataclass(frozen=True, slots=True)
class Told:
    """A whole answer."""

    text: str
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Heard:
    """A streamed answer.

    Attributes:
        sent: when the request that it is the answer to left (s).
        times: when each event with output came (s).
    """

    sent: float
    times: tuple[float, ...]
    prompt_tokens: int
    output_tokens: int

    @property
    def ttft_s(self) -> float:
        return self.times[0] - self.sent


class Probe:
    """One engine. No state; connections are the upstream's.

    Args:
        now: the clock of every measurement (s, monotonic).
    """

    def __init__(self, upstream: Upstream, engine: Engine, now: Callable[[], float]) -> None:
        self.engine = engine
        self.now = now
        self.upstream = upstream

    async def model(self) -> ModelCard:
        """The card of the model that it was said to serve, else the first one of its list. Raises
        ProbeFailed."""
        answer = await self._get(b"/v1/models")
        if answer.status != 200:
            raise self._refused(b"/v1/models", answer)
        try:
            cards = msgspec.json.decode(answer.body, type=_Models).data
        except msgspec.MsgspecError as error:
            raise self.failure(f"answers /v1/models with no list of models: {error}") from None
        wanted = self.engine.model
        found = next((card for card in cards if wanted in (None, card.id)), None)
        if found is None:
            serves = ", ".join(card.id for card in cards) or "no model yet"
            raise self.failure(f"does not serve {wanted}; it serves {serves}")
        return found

    async def version(self) -> str | None:
        """Its engine's version; None when it does not tell."""
        for path in (b"/version", b"/server_info"):
            answer = await self._get(path)
            try:
                if answer.status == 200:
                    return msgspec.json.decode(answer.body, type=_Version).version
            except msgspec.MsgspecError:
                continue
        return None

    async def stats(self) -> EngineStats | None:
        """One scrape of its metrics; None where it has none."""
        answer = await self._get(b"/metrics")
        rank = self.engine.rank
        if answer.status != 200:
            return None
        return read_stats(answer.body, self.now(), engine=None if rank is None else str(rank))

    async def reset_prefix_cache(self) -> bool:
        """Whether it has emptied its prefix cache. Raises ProbeFailed when it does not answer."""
        for path in _RESETS:
            answer = await self._fetch(WireRequest(b"POST", path, self.engine.headers), _ASIDE_S)
            if answer.status == 200 and b'"success":false' not in answer.body.replace(b" ", b""):
                return True
        return False

    async def whole(
        self, body: bytes, headers: Sequence[tuple[bytes, bytes]] = (), target: bytes | None = None
    ) -> bytes:
        """The whole body of an answer, which must be good. Raises ProbeFailed."""
        request = self._request(body, headers, target)
        answer = await self._fetch(request, _FIRST_EVENT_S)
        if answer.status != 200:
            raise self._refused(request.target, answer)
        return answer.body

    def read(self, body: bytes) -> Told:
        """What a whole answer says. Raises ProbeFailed when it is none, or counts nothing."""
        try:
            whole = msgspec.json.decode(body, type=_Whole)
        except msgspec.MsgspecError as error:
            raise self.failure(f"answers {COMPLETIONS.decode()} unreadably: {error}") from None
        if not whole.choices:
            raise self.failure(f"answers without a choice: {error_message(body)}")
        prompt, output = self._counted(whole.usage)
        return Told(whole.choices[0].text, prompt, output)

    async def stream(
        self, body: bytes, headers: Sequence[tuple[bytes, bytes]] = (), target: bytes | None = None
    ) -> Heard:
        """A streamed answer to its end, which must be a good one. Raises ProbeFailed."""
        meter, sent = StreamMeter(), self.now()
        try:
            with await self.upstream.open(
                self.engine.origin,
                self._request(body, headers, target),
                headers_by=sent + _FIRST_EVENT_S,
                phase="first_event",
            ) as exchange:
                await self._listen(exchange, sent, meter)
        except (UpstreamError, Overloaded) as error:
            raise self.failure(f"did not answer: {error.message}") from None
        failure = meter.end()
        if failure is not None:
            raise self.failure(f"broke off its answer: {failure.message}")
        if meter.first is None:
            raise self.failure("streamed an answer without a token")
        prompt, output = self._counted(meter.usage)
        gaps = itertools.accumulate(meter.itl_us, initial=0)
        return Heard(sent, tuple(meter.first + gap / 1e6 for gap in gaps), prompt, output)

    async def _listen(self, exchange: Exchange, sent: float, meter: StreamMeter) -> None:
        if exchange.status != 200:
            body = await exchange.read_all(max_bytes=_ASIDE_BYTES, until=sent + _FIRST_EVENT_S)
            raise self._refused(COMPLETIONS, Answer(exchange.status, exchange.headers, body))
        decoder = EventDecoder()

        def sink(data: bytes) -> float:
            now = self.now()
            for event in decoder.feed(data):
                meter.event(event.data, now)
            return now + _IDLE_S

        await exchange.pour(sink, sent + _FIRST_EVENT_S, "first_event")

    def failure(self, what: str) -> ProbeFailed:
        """The error of this engine."""
        return ProbeFailed(f"worker {self.engine.name} {what}")

    def _counted(self, usage: Usage | None) -> tuple[int, int]:
        if usage is None or not usage.prompt_tokens or usage.completion_tokens is None:
            raise self.failure("tells no usage, so nothing can be measured per token")
        return usage.prompt_tokens, usage.completion_tokens

    def _refused(self, path: bytes, answer: Answer) -> ProbeFailed:
        hint = "; is --api-key right?" if answer.status in (401, 403) else ""
        return self.failure(
            f"answers {path.decode()} with {answer.status}: {error_message(answer.body)}{hint}"
        )

    def _request(
        self, body: bytes, headers: Sequence[tuple[bytes, bytes]], target: bytes | None
    ) -> WireRequest:
        merged = {**dict(self.engine.headers), **dict(headers)}
        return WireRequest(b"POST", target or COMPLETIONS, tuple(merged.items()), body)

    async def _get(self, path: bytes) -> Answer:
        return await self._fetch(WireRequest(b"GET", path, self.engine.headers), _ASIDE_S)

    async def _fetch(self, request: WireRequest, total_s: float) -> Answer:
        origin = self.engine.origin
        try:
            return await self.upstream.fetch(origin, request, total_s=total_s, max_bytes=_ASIDE_BYTES)
        except (UpstreamError, Overloaded) as error:
            raise self.failure(
                f"at {origin} does not answer {request.target.decode()}: {error.message}"
            ) from None

    def __repr__(self) -> str:
        return f"<Probe {self.engine.name} {self.engine.origin}>"
