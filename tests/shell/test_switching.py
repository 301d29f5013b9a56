"""Another policy while requests run: whoever waits, runs or comes meanwhile is served."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from router.choosing import Choosing
from router.core.budget import Budget
from router.core.request import Request
from router.core.worker import Role
from router.dispatch import Dispatcher
from router.fleet import Fleet
from router.policies import POLICIES, Shape
from router.settings.configuration import Settings
from router.virtual.clock import run
from tests.core.fleet_examples import MODEL, assert_idle, joined, pool, request
from tests.shell.live import CHAT, STREAM, Live
from tests.shell.pair import decode, play_pair, prefill

SINGLE = [spec.name for spec in POLICIES.values() if spec.shape is not Shape.PAIR]


def tour(names: Sequence[str]) -> Iterator[str]:
    """Names one after the other, so that each follows each other once (Hierholzer's circuit)."""
    left = {name: [other for other in names if other != name] for name in names}
    path, circuit = [names[0]], []
    while path:
        if left[path[-1]]:
            path.append(left[path[-1]].pop())
        else:
            circuit.append(path.pop())
    return reversed(circuit)


def test_the_tour_takes_every_step_once() -> None:
    steps = list(itertools.pairwise(tour("abcd")))
    assert sorted(steps) == sorted(itertools.permutations("abcd", 2))


class Scene:
    """Pools with workers of two slots each, and more requests than those can take at once."""

    def __init__(self, settings: Settings) -> None:
        self.fleet = Fleet(Budget("in flight", 10_000))
        self.now = asyncio.get_running_loop().time
        self.choosing = Choosing(self.fleet, settings, self.now)
        self.served = 0
        self.asked: list[asyncio.Task[None]] = []

    def add(self, name: str, role: Role = Role.BOTH, count: int = 4) -> Dispatcher:
        made = pool(
            *[f"{name}{n}" for n in range(count)],
            name=name,
            role=role,
            slots=2,
            policy=self.choosing.build(name),
            mode=self.choosing.settings.pools[name].mode,
            max_queued=100_000,
            queued_bytes=10**9,
            in_flight=10_000,
            max_wait_s=10_000.0,
        )
        for worker in made.roster:
            worker.role = role
        made.use(made.policy, self.choosing.settings.pools[name].policy)
        dispatcher = Dispatcher(made, self.now, on_room=self.fleet.wake)
        self.fleet.add_pool(dispatcher, MODEL)
        return dispatcher

    async def serve(self, dispatcher: Dispatcher, one: Request) -> None:
        """One request on one worker: its first output after 0.1 s, its last after 0.4 s."""
        with await dispatcher.acquire(one) as held:
            await asyncio.sleep(0.1)
            held.progress(generated_tokens=1)
            await asyncio.sleep(0.3)
        self.served += 1

    async def load(self, dispatcher: Dispatcher, names: Sequence[str], **fields: Any) -> list[str]:
        """Switches the pool through `names` while three requests in a row come for each."""
        for name in names:
            for _ in range(3):
                one = request(prompt_tokens=1_000, affinity=f"c{len(self.asked) % 7}", **fields)
                self.asked.append(asyncio.create_task(self.serve(dispatcher, one)))
                await asyncio.sleep(0.04)
            self.choosing.switch(dispatcher.pool.rules.name, name, {})
            assert dispatcher.pool.policy_name == name
        return list(names)


def fitting(role: Role) -> list[str]:
    batch_too = role is not Role.PREFILL
    return [
        name
        for name in SINGLE
        if role in POLICIES[name].roles and (batch_too or POLICIES[name].shape is not Shape.BATCH)
    ]


@pytest.mark.parametrize("role", [Role.BOTH, Role.DECODE, Role.PREFILL])
def test_no_request_is_lost_between_any_two_policies(role: Role) -> None:
    async def main() -> None:
        others = {"decode": {"role": "decode", "policy": "least_requests"}}
        pools: dict[str, Any] = {"prefill": {"role": "prefill", "policy": "least_requests"}, **others}
        if role is Role.BOTH:
            pools = {"both": {"policy": "least_requests"}}
        scene = Scene(Settings.model_validate({"pools": pools}))
        dispatchers = {name: scene.add(name, Role(name)) for name in pools}
        if role is not Role.BOTH:
            joined(dispatchers["decode"].pool, dispatchers["prefill"].pool)
        scene.choosing.adopt()
        dispatcher = dispatchers[role.value]
        names = list(tour(fitting(role)))
        assert len(names) > 30
        await scene.load(dispatcher, names)
        async with asyncio.timeout(600):
            await asyncio.gather(*scene.asked)
        assert scene.served == len(scene.asked) == 3 * len(names)
        for one in dispatchers.values():
            assert_idle(one.pool)
        assert scene.fleet.in_flight.used == 0
        chooser = dispatcher.pool.chooser
        assert sum(chooser.counts.values()) == scene.served
        assert {policy for policy, _ in chooser.counts} <= {*names, "least_requests"}
        if chooser.prefixes is not None:
            assert chooser.prefixes.claims == 0

    run(main())


def test_requests_that_name_a_policy_are_served_beside_the_others() -> None:
    async def main() -> None:
        pools = {"both": {"policy": "balance_route_0", "slots": 2}}
        scene = Scene(Settings.model_validate({"pools": pools}))
        dispatcher = scene.add("both")
        scene.choosing.adopt()
        for number in range(200):
            one = request(policy=SINGLE[number % len(SINGLE)], affinity=f"c{number % 7}")
            scene.asked.append(asyncio.create_task(scene.serve(dispatcher, one)))
            if number % 50 == 0:
                scene.choosing.switch("both", "round_robin" if number % 100 else "balance_route_h", {})
            await asyncio.sleep(0.03)
        async with asyncio.timeout(600):
            await asyncio.gather(*scene.asked)
        assert scene.served == 200
        assert_idle(dispatcher.pool)
        counts = dispatcher.pool.chooser.counts
        assert {policy for policy, _ in counts} == set(SINGLE)
        assert len(dispatcher.pool.chooser.others) == 8

    run(main())


def test_split_requests_are_served_while_both_of_their_pools_change() -> None:
    """Live: both sides go through some policies, each after each other one, while streams run."""
    firsts, seconds = ("round_robin", "cache_aware", "preble"), ("least_tokens", "balance_route_0", "joint")

    async def scene(act: Live) -> None:
        visits = []
        for first, second in zip(tour(firsts), tour(seconds), strict=True):
            visits += [act.asking(CHAT, STREAM) for _ in range(6)]
            await asyncio.sleep(0.02)
            act.router.choosing.switch("prefill", first, {})
            act.router.choosing.switch("decode", second, {})
        replies = await asyncio.gather(*visits)
        assert [reply.status for reply in replies] == [200] * len(visits)
        assert all(reply.body.endswith(b"data: [DONE]\n\n") for reply in replies)
        for dispatcher in act.router.fleet.dispatchers.values():
            assert sum(dispatcher.pool.chooser.counts.values()) == len(visits)

    play_pair(scene, {"p": prefill, "q": prefill}, {"d": decode, "e": decode}, decode_pool={"slots": 4})
