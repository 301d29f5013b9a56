"""When a prefilled request gets its decode worker: at once, when a slot is free, or as the load asks."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.shell.live import CHAT, QUIET, STREAM, Live
from tests.shell.pair import asks, counts, decode, play_pair, pool, prefill, refusing_releases
from tests.shell.puppet import DONE, ROLE, STOP, Ask, hang, streaming, word
from tests.shell.visitors import Reply

Tasks = list[asyncio.Task[Reply]]


class Gate:
    """An engine that answers when it is told to."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.begun = 0

    async def __call__(self, ask: Ask) -> None:
        """The first event at once, the rest when the gate opens."""
        ask.begin()
        ask.event(ROLE)
        ask.event(word())
        self.begun += 1
        await self.open.wait()
        ask.event(STOP)
        ask.event(DONE)
        ask.end()


async def finish(tasks: Tasks) -> list[Reply]:
    return list(await asyncio.gather(*tasks))


async def leave(tasks: Tasks) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def test_early_binding_sends_every_prefilled_request_at_once() -> None:
    async def scene(act: Live) -> None:
        gate = Gate()
        act.puppets["d"].serve = gate
        tasks = [act.asking(CHAT, STREAM) for _ in range(20)]
        await act.until(lambda: gate.begun == 20, 1)
        assert pool(act, "decode").queued == 0
        gate.open.set()
        await finish(tasks)

    play_pair(scene, decode_pool={"slots": 2})


def test_late_binding_admits_when_a_slot_is_freed_and_never_more_than_there_are() -> None:
    async def scene(act: Live) -> None:
        gates = [Gate() for _ in range(6)]
        left = iter(gates)

        async def serve(ask: Ask) -> None:
            await next(left)(ask)

        act.puppets["d"].serve = serve
        tasks = [act.asking(CHAT, STREAM) for _ in range(6)]
        await act.until(lambda: pool(act, "decode").queued == 4)
        assert await act.metric("pointsman_prompt_pool_entries", model="m") == 4
        for number, gate in enumerate(gates, 2):
            assert counts(act, "d") == [min(number, 6)]
            assert pool(act, "decode").in_flight <= 2
            gate.open.set()
            await act.turns(40)
        assert [reply.status for reply in await finish(tasks)] == [200] * 6
        assert await act.metric("pointsman_prompt_pool_entries", model="m") == 0

    play_pair(scene, decode_pool={"slots": 2, "binding": "late"}, **QUIET)


def test_first_prefilled_is_first_decoded() -> None:
    async def scene(act: Live) -> None:
        tasks = []
        for number in range(5):
            tasks.append(act.asking(CHAT, STREAM, {"x-request-id": f"r{number}"}))
            await asyncio.sleep(0.001)
        await finish(tasks)
        assert [ask.header("x-request-id") for ask in asks(act, "d")] == [f"r{n}" for n in range(5)]

    play_pair(scene, decode_pool={"slots": 1, "binding": "late"})


@pytest.mark.parametrize("limit", [1, 4])
@pytest.mark.parametrize("binding", [{}, {"slots": 50, "binding": "late"}], ids=["early", "late"])
def test_transfers_under_way_at_one_worker_are_bounded(limit: int, binding: dict[str, Any]) -> None:
    """Until its first event a decode engine is taken to be fetching KV."""

    async def scene(act: Live) -> None:
        tasks = [act.asking(CHAT, STREAM) for _ in range(10)]
        await asyncio.sleep(1)
        assert counts(act, "d", "e") == [limit, limit]
        assert act.worker("d").mirror.transfers == limit
        assert pool(act, "decode").queued == 10 - 2 * limit
        for ask in act.puppets["d"].asks:
            ask.begin()
            ask.event(ROLE)
        await act.turns(60)
        assert counts(act, "d", "e") == [min(2 * limit, 10 - limit), limit]
        await leave(tasks)
        await asyncio.sleep(1)

    decodes = dict.fromkeys("de", refusing_releases(hang))
    decode_pool = {"max_transfers_per_worker": limit, **binding}
    play_pair(scene, decodes=decodes, decode_pool=decode_pool, **QUIET)


def test_adaptive_binding_waits_for_slots_only_after_a_while_of_load() -> None:
    async def scene(act: Live) -> None:
        binding = pool(act, "decode").binding
        tasks = [act.asking(CHAT, STREAM) for _ in range(4)]
        await act.until(lambda: counts(act, "d") == [4])  # early: more than it has slots
        await asyncio.sleep(4)
        assert not binding.late
        await asyncio.sleep(2)
        assert binding.late
        tasks.append(act.asking(CHAT, STREAM))
        await act.until(lambda: pool(act, "decode").queued == 1)
        assert counts(act, "d") == [4]
        await leave(tasks)
        await asyncio.sleep(6)
        assert not binding.late
        assert binding.switches == 2

    serve = refusing_releases(streaming(ROLE, word(), then="hang"))
    play_pair(scene, decodes={"d": serve}, decode_pool={"slots": 2, "binding": "adaptive"}, **QUIET)


def test_a_saturated_prefill_worker_gets_no_further_prompt_until_its_kv_is_fetched() -> None:
    async def scene(act: Live) -> None:
        act.worker("p").configured_kv_tokens = 16
        tasks = [act.asking(CHAT, STREAM) for _ in range(3)]
        await act.until(lambda: counts(act, "d") == [2])
        await asyncio.sleep(1)
        assert counts(act, "p") == [2]  # 7 tokens and one of the output each
        assert pool(act, "prefill").queued == 1
        act.puppets["d"].asks[0].begin()
        act.puppets["d"].asks[0].event(ROLE)
        await act.turns(40)
        assert counts(act, "p") == [3]
        await leave(tasks)

    play_pair(scene, decodes={"d": refusing_releases(hang)}, **QUIET)


def test_the_queue_of_the_prefill_side_is_bounded_and_the_prompt_pool_lets_all_in_that_were() -> None:
    async def scene(act: Live) -> None:
        tasks = [act.asking(CHAT, STREAM) for _ in range(12)]
        await act.until(lambda: pool(act, "decode").queued == 11)  # more than the queue may hold
        act.worker("p").configured_kv_tokens = 10
        more = [act.asking(CHAT, STREAM) for _ in range(6)]
        await act.until(lambda: any(task.done() for task in more))
        assert pool(act, "prefill").queued == 5
        replies = await asyncio.gather(*(task for task in more if task.done()))
        assert [reply.status for reply in replies] == [429]
        await leave([*tasks, *more])
        await asyncio.sleep(2)

    play_pair(
        scene,
        {"p": prefill},
        {"d": refusing_releases(streaming(ROLE, word(), then="hang"))},
        decode_pool={"slots": 1, "binding": "late"},
        limits={"queue_size": 5, "handover_releases_per_s": 1000},
        **QUIET,
    )


def test_requests_beyond_those_allowed_in_flight_wait_before_their_prefill() -> None:
    """A prefilled request is inside already, and is never held up by those that are not."""

    async def scene(act: Live) -> None:
        tasks = [act.asking(CHAT, STREAM) for _ in range(9)]
        await act.until(lambda: pool(act, "prefill").queued == 6)
        assert act.router.fleet.in_flight.used == 3
        assert [reply.status for reply in await finish(tasks)] == [200] * 9

    play_pair(scene, decodes={"d": decode}, limits={"max_in_flight": 3})
