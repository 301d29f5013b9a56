"""Laws of a live router that starts from a calibration."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from router.core.calibration import CalibrationState
from router.core.worker import Role
from router.settings.calibration_file import (
    CalibrationFile,
    StepLaw,
    TransferMeasured,
    WorkerMeasured,
    write_calibration,
)
from tests.shell.live import ADMIN, Live, play
from tests.shell.puppet import MODEL, talk

STEP = StepLaw(base_s=0.012, per_sequence_s=1e-5, per_kv_token_s=6e-8)


def worker(host: str, **changes: Any) -> WorkerMeasured:
    fields = {"url": f"http://{host}:8000", "role": Role.BOTH, "model": MODEL, "step": STEP}
    return WorkerMeasured(**{**fields, **changes})


def written(folder: Path, **workers: WorkerMeasured) -> Path:
    path = folder / "calibration.yaml"
    transfer = TransferMeasured(prefill="p", decode="a", connector="nixl", base_s=0.002, per_token_s=1e-6)
    file = CalibrationFile(
        measured=datetime(2026, 11, 30, tzinfo=UTC), workers=workers, transfers=(transfer,)
    )
    write_calibration(path, file)
    return path


def test_workers_start_with_what_was_measured_of_them(tmp_path: Path) -> None:
    path = written(tmp_path, a=worker("a"))

    async def scene(act: Live) -> None:
        known, unknown = act.worker("a"), act.worker("b")
        assert known.step.step_s(10, 1000) == pytest.approx(0.012 + 1e-4 + 6e-5)
        assert known.calibration.state is CalibrationState.FILE
        assert known.calibration.source == "calibration.yaml"
        assert known.transfers["p"].transfer_s(1000) == pytest.approx(0.003)
        assert unknown.step is None

    play(scene, {"a": talk, "b": talk}, calibration={"file": path})


def test_a_worker_that_joins_later_is_known_too(tmp_path: Path) -> None:
    path = written(tmp_path, late=worker("late"))

    async def scene(act: Live) -> None:
        body = {"url": "http://late:8000", "name": "renamed"}
        reply = await act.ask("/workers", body, origin=ADMIN)
        assert reply.status == 202
        assert act.worker("renamed").step is not None

    play(scene, {"a": talk}, calibration={"file": path})


def test_prompts_are_estimated_by_the_bytes_per_token_that_were_measured(tmp_path: Path) -> None:
    path = written(tmp_path, a=worker("a", bytes_per_token=2.5))

    async def scene(act: Live) -> None:
        assert act.router.tokens.prompts.bytes_per_token(MODEL) == 2.5
        assert act.router.tokens.prompts.bytes_per_token("another") == 4.0

    play(scene, {"a": talk}, calibration={"file": path})


def test_another_model_or_engine_than_was_measured_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = written(tmp_path, a=worker("a", model="other"))

    async def scene(act: Live) -> None:
        await asyncio.sleep(60.0)

    with caplog.at_level(logging.WARNING, "pointsman.calibration"):
        play(scene, {"a": talk}, calibration={"file": path})
    said = [record.getMessage() for record in caplog.records if record.name == "pointsman.calibration"]
    assert len(said) == 1
    assert said[0].startswith(f"worker a was measured with model other and serves {MODEL} now")


def test_an_engine_that_was_updated_since_is_named_with_both_versions(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = written(tmp_path, a=worker("a", engine_version="0.30.0"))

    async def scene(act: Live) -> None:
        member = act.router.fleet.member("a")
        assert member is not None
        member.engine_version = "0.32.0"
        act.router.calibrations.met(member)

    with caplog.at_level(logging.WARNING, "pointsman.calibration"):
        play(scene, {"a": talk}, calibration={"file": path})
    assert "was measured with engine 0.30.0 and runs 0.32.0 now" in caplog.text


def test_what_was_measured_as_it_is_raises_no_doubt(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = written(tmp_path, a=worker("a"))

    async def scene(act: Live) -> None:
        await asyncio.sleep(60.0)

    with caplog.at_level(logging.WARNING, "pointsman.calibration"):
        play(scene, {"a": talk}, calibration={"file": path})
    assert not [record for record in caplog.records if record.name == "pointsman.calibration"]
