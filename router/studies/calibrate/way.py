"""How a request gets served: by one engine, or prefilled by one and decoded by another.

Separate from the probes, which reach one engine each, so that what is measured need not know.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Iterable
from typing import Any, Protocol, TypeVar

from router.connectors import (
    BOOTSTRAP_PORT,
    BOOTSTRAP_TARGET,
    Connector,
    Handle,
    Pairing,
    Peer,
    read_bootstrap,
    room_for,
)
from router.core.errors import UpstreamError
from router.core.request import Api
from router.studies.calibrate.probe import Ask, Heard, Probe, ProbeFailed, Told
from router.upstream.client import WireRequest
from router.upstream.origin import Origin

_BOOTSTRAP_S = 5.0
_ROOM_BITS = 63

T = TypeVar("T")


class Way(Protocol):
    """One way; its name is told to people."""

    @property
    def name(self) -> str: ...
    @property
    def answering(self) -> Probe:
        """The engine whose answer it is."""
        ...

    @property
    def probes(self) -> tuple[Probe, ...]:
        """All engines on the way."""
        ...

    async def tell(self, ask: Ask) -> Told:
        """The whole answer. Raises ProbeFailed."""
        ...

    async def hear(self, ask: Ask) -> Heard:
        """The answer as it is streamed. Raises ProbeFailed."""
        ...


def hardware_of(way: Way) -> frozenset[str]:
    """What a request on this way keeps busy."""
    return frozenset(probe.engine.hardware for probe in way.probes)


class Alone:
    """One engine serves all of it."""

    def __init__(self, probe: Probe) -> None:
        self.answering = probe

    @property
    def name(self) -> str:
        return self.answering.engine.name

    @property
    def probes(self) -> tuple[Probe, ...]:
        return (self.answering,)

    async def tell(self, ask: Ask) -> Told:
        return self.answering.read(await self.answering.whole(ask.body(stream=False)))

    async def hear(self, ask: Ask) -> Heard:
        return await self.answering.stream(ask.body(stream=True))

    def __repr__(self) -> str:
        return f"<Alone {self.name}>"


class HandedOver:
    """Prefilled by one engine, decoded by another. Of a connector that sends one leg after the other, what is
    heard begins with the second: the time to its first token is the hand-over and one step.

    Args:
        chance: where the names of transfers come from.
    """

    def __init__(self, prefill: Probe, decode: Probe, connector: Connector, chance: random.Random) -> None:
        self.prefill = prefill
        self.answering = decode
        self.connector = connector
        self._chance = chance

    @property
    def name(self) -> str:
        return f"{self.prefill.engine.name} → {self.answering.engine.name}"

    @property
    def probes(self) -> tuple[Probe, ...]:
        return self.prefill, self.answering

    async def tell(self, ask: Ask) -> Told:
        body = ask.body(stream=False)
        pairing = await self._pairing(ask)
        if self.connector.concurrent:
            data = await self._both(body, pairing, self._whole(body, pairing, None))
        else:
            data = await self._whole(body, pairing, await self._prefilled(body, pairing))
        return self.answering.read(data)

    async def hear(self, ask: Ask) -> Heard:
        body = ask.body(stream=True)
        pairing = await self._pairing(ask)
        if self.connector.concurrent:
            return await self._both(body, pairing, self._stream(body, pairing, None))
        return await self._stream(body, pairing, await self._prefilled(body, pairing))

    async def _prefilled(self, body: bytes, pairing: Pairing) -> Handle:
        handle = await self._prefill_leg(body, pairing)
        if handle is None:
            raise self.prefill.failure(
                f"answers a prefill without what {self.answering.engine.name} needs to fetch its KV; is "
                f"{self.connector.name} configured on both, one as producer and one as consumer?"
            )
        return handle

    async def _prefill_leg(self, body: bytes, pairing: Pairing) -> Handle | None:
        leg = self.connector.prefill_leg(body, pairing)
        return self.connector.read_prefill(
            await self.prefill.whole(leg.body, leg.headers, leg.target), pairing
        )

    async def _whole(self, body: bytes, pairing: Pairing, handle: Handle | None) -> bytes:
        leg = self.connector.decode_leg(body, pairing, handle)
        return await self.answering.whole(leg.body, leg.headers, leg.target)

    async def _stream(self, body: bytes, pairing: Pairing, handle: Handle | None) -> Heard:
        leg = self.connector.decode_leg(body, pairing, handle)
        return await self.answering.stream(leg.body, leg.headers, leg.target)

    async def _both(self, body: bytes, pairing: Pairing, decode: Coroutine[Any, Any, T]) -> T:
        """Both legs at once; whichever fails first ends the other."""
        prefill, answer = await together([self._prefill_leg(body, pairing), decode])
        if prefill is None:
            raise self.prefill.failure("failed to prefill")
        return answer  # type: ignore[no-any-return]  # the second of two different results

    async def _pairing(self, ask: Ask) -> Pairing:
        engine = self.prefill.engine
        engine_id = None
        if self.connector.asks_bootstrap:
            engine_id = await self._engine_id()
        bits = self._chance.getrandbits(_ROOM_BITS)
        peer = Peer(engine.origin.host, engine.bootstrap_port, engine_id, engine.rank, engine.dp_size)
        return Pairing(
            api=Api.COMPLETIONS,
            model=ask.model,
            transfer_id=f"xfer-calibrate-{bits:016x}",
            room=room_for(bits, peer.dp_rank, peer.dp_size),
            peer=peer,
        )

    async def _engine_id(self) -> str:
        engine = self.prefill.engine
        origin = Origin("http", engine.origin.host, engine.bootstrap_port or BOOTSTRAP_PORT, "")
        request = WireRequest(b"GET", BOOTSTRAP_TARGET)
        try:
            answer = await self.prefill.upstream.fetch(
                origin, request, total_s=_BOOTSTRAP_S, max_bytes=1 << 20
            )
            found = read_bootstrap(answer.body).get(engine.rank or 0)
        except UpstreamError as error:
            raise self.prefill.failure(
                f"has no bootstrap server at {origin}: {error.message} Give its port after --prefill URL"
            ) from None
        except ValueError as error:
            raise self.prefill.failure(f"has no bootstrap server at {origin}: {error}") from None
        if found is None:
            raise self.prefill.failure(f"is not known to its bootstrap server at {origin} yet; wait for it")
        return found

    def __repr__(self) -> str:
        return f"<HandedOver {self.name} {self.connector.name}>"


async def together(works: Iterable[Coroutine[Any, Any, Any]]) -> list[Any]:
    """All results in order. The first failure ends the others, and is raised as it is."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work) for work in works]
    except BaseExceptionGroup as failures:
        raise _first(failures) from None
    return [task.result() for task in tasks]


def _first(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first bug if there is one, else the first failure of an engine."""
    leaves = list(_leaves(failures))
    bugs = [one for one in leaves if not isinstance(one, ProbeFailed)]
    return (bugs or leaves)[0]


def _leaves(failure: BaseException) -> Iterable[BaseException]:
    if isinstance(failure, BaseExceptionGroup):
        for inner in failure.exceptions:
            yield from _leaves(inner)
    else:
        yield failure
