"""Laws of the request log: it never waits, loses lines only with a count, and leaves whole lines behind."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.prompt_key import PromptKey
from router.telemetry.log_file import LogFile
from router.telemetry.record import (
    BLOCK_CHARACTERS,
    Candidate,
    Header,
    Phases,
    Placement,
    RequestRecord,
    read_header,
    read_records,
)
from router.telemetry.request_log import RequestLog, RequestLogSettings, load_salt
from router.virtual.clock import run


def record(name: str = "r1", **given: Any) -> RequestRecord:
    fields = {
        "arrival": 1_700_000_000.25,
        "id": name,
        "model": "m",
        "api": "chat/completions",
        "stream": True,
        "phases": Phases(total_s=1.5),
        "outcome": "ok",
        "status": 200,
    }
    return RequestRecord(**{**fields, **given})


async def inline(call: Callable[[], None]) -> None:
    call()


def opened(path: Path, **given: Any) -> RequestLog:
    on_drop = given.pop("on_drop", lambda lines: None)
    offload = given.pop("offload", inline)
    return RequestLog(RequestLogSettings(path=path, **given), on_drop=on_drop, offload=offload)


def names(path: Path) -> list[str]:
    return [r.id for r in read_records(path)]


# --- records ------------------------------------------------------------------------------------------

texts = st.text(st.characters(codec="utf-8"), max_size=12)
seconds = st.floats(0, 1e6)
costs = st.floats(allow_nan=False, allow_infinity=False)
placements = st.builds(
    Placement, worker=texts, role=texts, policy=texts, reason=texts, cost=costs,
    others=st.lists(st.builds(Candidate, worker=texts, cost=costs), max_size=3).map(tuple),
)  # fmt: skip
counts = st.none() | st.integers(0, 2**40)
records = st.builds(
    RequestRecord,
    arrival=seconds, id=texts, tenant=texts, model=texts, api=texts, stream=st.booleans(),
    prompt_tokens=counts, prompt_tokens_from=st.sampled_from([None, "engine", "ids", "estimate"]),
    max_tokens=counts, n=st.integers(1, 99), priority=st.integers(-9, 9), output_tokens=counts,
    cached_tokens=counts, blocks=st.lists(texts, max_size=3).map(tuple), affinity=st.none() | texts,
    placements=st.lists(placements, max_size=3).map(tuple),
    phases=st.builds(Phases, queued_s=st.none() | seconds, ttft_s=st.none() | seconds, total_s=seconds),
    outcome=texts, status=st.integers(100, 599), error=st.none() | texts, finish_reason=st.none() | texts,
)  # fmt: skip


@settings(deadline=None)
@given(st.lists(records, max_size=5))
def test_records_round_trip(tmp_path_factory: pytest.TempPathFactory, written: list[RequestRecord]) -> None:
    path = tmp_path_factory.mktemp("log") / "requests.jsonl"

    async def write() -> None:
        log = opened(path)
        for each in written:
            log.write(each)
        await log.aclose()

    run(write())
    assert list(read_records(path)) == written


def test_a_line_holds_no_field_that_could_hold_text() -> None:
    assert set(RequestRecord.__struct_fields__) == {
        "arrival", "id", "tenant", "model", "api", "stream", "prompt_tokens", "prompt_tokens_from",
        "max_tokens", "n", "priority", "output_tokens", "cached_tokens", "blocks", "affinity", "placements",
        "phases", "outcome", "status", "error", "finish_reason",
    }  # fmt: skip


def test_fields_of_a_later_version_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "log"
    line = msgspec.json.decode(msgspec.json.encode(record()))
    path.write_bytes(
        msgspec.json.encode(Header()) + b"\n" + msgspec.json.encode({**line, "later": 1}) + b"\n"
    )
    assert list(read_records(path)) == [record()]


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_a_torn_last_line_is_left_out(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "log"
    lines = [msgspec.json.encode(each) + b"\n" for each in (Header(), record("a"), record("b"))]
    path.write_bytes(b"".join(lines)[:-cut])
    assert names(path) == ["a"]


def test_a_broken_line_in_the_middle_is_named(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(msgspec.json.encode(Header()) + b"\n{}\n" + msgspec.json.encode(record()) + b"\n")
    with pytest.raises(ValueError, match=r"line 2 of .* is not a record"):
        list(read_records(path))


@pytest.mark.parametrize(
    ("first", "complaint"),
    [
        (b"", "no header"),
        (b"{}\n", "no header"),
        (b"TIMESTAMP,ContextTokens\n", "no header"),
        (b'{"format": "other", "version": 1}\n', "names the format 'other'"),
        (b'{"format": "pointsman-request-log", "version": 99}\n', "version 99"),
    ],
)
def test_a_file_that_is_no_request_log_is_refused(tmp_path: Path, first: bytes, complaint: str) -> None:
    path = tmp_path / "log"
    path.write_bytes(first)
    with pytest.raises(ValueError, match=complaint):
        list(read_records(path))


# --- salt ---------------------------------------------------------------------------------------------


def test_the_salt_is_kept_beside_the_log_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "log"
    first = opened(path)
    run(first.aclose())
    kept = tmp_path / "log.salt"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    second = opened(path)
    run(second.aclose())
    assert first.salt == second.salt
    assert first.salt.decode() not in path.read_text()


def test_prefixes_stay_comparable_over_restarts_and_only_under_one_salt(tmp_path: Path) -> None:
    ours = tmp_path / "ours"
    ours.write_text("a secret of our own\n")
    logs = [opened(tmp_path / "a"), opened(tmp_path / "b"), opened(tmp_path / "c", salt_file=ours)]
    again = opened(tmp_path / "d", salt_file=ours)
    shared = "s" * BLOCK_CHARACTERS * 2
    short, long = (PromptKey.of_text("m", shared + tail) for tail in ("x", "y" * 300))
    for log in logs:
        one, two = short.blocks(log.salt, BLOCK_CHARACTERS), long.blocks(log.salt, BLOCK_CHARACTERS)
        assert one[:2] == two[:2]
    a, b, c = (short.blocks(log.salt)[0] for log in logs)
    assert len({a, b, c}) == 3
    assert c == short.blocks(again.salt)[0]
    assert logs[2].digest("session") == again.digest("session") != logs[0].digest("session")
    ids = [read_header(tmp_path / name).salt_id for name in "abcd"]
    assert ids[2] == ids[3]
    assert len(set(ids)) == 3
    for log in (*logs, again):
        run(log.aclose())


@pytest.mark.parametrize("size", [16, 64, 65, 1000])
def test_a_salt_of_any_length_serves(tmp_path: Path, size: int) -> None:
    path = tmp_path / "salt"
    path.write_bytes(b"x" * size)
    assert len(PromptKey.of_text("m", "hello").blocks(load_salt(path))) == 1


@pytest.mark.parametrize("content", ["", "hello\n", "x" * 15])
def test_a_salt_that_is_no_secret_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "salt"
    path.write_text(content)
    with pytest.raises(ValueError, match="at least 16 bytes are needed"):
        load_salt(path)


# --- the writer ---------------------------------------------------------------------------------------


def test_lines_are_written_about_every_flush_interval(tmp_path: Path) -> None:
    async def scenario() -> None:
        log = opened(tmp_path / "log", flush_s=1.0)
        task = asyncio.create_task(log.run())
        log.write(record("a"))
        await asyncio.sleep(0.9)
        assert names(tmp_path / "log") == []
        assert repr(log).endswith("log [1 buffered | 0 written | 0 dropped]>")
        await asyncio.sleep(0.2)
        assert names(tmp_path / "log") == ["a"]
        log.write(record("b"))
        task.cancel()
        await log.aclose()
        assert names(tmp_path / "log") == ["a", "b"]
        assert (log.written, log.dropped) == (2, 0)

    run(scenario())


def test_a_half_full_buffer_is_written_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        log = opened(tmp_path / "log", flush_s=3600, buffer_bytes=2_000)
        task = asyncio.create_task(log.run())
        for number in range(8):
            log.write(record(str(number)))
        await asyncio.sleep(0.01)
        assert log.written == 8
        task.cancel()
        await log.aclose()

    run(scenario())


def test_a_slow_disk_costs_lines_and_never_waiting(tmp_path: Path) -> None:
    async def scenario() -> None:
        disk = asyncio.Event()
        lost: list[int] = []

        async def slow(call: Callable[[], None]) -> None:
            await disk.wait()
            call()

        log = opened(tmp_path / "log", buffer_bytes=1_000, on_drop=lost.append, offload=slow)
        task = asyncio.create_task(log.run())
        for number in range(100):
            log.write(record(str(number)))
            await asyncio.sleep(0.1)
        kept = 100 - log.dropped
        assert 0 < kept < 10
        assert sum(lost) == log.dropped
        disk.set()
        await asyncio.sleep(3)
        assert log.written == kept
        log.write(record("after"))
        task.cancel()
        await log.aclose()
        assert names(tmp_path / "log") == [*(str(number) for number in range(kept)), "after"]

    run(scenario())


def test_a_full_disk_is_counted_and_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        full = True

        async def disk(call: Callable[[], None]) -> None:
            if full:
                raise OSError(errno.ENOSPC, "No space left on device")
            call()

        lost: list[int] = []
        log = opened(tmp_path / "log", on_drop=lost.append, offload=disk)
        for name in ("a", "b"):
            log.write(record(name))
            await log.flush()
        full = False
        log.write(record("c"))
        await log.aclose()
        assert lost == [1, 1]
        assert names(tmp_path / "log") == ["c"]

    caplog.set_level(logging.INFO)
    run(scenario())
    assert [r.levelname for r in caplog.records] == ["ERROR", "INFO"]
    assert "loses lines until it can" in caplog.messages[0]
    assert "2 lines were lost" in caplog.messages[1]


def test_cancelling_a_flush_does_not_tear_the_write_that_has_begun(tmp_path: Path) -> None:
    async def scenario() -> None:
        disk = asyncio.Event()

        async def slow(call: Callable[[], None]) -> None:
            await disk.wait()
            call()

        log = opened(tmp_path / "log", offload=slow)
        log.write(record("a"))
        flush = asyncio.create_task(log.flush())
        await asyncio.sleep(0)
        flush.cancel()
        log.write(record("b"))
        asyncio.get_running_loop().call_later(1, disk.set)
        await log.aclose()
        assert names(tmp_path / "log") == ["a", "b"]

    run(scenario())


def test_closing_gives_up_on_a_disk_that_hangs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async def hang(call: Callable[[], None]) -> None:
            await asyncio.Event().wait()

        log = opened(tmp_path / "log", close_s=5.0, offload=hang)
        log.write(record("a"))
        started = asyncio.get_running_loop().time()
        await log.aclose()
        assert asyncio.get_running_loop().time() - started == pytest.approx(5.0)

    run(scenario())
    assert "left unfinished" in caplog.text


async def test_a_real_thread_writes_too(tmp_path: Path) -> None:
    log = RequestLog(RequestLogSettings(path=tmp_path / "log"))
    log.write(record("a"))
    await log.aclose()
    assert names(tmp_path / "log") == ["a"]


# --- the file -----------------------------------------------------------------------------------------


def test_a_renamed_file_is_noticed_and_the_new_one_has_a_header(tmp_path: Path) -> None:
    path = tmp_path / "log"

    async def scenario() -> None:
        log = opened(path)
        log.write(record("a"))
        await log.flush()
        path.rename(tmp_path / "log.1")
        log.write(record("b"))
        await log.flush()
        path.unlink()
        log.write(record("c"))
        await log.aclose()

    run(scenario())
    assert names(tmp_path / "log.1") == ["a"]
    assert names(path) == ["c"]
    assert read_header(path) == read_header(tmp_path / "log.1")


def test_a_file_truncated_in_place_starts_with_a_header_again(tmp_path: Path) -> None:
    path = tmp_path / "log"
    file = LogFile(path, b"header\n")
    file.append(b"a\n")
    os.truncate(path, 0)
    file.append(b"b\n")
    file.close()
    assert path.read_bytes() == b"header\nb\n"


def test_reopening_leaves_the_old_file_even_when_nothing_is_written(tmp_path: Path) -> None:
    path = tmp_path / "log"

    async def scenario() -> None:
        log = opened(path, flush_s=3600)
        task = asyncio.create_task(log.run())
        await asyncio.sleep(0)
        path.rename(tmp_path / "log.1")
        log.reopen()
        await asyncio.sleep(0.01)
        assert names(path) == []
        task.cancel()
        await log.aclose()

    run(scenario())


@settings(deadline=None)
@given(st.binary(max_size=300).filter(lambda tail: b"\n" not in tail))
def test_a_line_torn_by_a_crash_is_taken_off_at_the_next_start(
    tmp_path_factory: pytest.TempPathFactory, tail: bytes
) -> None:
    path = tmp_path_factory.mktemp("log") / "log"
    path.write_bytes(b"header\na\n" + tail)
    file = LogFile(path, b"header\n")
    file.append(b"b\n")
    file.close()
    assert path.read_bytes() == b"header\na\nb\n"


def test_a_torn_line_longer_than_one_read_is_found(tmp_path: Path) -> None:
    path = tmp_path / "log"
    for before in (b"header\n", b""):
        path.write_bytes(before + b"x" * 200_000)
        file = LogFile(path, b"header\n")
        file.append(b"b\n")
        file.close()
        assert path.read_bytes() == b"header\nb\n"


def test_a_write_that_fails_halfway_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log"
    file = LogFile(path, b"header\n")
    file.append(b"a\n")
    write = os.write
    room = 3

    def nearly_full(fd: int, data: bytes) -> int:
        nonlocal room
        if room == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        done = write(fd, data[:room])
        room -= done
        return done

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", nearly_full)
        with pytest.raises(OSError, match="No space left"):
            file.append(b"longer than the room\n")
    file.append(b"b\n")
    file.close()
    assert path.read_bytes() == b"header\na\nb\n"
    assert repr(file) == f"<LogFile {path} [closed]>"


def test_two_writers_of_one_file_are_refused(tmp_path: Path) -> None:
    first = opened(tmp_path / "log")
    with pytest.raises(OSError, match="another process is writing this log"):
        opened(tmp_path / "log")
    run(first.aclose())


def test_a_file_of_another_kind_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b'{"format":"other","version":1}\nsomething without an end')
    file = LogFile(path, b'{"format":"ours","version":2}\n')
    with pytest.raises(OSError, match="another kind of file is there already") as refused:
        file.append(b"a\n")
    assert str(path) in str(refused.value)
    assert path.read_bytes().endswith(b"without an end")
    path.write_bytes(b'{"format":"ours","version":1}\n')
    file.append(b"a\n")
    file.close()
    assert path.read_bytes() == b'{"format":"ours","version":1}\na\n'


def test_a_path_that_cannot_be_written_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        opened(tmp_path / "nowhere" / "log")
    with pytest.raises(IsADirectoryError):
        opened(tmp_path)


def test_a_new_salt_is_there_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "salt"

    def fails(_fd: int) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(OSError, match="disk is full"):
        load_salt(path)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    salt = load_salt(path)
    assert load_salt(path) == salt
    assert list(tmp_path.iterdir()) == [path]
