"""The opt-in request log: bounded in memory, written beside the event loop, salted.

Separate from the records (`record`) and from the file (`log_file`): this is what the live router holds.

A line is encoded and buffered when a request ends, a few microseconds; a background task hands the buffer to
a thread about once a second. A thread and not the loop, because one write to a busy disk can take a second,
and every stream would stand still for it. A slow disk costs lines, which are counted, never requests.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import msgspec

from router.telemetry.log_file import LogFile
from router.telemetry.record import Header, RequestRecord

_LOG = logging.getLogger(__name__)
_MIN_SALT_BYTES = 16
_MAX_SALT_BYTES = 64  # what a keyed BLAKE2b takes

Offload = Callable[[Callable[[], None]], Awaitable[None]]
"""Runs a blocking call somewhere else and waits for it; in tests, simply runs it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLogSettings:
    """Knobs of the request log.

    Attributes:
        path: the file; a rotation may rename or truncate it at any time.
        salt_file: holds the secret of the hashes, made when missing; None is `<path>.salt`. Routers that
            share it write hashes that can be compared.
        flush_s: seconds between two writes.
        buffer_bytes: lines that may wait for the disk.
        close_s: how long the last write may take at the end.
    """

    path: Path
    salt_file: Path | None = None
    flush_s: float = 1.0
    buffer_bytes: int = 16 * 1024 * 1024
    close_s: float = 5.0


def load_salt(path: Path) -> bytes:
    """The salt kept in `path`, made and stored (readable by the owner alone) when the file is missing.

    It is kept so that hashes stay comparable over restarts and rotations: a prefix that was shared last week
    and is still shared today then looks so. OSError when the file cannot be read or made, ValueError when
    what stands in it is too short to be a secret.
    """
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        salt = path.read_bytes().strip()
    else:
        with os.fdopen(fd, "wb") as file:
            salt = secrets.token_hex(_MAX_SALT_BYTES // 2).encode()
            file.write(salt + b"\n")
    if len(salt) < _MIN_SALT_BYTES:
        raise ValueError(
            f"{path} holds no salt: at least {_MIN_SALT_BYTES} bytes are needed, there are {len(salt)}; "
            "delete it to have a new one made"
        )
    # A key of BLAKE2b has at most 64 bytes; a longer secret is first hashed down to that.
    return salt if len(salt) <= _MAX_SALT_BYTES else blake2b(salt).digest()


class RequestLog:
    """Takes records without ever waiting, and writes them.

    Mutable state: `_lines` with `_buffered_bytes`, the file (touched by one batch at a time), the batch being
    written, and two counts.

    Args:
        on_drop: told of every line that is given up.
        offload: how the blocking write leaves the event loop.

    Raises:
        OSError, ValueError: when the salt cannot be had, or the file cannot be written: better at the start
            than in the middle of the night.
    """

    def __init__(
        self,
        settings: RequestLogSettings,
        *,
        on_drop: Callable[[int], None] = lambda lines: None,
        offload: Offload = asyncio.to_thread,
    ) -> None:
        self._settings = settings
        self._on_drop = on_drop
        self._offload = offload
        beside = settings.path.with_name(settings.path.name + ".salt")
        self.salt = load_salt(settings.salt_file or beside)
        """Pass to `PromptKey.blocks`; at most 64 bytes."""
        header = Header(salt_id=blake2b(b"salt id", key=self.salt, digest_size=8).hexdigest())
        self._encode = msgspec.json.Encoder().encode
        self._file = LogFile(settings.path, self._encode(header) + b"\n")
        self._file.append(b"")
        self._lines: list[bytes] = []
        self._buffered_bytes = 0
        self._wake = asyncio.Event()
        self._batch: asyncio.Task[None] | None = None
        self._failing = False
        self.written = 0
        self.dropped = 0

    def write(self, record: RequestRecord) -> None:
        """Buffer one line; dropped and counted when the disk has fallen too far behind."""
        line = self._encode(record) + b"\n"
        if self._buffered_bytes + len(line) > self._settings.buffer_bytes:
            self._drop(1)
            return
        self._lines.append(line)
        self._buffered_bytes += len(line)
        if self._buffered_bytes > self._settings.buffer_bytes // 2:
            self._wake.set()

    def digest(self, text: str) -> str:
        """A salted hash of something that must not stand in the log itself, 16 hex digits."""
        return blake2b(text.encode("utf-8", "surrogatepass"), key=self.salt, digest_size=8).hexdigest()

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
            self._batch = asyncio.create_task(self._write_batch(), name="request log batch")
            await asyncio.shield(self._batch)

    async def aclose(self) -> None:
        """Write the rest, for at most `close_s`, and close. Call it after `run` has been cancelled."""
        try:
            async with asyncio.timeout(self._settings.close_s):
                await self.flush()
        except TimeoutError:
            _LOG.warning("the request log was left unfinished: its disk did not answer in time")
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
            _LOG.error("the request log cannot be written and loses lines until it can: %s", error)
        elif error is None and self._failing:
            _LOG.info("the request log is written again; %d lines were lost so far", self.dropped)
        self._failing = error is not None

    def __repr__(self) -> str:
        return (
            f"<RequestLog {self._settings.path} "
            f"[{len(self._lines)} buffered | {self.written} written | {self.dropped} dropped]>"
        )
