"""Very many connections at once, on the whole router."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

import pytest

from router.settings.limits import LimitSettings
from tests.shell.live import ADMIN, ASK, CHAT, QUIET, Live, play


@pytest.mark.parametrize("open_files", [0, 1, 256, 300, 1024, 20_000, 1_048_576])
@pytest.mark.parametrize("max_in_flight", [None, 1, 50, 100_000])
def test_client_connections_leave_files_for_workers(open_files: int, max_in_flight: int | None) -> None:
    limits = LimitSettings(max_in_flight=max_in_flight)
    bound = limits.connections_bound(open_files)
    assert bound >= 1
    assert bound >= min(limits.in_flight_bound(open_files), (open_files - 256) // 2)
    if open_files > 300:
        workers = min(limits.in_flight_bound(open_files), (open_files - 256) // 2)
        assert bound + workers + 256 <= open_files


def test_connections_beyond_the_bound_are_turned_away_in_words(caplog: pytest.LogCaptureFixture) -> None:
    async def scene(act: Live) -> None:
        data = act.process.data
        data.settings = replace(data.settings, max_connections=3)
        crowd = [await act.raw() for _ in range(3)]
        for late in [await act.raw() for _ in range(5)]:
            received = await late.until_lost()
            assert received.startswith(b"HTTP/1.1 503 ")
            assert b"too many connections" in received
        assert not any(one.lost for one in crowd)
        assert (await act.ask("/workers", origin=ADMIN)).status == 200
        await asyncio.sleep(1.1)
        crowd.pop().transport.close()
        await act.turns()
        assert (await act.ask(CHAT, ASK)).status == 200
        for one in crowd:
            one.transport.close()

    with caplog.at_level(logging.WARNING, "pointsman"):
        play(scene, **QUIET)
    told = [record.getMessage() for record in caplog.records if "turned away" in record.getMessage()]
    assert told == ["the data port turned away 5 connections: 3 may be open (see the limit of open files)"]
