"""Multipart bodies: too large to hold, so only their beginning is looked at, for the model.

Clients write plain fields before files, so the model is found in the first bytes. The body passes through
unread and cannot be sent a second time.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping

from router.api.intake import pieces_of
from router.call import Call
from router.core.errors import BodyTooLarge

_HEAD_BYTES = 64 * 1024
_MODEL = re.compile(rb'name="?model"?[^\r\n]*\r\n(?:[^\r\n]+\r\n)*\r\n([^\r\n]{1,512})\r\n', re.IGNORECASE)


def is_multipart(headers: Mapping[bytes, bytes]) -> bool:
    return headers.get(b"content-type", b"").lower().startswith(b"multipart/")


class Form:
    """One multipart body on its way through."""

    def __init__(self, call: Call, max_bytes: int) -> None:
        declared = call.by_name.get(b"content-length", b"")
        self.content_length = int(declared) if declared.isdigit() else None
        self._max_bytes = max_bytes
        if self.content_length is not None and self.content_length > max_bytes:
            raise self._too_large()
        self._rest = pieces_of(call.receive)
        self._head = b""
        self._ended = False

    async def read_head(self) -> None:
        """Reads until the model is found, the body ends, or enough was looked at."""
        while len(self._head) < _HEAD_BYTES and self.model is None:
            piece = await anext(self._rest, None)
            if piece is None:
                self._ended = True
                return
            self._head += piece

    @property
    def model(self) -> str | None:
        found = _MODEL.search(self._head)
        return found[1].decode("utf-8", "replace").strip() if found else None

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body. Raises BodyTooLarge when it turns out to be, ClientGone when the client leaves."""
        size = len(self._head)
        if self._head:
            yield self._head
        if self._ended:
            return
        async for piece in self._rest:
            size += len(piece)
            if size > self._max_bytes:
                raise self._too_large()
            yield piece

    def _too_large(self) -> BodyTooLarge:
        return BodyTooLarge(f"The form is larger than this router accepts ({self._max_bytes} bytes).")
