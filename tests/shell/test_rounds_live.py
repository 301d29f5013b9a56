"""BalanceRoute in the live router: rounds, what it learns meanwhile, and what it says of both."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from router.core.predict_error import Trust
from tests.shell.live import CHAT, STREAM, Live, play
from tests.shell.puppet import DONE, ROLE, STOP, USAGE, Ask, Serve, word

POOL: dict[str, Any] = {"dp_size": 2, "slots": 2, "policy": "balance_route_0"}
AHEAD: dict[str, Any] = {**POOL, "slots": 8, "policy": "balance_route_h"}
ASKS_USAGE = {**STREAM, "stream_options": {"include_usage": True}}


def writing(words: int, gap_s: float = 0.005, *, spread: int = 1) -> Serve:
    """Answers with so many words, or up to `spread` more, so that not all of a crowd end at once."""
    asked = itertools.count()

    async def serve(ask: Ask) -> None:
        mine = words + next(asked) * 7 % spread
        usage = USAGE.replace(b'"completion_tokens":4', b'"completion_tokens":%d' % mine)
        ask.begin()
        ask.event(ROLE)
        for number in range(mine):
            await asyncio.sleep(gap_s)
            ask.event(word(number))
        ask.event(STOP, usage, DONE)
        ask.end()

    return serve


async def crowd(act: Live, count: int, body: object = ASKS_USAGE) -> None:
    replies = await asyncio.gather(*(act.ask(CHAT, body) for _ in range(count)))
    assert [reply.status for reply in replies] == [200] * count


async def reasons(act: Live, *names: str) -> list[float]:
    name = "pointsman_balance_admitted_total"
    return [await act.metric(name, reason=reason) or 0.0 for reason in names]


# --- rounds ----------------------------------------------------------------------------------------------


def test_a_crowd_is_placed_by_few_rounds_that_keep_their_distance() -> None:
    async def scene(act: Live) -> None:
        times: list[float] = []
        assign = act.pool.assign

        def count(now: float) -> Any:
            times.append(now)
            return assign(now)

        act.pool.assign = count
        await crowd(act, 40)
        gaps = [later - sooner for sooner, later in itertools.pairwise(times)]
        assert min(gaps) >= 0.01 - 1e-9
        assert len(times) <= 45

    play(scene, {"a": writing(4, gap_s=0.02)}, pool=POOL)


def test_what_rounds_do_is_counted_and_timed() -> None:
    async def scene(act: Live) -> None:
        await crowd(act, 12)
        rounds = await act.metric("pointsman_balance_rounds_total", fallback="none")
        assert rounds is not None
        assert await act.metric("pointsman_balance_round_requests_count") == rounds
        for stage in ("state", "greedy", "subset"):
            assert await act.metric("pointsman_balance_stage_seconds_count", stage=stage) == rounds
        assert sum(await reasons(act, "greedy", "subset", "guard", "whole_worker", "aged")) == 12
        assert (await reasons(act, "guard"))[0] > 0  # equal prompts: whoever enters makes others wait
        lost = await act.metric("pointsman_balance_gain_total", sign="lost")
        assert lost is not None
        assert lost > 0

    play(scene, {"a": writing(4)}, pool=POOL)


def test_another_policy_makes_no_rounds() -> None:
    async def scene(act: Live) -> None:
        await crowd(act, 4)
        assert await act.metric("pointsman_balance_rounds_total") is None

    play(scene, {"a": writing(4)}, pool={**POOL, "policy": "least_requests"})


# --- what it learns --------------------------------------------------------------------------------------


def test_the_horizon_is_used_as_soon_as_lengths_are_known_and_slots_are_full() -> None:
    async def scene(act: Live) -> None:
        await crowd(act, 24)
        for why in ("low_use", "unknown"):
            assert await act.metric("pointsman_balance_rounds_total", fallback=why)
        await crowd(act, 90)
        assert await act.metric("pointsman_balance_rounds_total", fallback="none")
        assert await act.metric("pointsman_forecast_requests_total", source="prompt")
        error = await act.metric("pointsman_forecast_absolute_error_tokens", source="prompt")
        assert error == pytest.approx(10, abs=6)  # a quarter of the spread, about
        assert (await act.metric("pointsman_forecast_brier_score", source="overall") or 0.0) < 0.1
        assert await act.metric("pointsman_forecast_trust") == 2
        assert await act.metric("pointsman_forecast_residents") == 0
        assert await act.metric("pointsman_forecast_known") == 0

    play(scene, {"a": writing(30, spread=40)}, pool=AHEAD)


def test_lengths_that_shift_halve_the_discount_and_then_leave_it_to_br_0() -> None:
    async def scene(act: Live) -> None:
        await crowd(act, 300)
        predictor = act.pool.ledger.forecasts.predictor
        assert predictor.trust is Trust.FULL
        seen: list[Trust] = []
        act.puppets["a"].serve = writing(150, gap_s=0.001)
        for _ in range(24):
            await crowd(act, 3)
            seen.append(predictor.trust)
        assert seen == sorted(seen, reverse=True)
        assert {Trust.LOW, Trust.LOST} <= set(seen)
        assert await act.metric("pointsman_balance_rounds_total", fallback="drifted")
        assert await act.metric("pointsman_forecast_trust") == 0

    workers = {"a": writing(10, gap_s=0.001)}
    play(scene, workers, pool=AHEAD, limits={"queue_size": 400})


def test_a_clients_bound_is_a_hint_before_anything_was_learned() -> None:
    async def scene(act: Live) -> None:
        task = act.asking(CHAT, {**ASKS_USAGE, "max_tokens": 30, "ignore_eos": True})
        await act.until(lambda: act.pool.in_flight == 1)
        (lease,) = act.pool.ledger.leases
        assert lease.expected_tokens == 30
        assert act.pool.ledger.forecasts.known == 1
        assert (await task).status == 200

    play(scene, {"a": writing(30)}, pool=AHEAD)


def test_what_one_policy_saw_is_known_to_the_next() -> None:
    async def scene(act: Live) -> None:
        await crowd(act, 60)
        act.router.choosing.switch("default", "balance_route_h", {})
        await crowd(act, 40)
        assert await act.metric("pointsman_balance_rounds_total", fallback="none")
        assert await act.metric("pointsman_balance_rounds_total", fallback="unknown") is None

    play(scene, {"a": writing(30, spread=40)}, pool={**AHEAD, "policy": "least_requests"})


def test_a_client_that_leaves_teaches_that_its_answer_was_longer() -> None:
    async def scene(act: Live) -> None:
        task = act.asking(CHAT, ASKS_USAGE)
        await act.until(lambda: any(lease.generated_tokens >= 9 for lease in act.pool.ledger.leases))
        task.cancel()
        await asyncio.sleep(0.05)
        ((tokens, _),) = act.pool.ledger.forecasts.predictor.models["m"].lengths(act.loop.time())
        assert tokens <= -9

    play(scene, {"a": writing(1_000)}, pool=POOL)
