"""The policies that follow prefixes when one of four engines freezes, slows down, or starts anew."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from benchmarks.routing.scenarios import body
from engines.mock.admin import switch_on
from engines.mock.faults import Fault
from tests.shell.live import CHAT, Live, leave, play
from tests.shell.puppet import MODEL
from tests.shell.routing_quality import NAMES, SCRAPED_S, engines

BAD = "w3"
AT_ONCE = 32
policies = pytest.mark.parametrize("policy", ["cache_aware", "joint", "preble"])


@dataclass
class Crowd:
    """Clients that ask again as soon as they are answered, each something new.

    Attributes:
        took_s: by worker, how long each answer took.
    """

    act: Live
    tokens: int
    took_s: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in NAMES})
    _number: int = 0
    _clients: list[asyncio.Task[None]] = field(default_factory=list)

    def come(self) -> None:
        self._clients = [asyncio.ensure_future(self._client()) for _ in range(AT_ONCE)]

    async def leave(self) -> None:
        for client in self._clients:
            await leave(client)

    async def _client(self) -> None:
        while True:
            self._number += 1
            text = f"{self._number} is the number of a question that nobody has asked before. " * 6
            began = self.act.now
            reply = await self.act.ask(CHAT, body(MODEL, [{"role": "user", "content": text}], self.tokens))
            assert reply.status == 200, reply.body
            self.took_s[reply.header("x-pointsman-worker") or ""].append(self.act.now - began)

    def in_flight(self) -> Counter[str]:
        return Counter({name: self.act.worker(name).in_flight for name in NAMES})


def strike(act: Live, kind: str, **fields: Any) -> None:
    switch_on(act.mocks[BAD].front, Fault(kind=kind, **fields))


def crowded(policy: str, scene: Callable[[Live, Crowd], Awaitable[None]], *, tokens: int) -> None:
    """A scene in front of a crowd."""

    async def whole(act: Live) -> None:
        crowd = Crowd(act, tokens)
        crowd.come()
        await scene(act, crowd)
        await crowd.leave()
        await asyncio.sleep(SCRAPED_S)

    play(whole, engines(), pool={"policy": policy}, server={"expose_routing_headers": True})


@policies
def test_a_frozen_engine_keeps_nobody_waiting_who_was_not_sent_there(policy: str) -> None:
    async def scene(act: Live, crowd: Crowd) -> None:
        await asyncio.sleep(3)
        usual_s = max(took for all_took in crowd.took_s.values() for took in all_took[-10:])
        strike(act, "slow", factor=1e9)
        for took in crowd.took_s.values():
            took.clear()
        await asyncio.sleep(13)
        assert not crowd.took_s[BAD]
        caught = crowd.in_flight()[BAD]
        assert 0 < caught <= AT_ONCE / 4 + 8, "it looks busy, then it is passed over"
        assert act.state(BAD) == "suspect"
        others = [took for name, all_took in crowd.took_s.items() for took in all_took if name != BAD]
        assert len(others) > 100
        assert max(others) <= 2 * usual_s

    crowded(policy, scene, tokens=100)


@policies
def test_an_engine_that_is_four_times_as_slow_gets_a_smaller_share_and_still_some(policy: str) -> None:
    async def scene(act: Live, crowd: Crowd) -> None:
        strike(act, "slow", factor=4.0)
        await asyncio.sleep(12)
        counts = {name: len(took) for name, took in crowd.took_s.items()}
        usual = sum(counts[name] for name in NAMES if name != BAD) / 3
        assert 0.1 * usual <= counts[BAD] <= 0.5 * usual, counts
        assert act.state(BAD) == "ready"

    crowded(policy, scene, tokens=100)


@pytest.mark.parametrize(
    ("policy", "early_most", "late_most"), [("cache_aware", 0.9, 1.25), ("preble", 0.9, 1.4)]
)
def test_an_engine_that_starts_anew_has_half_its_load_within_two_probes_and_all_within_45_s(
    policy: str, early_most: float, late_most: float
) -> None:
    """preble lets it catch up on what the others were sent meanwhile, a little at a time."""

    async def scene(act: Live, crowd: Crowd) -> None:
        await asyncio.sleep(4)
        strike(act, "crash", delay_s=4.0)
        await act.until(lambda: act.state(BAD) != "ready", 5)
        await act.until(lambda: act.state(BAD) == "ready", 15)
        back = act.now

        async def share(at: float) -> float:
            """Of the mean of the others, over two seconds."""
            await asyncio.sleep(back + at - act.now)
            seen: Counter[str] = Counter()
            for _ in range(20):
                seen.update(crowd.in_flight())
                await asyncio.sleep(0.1)
            return seen[BAD] * 3 / sum(seen[name] for name in NAMES if name != BAD)

        early, late = await share(10.0), await share(45.0)
        assert 0.35 <= early <= early_most, early
        assert 0.85 <= late <= late_most, late

    crowded(policy, scene, tokens=400)
