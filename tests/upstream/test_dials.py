"""Laws of the places for dials."""

from __future__ import annotations

import asyncio

import pytest

from router.core.errors import InternalError
from router.upstream.dials import Dials
from router.upstream.origin import Origin
from router.virtual.clock import run

HERE, THERE = Origin.parse("http://a:1"), Origin.parse("http://b:1")


def test_no_more_dials_are_under_way_than_there_are_places() -> None:
    async def scene() -> None:
        dials = Dials(3)
        under_way, most = 0, 0

        async def dial() -> None:
            nonlocal under_way, most
            async with dials.place(HERE):
                under_way += 1
                most = max(most, under_way)
                await asyncio.sleep(0.1)
                under_way -= 1

        await asyncio.gather(*(dial() for _ in range(20)))
        assert most == 3
        assert repr(dials) == "<Dials [0 under way | 0 waiting]>"

    run(scene())


def test_one_worker_does_not_take_the_places_of_another() -> None:
    async def scene() -> None:
        dials = Dials(1)
        async with dials.place(HERE), dials.place(THERE):
            assert repr(dials) == "<Dials [2 under way | 0 waiting]>"

    run(scene())


def test_places_are_given_in_the_order_of_asking() -> None:
    async def scene() -> None:
        dials, order = Dials(1), []

        async def dial(number: int) -> None:
            async with dials.place(HERE):
                order.append(number)
                await asyncio.sleep(0.01)

        await asyncio.gather(*(dial(number) for number in range(8)))
        assert order == list(range(8))

    run(scene())


@pytest.mark.parametrize("turns", range(4))
def test_whoever_gives_up_waiting_keeps_no_place_whenever_that_is(turns: int) -> None:
    async def scene() -> None:
        dials = Dials(1)
        first = dials.place(HERE)
        await first.__aenter__()
        waiter = asyncio.ensure_future(dials.place(HERE).__aenter__())
        await asyncio.sleep(0)
        await first.__aexit__(None, None, None)
        for _ in range(turns):
            await asyncio.sleep(0)
        if waiter.done():
            return  # it has its place; nothing was given up
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
        assert repr(dials) == "<Dials [0 under way | 0 waiting]>"

    run(scene())


def test_a_place_that_was_never_taken_cannot_be_given() -> None:
    with pytest.raises(InternalError):
        Dials(1)._give(HERE)
