"""Runs one drill: the live router and its mock engines in memory, in virtual time."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from typing import Literal

from engines.mock.admin import switch_on
from engines.mock.faults import Fault
from engines.mock.settings import MockSettings
from router.virtual.clock import run
from tests.drill.judge import judge
from tests.drill.plan import DECODES, ENGINES, LEASE_S, MODEL, PREFILLS, WINDOW_S, Blow, Plan, Wish, draw
from tests.shell.live import Live, MockEngine, live
from tests.shell.pair import pools
from tests.shell.visitors import Reply

END_S = 240.0
"""Everything is over by then, or it hangs: the sum of all deadlines of a request is less."""
QUIET_S = 80.0
"""After the last request: leases run out, engines come back, workers are probed again. The longest of all
is a decode engine's wait for a prefill that will not come: with Mooncake, a minute more than the lease."""
TIMEOUTS: dict[str, float] = {
    "first_event_s": 40.0,
    "total_s": 60.0,
    "idle_s": 15.0,
    "idle_lost_worker_s": 2.0,
    "prefill_s": 15.0,
    "decode_first_event_s": 10.0,
    "lease_margin_s": 3.0,
}


@dataclasses.dataclass(slots=True)
class Result:
    """How the clients of one drill fared, and how much was really split.

    Attributes:
        handed_over: prompt tokens whose KV decode engines had from prefill engines, by connector.
    """

    seed: int
    fates: Counter[str]
    split: float
    handed_over: Counter[str]


def drill(seed: int) -> Result:
    """One drill. Raises AssertionError, with the seed, for whatever must not be."""
    plan = draw(seed)
    try:
        return run(_drill(plan))
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}") from error


def _engine(name: str, connector: str) -> MockSettings:
    return MockSettings(
        model=MODEL,
        dialect=_dialect(connector),
        role="prefill" if name in PREFILLS else "decode",
        kv_connector=connector,
        kv_tokens=20_000,
        kv_lease_s=LEASE_S,
        kv_abort_timeout_s=LEASE_S,
        disaggregation_timeout_s=LEASE_S,
        max_num_seqs=8,
    )


def _dialect(connector: str) -> Literal["vllm", "sglang"]:
    return "sglang" if connector == "sglang" else "vllm"


async def _drill(plan: Plan) -> Result:
    made = pools(PREFILLS, DECODES, **plan.decode_pool)
    workers = {name: _engine(name, plan.connector) for name in ENGINES}
    async with live(workers, pools=made, timeouts=TIMEOUTS, seed=plan.seed) as act:
        alone = MockEngine(act.network, "alone", MockSettings(model=MODEL, dialect=_dialect(plan.connector)))
        blows = [asyncio.ensure_future(_strike(act, blow)) for blow in plan.blows]
        async with asyncio.timeout(END_S):
            replies = await asyncio.gather(*(_ask(act, wish) for wish in plan.wishes))
        await asyncio.gather(*blows)
        fates = await _judge_all(act, alone, plan, replies)
        result = Result(
            plan.seed,
            fates,
            await act.metric("pointsman_split_requests_total") or 0.0,
            Counter({plan.connector: _handed_over(act)}),
        )
        await _calm(act)
        act.assert_zero()
        alone.process.close()
        await act.aclose()
    return result


def _handed_over(act: Live) -> int:
    """As engines count it: those that crashed have forgotten."""
    return sum(act.mocks[name].process.engine.counters.prompt_tokens_external for name in DECODES)


async def _strike(act: Live, blow: Blow) -> None:
    await asyncio.sleep(blow.at)
    mock = act.mocks[blow.engine]
    if mock.process.up:
        switch_on(mock.front, Fault(**blow.fault))


async def _ask(act: Live, wish: Wish) -> Reply | None:
    """None for a client that has left."""
    await asyncio.sleep(wish.at)
    asking = act.asking(wish.path, dict(wish.body))
    done, _ = await asyncio.wait({asking}, timeout=wish.leaves_after)
    if not done:
        asking.cancel()
        await asyncio.wait({asking})
        return None
    return asking.result()


async def _judge_all(act: Live, alone: MockEngine, plan: Plan, replies: list[Reply | None]) -> Counter[str]:
    fates: Counter[str] = Counter()
    for wish, reply in zip(plan.wishes, replies, strict=True):
        if reply is None:
            fates["left"] += 1
            continue
        reference = await act.ask(wish.path, dict(wish.body), origin=alone.origin)
        fates[judge(wish, reply, reference)] += 1
    return fates


async def _calm(act: Live) -> None:
    """Ends all faults and waits until everything that runs out has run out."""
    await asyncio.sleep(WINDOW_S)
    for mock in act.mocks.values():
        mock.front.faults.clear()
        mock.process.heal()
    await asyncio.sleep(QUIET_S)
