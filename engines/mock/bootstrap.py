"""The bootstrap server of a prefill engine: a port of its own, where routers and decode engines find it.

Separate from the engine's own routes, with which it shares the process and its life but neither keys nor
faults. vLLM's Mooncake connector answers `/query`; SGLang has the routes of its bootstrap server, which its
engines register with when they start. Decode engines post their messages here too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from urllib.parse import parse_qs

import msgspec

from engines.mock.errors import Refusal, bad_body
from engines.mock.fields import Fields, Json, decode_body
from engines.mock.peers import SIDE_CHANNEL
from engines.mock.per_incarnation import PerIncarnation
from engines.mock.process import EngineProcess
from engines.mock.wire import Receive, Request, Scope, Send, Severed, read_body

MOST_ROOMS = 1 << 16
"""Rooms whose rank is remembered; the oldest are forgotten."""
ENTRY_CLEANUP_S = 120.0
"""How long SGLang remembers the rank of a room."""

_RANKS = ("prefill_dp_rank", "prefill_cp_rank", "target_tp_rank", "target_pp_rank")
_TEXT = b"text/plain; charset=utf-8"

Route = Callable[[Request], Awaitable[None]]


class BootstrapServer:
    """The ASGI application of one bootstrap port."""

    def __init__(self, process: EngineProcess) -> None:
        self._process = process
        self._ranks = PerIncarnation(process, lambda _: _RoomRanks())
        self._routes = self._sglang() if process.settings.connector == "sglang" else self._mooncake()
        self._routes[SIDE_CHANNEL] = {"POST": self._message}

    def __repr__(self) -> str:
        return f"<BootstrapServer of {self._process!r}>"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI connection."""
        request = Request.of(scope, receive, send)
        try:
            await self._serve(request)
        except Refusal as refusal:
            await request.answer(refusal.status, msgspec.json.encode({"detail": refusal.message}))
        except Severed:
            return

    async def _serve(self, request: Request) -> None:
        body = await read_body(request.receive)
        if body is None:
            return
        request.body = body
        request.arrived = self._process.now()
        if not self._process.up:
            await request.sever(hard=True)
        methods = self._routes.get(request.path)
        route = None if methods is None else methods.get(request.scope["method"])
        if methods is None:
            await request.answer(404, b'{"detail":"Not Found"}')
        elif route is None:
            await request.answer(405, b'{"detail":"Method Not Allowed"}')
        else:
            await route(request)

    async def _message(self, request: Request) -> None:
        connector = self._process.connector
        if connector is not None:
            await request.answer(200, connector.answer(request.body, request.arrived))

    # --- vLLM's Mooncake connector --------------------------------------------------------------------

    def _mooncake(self) -> dict[str, dict[str, Route]]:
        return {"/query": {"GET": self._query}}

    async def _query(self, request: Request) -> None:
        """Say which engine is here, by data-parallel rank, and where its workers are."""
        address = self._process.side_channel
        worker = {"0": {"0": f"tcp://{address.authority}"}}
        await _answer(request, {"0": {"engine_id": self._process.engine_id, "worker_addr": worker}})

    # --- SGLang ---------------------------------------------------------------------------------------

    def _sglang(self) -> dict[str, dict[str, Route]]:
        return {
            "/health": {"GET": _healthy},
            "/route": {"GET": self._route, "PUT": _registered},
            "/register_dp_rank": {"POST": self._register_rank},
            "/query_dp_ranks": {"POST": self._query_ranks},
        }

    async def _route(self, request: Request) -> None:
        """How the prefill engine is laid out, when all ranks are -1, or where one of its ranks is."""
        query = parse_qs(request.scope["query_string"].decode("latin-1"))
        try:
            ranks = [int(query[name][0]) for name in _RANKS]
        except (KeyError, ValueError):
            await request.answer(400, b"Missing inputs for bootstrap server.", _TEXT)
            return
        address = self._process.side_channel
        if ranks == [-1] * len(_RANKS):
            await _answer(request, self._layout(address.port))
        elif any(ranks):
            await request.answer(404, b"Bootstrap info not found.", _TEXT)
        else:
            await _answer(request, {"rank_ip": address.host, "rank_port": address.port})

    def _layout(self, http_port: int) -> Json:
        return {
            "attn_tp_size": 1,
            "attn_cp_size": 1,
            "dp_size": 1,
            "pp_size": 1,
            "page_size": self._process.hardware.config.block_size,
            "kv_cache_dtype": "auto",
            "follow_bootstrap_room": True,
            "enable_dsa_cache_layer_split": False,
            "prefill_http_port": http_port,
        }

    async def _register_rank(self, request: Request) -> None:
        fields = Fields(decode_body(request.body))
        room, rank = fields.integer("bootstrap_room"), fields.integer("dp_rank")
        if room is None or rank is None:
            raise bad_body("bootstrap_room and dp_rank are needed")
        self._ranks.get().register(room, rank, request.arrived)
        await request.answer(200, b"OK", _TEXT)

    async def _query_ranks(self, request: Request) -> None:
        rooms = Fields(decode_body(request.body)).integers("bootstrap_rooms")
        await _answer(request, self._ranks.get().of(rooms, request.arrived))


class _RoomRanks:
    """Which data-parallel rank serves which room, for a prefill engine that does not follow the room."""

    def __init__(self) -> None:
        self._ranks: dict[int, tuple[int, float]] = {}

    def register(self, room: int, rank: int, now: float) -> None:
        self._ranks.pop(room, None)
        self._ranks[room] = rank, now
        while len(self._ranks) > MOST_ROOMS:
            del self._ranks[next(iter(self._ranks))]

    def of(self, rooms: list[int], now: float) -> Mapping[str, int]:
        found = {room: self._ranks[room] for room in rooms if room in self._ranks}
        return {str(room): rank for room, (rank, since) in found.items() if now - since < ENTRY_CLEANUP_S}


async def _answer(request: Request, value: object) -> None:
    await request.answer(200, msgspec.json.encode(value))


async def _healthy(request: Request) -> None:
    await request.answer(200, b"OK", _TEXT)


async def _registered(request: Request) -> None:
    """Take note of a rank; the mock has one, which is known."""
    decode_body(request.body)
    await request.answer(200, b"OK", _TEXT)
