"""A log of lines waits for no disk, and takes whatever becomes of its file."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.telemetry.log_file import LogFile
from router.telemetry.record import (
    read_header,
)
from router.telemetry.request_log import RequestLog, RequestLogSettings, load_salt
from router.virtual.clock import run
from tests.shell.log_examples import names, opened, record

# --- the writer ------------------------------------------------------------------------------------------


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


# --- the file --------------------------------------------------------------------------------------------


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
