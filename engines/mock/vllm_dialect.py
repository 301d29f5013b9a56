"""All of vLLM's routes over one engine process.

Separate so that a dialect is one function, and the composition root chooses between two.
"""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import FastAPI, Response
from fastapi import Request as WebRequest

from engines.mock.ask import Answer, Ask, Extras
from engines.mock.audio import serve_transcription
from engines.mock.chat import DONE, ChatStream, chat_body
from engines.mock.completions import CompletionStream, completion_body
from engines.mock.errors import (
    Refusal,
    body_anthropic,
    body_vllm,
    event_anthropic,
    event_responses,
    event_vllm,
)
from engines.mock.exposition import CONTENT_TYPE, Family, render
from engines.mock.front import Endpoint, Front
from engines.mock.http_metrics import HttpFamilies
from engines.mock.messages import MessagesStream, count_tokens, messages_ask, messages_body
from engines.mock.openai_ask import chat_ask, completion_ask
from engines.mock.per_incarnation import PerIncarnation
from engines.mock.pooling import POOLING_APIS, PoolingApi, serve_pooling
from engines.mock.process import EngineProcess
from engines.mock.responses import ResponsesApi
from engines.mock.rest import JSON, body_of, common_routes, vllm_routes
from engines.mock.serving import Api, StreamEncoder, serve
from engines.mock.vllm_metrics import vllm_families
from engines.mock.wire import Request

Routes = dict[str, dict[str, Endpoint]]


def vllm_dialect(front: Front, routes: Routes, rest: FastAPI) -> None:
    """Give an engine vLLM's routes: fast ones into `routes`, the others into `rest`."""
    process = front.process
    responses = PerIncarnation(process, lambda _: ResponsesApi())
    for path, api in (
        ("/v1/chat/completions", CHAT),
        ("/v1/completions", COMPLETIONS),
        ("/v1/messages", MESSAGES),
    ):
        routes[path] = {"POST": generation(api)}
    routes["/v1/responses"] = {"POST": responses_endpoint(responses)}
    for path, pooling in POOLING_APIS.items():
        routes[path] = {"POST": pooling_endpoint(pooling)}
    for path in ("/v1/audio/transcriptions", "/v1/audio/translations"):
        routes[path] = {"POST": serve_transcription}
    routes["/health"] = {"GET": health}
    families = PerIncarnation(process, vllm_families)
    routes["/metrics"] = {"GET": metrics(front, families)}
    rest.include_router(common_routes(process, "vllm"))
    rest.include_router(vllm_routes(process))
    _messages_routes(rest, process)
    _responses_routes(rest, responses)


def generation(api: Api) -> Endpoint:
    """Return the endpoint of a generation API."""

    async def endpoint(request: Request, process: EngineProcess) -> None:
        await serve(request, process, api)

    return endpoint


def pooling_endpoint(api: PoolingApi) -> Endpoint:
    """Return the endpoint of a pooling API."""

    async def endpoint(request: Request, process: EngineProcess) -> None:
        await serve_pooling(request, process, api)

    return endpoint


def metrics(front: Front, families: PerIncarnation[list[Family]]) -> Endpoint:
    """Return the endpoint of the exposition, the HTTP series last."""

    async def endpoint(request: Request, process: EngineProcess) -> None:
        http = HttpFamilies(front.http, process.started_unix_s)
        await request.answer(200, render([*families.get(), http]), CONTENT_TYPE)

    return endpoint


async def health(request: Request, _: EngineProcess) -> None:
    """Answer vLLM's health check: an empty body."""
    await request.answer(200, b"")


def responses_endpoint(responses: PerIncarnation[ResponsesApi]) -> Endpoint:
    """Return the endpoint of the Responses API, which remembers answers until the process dies."""

    async def endpoint(request: Request, process: EngineProcess) -> None:
        await serve(request, process, _responses(responses.get()))

    return endpoint


def _messages_routes(rest: FastAPI, process: EngineProcess) -> None:
    @rest.post("/v1/messages/count_tokens")
    async def count(request: WebRequest) -> Response:
        return Response(count_tokens(await body_of(request), process.settings.name), media_type=JSON)


def _responses_routes(rest: FastAPI, responses: PerIncarnation[ResponsesApi]) -> None:
    @rest.get("/v1/responses/{response_id}")
    async def retrieve(response_id: str) -> Response:
        return Response(responses.get().store.body(response_id), media_type=JSON)

    @rest.post("/v1/responses/{response_id}/cancel")
    async def cancel(response_id: str) -> Response:
        responses.get().store.body(response_id)
        raise Refusal(400, "BadRequestError", "Cannot cancel a synchronous response.", "response_id")


# --- the APIs as records ------------------------------------------------------------------------------


def _chat_stream(ask: Ask, created: int, fingerprint: str, details: bool) -> StreamEncoder:
    return ChatStream(ask, created, fingerprint, details=details)


def _chat_body(ask: Ask, answers: Sequence[Answer], created: int, fingerprint: str, extras: Extras) -> bytes:
    return chat_body(ask, answers, created, fingerprint, extras)


def _completion_stream(ask: Ask, created: int, fingerprint: str, details: bool) -> StreamEncoder:
    return CompletionStream(ask, created, fingerprint, details=details)


def _completion_body(
    ask: Ask, answers: Sequence[Answer], created: int, fingerprint: str, extras: Extras
) -> bytes:
    return completion_body(ask, answers, created, fingerprint, extras)


def _messages_stream(ask: Ask, created: int, fingerprint: str, details: bool) -> StreamEncoder:
    return MessagesStream(ask)


def _messages_body(
    ask: Ask, answers: Sequence[Answer], created: int, fingerprint: str, extras: Extras
) -> bytes:
    return messages_body(ask, answers, extras)


def _responses(state: ResponsesApi) -> Api:
    return Api(
        ask=state.ask,
        stream=lambda ask, created, _fingerprint, _details: state.stream(ask, created),
        body=lambda ask, answers, created, _print, extras: state.body(ask, answers, created, extras),
        error_body=body_vllm,
        error_event=event_responses,
        keep_alive=False,
        eager_opening=True,
    )


CHAT = Api(
    ask=chat_ask,
    stream=_chat_stream,
    body=_chat_body,
    error_body=body_vllm,
    error_event=event_vllm,
    error_end=DONE,
)
COMPLETIONS = Api(
    ask=completion_ask,
    stream=_completion_stream,
    body=_completion_body,
    error_body=body_vllm,
    error_event=event_vllm,
    error_end=DONE,
    reuses_prompt_ids=False,
)
MESSAGES = Api(
    ask=messages_ask,
    stream=_messages_stream,
    body=_messages_body,
    error_body=body_anthropic,
    error_event=event_anthropic,
    keep_alive=False,
)
