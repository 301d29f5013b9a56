"""All of SGLang's routes over one engine process.

Separate so that a dialect is one function, and the composition root chooses between two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from fastapi import APIRouter, FastAPI, Response
from fastapi import Request as WebRequest

from engines.mock.ask import Answer, Ask, Extras, Sampling
from engines.mock.chat import DONE
from engines.mock.errors import ClientGone, Refusal, body_sglang, event_sglang
from engines.mock.exposition import CONTENT_TYPE, render
from engines.mock.fields import Fields
from engines.mock.front import Endpoint, Front
from engines.mock.openai_ask import Context, chat_ask, completion_ask
from engines.mock.per_incarnation import PerIncarnation
from engines.mock.pooling import POOLING_APIS
from engines.mock.process import EngineProcess
from engines.mock.rank import Rank
from engines.mock.rest import body_of, common_routes, reply
from engines.mock.serving import Api
from engines.mock.settings import SGLANG_VERSION, MockSettings
from engines.mock.sglang_chat import (
    SglangChatStream,
    SglangCompletionStream,
    sglang_chat_body,
    sglang_completion_body,
)
from engines.mock.sglang_generate import GenerateStream, generate_ask, generate_body
from engines.mock.sglang_metrics import sglang_families
from engines.mock.sglang_rooms import RoomsConnector, in_room
from engines.mock.vllm_dialect import MESSAGES, generation, pooling_endpoint
from engines.mock.wire import ClientWatch, Request
from engines.model.specs import MODELS

Routes = dict[str, dict[str, Endpoint]]


def sglang_dialect(front: Front, routes: Routes, rest: FastAPI) -> None:
    """Give an engine SGLang's routes: fast ones into `routes`, the others into `rest`."""
    process = front.process
    for path, api in (
        ("/v1/chat/completions", CHAT),
        ("/v1/completions", COMPLETIONS),
        ("/v1/messages", MESSAGES),
        ("/generate", GENERATE),
    ):
        routes[path] = {"POST": generation(_disaggregated(api, process.settings))}
    routes["/generate"]["PUT"] = routes["/generate"]["POST"]
    for path in ("/v1/embeddings", "/v1/score", "/v1/rerank", "/classify"):
        routes[path] = {"POST": pooling_endpoint(POOLING_APIS[path])}
    for path in ("/health", "/health_generate"):
        routes[path] = {"GET": generating_health}
    families = PerIncarnation(process, sglang_families)

    async def metrics(request: Request, _: EngineProcess) -> None:
        await request.answer(200, render(families.get()), CONTENT_TYPE)

    routes["/metrics"] = {"GET": metrics}
    rest.include_router(common_routes(process, "sglang"))
    rest.include_router(sglang_routes(process))


async def generating_health(request: Request, process: EngineProcess) -> None:
    """Answer a health check as SGLang does by default: with one generated token."""
    ask = Ask(
        request_id=f"HEALTH_CHECK_{process.draw_id()}",
        model=process.settings.name,
        prompts=((0,),),
        sampling=Sampling(max_tokens=1),
    )
    try:
        check = process.submit(ask, request.arrived)
        with ClientWatch(request.receive, check.leave):
            await check.answers()
    except Refusal:
        await request.answer(503, b"")
    except ClientGone:
        return
    except ConnectionResetError:
        await request.sever(hard=True)
    else:
        await request.answer(200, b"")


def sglang_routes(process: EngineProcess) -> APIRouter:
    """Return SGLang's own routes."""
    # One function for each route: long, and cut in two no shorter to read.
    router = APIRouter()

    @router.get("/ready")
    async def ready() -> Response:
        return Response(b"")

    @router.get("/model_info")
    @router.get("/get_model_info")
    async def model_info() -> Response:
        return reply(
            {
                "model_path": MODELS[process.settings.model].checkpoint,
                "tokenizer_path": MODELS[process.settings.model].checkpoint,
                "is_generation": True,
                "preferred_sampling_params": None,
                "weight_version": "default",
            }
        )

    @router.get("/server_info")
    @router.get("/get_server_info")
    async def server_info() -> Response:
        return reply(server_info_of(process))

    @router.get("/v1/loads")
    async def loads() -> Response:
        return reply(loads_of(process))

    @router.get("/flush_cache")
    @router.post("/flush_cache")
    async def flush_cache() -> Response:
        if process.reset_prefix_cache():
            return Response("Cache flushed.\n", media_type="text/plain")
        return Response("Requests are running or waiting.\n", 400, media_type="text/plain")

    @router.post("/abort_request")
    async def abort_request(request: WebRequest) -> Response:
        fields = await body_of(request)
        process.abort(None if fields.flag("abort_all") else fields.text("rid") or "")
        return Response(b"")

    return router


def server_info_of(process: EngineProcess) -> dict[str, object]:
    """Return the body of `/server_info`: the arguments, and the internal state of each rank."""
    settings, config = process.settings, process.hardware.config
    events = None
    if process.kv_events is not None:
        events = process.kv_events.places[0].described(config.block_size, settings.dp_size)
    state = {
        "max_total_num_tokens": process.engine.kv_capacity_tokens,
        "effective_max_running_requests_per_dp": config.max_num_seqs,
        "last_gen_throughput": 0.0,
    }
    return {
        "model_path": MODELS[settings.model].checkpoint,
        "served_model_name": settings.name,
        "context_length": config.max_model_len,
        "page_size": config.block_size,
        "max_running_requests": config.max_num_seqs,
        "chunked_prefill_size": config.max_num_batched_tokens,
        "schedule_policy": "lpm" if config.scheduling == "longest_prefix" else config.scheduling,
        "disaggregation_mode": _mode(settings),
        "disaggregation_bootstrap_port": settings.disaggregation_bootstrap_port,
        "tp_size": 1,
        "dp_size": settings.dp_size,
        "max_total_num_tokens": process.engine.kv_capacity_tokens,
        "internal_states": [state] * settings.dp_size,
        "kv_events": events,
        "version": SGLANG_VERSION,
    }


def loads_of(process: EngineProcess) -> dict[str, object]:
    """Return the body of `/v1/loads`: the load of each rank."""
    return {
        "timestamp": process.unix_now(),
        "version": SGLANG_VERSION,
        "accelerator": process.settings.gpu,
        "num_accelerators": process.settings.dp_size,
        "loads": [_load_of(process, rank) for rank in process.ranks],
    }


def _load_of(process: EngineProcess, rank: Rank) -> dict[str, object]:
    engine, config = rank.engine, process.hardware.config
    capacity = engine.kv_capacity_tokens
    used = round(engine.kv_usage * capacity)
    counters = engine.counters
    queries = counters.prefix_queries_tokens
    return {
        "timestamp": process.unix_now(),
        "dp_rank": rank.index,
        "num_running_reqs": engine.running,
        "num_waiting_reqs": engine.waiting,
        "num_waiting_uncached_tokens": 0,
        "num_used_tokens": used,
        "num_total_tokens": used,
        "num_active_tokens": used,
        "max_total_num_tokens": capacity,
        "max_running_requests": config.max_num_seqs,
        "token_usage": engine.kv_usage,
        "gen_throughput": 0.0,
        "cache_hit_rate": counters.prefix_hits_tokens / queries if queries else 0.0,
        "utilization": engine.running / config.max_num_seqs,
        "disaggregation": _disaggregation(process),
        "queues": {"waiting": engine.waiting, "grammar": 0, "paused": 0, "retracted": 0},
    }


def _mode(settings: MockSettings) -> str:
    """SGLang's `disaggregation_mode`."""
    return settings.role if settings.connector == "sglang" else "null"


def _disaggregation(process: EngineProcess) -> dict[str, object]:
    mode, connector = _mode(process.settings), process.connector
    return connector.loads(mode) if isinstance(connector, RoomsConnector) else {"mode": mode}


# --- the APIs as records ------------------------------------------------------------------------------


def _with_rid(read: Callable[[Fields, Context], Ask]) -> Callable[[Fields, Context], Ask]:
    """SGLang's ids have no prefix, and a client may give its own as `rid`."""

    def ask(fields: Fields, context: Context) -> Ask:
        return replace(read(fields, context), request_id=fields.text("rid") or context.request_id)

    return ask


def _disaggregated(api: Api, settings: MockSettings) -> Api:
    """The same API of an engine that serves one half of each request."""
    if settings.connector != "sglang":
        return api

    def ask(fields: Fields, context: Context) -> Ask:
        return in_room(
            api.ask(fields, context),
            fields,
            prefill=settings.role == "prefill",
            default_port=settings.disaggregation_bootstrap_port,
        )

    return replace(api, ask=ask)


def _chat_body(ask: Ask, answers: Sequence[Answer], created: int, _: str, extras: Extras) -> bytes:
    return sglang_chat_body(ask, answers, created, extras.cached_tokens)


def _completion_body(ask: Ask, answers: Sequence[Answer], created: int, _: str, extras: Extras) -> bytes:
    return sglang_completion_body(ask, answers, created, extras.cached_tokens)


CHAT = Api(
    ask=_with_rid(chat_ask),
    stream=lambda ask, created, _print, _details: SglangChatStream(ask, created),
    body=_chat_body,
    error_body=body_sglang,
    error_event=event_sglang,
    error_end=DONE,
)
COMPLETIONS = Api(
    ask=_with_rid(completion_ask),
    stream=lambda ask, created, _print, _details: SglangCompletionStream(ask, created),
    body=_completion_body,
    error_body=body_sglang,
    error_event=event_sglang,
    error_end=DONE,
)
GENERATE = Api(
    ask=generate_ask,
    stream=lambda ask, _created, _print, _details: GenerateStream(ask),
    body=lambda ask, answers, _created, _print, extras: generate_body(
        ask, answers, extras.cached_tokens or 0
    ),
    error_body=body_sglang,
    error_event=event_sglang,
    error_end=DONE,
)
