"""The live router learns its mock engines' step times from its own traffic, and decides by them."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from engines.mock.settings import MockSettings
from engines.model.roofline import Roofline
from engines.model.specs import GPUS, MODELS
from router.core.calibration import CalibrationState
from tests.shell.live import ADMIN, Live, play

MODEL = "qwen2.5-3b"
EAGER = {"min_samples": 10, "max_relative_error": 0.5}
"""Believes early: a scene is short."""


def _ask(source: random.Random) -> dict[str, Any]:
    """A chat of some hundred tokens."""
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": "word " * source.randrange(80, 1_500)}],
        "max_tokens": source.randrange(20, 60),
        "stream": True,
    }


async def _traffic(act: Live, seconds: float, gap_s: float, seed: int = 3) -> None:
    source, asking = random.Random(seed), []
    ends = act.now + seconds
    while act.now < ends:
        asking.append(act.asking(body=_ask(source)))
        await asyncio.sleep(source.expovariate(1 / gap_s))
    for reply in await asyncio.gather(*asking):
        assert reply.status == 200


@pytest.mark.timeout(120)
def test_a_live_router_finds_out_how_fast_its_engine_is() -> None:
    roofline = Roofline(MODELS[MODEL], GPUS["a40"])

    async def scene(act: Live) -> None:
        await _traffic(act, 14.0, 0.25)
        worker = act.worker("a")
        assert worker.calibration.state is CalibrationState.ONLINE
        for count, context in ((1, 400), (4, 500)):
            found = worker.step.step_s(count, count * context)
            assert found == pytest.approx(roofline.step_s([], [context] * count), rel=0.1)
        shown = (await act.debug_state())["workers"][0]["calibration"]
        assert shown["state"] == "online"
        assert shown["samples"]["step"] == worker.calibration.samples.step
        assert await act.metric("pointsman_worker_calibration_state", state="online") == 1
        assert await act.metric("pointsman_worker_coefficient_seconds", coefficient="step_base") == (
            pytest.approx(worker.step.step_base_s)
        )

    play(scene, {"a": MockSettings()}, calibration=EAGER)


@pytest.mark.timeout(120)
def test_calibrated_counts_until_it_knows_and_then_decides_by_cost() -> None:
    async def scene(act: Live) -> None:
        await _traffic(act, 12.0, 0.1)
        reasons = {
            reason: await act.metric("pointsman_policy_decisions_total", policy="calibrated", reason=reason)
            for reason in ("fallback:uncalibrated", "physical")
        }
        assert (reasons["fallback:uncalibrated"] or 0) > 20
        assert (reasons["physical"] or 0) > 20

    workers = {name: MockSettings() for name in "abcd"}
    play(scene, workers, pool={"policy": "calibrated"}, calibration=EAGER)


def test_a_router_that_is_told_not_to_learn_does_not() -> None:
    async def scene(act: Live) -> None:
        await _traffic(act, 3.0, 0.2)
        assert act.pool.ledger.online is None
        assert act.worker("a").calibration.state is CalibrationState.UNCALIBRATED
        [shown] = (await act.ask("/workers", origin=ADMIN)).json()["workers"]
        assert shown["calibration"]["coefficients"] is None

    play(scene, {"a": MockSettings()}, calibration={"online": False})
