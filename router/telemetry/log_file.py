"""The file under a log of records: whole lines only, reopened when it is rotated away. Blocking.

Separate from `line_log` because everything here may wait for a disk and runs off the event loop.
"""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

_MODE = 0o640  # tenants and models are nobody else's business
_TAIL_BYTES = 64 * 1024


class LogFile:
    """Appends lines to `path`. One process at a time may hold the file.

    Every write leaves whole lines behind: what a full disk or a crash has cut is taken off again, so only
    the very last line of a file that is being written can be torn.

    Args:
        header: first line of each new file, with its newline.
    """

    def __init__(self, path: Path, header: bytes) -> None:
        self.path = path
        self._header = header
        self._fd: int | None = None
        self.left = False
        """Whether the next `append` must open the file anew."""

    def leave(self) -> None:
        """Ask for a new file. Does not block and may be called from another thread than `append`."""
        self.left = True

    def append(self, lines: bytes) -> None:
        """Write `lines`, opening the file first if it is new, was renamed or was removed.

        OSError when it cannot be opened or written; nothing of `lines` is left in the file then.
        """
        if self._fd is not None and (self.left or self._moved(self._fd)):
            self.close()
        self.left = False
        if self._fd is None:
            self._fd = self._open()
        before = os.fstat(self._fd).st_size
        if before == 0:  # new, or truncated in place by a rotation that copies
            lines = self._header + lines
        try:
            _write_all(self._fd, lines)
        except OSError as error:
            os.ftruncate(self._fd, before)
            raise self._named(error) from error

    def close(self) -> None:
        """Close the file; the next `append` opens it again. Idempotent."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _open(self) -> int:
        fd = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, _MODE)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._refuse_others(fd)
            _drop_torn_line(fd)
        except BlockingIOError as error:
            os.close(fd)
            raise OSError(error.errno, "another process is writing this log", str(self.path)) from error
        except OSError as error:
            os.close(fd)
            raise self._named(error) from error
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _refuse_others(self, fd: int) -> None:
        """Raises OSError for a file that begins as no log of this kind does: it is somebody else's, and
        nobody could read what was appended to it."""
        kind = self._header.partition(b",")[0]  # its format, whatever version follows
        head = os.pread(fd, _TAIL_BYTES, 0)
        if b"\n" in head and not head.startswith(kind):
            raise OSError(errno.EEXIST, "another kind of file is there already")

    def _named(self, error: OSError) -> OSError:
        """The same with the path: whoever reads it in a log must know which disk to look at."""
        return OSError(error.errno, error.strerror, str(self.path))

    def _moved(self, fd: int) -> bool:
        try:
            named = os.stat(self.path)
        except FileNotFoundError:
            return True
        held = os.fstat(fd)
        return (named.st_dev, named.st_ino) != (held.st_dev, held.st_ino)

    def __repr__(self) -> str:
        return f"<LogFile {self.path} [{'closed' if self._fd is None else 'open'}]>"


def _write_all(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def _drop_torn_line(fd: int) -> None:
    end = os.fstat(fd).st_size
    while end:
        start = max(0, end - _TAIL_BYTES)
        newline = os.pread(fd, end - start, start).rfind(b"\n")
        if newline >= 0:
            end = start + newline + 1
            break
        end = start
    os.ftruncate(fd, end)
