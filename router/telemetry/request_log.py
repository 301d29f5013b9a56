"""The opt-in request log: bounded in memory, written beside the event loop, salted.

Separate from the records (`record`), which are read where nothing is written, and from the writing itself
(`line_log`): what is special here is the secret that hides the prompts.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import msgspec

from router.telemetry.line_log import LineLog, LineLogSettings, Offload
from router.telemetry.record import Header, RequestRecord

_MIN_SALT_BYTES = 16
_MAX_SALT_BYTES = 64  # what a keyed BLAKE2b takes


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLogSettings(LineLogSettings):
    """Knobs of the request log.

    Attributes:
        salt_file: holds the secret of the hashes, made when missing; None is `<path>.salt`. Routers that
            share it write hashes that can be compared.
    """

    salt_file: Path | None = None


def load_salt(path: Path) -> bytes:
    """The salt kept in `path`, made and stored (readable by the owner alone) when the file is missing.

    It is kept so that hashes stay comparable over restarts and rotations: a prefix that was shared last week
    and is still shared today then looks so. OSError when the file cannot be read or made, ValueError when
    what stands in it is too short to be a secret.
    """
    if not path.exists():
        _make_salt(path)
    salt = path.read_bytes().strip()
    if len(salt) < _MIN_SALT_BYTES:
        raise ValueError(
            f"{path} holds no salt: at least {_MIN_SALT_BYTES} bytes are needed, there are {len(salt)}; "
            "delete it to have a new one made"
        )
    # A key of BLAKE2b has at most 64 bytes; a longer secret is first hashed down to that.
    return salt if len(salt) <= _MAX_SALT_BYTES else blake2b(salt).digest()


def _make_salt(path: Path) -> None:
    """Writes a new salt beside its place and links it there, so that a crash leaves no empty one; of two
    routers that start at once, both read the first."""
    beside = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(secrets.token_hex(_MAX_SALT_BYTES // 2).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(beside, path)
    finally:
        beside.unlink()


class RequestLog(LineLog):
    """Takes records without ever waiting, and writes them.

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
        beside = settings.path.with_name(settings.path.name + ".salt")
        self.salt = load_salt(settings.salt_file or beside)
        """Pass to `PromptKey.blocks`; at most 64 bytes."""
        self._encode = msgspec.json.Encoder().encode
        header = Header(salt_id=blake2b(b"salt id", key=self.salt, digest_size=8).hexdigest())
        super().__init__("request log", settings, self._encode(header), on_drop=on_drop, offload=offload)

    def write(self, record: RequestRecord) -> None:
        """Buffers one line; dropped and counted when the disk has fallen too far behind."""
        self.add(self._encode(record))

    def digest(self, text: str) -> str:
        """A salted hash of something that must not stand in the log itself, 16 hex digits."""
        return blake2b(text.encode("utf-8", "surrogatepass"), key=self.salt, digest_size=8).hexdigest()
