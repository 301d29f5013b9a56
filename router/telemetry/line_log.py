"""A log that requests write to without waiting: bounded in memory, written beside the event loop.

Separate from what its lines say (`request_log`, `decision_log`) and from the file (`log_file`).

A line is buffered when something has happened, a few microseconds; a background task hands the buffer to a
thread about once a second. A thread and not the loop, because one write to a busy disk can take a second, and
every stream would stand still for it. A slow disk costs lines, which are counted, never requests.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from router.telemetry.log_file import LogFile

log = logging.getLogger("pointsman.records")

Offload = Callable[[Callable[[], None]], Awaitable[None]]
"""Runs a blocking call somewhere else and waits for it; in tests, simply runs it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineLogSettings:
    """Knobs of a log.

    Attributes:
        path: the file; a rotation may rename or truncate it at any time.
        flush_s: seconds between two writes.
        buffer_bytes: lines that may wait for the disk.
        close_s: how long the last write may take at the end.
    """

    path: Path
    flush_s: float = 1.0
    buffer_bytes: int = 16 * 1024 * 1024
    close_s: float = 5.0


class LineLog:
    """Takes lines without ever waiting, and writes them.

    Mutable state: `_lines` with `_buffered_bytes`, the file (touched by one batch at a time), the batch being
    written, and two counts.

    Args:
        name: of the log, for whoever reads of it in another one.
        header: its first line.
        on_drop: told of every line that is given up.
        offload: how the blocking write leaves the event loop.

    Raises:
        OSError: when the file cannot be written: better at the start than in the middle of the night.
    """

    def __init__(
        self,
        name: str,
        settings: LineLogSettings,
        header: bytes,
        *,
        on_drop: Callable[[int], None] = lambda lines: None,
        offload: Offload = asyncio.to_thread,
    ) -> None:
        self.name = name
        self._settings = settings
        self._on_drop = on_drop
        self._offload = offload
        self._file = LogFile(settings.path, header + b"\n")
        self._file.append(b"")
        self._lines: list[bytes] = []
        self._buffered_bytes = 0
        self._wake = asyncio.Event()
        self._batch: asyncio.Task[None] | None = None
        self._failing = False
        self.written = 0
        self.dropped = 0

    def add(self, line: bytes) -> None:
        """Buffers one line, without its newline; dropped and counted when the disk has fallen too far
        behind."""
        line += b"\n"
        if self._buffered_bytes + len(line) > self._settings.buffer_bytes:
            self._drop(1)
            return
        self._lines.append(line)
        self._buffered_bytes += len(line)
        if self._buffered_bytes > self._settings.buffer_bytes // 2:
            self._wake.set()

    def reopen(self) -> None:
        """Go on in a new file, for SIGHUP. Rotation alone is noticed too, at the next write."""
        self._file.leave()
        self._wake.set()

    async def run(self) -> None:
        """Write what is buffered, about every `flush_s`, for ever; to be supervised."""
        while True:
            try:
                async with asyncio.timeout(self._settings.flush_s):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            await self.flush()

    async def flush(self) -> None:
        """Write what is buffered now. A full or failing disk costs these lines and is logged once.

        Cancelling it does not cancel a write that has begun: the next flush waits for that one first, so two
        threads never hold the file.
        """
        if self._batch is not None:
            await asyncio.shield(self._batch)
        if self._batch is None and (self._lines or self._file.left):
            self._batch = asyncio.create_task(self._write_batch(), name=f"{self.name} batch")
            await asyncio.shield(self._batch)

    async def aclose(self) -> None:
        """Write the rest, for at most `close_s`, and close. Call it after `run` has been cancelled."""
        try:
            async with asyncio.timeout(self._settings.close_s):
                await self.flush()
        except TimeoutError:
            log.warning("the %s was left unfinished: its disk did not answer in time", self.name)
            if self._batch is not None:
                self._batch.cancel()
        else:
            self._file.close()

    async def _write_batch(self) -> None:
        lines, size = self._lines, self._buffered_bytes
        self._lines = []
        try:
            await self._offload(lambda: self._file.append(b"".join(lines)))
        except OSError as error:
            self._drop(len(lines))
            self._report(error)
        else:
            self.written += len(lines)
            self._report(None)
        finally:
            self._buffered_bytes -= size  # only now: what is being written still stands in memory
            self._batch = None

    def _drop(self, lines: int) -> None:
        self.dropped += lines
        if lines:
            self._on_drop(lines)

    def _report(self, error: OSError | None) -> None:
        """Log the change between writing and not writing, not each failed write."""
        if error is not None and not self._failing:
            log.error("the %s cannot be written and loses lines until it can: %s", self.name, error)
        elif error is None and self._failing:
            log.info("the %s is written again; %d lines were lost so far", self.name, self.dropped)
        self._failing = error is not None

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} {self._settings.path} "
            f"[{len(self._lines)} buffered | {self.written} written | {self.dropped} dropped]>"
        )
