"""What was learned of output lengths, over the end of a process."""

from __future__ import annotations

import asyncio
import json
import logging
import stat
from pathlib import Path
from typing import Any

import pytest

from router.core.forecasts import Forecasts
from router.core.lease import Lease, Outcome
from router.core.predict import Grouping, Source, Traits
from router.length_files import LengthFiles, replace_file
from tests.core.fleet_examples import request
from tests.shell.live import CHAT, STREAM, Live, play
from tests.shell.puppet import talk

TRAITS = Traits("m")


def forecasts(*, taught: int = 0) -> Forecasts:
    made = Forecasts(lambda _: 50)
    for number in range(taught):
        one = request()
        made.placed(one, float(number))
        made.settled(Lease(one, "w", 0, 0.0, 10, 10, generated_tokens=400), Outcome.OK, float(number))
    return made


def files(folder: Path, pool: Forecasts, wall: float = 1_000.0, now: float = 500.0) -> LengthFiles:
    return LengthFiles(folder, {"default": pool}, lambda: now, lambda: wall, interval_s=300.0)


def source(made: Forecasts, now: float) -> Source:
    return made.predictor.outlook(TRAITS, now).source


# --- files -----------------------------------------------------------------------------------------------


def test_what_was_learned_outlives_the_process(tmp_path: Path) -> None:
    files(tmp_path / "state", forecasts(taught=40)).save()
    again = forecasts()
    files(tmp_path / "state", again, wall=1_060.0, now=7.0).restore()
    assert source(again, 7.0) is Source.MODEL
    ages = [age for _, age in again.predictor.models["m"].lengths(7.0)]
    assert ages[0] == pytest.approx(500 + 60)


def test_lengths_have_aged_while_nobody_was_there(tmp_path: Path) -> None:
    files(tmp_path, forecasts(taught=40)).save()
    again = forecasts()
    files(tmp_path, again, wall=1_000.0 + 30 * 86_400.0).restore()
    assert source(again, 500.0) is not Source.MODEL


def test_a_clock_that_went_back_ages_nothing(tmp_path: Path) -> None:
    files(tmp_path, forecasts(taught=40)).save()
    again = forecasts()
    files(tmp_path, again, wall=10.0).restore()
    assert source(again, 500.0) is Source.MODEL


def test_a_first_start_begins_with_nothing_and_without_a_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = forecasts()
    files(tmp_path, made).restore()
    assert source(made, 500.0) is Source.UNKNOWN
    assert caplog.records == []


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"\x00\xff",
        b"[]",
        b'{"saved_unix_s": 1}',
        b'{"saved_unix_s": 1, "predictor": {"version": 99}}',
        b'{"saved_unix_s": 1, "predictor": {"version": 1, "prompts": 7}}',
    ],
)
def test_a_damaged_file_is_warned_of_and_begun_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damaged: bytes
) -> None:
    path = files(tmp_path, forecasts()).path("default")
    path.write_bytes(damaged)
    made = forecasts()
    with caplog.at_level(logging.WARNING):
        files(tmp_path, made).restore()
    (record,) = caplog.records
    assert f"since {path} cannot be used" in record.message
    assert source(made, 500.0) is Source.UNKNOWN
    files(tmp_path, forecasts(taught=40)).save()
    files(tmp_path, made).restore()
    assert source(made, 500.0) is Source.MODEL


def test_a_torn_number_does_not_leave_half_of_a_file_behind(tmp_path: Path) -> None:
    made = files(tmp_path, forecasts(taught=40))
    made.save()
    path = made.path("default")
    whole = json.loads(path.read_bytes())
    whole["predictor"]["prompts"] = {"zz": {"tokens": [1], "ages_s": [1.0]}}
    path.write_text(json.dumps(whole))
    again = forecasts()
    files(tmp_path, again).restore()
    assert len(again.predictor.models) == 0


def test_files_are_their_owners_alone_and_hold_no_prompt(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    made = files(folder, forecasts(taught=40))
    made.save()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for path in folder.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert sorted(path.name for path in folder.iterdir()) == ["lengths-default.json", "salt"]


def test_a_file_that_cannot_be_written_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = files(tmp_path, forecasts(taught=40))
    made.save()
    before = made.path("default").read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    made.save()
    assert made.path("default").read_bytes() == before
    assert "cannot be saved" in caplog.records[-1].message
    assert len(list(tmp_path.iterdir())) == 2


def test_a_file_is_replaced_in_one_piece(tmp_path: Path) -> None:
    path = tmp_path / "f"
    replace_file(path, b"old")
    held = path.open("rb")
    replace_file(path, b"new")
    with held:
        assert held.read() == b"old"
    assert path.read_bytes() == b"new"


def test_the_same_prompt_is_known_again_after_a_restart(tmp_path: Path) -> None:
    first, second = forecasts(), forecasts()
    files(tmp_path, first)
    files(tmp_path, second)
    assert first.predictor.salt == second.predictor.salt != b""


def test_a_copy_that_is_being_saved_learns_nothing_any_more() -> None:
    made = forecasts(taught=40)
    made.look_ahead(80, Grouping.EXACT_MATCH)
    copy = made.predictor.copy()
    before = made.predictor.errors()
    made.predictor.learn(TRAITS, made.predictor.outlook(TRAITS, 41.0), 9, 41.0, ended=True)
    assert len(copy.models["m"]) == 40
    assert len(made.predictor.models["m"]) == 41
    assert copy.errors() == before != made.predictor.errors()


# --- the router --------------------------------------------------------------------------------------------


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    async def in_place(work: Any, *args: Any) -> Any:
        return work(*args)

    monkeypatch.setattr(asyncio, "to_thread", in_place)


@pytest.mark.usefixtures("no_threads")
def test_a_router_saves_now_and_then_and_at_its_end_and_goes_on_from_there(tmp_path: Path) -> None:
    state = {"dir": tmp_path, "save_interval_s": 60.0}
    path = tmp_path / "lengths-default.json"

    async def learns(act: Live) -> None:
        for _ in range(40):
            assert (await act.ask(CHAT, STREAM)).status == 200
        assert not path.exists()
        await asyncio.sleep(70)
        assert len(json.loads(path.read_bytes())["predictor"]["models"]["m"]["tokens"]) == 40
        await act.ask(CHAT, STREAM)

    async def knows(act: Live) -> None:
        assert len(json.loads(path.read_bytes())["predictor"]["models"]["m"]["tokens"]) == 41
        task = act.asking(CHAT, STREAM)
        await act.until(lambda: act.pool.in_flight == 1)
        (lease,) = act.pool.ledger.leases
        assert lease.expected_tokens == 4
        await task

    play(learns, {"a": talk}, state=state)
    play(knows, {"a": talk}, state=state)
