"""From one request to one answer, streamed or not, for every generation API.

Separate from the APIs so that admission, keep-alives, cancellation and the death of the engine are
handled once. An API is a record of functions: how to read a body, how to write events, bodies and errors.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from engines.mock.ask import Answer, Ask, Extras, Piece
from engines.mock.errors import ClientGone, Refusal, bad_body, engine_dead
from engines.mock.fault_send import KEEP_ALIVE
from engines.mock.fields import Fields, decode_body
from engines.mock.generation import Generation
from engines.mock.openai_ask import Context, kills_engine
from engines.mock.process import EngineProcess
from engines.mock.rank_ask import HEADER, rank_asked
from engines.mock.sampling import Limits
from engines.mock.wire import ClientWatch, Request
from engines.model.text import has_media


class StreamEncoder(Protocol):
    """Bytes of one stream."""

    def opening(self) -> Iterator[bytes]:
        """Yield what goes before the first piece, once there is one."""

    def piece(self, piece: Piece) -> Iterator[bytes]:
        """Yield the events of one piece."""

    def closing(self, extras: Extras, completion_tokens: int) -> Iterator[bytes]:
        """Yield what follows the last piece."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """One generation API of one dialect.

    Attributes:
        ask: body to request.
        stream: encoder of a stream (request, creation date, fingerprint, usage details on).
        body: whole answer (request, answers, date, fingerprint, what the engine adds).
        error_body, error_event: a refusal before and after the head of the answer.
        error_end: what follows an error event.
        keep_alive: whether silence is filled with comments.
        reuses_prompt_ids: whether the ids of a rendered prompt may come with its KV (chat and its like).
        eager_opening: the opening does not wait for the engine's first output.
    """

    ask: Callable[[Fields, Context], Ask]
    stream: Callable[[Ask, int, str, bool], StreamEncoder]
    body: Callable[[Ask, Sequence[Answer], int, str, Extras], bytes]
    error_body: Callable[[Refusal], bytes]
    error_event: Callable[[Refusal], bytes]
    error_end: bytes = b""
    keep_alive: bool = True
    eager_opening: bool = False
    reuses_prompt_ids: bool = True


async def serve(request: Request, process: EngineProcess, api: Api) -> None:
    """Answer one generation request.

    Raises:
        Severed: the connection was ended by a fault or a crash.
    """
    fields: Fields | None = None
    try:
        fields, context = fields_of(request, process)
        ask = read_ask(request, process, api, fields, context)
        generation = process.submit(ask, request.arrived)
    except Refusal as refusal:
        if fields is not None:
            _let_go(fields, process, refusal)
        await request.answer(refusal.status, api.error_body(refusal))
        return
    with ClientWatch(request.receive, generation.leave):
        if ask.streaming.stream:
            await _stream(request, process, api, generation)
        else:
            await _whole(request, process, api, generation)


def fields_of(request: Request, process: EngineProcess) -> tuple[Fields, Context]:
    """Parse a JSON body and say what the engine brings to its reading.

    Raises:
        Refusal: 400 for a body that is no JSON object, or a rank that is not here.
    """
    kind = (request.header("content-type") or "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise bad_body("1 validation error: Unsupported Media Type: Only 'application/json' is allowed")
    fields = Fields(decode_body(request.body))
    sglang = process.settings.dialect == "sglang"
    drawn = process.draw_id(32 if sglang else 16)
    context = Context(
        model=process.settings.name,
        request_id=drawn if sglang else request.header("x-request-id") or drawn,
        limits=Limits(process.hardware.config.max_model_len, clip=not sglang),
        any_model=sglang,
        auto_tool_choice=process.settings.enable_auto_tool_choice,
        rank=rank_asked(request.header(HEADER), fields, process.settings),
    )
    return fields, context


def read_ask(request: Request, process: EngineProcess, api: Api, fields: Fields, context: Context) -> Ask:
    """Check a generation request.

    Raises:
        Refusal: whatever is wrong with it.
    """
    ask = api.ask(fields, context)
    if process.settings.dialect == "vllm" and kills_engine(fields):
        process.engine_death()
        raise engine_dead()
    ask = replace(_with_hand_over(ask, fields, process, api), rank=context.rank)
    priority = request.header("x-vllm-priority")
    if priority is not None and priority.lstrip("-").isdecimal():
        ask = replace(ask, priority=int(priority))
    merged = request.fault("multi_token")
    if merged is not None:
        ask = replace(ask, streaming=replace(ask.streaming, interval=merged.tokens))
    return ask


def _with_hand_over(ask: Ask, fields: Fields, process: EngineProcess, api: Api) -> Ask:
    """Add what a request says of KV on other engines, where a connector listens."""
    if process.settings.dialect != "vllm":
        return ask
    params, connector = fields.object("kv_transfer_params"), process.connector
    if params is None or connector is None:
        return ask
    if connector.kills(params.values):
        process.engine_death()
        raise engine_dead()
    if not api.reuses_prompt_ids or has_media(ask.prompts[0]):
        # Not even looked at, as in vLLM.
        params = Fields({name: value for name, value in params.values.items() if name != "prompt_token_ids"})
    hand_over = connector.read(params)
    if hand_over.prompt_token_ids is not None:
        ask = replace(ask, prompts=(hand_over.prompt_token_ids,))
    return replace(ask, hand_over=hand_over)


def _let_go(fields: Fields, process: EngineProcess, refusal: Refusal) -> None:
    """A request that was refused will not fetch its prompt's KV: the prefill engine may free it.

    Not after a body of the wrong shape: real engines do not come to know of such a request.
    """
    params, connector = fields.raw("kv_transfer_params"), process.connector
    known = refusal.kind != "Bad Request" and process.up and not process.draining
    if known and connector is not None and isinstance(params, Mapping):
        connector.refused(params)


async def _stream(request: Request, process: EngineProcess, api: Api, generation: Generation) -> None:
    settings = process.settings
    encoder = api.stream(
        generation.ask,
        int(process.unix_now()),
        process.fingerprint,
        settings.enable_prompt_tokens_details,
    )
    opening = encoder.opening()
    await request.begin_stream()
    try:
        if api.eager_opening:
            for data in opening:
                await request.event(data)
        patience_s = settings.sse_keep_alive_interval_s if api.keep_alive else 0.0
        await _events(request, generation, encoder, opening, patience_s)
    except Refusal as refusal:
        await request.event(api.error_event(refusal))
        if api.error_end:
            await request.event(api.error_end)
    except ClientGone:
        return
    except ConnectionResetError:
        await request.sever(hard=True)
    await request.end_stream()


async def _events(
    request: Request,
    generation: Generation,
    encoder: StreamEncoder,
    opening: Iterator[bytes],
    patience_s: float,
) -> None:
    """Send a stream's events as the engine produces them, each on its own."""
    event = request.event
    late_text = _LateText() if request.fault("empty") is not None else None
    while not generation.finished:
        pieces = await generation.pieces(patience_s)
        if not pieces:
            await event(KEEP_ALIVE)
            continue
        for data in opening:
            await event(data)
        for piece in pieces:
            if late_text is not None:
                late_text.delay(piece)
            for data in encoder.piece(piece):
                await event(data)
    for data in encoder.closing(_extras(generation), generation.completion_tokens):
        await event(data)


async def _whole(request: Request, process: EngineProcess, api: Api, generation: Generation) -> None:
    try:
        answers = await generation.answers()
    except Refusal as refusal:
        await request.answer(refusal.status, api.error_body(refusal))
        return
    except ClientGone:
        _leave(process, generation)
        return
    except ConnectionResetError:
        await request.sever(hard=True)
    _add_load(request, process)
    extras = _extras(generation)
    if not process.settings.enable_prompt_tokens_details:
        extras = replace(extras, cached_tokens=None)
    body = api.body(generation.ask, answers, int(process.unix_now()), process.fingerprint, extras)
    await request.answer(200, body)


def _extras(generation: Generation) -> Extras:
    return Extras(generation.cached_tokens, generation.created_cache_tokens, generation.kv_transfer_params)


def _leave(process: EngineProcess, generation: Generation) -> None:
    """vLLM takes an answer that its client did not wait for, and that was to be whole, for one that never
    reached the engine: the prefill engine is told so, beside what the aborted job tells it."""
    hand_over = generation.ask.hand_over
    if not process.up or hand_over is None:
        return
    connector = process.ranks[generation.rank].connector
    if connector is not None:
        connector.left(hand_over)


def _add_load(request: Request, process: EngineProcess) -> None:
    """Put the engine's load beside a body whose request asked for it (ORCA, as vLLM's JSON and TEXT)."""
    asked = request.header("endpoint-load-metrics-format")
    if asked is None or process.settings.dialect != "vllm":
        return
    engines = [rank.engine for rank in process.ranks]
    load = {
        "num_requests_waiting": float(sum(engine.waiting for engine in engines)),
        "kv_cache_usage_perc": sum(engine.kv_usage for engine in engines) / len(engines),
    }
    if asked.upper() == "JSON":
        value = "JSON " + json.dumps({"named_metrics": load})
    else:
        value = "TEXT " + ", ".join(f"named_metrics.{name}={number}" for name, number in load.items())
    request.extra_headers.insert(0, (b"endpoint-load-metrics", value.encode()))


class _LateText:
    """The `empty` fault: every second piece is emptied, and its text comes with the next one."""

    def __init__(self) -> None:
        self._held: dict[int, str] = {}

    def delay(self, piece: Piece) -> None:
        held = self._held.pop(piece.index, None)
        if held is not None:
            piece.text = held + piece.text
        elif piece.finish_reason is None:
            self._held[piece.index] = piece.text
            piece.text = ""
