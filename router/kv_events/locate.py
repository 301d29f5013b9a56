"""Finding out where a worker publishes its events: as it was written down, or as the engine itself says.

Separate from the poller, which asks everybody the same: this is asked of the workers of pools that keep
prefixes, seldom, and an engine that has no such route is asked once in its life.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Mapping

from router.core.errors import UpstreamError
from router.fleet import Member
from router.kv_events.source import EventSource, sglang_sources, vllm_sources
from router.upstream.client import Upstream, WireRequest

log = logging.getLogger("pointsman.kv_events")

_ROUTES: tuple[tuple[str, Callable[[bytes, str], dict[int, EventSource]]], ...] = (
    ("/kv_event_sources", vllm_sources),
    ("/server_info", sglang_sources),
)
"""vLLM since 0.31, and SGLang. Tried in this order until one exists."""

_TOTAL_S = 5.0
_MAX_BYTES = 4 * 2**20
_NO_ROUTE = frozenset({401, 403, 404, 405, 501})


class Place(enum.Enum):
    """What is known of where a worker publishes."""

    UNKNOWN = "unknown"
    """It was not asked yet, or did not answer."""
    FOUND = "found"
    NOWHERE = "nowhere"
    """It publishes nothing, or not where the router could listen."""
    RANKS = "ranks"
    """Several data-parallel ranks answer at its address, and nobody knows which of them gets a request."""
    NO_ROUTE = "no_route"
    """It has no way to say, and is not asked again."""


class Locator:
    """Looks for the publishers of workers.

    State: what was found, by worker name.

    Args:
        asks: whether engines are asked at all.
    """

    def __init__(self, upstream: Upstream, *, asks: bool) -> None:
        self._upstream = upstream
        self._asks = asks
        self._places: dict[str, Place] = {}

    def place(self, worker: str) -> Place:
        """What is known of a worker."""
        return self._places.get(worker, Place.UNKNOWN)

    def forget(self, worker: str) -> None:
        """It left, or is another process."""
        self._places.pop(worker, None)

    async def source_of(self, member: Member) -> EventSource | None:
        """Where it publishes; None while that is not known."""
        source = _configured(member)
        if source is not None:
            self._places[member.name] = Place.FOUND
            return source
        if not self._asks:
            self._places[member.name] = Place.NOWHERE
            return None
        if self.place(member.name) is Place.NO_ROUTE:
            return None
        told = await self._asked(member)
        if told is None:
            return None
        self._places[member.name], source = _chosen(told, member.dp_rank)
        return source

    async def _asked(self, member: Member) -> Mapping[int, EventSource] | None:
        """Sources by rank; None when it does not say."""
        place = Place.NO_ROUTE
        for path, read in _ROUTES:
            try:
                status, body = await self._get(member, path)
            except UpstreamError as error:
                log.debug("worker %s does not say where its events are: %s", member.name, error.message)
                return None
            if status == 200:
                try:
                    return read(body, member.origin.host)
                except ValueError as error:
                    if self.place(member.name) is not Place.NOWHERE:  # it is asked again, and told once
                        log.warning("worker %s: %s", member.name, error)
                    place = Place.NOWHERE
                    break
            if status not in _NO_ROUTE:
                return None
        self._places[member.name] = place
        return None

    async def _get(self, member: Member, path: str) -> tuple[int, bytes]:
        headers = [(b"accept", b"application/json"), (b"user-agent", b"pointsman")]
        if member.key is not None:
            headers.append((b"authorization", b"Bearer " + member.key))
        request = WireRequest(b"GET", path.encode(), headers)
        answer = await self._upstream.fetch(member.origin, request, total_s=_TOTAL_S, max_bytes=_MAX_BYTES)
        return answer.status, answer.body

    def __repr__(self) -> str:
        return f"<Locator [{len(self._places)} workers]>"


def _configured(member: Member) -> EventSource | None:
    """Where it was written down that it publishes; of an engine with ranks that is where rank 0 does."""
    source = None if member.settings is None else member.settings.event_source
    return source if source is None or member.dp_rank is None else source.of_rank(member.dp_rank)


def _chosen(told: Mapping[int, EventSource], rank: int | None) -> tuple[Place, EventSource | None]:
    if rank is not None:
        source = told.get(rank)
    elif len(told) > 1:
        return Place.RANKS, None
    else:
        source = next(iter(told.values()), None)
    return (Place.NOWHERE if source is None else Place.FOUND), source
